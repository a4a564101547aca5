"""Result rows: one per key and window end, in the state that the user names; what changes is replaced."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import CollectionHandle, CollectionState
from txstorm.row_order import order_of
from txstorm.typed import restored
from txstorm.windows.aggregates.cells import TUPLES, Cells
from txstorm.windows.aggregates.groups import Groups, Mask, Numbers, integers, numbered, ranked, whole
from txstorm.windows.aggregates.panes import WINDOW_END, WINDOW_START
from txstorm.windows.rules.event_time import EARLIEST, LATEST

FIELD = "window_field"
INSTANT = pa.timestamp("us", tz="UTC")


def result_state(table: str, cells: Cells, ttl: timedelta | None) -> CollectionState:
    """Declare the state of the results."""
    values = {cells.bounds.start: INSTANT, **{one.name: one.kind for one in cells.aggregates}}
    order = {cells.bounds.end: INSTANT}
    return CollectionState(table, {one.name: one.kind for one in cells.keys}, values, ttl, order=order)


def results_of(cells: Cells, windows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the result rows of the partial aggregates of whole windows, and those without a result.

    The latter have key, start and end of a window, and `FIELD`: the output field whose type cannot hold the result.
    """
    if not windows.num_rows:
        return _no_results(cells, windows.schema)
    names = [*cells.key_names, WINDOW_START, WINDOW_END]
    of_row = np.zeros(0, np.int64)
    if not integers(windows.column(TUPLES)).all():  # some sums have parts; all of one are combined here
        codes, limit = numbered([whole(windows.column(name)) for name in names], windows.num_rows)
        groups = Groups.of(codes, limit)
        made, of_row = cells.combined(windows, groups)
        first = windows.select(names).take(pa.array(groups.first[of_row]))
        windows = pa.table({**dict(zip(names, first.columns, strict=True)), **made})
    count = int(np.count_nonzero(integers(windows.column(TUPLES))))
    rest, windows, of_rest = windows.slice(count), windows.slice(0, count), of_row[count:]
    rows = _rows(cells, windows, rest, of_rest)
    bounds = [*cells.key_names, *cells.bounds]
    if not rest.num_rows:
        return rows, _no_results(cells, windows.schema)[1]
    over, fields = cells.out_of_range(rest, of_rest)
    without = rows.select(bounds).take(pa.array(over)).append_column(FIELD, pa.array(fields, pa.string()))
    held = np.ones(count, bool)
    held[over] = False
    return rows.filter(pa.array(held)), without


def _rows(cells: Cells, windows: pa.Table, rest: pa.Table, of_rest: Numbers) -> pa.Table:
    of_bounds = zip(cells.bounds, (WINDOW_START, WINDOW_END), strict=True)
    bounds = {name: _instants(windows.column(of)) for name, of in of_bounds}
    keys = {name: windows.column(name) for name in cells.key_names}
    return pa.table({**keys, **bounds, **cells.results(windows, rest, of_rest)})


@lru_cache(64)
def _no_results(cells: Cells, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """Return what `results_of` returns for no windows: most transactions complete none."""
    none = schema.empty_table()
    rows = _rows(cells, none, none, np.zeros(0, np.int64))
    bounds = rows.select([*cells.key_names, *cells.bounds])
    return rows, bounds.append_column(FIELD, pa.array([], pa.string()))


class ResultRows:
    """The result rows of one task in one transaction.

    Args:
        cells: the key and the aggregates.
        handle: the state of the results; None if they are not kept: then none of them changes.
    """

    def __init__(self, cells: Cells, handle: CollectionHandle | None) -> None:
        self._cells = cells
        self._handle = handle
        self._end = cells.bounds.end
        self._identity = [*cells.key_names, self._end]

    def standing(self, rows: pa.Table, names: list[str]) -> pa.Table:
        """Return the columns `names` of the stored rows with the keys and ends of `rows`."""
        ends = rows.column(self._end)
        keys, _ = self._distinct_keys(rows)
        assert self._handle is not None
        found = self._handle.scan_table(keys, pc.min(ends).as_py(), pc.max(ends).as_py()).select(names)
        return found.filter(pa.array(among(found, rows, self._identity)))

    def replace(self, old: pa.Table, new: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Replace the stored rows `old` by `new`; return those that differ, sorted by end and key."""
        if old.num_rows:
            assert self._handle is not None
            old = restored(old, new.schema)
            same = among(old, new, new.column_names)
            new = new.filter(pa.array(~among(new, old, new.column_names)))
            old = old.filter(pa.array(~same))
            ends = integers(old.column(self._end))
            for end in np.unique(ends).tolist():
                keys, _ = self._distinct_keys(old.filter(pa.array(ends == end)))
                at = pa.scalar(end, INSTANT).as_py()
                self._handle.remove_many(keys, at, at)
        if new.num_rows and self._handle is not None:
            self._handle.append_batch(new)
        return self._sorted(old), self._sorted(new)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        if rows.num_rows < 2:
            return rows
        keys = [_order(whole(rows.column(name))) for name in self._cells.key_names]
        return rows.take(pa.array(order_of(integers(rows.column(self._end)), *keys)))

    def _distinct_keys(self, rows: pa.Table) -> tuple[pa.Table, Numbers]:
        """Return the distinct keys of rows, and the number of each row's key."""
        return distinct(rows, self._cells.key_names)


def distinct(rows: pa.Table, names: list[str]) -> tuple[pa.Table, Numbers]:
    """Return the distinct values of some columns, and for each row the number of its values among them."""
    codes, _ = numbered([whole(rows.column(name)) for name in names], rows.num_rows)
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    return rows.select(names).take(pa.array(first)), numbers.astype(np.int64)


def among(rows: pa.Table, others: pa.Table, names: list[str]) -> Mask:
    """Return which rows have the values of `names` that one of the others has."""
    both = pa.concat_tables([rows.select(names), restored(others.select(names), rows.select(names).schema)])
    codes, _ = numbered([whole(column) for column in both.columns], both.num_rows)
    found: Mask = np.isin(codes[: rows.num_rows], codes[rows.num_rows :])
    return found


def _order(column: pa.Array) -> Numbers:
    """Return a number for each value of a key column, in the order of the values, None first."""
    return integers(column) if pa.types.is_int64(column.type) and not column.null_count else ranked(column)


def _instants(column: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.clip(integers(column), EARLIEST, LATEST)).cast(INSTANT)
