"""Tuple buffer: the tuples of a windowed component in its state `<component>-tuples`, by unit and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.state import CollectionHandle, CollectionState, KeyTexts, arrow_type
from txstorm.api.tuples import Origin, Tuple
from txstorm.errors import InputError
from txstorm.misfits import Misfit
from txstorm.tagged import text_of, value_of
from txstorm.typed import column_of, converted
from txstorm.windows.intake import Chunk
from txstorm.windows.plan import WindowPlan
from txstorm.windows.records import StoredInputs
from txstorm.windows.rules.event_time import END, Times
from txstorm.windows.rules.firing import ARRIVAL_BITS, PASSED, Place, Rows

UNIT, TIME, ARRIVAL, SOURCE, FIRES, VALUES = (
    f"window_{name}" for name in ("unit", "time", "arrival", "source", "fires", "values")
)
"""Columns of the buffer: task or key, timestamp, arrival, input and source task, trigger, values."""
PAGE = 8192
"""Number of rows in a page of a window that is not held in memory, or more where they have the same time."""
TASK_BITS = 16
"""Number of low bits of a source that hold the source task; the rest is the index of the input."""


def buffer_state(plan: WindowPlan) -> CollectionState:
    """Declare the buffer of a component."""
    fires = {FIRES: bool} if plan.form.trigger is not None else {}
    values = {VALUES: str} if plan.columns is None else dict(plan.columns)
    return CollectionState(
        f"{plan.id}-tuples",
        key={UNIT: str},
        value={ARRIVAL: int, SOURCE: int, **fires, **values},
        order={TIME: int},
        key_texts=None if plan.key is None else KeyTexts(UNIT),
    )


def typed_columns(plan: WindowPlan, chunk: Chunk) -> dict[str, pa.Array]:
    """Return the columns of tuples with the types that `with_columns` declares; raise `InputError` if one misfits."""
    fields, made = plan.inputs[chunk.number].fields, dict[str, pa.Array]()
    lists = {}
    if isinstance(chunk.values, list):
        lists = dict(zip(fields, zip(*chunk.values, strict=True), strict=True))
    for name, declared in (plan.columns or {}).items():
        kind = arrow_type(declared)
        if name not in fields:
            made[name] = pa.nulls(len(chunk), kind)
            continue
        try:
            column = None if name in lists else chunk.values.column(name)  # type: ignore[union-attr]
            made[name] = column_of(lists[name], kind) if column is None else converted(column, kind)
        except Misfit as error:
            raise InputError(
                f"{plan.id}: field {name!r} of a tuple does not fit the type {kind} that with_columns declares "
                f"({error}); declare a type that holds all its values, or leave with_columns out"
            ) from error.of(name, kind)
    return made


class TupleBuffer:
    """The buffered tuples of one task, in one transaction; the state has their timestamps, all else held times."""

    def __init__(self, plan: WindowPlan, handle: CollectionHandle, inputs: StoredInputs) -> None:
        self._plan = plan
        self._handle = handle
        self._inputs = inputs
        self._shift = plan.form.shift
        self._origins: dict[tuple[int, int], Origin] = {}

    def append(self, rows: pa.Table) -> None:
        """Append rows made by `columns`."""
        if rows.num_rows:
            self._handle.append_batch(self._moved(rows, -self._shift))

    def _moved(self, rows: pa.Table, by: int) -> pa.Table:
        """Return rows with other times."""
        if not by:
            return rows
        return rows.set_column(rows.column_names.index(TIME), TIME, pc.add(rows.column(TIME), by))

    def columns(self, chunk: Chunk, units: pa.Array, times: Times, arrivals: Times) -> pa.Table:
        """Convert the tuples of a chunk to rows of the buffer."""
        source = self._inputs.numbers[chunk.number] << TASK_BITS | chunk.task
        made: dict[str, Any] = {
            UNIT: units,
            TIME: pa.array(times, pa.int64()),
            ARRIVAL: pa.array(arrivals, pa.int64()),
            SOURCE: pa.array(np.full(len(chunk), source, np.int64)),
        }
        if chunk.fires is not None:
            made[FIRES] = pa.array(chunk.fires, pa.bool_())
        if self._plan.columns is None:
            made[VALUES] = pa.array([text_of(list(row), "of a buffered tuple") for row in chunk.rows()], pa.string())
        else:
            made.update(typed_columns(self._plan, chunk))
        return pa.table(made)

    def scan(self, units: Sequence[str], low: Place, high: Place | None) -> pa.Table:
        """Return the rows of `units` of the times from `low` to `high`, including rows of these times outside both."""
        start = self._start(low)
        end = None if high is None or high.time >= END else high.time - self._shift
        if start is not None and end is not None and start > end:
            start = end
        return self._moved(self._handle.scan_table(list(units), start, end), self._shift)

    def _start(self, low: Place) -> int | None:
        """Return the timestamp from which on rows are scanned; None: all."""
        return None if low.time <= -END else low.time - self._shift

    def ranges(self, spans: Mapping[str, tuple[Place, Place]]) -> dict[str, TupleRange]:
        """Return the tuples of several units, each from one place up to another, excluded; one scan reads them all."""
        low = min(first for first, _ in spans.values())
        table = self.scan(list(spans), low, max(last for _, last in spans.values()))
        if len(spans) == 1:
            # Rows of the times of both bounds, but outside: there are many where many tuples have the same time.
            [(start, end)] = spans.values()
            inside = rows_of(table)
            skip = position(inside, start)
            table = table.slice(skip, position(inside, end) - skip)
        loaded = LoadedTuples(self, table)
        found, begin = {}, 0
        for unit, part in by_unit(table):
            rows = rows_of(part)
            first, last = (position(rows, place) for place in spans[unit])
            found[unit] = TupleRange(loaded, begin + first, Rows(rows.times[first:last], rows.arrivals[first:last]))
            begin += part.num_rows
        none = Rows(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return {unit: found.get(unit) or TupleRange(loaded, 0, none) for unit in spans}

    def count(self, unit: str, low: Place, high: Place) -> int:
        """Return the number of tuples of `unit` between two places, without reading their values into memory."""
        return sum(len(page.times) for page, _ in self._pages(unit, low, high))

    def pages(self, unit: str, low: Place, high: Place) -> Iterator[list[Tuple]]:
        """Yield the tuples of `unit` between two places, a page at a time."""
        for _, table in self._pages(unit, low, high):
            yield self.tuples(table)

    def _pages(self, unit: str, low: Place, high: Place) -> Iterator[tuple[Rows, pa.Table]]:
        """Yield the rows between two places in pages of at least `PAGE` rows, which begin where a time begins."""
        start = low
        while start < high:
            few = self.oldest(unit, start, PAGE + 1)
            end = high if len(few.times) <= PAGE else min(high, Place(int(few.times[-1]) + 1, 0))
            table = self.scan([unit], start, end)
            rows = rows_of(table)
            first, last = position(rows, start), position(rows, end)
            if last > first:
                inside = Rows(rows.times[first:last], rows.arrivals[first:last])
                yield inside, table.slice(first, last - first)
            start = end

    def oldest(self, unit: str, low: Place, number: int) -> Rows:
        """Return the first `number` rows of `unit` from place `low` on."""
        start = self._start(low)
        # Rows of the same time as `low`, but before it, come first; how many there are is not known.
        limit, found = number, Rows(np.zeros(0, np.int64), np.zeros(0, np.int64))
        while True:
            given = self._handle.scan(unit, start, None, limit=limit)
            times, arrivals = (np.array([row[part] for row in given], np.int64) for part in (0, 1))
            found = Rows(times + self._shift, arrivals)
            first = position(found, low)
            if len(given) < limit or len(given) - first >= number:
                return Rows(found.times[first : first + number], found.arrivals[first : first + number])
            limit *= 2

    def has(self, unit: str, low: Place, high: Place) -> bool:
        """Return whether `unit` has tuples from the time of `low` on, up to but without the time of `high`."""
        if high.time <= -END or low.time >= high.time:
            return False
        return bool(self._handle.scan(unit, self._start(low), high.time - 1 - self._shift, limit=1))

    def evict(self, needed: Mapping[str, Place]) -> None:
        """Evict the tuples of units that come before a place, but for those of its time; unit → place."""
        if needed:
            places = [place.time - self._shift for place in needed.values()]
            self._handle.evict_batch(pa.table({UNIT: list(needed), TIME: pa.array(places, pa.int64())}))

    def clear(self, units: Sequence[str]) -> None:
        """Remove all tuples of `units`."""
        self._handle.remove_many(units)

    def tuples(self, table: pa.Table) -> list[Tuple]:
        """Convert rows to tuples as the user's code sees them."""
        if not table.num_rows:
            return []
        sources, txids = _numpy(table.column(SOURCE)), _numpy(table.column(ARRIVAL)) % PASSED >> ARRIVAL_BITS
        # Few origins in many rows: each pair is looked up once, and no row makes more than its tuple.
        first = int(txids.min())
        width = int(txids.max()) - first + 1
        pairs = pa.array(sources * width + (txids - first)).dictionary_encode()
        origins = [self._origin(pair // width, first + pair % width) for pair in pairs.dictionary.to_pylist()]
        by_row = repeat(origins[0]) if len(origins) == 1 else map(origins.__getitem__, _numpy(pairs.indices).tolist())
        return list(map(Tuple, self._values(table, sources), by_row))

    def user_table(self, table: pa.Table) -> pa.Table:
        """Convert rows to an Arrow table with the fields of all inputs, None where an input has no such field."""
        plan = self._plan
        if plan.columns is not None:
            return table.select(list(plan.columns))
        fields = [self._inputs.all[source >> TASK_BITS][-1] for source in table.column(SOURCE).to_pylist()]
        texts = table.column(VALUES).to_pylist()
        rows = [dict(zip(names, value_of(text), strict=True)) for names, text in zip(fields, texts, strict=True)]
        made = {}
        for name in plan.union:
            try:
                made[name] = pa.array([row.get(name) for row in rows])
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                msg = f"{plan.id}: the values of field {name!r} have no common Arrow type ({error}); use get()"
                raise InputError(msg) from None
        return pa.table(made)

    def _values(self, table: pa.Table, sources: Times) -> Iterator[tuple[Any, ...]]:
        if self._plan.columns is None:
            return (tuple(value_of(text)) for text in table.column(VALUES).to_pylist())
        lists = {name: table.column(name).to_pylist() for name in self._plan.columns or {}}
        inputs = [[lists[name] for name in fields] for _, _, fields in self._inputs.all]
        if len(inputs) == 1:
            return zip(*inputs[0], strict=True)
        numbers = (sources >> TASK_BITS).tolist()
        return (tuple(column[row] for column in inputs[number]) for row, number in enumerate(numbers))

    def _origin(self, source: int, txid: int) -> Origin:
        origin = self._origins.get((source, txid))
        if origin is None:
            number, task = source >> TASK_BITS, source & ((1 << TASK_BITS) - 1)
            component, stream, fields = self._inputs.all[number]
            origin = Origin(TransactionAttempt(txid, 0), component, stream, task, fields)
            self._origins[source, txid] = origin
        return origin


class LoadedTuples:
    """Rows that were loaded from the buffer, converted to tuples when the first of them is asked for."""

    def __init__(self, buffer: TupleBuffer, rows: pa.Table) -> None:
        self._buffer = buffer
        self._rows = rows
        self._tuples: list[Tuple] | None = None

    def tuples(self, first: int, last: int) -> list[Tuple]:
        """Return tuples by their indices."""
        if self._tuples is None:
            self._tuples = self._buffer.tuples(self._rows)
        return self._tuples[first:last]

    def table(self, first: int, last: int) -> pa.Table:
        """Return tuples by their indices, as an Arrow table."""
        return self._buffer.user_table(self._rows.slice(first, last - first))


class TupleRange:
    """Consecutive tuples of one unit among those that were loaded.

    Args:
        loaded: the tuples that were loaded.
        begin: index of the first of this unit.
        rows: the places of those of this unit.
    """

    def __init__(self, loaded: LoadedTuples, begin: int, rows: Rows) -> None:
        self._loaded = loaded
        self._begin = begin
        self._rows = rows

    def count(self, low: Place, high: Place) -> int:
        """Return the number of tuples between two places."""
        first, last = self._bounds(low, high)
        return last - first

    def tuples(self, low: Place, high: Place) -> list[Tuple]:
        """Return the tuples between two places."""
        return self._loaded.tuples(*self._bounds(low, high))

    def table(self, low: Place, high: Place) -> pa.Table:
        """Return the tuples between two places as an Arrow table."""
        return self._loaded.table(*self._bounds(low, high))

    def _bounds(self, low: Place, high: Place) -> tuple[int, int]:
        first = position(self._rows, low)
        return self._begin + first, self._begin + max(first, position(self._rows, high))


def rows_of(table: pa.Table) -> Rows:
    """Return the places of rows of one unit, and which of them fire."""
    fires = None
    if FIRES in table.column_names:
        fires = pc.fill_null(table.column(FIRES), False).combine_chunks().to_numpy(zero_copy_only=False).astype(bool)
    return Rows(_numpy(table.column(TIME)), _numpy(table.column(ARRIVAL)), fires)


def position(rows: Rows, place: Place) -> int:
    """Return the index of the first of sorted rows that is not before `place`."""
    if place.time >= END:
        return len(rows.times)
    first = int(np.searchsorted(rows.times, place.time, "left"))
    last = int(np.searchsorted(rows.times, place.time, "right"))
    return first + int(np.searchsorted(rows.arrivals[first:last], place.arrival, "left"))


def by_unit(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each unit of a table, whose rows are sorted by unit, with its rows."""
    if not table.num_rows:
        return
    column = table.column(UNIT).combine_chunks()
    changes = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), table.num_rows]
    for first, last in pairwise(starts):
        yield column[first].as_py(), table.slice(first, last - first)


def _numpy(column: pa.ChunkedArray | pa.Array) -> Times:
    one = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array: Times = one.to_numpy(zero_copy_only=False)
    return array.astype(np.int64, copy=False)
