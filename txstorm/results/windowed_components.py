"""Windowed components of a data directory: which there are, how many windows are open, which txid fired a window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.context import EPOCH
from txstorm.api.names import near
from txstorm.errors import InputError
from txstorm.keys import KEY_GROUPS
from txstorm.results.read import list_states
from txstorm.results.views import StateView, committed_txid, read_directory_history
from txstorm.results.windows import PANES, PROGRESS, SESSIONS, TUPLES, ComponentWindows, OpenWindow, time_text
from txstorm.windows.aggregates.cells import TUPLES as COUNT
from txstorm.windows.aggregates.panes import PANE, WINDOW_END, WINDOW_START, Panes
from txstorm.windows.aggregates.partials import GROUP
from txstorm.windows.rules.event_time import END, instant

MOST_COUNTED = 1000


def windowed_components(data_dir: Path) -> list[str]:
    """Return the ids of the windowed components that have tables in a data directory."""
    states = set(list_states(data_dir))
    names = (name.removesuffix(PROGRESS) for name in states if name.endswith(PROGRESS))
    return sorted(name for name in names if states & {name + TUPLES, name + PANES, name + SESSIONS})


def component_windows(data_dir: Path, component: str, txid: int | None = None) -> ComponentWindows:
    """Return the windows of a component, a bolt or an aggregate; errors as `ComponentWindows`."""
    buffers = component + TUPLES in list_states(data_dir)
    return (ComponentWindows if buffers else AggregateWindows)(data_dir, component, txid)


def open_window_counts(data_dir: Path) -> dict[str, int]:
    """Return windowed component → number of open windows that the end of input closes, at most `MOST_COUNTED`.

    Omits components without any: windows that slide by count wait for further tuples.
    """
    found = {}
    for component in windowed_components(data_dir):
        windows = component_windows(data_dir, component)
        if windows.fired != END:
            closing = (one for one in windows.open_windows() if one.end is not None or windows.slides_by_time)
            found[component] = sum(1 for _ in islice(closing, MOST_COUNTED))
    return {component: count for component, count in found.items() if count}


def check_component(data_dir: Path, component: str) -> None:
    """Raise `InputError` if `component` has no windows in a data directory."""
    known = windowed_components(data_dir)
    if component not in known:
        there = f"there are {', '.join(known)}" if known else "no component of it has windows"
        raise InputError(f"{data_dir}: no windows of a component {component!r}{near(component, known)}; {there}")


def txid_that_fired(data_dir: Path, component: str, end: datetime) -> int:
    """Return the txid that fired the windows of `component` that end at `end`: the first whose watermark reached it.

    Raises:
        InputError: the watermark has not reached it, or that txid is no longer kept.
    """
    check_component(data_dir, component)
    wanted = ComponentWindows(data_dir, component).check_end(end)
    txids = read_directory_history(data_dir)["txid"].to_pylist()
    low, high = int(min(txids)), committed_txid(data_dir)
    if not _reached(data_dir, component, high, wanted):
        mark = ComponentWindows(data_dir, component).watermark
        raise InputError(
            f"{component}: the window that ends at {end.isoformat()} has not fired; its watermark is {time_text(mark)} "
            f"as of txid {high}; see: txstorm windows {data_dir} {component}"
        )
    while low < high:
        middle = (low + high) // 2
        if _reached(data_dir, component, middle, wanted):
            high = middle
        else:
            low = middle + 1
    return low


def _reached(data_dir: Path, component: str, txid: int, wanted: int) -> bool:
    mark = ComponentWindows(data_dir, component, txid).fired
    return mark is not None and mark >= wanted


def parsed_time(text: str, option: str) -> datetime:
    """Parse an ISO 8601 time with a zone, or milliseconds since 1970; raise `InputError`, naming `option`."""
    try:
        if text.removeprefix("-").isdecimal():
            return EPOCH + timedelta(milliseconds=int(text))
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        time = None
    if time is None or time.tzinfo is None:
        msg = f"{option} {text!r}: expected a time with a zone, such as 2026-01-31T12:00:00+00:00, or milliseconds"
        raise InputError(msg)
    return time.astimezone(UTC)


class AggregateWindows(ComponentWindows):
    """The windows of a `WindowAggregate`: it keeps partial aggregates, with the numbers of their tuples."""

    @property
    def buffered(self) -> int:
        """Number of tuples in partial aggregates that are kept."""
        return int(pc.sum(self._rows.column(COUNT)).as_py() or 0)

    def open_windows(self) -> Iterator[OpenWindow]:
        """Yield the windows that have tuples and have not fired, by key and end."""
        windows = self._windows
        if self.fired is not None:
            windows = windows.filter(pc.greater(windows.column(WINDOW_END), self.fired))
        names = self._keys
        rows = windows.sort_by([(name, "ascending") for name in (*names, WINDOW_END)])
        for row in rows.to_pylist():
            start, end = instant(row[WINDOW_START]), instant(row[WINDOW_END])
            yield OpenWindow([row[name] for name in names], None, start, end, row[COUNT])

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
            return rows.select([*self._keys, WINDOW_START, WINDOW_END, COUNT])
        span, step = self._duration("length"), self._duration("slide")
        assert span is not None and step is not None
        panes, of_row = Panes(span, step), rows.column(PANE).to_numpy()
        first = panes.first_ends(of_row) + rows.column(GROUP).to_numpy() // KEY_GROUPS * step
        sizes = np.maximum((panes.last_ends(of_row) - first) // step + 1, 0)
        picked = np.repeat(np.arange(len(of_row)), sizes)
        within = np.arange(len(picked)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        ends = first[picked] + within * step
        every = rows.select([*self._keys, COUNT]).take(pa.array(picked)).append_column(WINDOW_END, pa.array(ends))
        found = every.group_by([*self._keys, WINDOW_END]).aggregate([(COUNT, "sum")])
        found = found.rename_columns([*self._keys, WINDOW_END, COUNT])
        return found.append_column(WINDOW_START, pc.subtract(found.column(WINDOW_END), span))
