"""Windows of a data directory as of a txid: watermarks, what holds them back, open windows, buffered and late tuples.

Everything is read from the tables of the windowed components, without their code and beside a live run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.errors import InputError
from txstorm.keys import are_named
from txstorm.results.views import StateView, committed_txid
from txstorm.tagged import value_of
from txstorm.windows.buffer import ARRIVAL, FIRES, SOURCE, TASK_BITS, TIME, UNIT, VALUES
from txstorm.windows.records import COMPONENT, ComponentRecord, UnitRecord
from txstorm.windows.rules.event_time import END, MICROSECOND, Times, instant
from txstorm.windows.rules.firing import ARRIVAL_BITS, PASSED, covering_ends
from txstorm.windows.rules.forms import LEFT

PROGRESS, TUPLES, PANES, SESSIONS = "-progress", "-tuples", "-panes", "-sessions"


@dataclass(frozen=True)
class OpenWindow:
    """A window that has tuples and has not fired.

    Attributes:
        key: its key, a list of values; None for windows per task.
        task: its task; None for windows per key.
        start: None if its length is a count.
        end: None if it is not known yet: its slide is a count.
        tuples: number of its tuples so far.
    """

    key: list[Any] | None
    task: int | None
    start: datetime | None
    end: datetime | None
    tuples: int


class ComponentWindows:
    """The windows of one component as of a transaction.

    `txid`: None for the last committed one.

    Raises:
        StateError: `txid` is not committed, or no longer kept.
    """

    def __init__(self, data_dir: Path, component: str, txid: int | None = None) -> None:
        self.component = component
        self.txid = committed_txid(data_dir) if txid is None else txid
        self._data_dir = data_dir
        rows = StateView(data_dir, component + PROGRESS, txid).to_pylist()
        texts = {row["unit"]: row["record"] for row in rows}
        self._record = ComponentRecord.read(texts.pop(COMPONENT, None))
        self._units = {name: UnitRecord.read(text) for name, text in texts.items()}

    @property
    def declared(self) -> Mapping[str, Any]:
        """Form, key, time and policy of the windows; empty before the first transaction."""
        return self._record.declared or {}

    @property
    def watermark(self) -> int | None:
        """The watermark in UTC microseconds, `END` at the end of input; of processing-time windows, the last stamp."""
        return self._record.progress.watermark

    @property
    def fired(self) -> int | None:
        """The time up to which all windows have fired: the watermark, unless ends wait for the next transactions."""
        return self._record.ends.fired

    @property
    def ahead(self) -> int:
        """Number of tuples so far that were too far ahead of the stamps of their transactions."""
        return sum(self._record.ahead.values())

    @property
    def waiting(self) -> int:
        """Number of ends that the watermark has reached, but that have not fired."""
        return self._record.ends.waiting

    @property
    def frontier(self) -> int | None:
        """The last end that has fired, for windows that slide by time; otherwise None."""
        step, reached = self._duration("slide"), self.fired
        return None if step is None or reached is None or reached == END else reached // step * step

    @property
    def event_time(self) -> bool:
        """Whether the windows are of event time."""
        return bool(self.declared.get("time", {}).get("timestamp"))

    def inputs(self) -> list[dict[str, Any]]:
        """Return each input with its newest timestamps by partition, whether it holds the watermark back, and lates.

        An input without data, or the one (and its partition) with the least newest timestamp, holds it back; unless
        the policy is ``max``, then it is the one with the greatest. Idle and ended inputs do not, but are not known
        here.
        """
        every, late = self._about.get("inputs", []), Counter[tuple[str, str]]()
        for unit in self._units.values():
            for number, count in unit.late:
                late[tuple(every[number][:2])] += count
        newest, found, times = self._record.progress.newest, [], list[int | None]()
        for number in self._about.get("read", range(len(every))):
            component, stream, _ = every[number]
            parts = {part: one for (of, part), one in newest.items() if of == number}
            least = min(parts.items(), key=lambda item: item[1].time, default=None)
            times.append(None if least is None else least[1].time)
            found.append(
                {
                    "component": component,
                    "stream": stream,
                    "newest": time_text(times[-1]),
                    "partitions": {part: time_text(one.time) for part, one in sorted(parts.items()) if part},
                    "slowest_partition": (least[0] or None) if least is not None else None,
                    "late": late[component, stream],
                }
            )
        choose = max if self.declared.get("policy") == "max" else min
        known = [time for time in times if time is not None]
        last = None if choose is min and len(known) < len(times) else choose(known, default=-1)
        ended = not self.event_time or self.watermark == END
        return [{**one, "holds_back": not ended and time == last} for one, time in zip(found, times, strict=True)]

    @property
    def late(self) -> int:
        """Number of late tuples so far."""
        return sum(count for unit in self._units.values() for _, count in unit.late)

    @property
    def buffered(self) -> int:
        """Number of buffered tuples."""
        return int(self._buffer.num_rows)

    def open_windows(self) -> Iterator[OpenWindow]:
        """Yield the windows that have tuples and have not fired, by unit and end.

        Of windows that slide by count, the tuples that came after the last one fired are shown as one.
        """
        for name, rows in self._by_unit():
            state = self._units.get(name, UnitRecord()).state
            times = self._held(rows)
            key, task = self._named(name)
            step, span = self._duration("slide"), self._duration("length")
            if state.open:
                for one in state.open:
                    count = int(np.searchsorted(times, one.end) - np.searchsorted(times, one.start))
                    yield OpenWindow(key, task, instant(one.start), instant(one.end), count)
            elif step is not None and span is not None:
                for end in covering_ends(times, step, span, self.fired, None):
                    count = int(np.searchsorted(times, end, "right") - np.searchsorted(times, end - span, "right"))
                    yield OpenWindow(key, task, instant(end - span), instant(end), count)
            else:
                waiting = state.counted + self._uncounted(rows, times, state.covered)
                if waiting:
                    yield OpenWindow(key, task, None, None, waiting)

    def _held(self, rows: pa.Table) -> Times:
        """Return the held times of rows: see `txstorm.windows.rules.forms`."""
        times: Times = rows.column(TIME).to_numpy()
        return times + 1 if self.declared.get("windows", {}).get("closed") == LEFT else times

    def _uncounted(self, rows: pa.Table, times: Times, covered: tuple[int, int]) -> int:
        arrivals = rows.column(ARRIVAL).to_numpy()
        after = (times > covered[0]) | ((times == covered[0]) & (arrivals >= covered[1]))
        return int(after.sum())

    def check_end(self, end: datetime) -> int:
        """Return the end of a window in microseconds; raise `InputError` if no window of the component ends there."""
        micros, step = (end - instant(0)) // MICROSECOND, self._duration("slide")
        if step is not None and micros % step:
            near_by = " and ".join(instant(micros // step * step + of).isoformat() for of in (0, step))
            msg = f"{self.component}: no window ends at {end.isoformat()}; the ends before and after are {near_by}"
            raise InputError(msg)
        return micros

    def tuples(self, end: datetime, key: Sequence[Any] | None = None) -> pa.Table:
        """Return the buffered tuples of one window, by unit, time and arrival.

        `key`: None for those of all keys or tasks.

        Raises:
            InputError: no tuple of such a window is buffered as of this txid, or it slides by count.
        """
        parts = [self._shown(name, rows) for name, rows in self._parts(end, key)]
        if parts:
            return pa.concat_tables(parts, promote_options="permissive")
        raise InputError(
            f"{self.component}: no tuple of a window that ends at {end.isoformat()} is buffered as of txid "
            f"{self.txid}; when a window has fired, its tuples go: look as of the transaction before, with --txid, and "
            f"at the open windows with: txstorm windows {self._data_dir} {self.component}"
        )

    def buffered_tuples(self, end: datetime | None = None, key: Sequence[Any] | None = None) -> list[dict[str, Any]]:
        """Return the buffered tuples, of all windows or of those that end at `end`, by unit, time and arrival.

        Each has ``key`` (None for windows per task), ``task`` (None for windows per key), ``time``, ``input`` (the
        component and its stream), ``txid`` and ``values`` (field → value).

        Raises:
            InputError: no window ends at `end`.
        """
        inputs, found = self._about.get("inputs", []), list[dict[str, Any]]()
        for name, rows in self._parts(end, key):
            named, task = self._named(name)
            for row in rows.to_pylist():
                component, stream, fields = inputs[row[SOURCE] >> TASK_BITS]
                values = value_of(row[VALUES]) if VALUES in row else [row.get(one) for one in fields]
                found.append(
                    {
                        "key": named,
                        "task": task,
                        "time": instant(row[TIME]),
                        "input": (component, stream),
                        "txid": row[ARRIVAL] >> ARRIVAL_BITS,
                        "values": dict(zip(fields, values, strict=True)),
                    }
                )
        return found

    def _parts(self, end: datetime | None, key: Sequence[Any] | None) -> Iterator[tuple[str, pa.Table]]:
        """Yield unit and buffered rows of the windows that end at `end`, None: of all, for one key or all units."""
        micros = None if end is None else self.check_end(end)
        span, number = self._duration("length"), self.declared.get("windows", {}).get("length", {})
        for name, rows in self._by_unit():
            if key is not None and not are_named(self._named(name)[0] or [], key):
                continue
            low, high = 0, rows.num_rows
            if micros is not None:
                low, high = self._range(name, self._held(rows), micros, span, number)
            if low < high:
                yield name, rows.slice(low, high - low)

    def _range(self, name: str, times: Times, end: int, span: int | None, length: Mapping[str, Any]) -> tuple[int, int]:
        if self.is_session:
            state = self._units.get(name, UnitRecord()).state
            for one in state.open:
                if one.end == end:
                    return int(np.searchsorted(times, one.start)), int(np.searchsorted(times, end))
            return 0, 0
        high = int(np.searchsorted(times, end, "right"))
        if span is not None:
            return int(np.searchsorted(times, end - span, "right")), high
        return max(0, high - length.get("tuples", 0)), high

    @property
    def slides_by_time(self) -> bool:
        """Whether the windows slide by a duration."""
        return self._duration("slide") is not None

    @property
    def is_session(self) -> bool:
        """Whether the windows are sessions."""
        return "gap" in self.declared.get("windows", {})

    def _shown(self, name: str, rows: pa.Table) -> pa.Table:
        """Return rows of the buffer as a reader wants them: key or task, time, origin, values."""
        inputs = self._about["inputs"]
        sources, arrivals = rows.column(SOURCE).to_pylist(), rows.column(ARRIVAL).to_pylist()
        key, task = self._named(name)
        shown = {
            "unit": [", ".join(map(str, key or ())) if task is None else str(task)] * rows.num_rows,
            "time": pc.cast(rows.column(TIME), pa.timestamp("us", "UTC")),
            "input": ["/".join(inputs[source >> TASK_BITS][:2]) for source in sources],
            "txid": [arrival % PASSED >> ARRIVAL_BITS for arrival in arrivals],
        }
        if VALUES in rows.column_names:
            texts = rows.column(VALUES).to_pylist()
            values = [
                dict(zip(inputs[source >> TASK_BITS][2], value_of(text), strict=True))
                for source, text in zip(sources, texts, strict=True)
            ]
            return pa.table({**shown, "values": [str(one) for one in values]})
        own = [one for one in rows.column_names if one not in (UNIT, TIME, ARRIVAL, SOURCE, FIRES)]
        return pa.table({**shown, **{one: rows.column(one) for one in own}})

    def to_json(self, limit: int) -> dict[str, Any]:
        """Return all of it as JSON values, with at most `limit` open windows."""
        opened = list(islice(self.open_windows(), limit + 1))
        return {
            "component": self.component,
            "txid": self.txid,
            "windows": self.declared.get("windows"),
            "key": self.declared.get("key"),
            "event_time": self.event_time,
            "watermark": time_text(self.watermark),
            "frontier": time_text(self.frontier),
            "inputs": self.inputs(),
            "buffered": self.buffered,
            "late": self.late,
            "ahead": self.ahead,
            "waiting": self.waiting,
            "open": [
                {
                    "key": one.key,
                    "task": one.task,
                    "start": None if one.start is None else one.start.isoformat(),
                    "end": None if one.end is None else one.end.isoformat(),
                    "tuples": one.tuples,
                }
                for one in opened[:limit]
            ],
            "more_open": len(opened) > limit,
        }

    def _duration(self, name: str) -> int | None:
        part = self.declared.get("windows", {}).get(name)
        return part.get("microseconds") if isinstance(part, Mapping) else None

    @property
    def _about(self) -> Mapping[str, Any]:
        return self._record.about or {}

    def _named(self, unit: str) -> tuple[list[Any] | None, int | None]:
        values = value_of(unit)
        return (None, int(values[0])) if self.declared.get("key") is None else (values, None)

    @cached_property
    def _buffer(self) -> pa.Table:
        rows = StateView(self._data_dir, self.component + TUPLES, self.txid).to_arrow()
        return rows.sort_by([(UNIT, "ascending"), (TIME, "ascending"), (ARRIVAL, "ascending")])

    def _by_unit(self) -> Iterator[tuple[str, pa.Table]]:
        if not self._buffer.num_rows:
            return
        runs = pc.run_end_encode(self._buffer.column(UNIT).combine_chunks())
        begin = 0
        for name, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield name, self._buffer.slice(begin, stop - begin)
            begin = stop


def time_text(time: int | None) -> str | None:
    """Return a time in ISO 8601, or ``end of input``; None if it is undefined."""
    if time is None:
        return None
    return "end of input" if time == END else instant(time).isoformat()
