"""Windows of an aggregate as of a txid: open windows and sessions, from their partial aggregates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.errors import InputError
from txstorm.keys import KEY_GROUPS
from txstorm.results.views import StateView
from txstorm.results.windows import PANES, SESSIONS, ComponentWindows, OpenWindow
from txstorm.windows.aggregates.cells import TUPLES
from txstorm.windows.aggregates.panes import PANE, WINDOW_END, WINDOW_START, Panes
from txstorm.windows.aggregates.partials import GROUP
from txstorm.windows.rules.event_time import instant


class AggregateWindows(ComponentWindows):
    """The windows of a `WindowAggregate`: it keeps partial aggregates, with the numbers of their tuples."""

    @property
    def buffered(self) -> int:
        """Number of tuples in partial aggregates that are kept."""
        return int(pc.sum(self._rows.column(TUPLES)).as_py() or 0)

    def open_windows(self) -> Iterator[OpenWindow]:
        """Yield the windows that have tuples and have not fired, by key and end."""
        windows = self._windows
        if self.fired is not None:
            windows = windows.filter(pc.greater(windows.column(WINDOW_END), self.fired))
        names = self._keys
        rows = windows.sort_by([(name, "ascending") for name in (*names, WINDOW_END)])
        for row in rows.to_pylist():
            start, end = instant(row[WINDOW_START]), instant(row[WINDOW_END])
            yield OpenWindow([row[name] for name in names], None, start, end, row[TUPLES])

    def _parts(self, end: datetime | None, key: Sequence[str] | None) -> Iterator[tuple[str, pa.Table]]:
        """Raise `InputError`: an aggregate keeps no tuples."""
        window = "" if end is None else f" of the window that ends at {end.isoformat()}"
        raise InputError(
            f"{self.component}: an aggregate keeps no tuples, only numbers per key and part of a window, so those"
            f"{window} cannot be listed; its open windows: txstorm windows {self._data_dir} {self.component}"
        )

    @property
    def _keys(self) -> list[str]:
        return list(self.declared.get("key") or ())

    @cached_property
    def _rows(self) -> pa.Table:
        kept = SESSIONS if self.is_session else PANES
        return StateView(self._data_dir, self.component + kept, self.txid).to_arrow()

    @cached_property
    def _windows(self) -> pa.Table:
        """The windows that the kept tuples are in: key, start, end and number of tuples."""
        rows = self._rows
        if self.is_session:
            return rows.select([*self._keys, WINDOW_START, WINDOW_END, TUPLES])
        span, step = self._duration("length"), self._duration("slide")
        assert span is not None and step is not None
        panes, of_row = Panes(span, step), rows.column(PANE).to_numpy()
        first = panes.first_ends(of_row) + rows.column(GROUP).to_numpy() // KEY_GROUPS * step
        sizes = np.maximum((panes.last_ends(of_row) - first) // step + 1, 0)
        picked = np.repeat(np.arange(len(of_row)), sizes)
        within = np.arange(len(picked)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        ends = first[picked] + within * step
        every = rows.select([*self._keys, TUPLES]).take(pa.array(picked)).append_column(WINDOW_END, pa.array(ends))
        found = every.group_by([*self._keys, WINDOW_END]).aggregate([(TUPLES, "sum")])
        found = found.rename_columns([*self._keys, WINDOW_END, TUPLES])
        return found.append_column(WINDOW_START, pc.subtract(found.column(WINDOW_END), span))
