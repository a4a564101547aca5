"""Collections: ordered rows per key, with the handles of their committers and the rows of unpublished txids.

A collection is stored as a keyed state with one key per row: the collection's key, the row's position in the order, and
a sequence number that distinguishes rows with the same position. So its rows are staged, published, compacted and read
like those of any state; this module adds appending rows and reading them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import CollectionState, KeyedState
from txstorm.errors import StateError
from txstorm.state.index.ordered_index import CollectionIndex
from txstorm.state.index.ordered_rows import (
    CollectionKey,
    Columns,
    OrderedRows,
    Place,
    ScanRange,
    filled,
    over,
    placed_columns,
)
from txstorm.state.keyed import StateGroup
from txstorm.state.unpublished import TaskWrites, TxidWrites, UnpublishedRows, WriteBatch, latest_rows
from txstorm.storage.rows.columns import Column, python_values, shown
from txstorm.storage.rows.forms import Arrays, Key, KeyForm, Value
from txstorm.storage.rows.schema import PLACE, SEQUENCE, STAMP, order_field
from txstorm.storage.rows.update_rules import Gone, Stored

COUNT_BITS = 24
"""Number of low bits of a sequence number, which count the rows of one txid in a collection; the rest is the txid."""


class TaskCollection(TaskWrites):
    """Implementation of `txstorm.api.state.CollectionHandle`, for one task in one txid."""

    def __init__(self, group: CollectionGroup, component: str, task: int, txid: int) -> None:
        self._rows: OrderedRows[Value | None] = OrderedRows()
        super().__init__(group.state.name, component, task, txid, self._rows)
        self._group = group
        self._counts: dict[CollectionKey, int] = {}

    def append(self, key: Key, at: Any, *values: Any) -> None:
        """Append one row to the collection of `key`, at position `at` in its order."""
        self.append_many([(key, at, *values)])

    def append_many(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append many rows, each a tuple ``(key, at, *values)``."""
        self._check_active()
        group, given = self._group, list(rows)
        width = PLACE + len(group.values.names)
        for row in given:
            if not isinstance(row, tuple | list) or len(row) != width:
                names = ["key", group.order.name, *group.values.names]
                raise self._error(f"expected rows ({', '.join(names)}), got {shown(row)}")
        if given:
            keys, orders, *columns = zip(*given, strict=True)
            owners, key_arrays = group.owners.checked(list(keys), self._where)
            places, order_array = group.order.checked(orders, lambda i: f"key {shown(keys[i])} ({self._where})")
            self._check_placed(owners, places)
            values, value_arrays = group.values.rows(columns, owners, self._where)
            self._append(group.tuples(owners), places, [*key_arrays, order_array], values, value_arrays)

    def append_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append the rows of a `pyarrow.RecordBatch` or `Table` that has the key, order and value columns."""
        self._check_active()
        group = self._group
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        arrays = [self._taken(table, one) for one in (*group.owners.columns, group.order, *group.values.columns)]
        if not table.num_rows:
            return
        width = len(group.owners.columns)
        *keys, orders = map(python_values, arrays[: width + 1])
        owners = list(zip(*keys, strict=True)) if keys else [()] * table.num_rows
        self._check_placed(owners, orders)
        values = list(zip(*map(python_values, arrays[width + 1 :]), strict=True))
        self._append(owners, orders, arrays[: width + 1], values, arrays[width + 1 :])

    def scan(
        self, key: Key, start: Any = None, end: Any = None, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[Any, ...]]:
        """Return at most `limit` rows of `key` from position `start` to `end`, both inclusive, in order or reversed.

        None stands for the lowest or highest position, or for no limit.
        """
        (rows,) = self._there([key], self._span(start, end, limit, reverse=reverse)).values()
        return self._public(rows)

    def scan_many(
        self,
        keys: Iterable[Key],
        start: Any = None,
        end: Any = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> dict[Key, list[tuple[Any, ...]]]:
        """Return ``{key: rows}`` for the `keys` that have rows from position `start` to `end`; rows as from `scan`."""
        found = self._there(keys, self._span(start, end, limit, reverse=reverse))
        return {self._group.public(owner): self._public(rows) for owner, rows in found.items() if rows}

    def scan_table(self, keys: Iterable[Key], start: Any = None, end: Any = None) -> pa.Table:
        """Return the rows of `keys` from position `start` to `end` as a table with the columns of `append_batch`."""
        self._check_active()
        group, span = self._group, self._span(start, end)
        owners = self._owners(keys)
        found = group.columns(owners, span, self._txid)
        if self.wrote:
            self._spread()
            found = found.over([self._rows.scan(owner, span) for owner in owners], group.values)
        return group.table(owners, found)

    def remove(self, key: Key, start: Any = None, end: Any = None) -> int:
        """Remove the rows of `key` from position `start` to `end`; return the number removed."""
        return self.remove_many([key], start, end)

    def remove_many(self, keys: Iterable[Key], start: Any = None, end: Any = None) -> int:
        """Remove the rows of many keys from position `start` to `end`; return the number removed."""
        found = self._there(keys, self._span(start, end))
        gone = {(*owner, *place): value for owner, rows in found.items() for place, value in rows}
        writes, olds = self.writes, self.olds
        for key, value in gone.items():
            if key not in writes:
                olds[key] = value
        writes.update(dict.fromkeys(gone))
        return len(gone)

    def _append(
        self,
        owners: Sequence[CollectionKey],
        places: Sequence[Any],
        key_arrays: Arrays,
        values: list[Value],
        made: Arrays,
    ) -> None:
        numbers = [self._number(owner) for owner in owners]
        keys = [(*owner, place, number) for owner, place, number in zip(owners, places, numbers, strict=True)]
        arrays = [*key_arrays, pa.array(numbers, SEQUENCE.type)]
        rows = WriteBatch(keys, values, [None] * len(keys), arrays, made)
        self._write(self._group.stamped(rows, self._txid), distinct=True)

    def _number(self, owner: CollectionKey) -> int:
        count = self._counts[owner] = self._counts.get(owner, -1) + 1
        if count >> COUNT_BITS:
            raise self._error(f"key {shown(owner)} gets more than {1 << COUNT_BITS} rows in one txid; use smaller ones")
        return self._txid << COUNT_BITS | count

    def _there(self, keys: Iterable[Key], span: ScanRange) -> dict[CollectionKey, list[tuple[Place, Value]]]:
        """Return the rows of `keys` in `span`, including the task's own writes, keyed by collection."""
        self._check_active()
        owners = self._owners(keys)
        if not self.wrote:
            return dict(zip(owners, self._group.scan(owners, span, self._txid), strict=True))
        self._spread()

        def read(some: Sequence[CollectionKey], part: ScanRange) -> list[list[tuple[Place, Value]]]:
            return self._group.scan(some, part, self._txid)

        def settle(owner: CollectionKey, rows: list[tuple[Place, Value]], part: ScanRange) -> list[tuple[Place, Value]]:
            return _seen(rows, self._rows.scan(owner, part), backwards=part.backwards)

        return dict(zip(owners, filled(read, settle, owners, span), strict=True))

    def _owners(self, keys: Iterable[Key]) -> list[CollectionKey]:
        return list(dict.fromkeys(self._group.tuples(self._group.owners.canonical(keys, self._where))))

    def _span(self, start: Any, end: Any, limit: int | None = None, *, reverse: bool = False) -> ScanRange:
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise self._error(f"expected a limit that is an int above 0, or None, got {shown(limit)}")
        order = self._group.order
        given, ends = (start, end), self._group.ends
        first, last = order.canonical(given, lambda i: f"{('start', 'end')[i]} of a range ({self._where})")
        lowest, highest = ends[0] if first is None else first, ends[1] if last is None else last
        if lowest > highest:
            raise self._error(f"expected a range with start <= end, got {shown(start)} to {shown(end)}")
        return ScanRange.of(lowest, highest, limit, backwards=reverse)

    def _public(self, rows: Sequence[tuple[Place, Value]]) -> list[tuple[Any, ...]]:
        values = self._group.values.tuples([value for _, value in rows])
        return [(place[0], *value) for (place, _), value in zip(rows, values, strict=True)]

    def _taken(self, table: pa.Table, column: Column) -> pa.Array:
        if table.column_names.count(column.name) != 1:
            raise self._error(f"append_batch expected one column {column.name!r}, got {table.column_names}")
        return pa.concat_arrays(column.conformed(table[column.name], self._where).chunks or [column.array([])])

    def _check_placed(self, owners: Sequence[Key], places: Sequence[Any]) -> None:
        for owner, place in zip(owners, places, strict=True):
            if place is None:
                name = self._group.order.name
                raise self._error(f"key {shown(owner)}: expected a value of the order column {name!r}, got None")

    def _error(self, what: str) -> StateError:
        return StateError(f"state {self._name!r} ({self._where}): {what}")


class CollectionGroup(UnpublishedRows[TaskCollection]):
    """Writes of unpublished txids to a collection state, as an overlay on its index.

    Attributes:
        owners: the converter for the keys of the collections.
        order: the order column.
        ends: the lowest and the highest possible value of the order column.
    """

    accessor = "collection"
    holds = "collections"
    state: CollectionState

    def __init__(self, state: CollectionState, index: CollectionIndex) -> None:
        super().__init__(state, index)
        self.owners = KeyForm(KeyedState(state.name, state.key, state.value))
        self.order = Column(f"state {state.name!r}", "order column", order_field(state))
        self.ends = _ends(self.order.field.type)
        self._placed = index

    def tuples(self, keys: Sequence[Key]) -> list[CollectionKey]:
        """Convert collection keys to canonical tuples of their column values."""
        return [(key,) for key in keys] if len(self.owners.columns) == 1 else list(keys)

    def public(self, owner: CollectionKey) -> Key:
        """Convert a collection's key from its canonical tuple to the form that users see."""
        return owner[0] if len(self.owners.columns) == 1 else owner

    def scan(self, owners: Sequence[CollectionKey], span: ScanRange, txid: int) -> list[list[tuple[Place, Value]]]:
        """Read positions and values of the rows in `span` of each of `owners` before `txid`, which is the next to end.

        Raises:
            StateError: a row was written by a txid later than `txid`.
        """
        overlay = self._ordered  # read before the index, as in `before`

        def settle(
            owner: CollectionKey, rows: list[tuple[Place, Stored]], part: ScanRange
        ) -> list[tuple[Place, Value]]:
            found: list[tuple[Place, Stored | Gone]] = [*rows]
            if overlay:
                found = over(found, overlay.scan(owner, part), backwards=part.backwards)
            return self._as_of(found, txid)

        return filled(self._placed.scan, settle, owners, span)

    def columns(self, owners: Sequence[CollectionKey], span: ScanRange, txid: int) -> Columns:
        """Like `scan`, but return columns; `span` must not have a row limit."""
        overlay = self._ordered
        found = self._placed.columns(owners, span)
        if found is None or self._index.last_txid >= txid:  # rows may already carry `txid` or a later txid
            return placed_columns(self.scan(owners, span, txid), self.values)
        later = [[(place, row[0]) for place, row in overlay.scan(owner, span)] for owner in owners]
        return self._living(found.over(later, self.values), txid)

    def table(self, owners: Sequence[CollectionKey], rows: Columns) -> pa.Table:
        """Convert the `rows` of `owners` to a table with the columns that users see."""
        numbers, kind = pa.array(rows.owners), self.order.field.type
        keys = [array.take(numbers) for array in self.owners.arrays([self.public(owner) for owner in owners])]
        columns = [*keys, pa.array(rows.orders).cast(kind), *rows.values[: len(self.values.columns)]]
        return pa.table(columns, names=[*self.owners.names, self.order.name, *self.values.names])

    def _living(self, rows: Columns, txid: int) -> Columns:
        """Drop the rows that have expired as of the stamp of `txid`."""
        if self.state.ttl is None:
            return rows
        over = pa.scalar(self._stamps[txid] - self.state.ttl, STAMP.type)
        return rows.taken(pc.greater(rows.values[-1], over).to_numpy(zero_copy_only=False))

    @property
    def _ordered(self) -> OrderedRows[Stored | Gone]:
        overlay = self._overlay
        assert isinstance(overlay, OrderedRows)
        return overlay

    def _as_of(self, rows: Sequence[tuple[Place, Stored | Gone]], txid: int) -> list[tuple[Place, Value]]:
        if self._index.last_txid >= txid:
            values = [self._base(place, row, txid) for place, row in rows]
        else:
            values = [row[0] for _, row in rows]
        there = zip(rows, self.alive(values, txid), strict=True)
        return [(place, value) for (place, _), value in there if value is not None]

    def claims(self, handle: TaskCollection) -> set[Key]:
        """Return the keys of the collections changed by a task; no other task may change them in the same txid."""
        return {key[:-PLACE] for key in handle.writes}

    def _new_handle(self, component: str, task: int, txid: int) -> TaskCollection:
        return TaskCollection(self, component, task, txid)

    def _over(self, ended: Sequence[TxidWrites]) -> dict[Key, Stored | Gone]:
        return OrderedRows(latest_rows(ended))

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], TaskCollection]) -> TxidWrites | None:
        writers = [handle for handle in tasks.values() if handle.wrote]
        claims = [self.claims(handle) for handle in writers] if len(writers) > 1 else []
        if claims and len(set().union(*claims)) < sum(map(len, claims)):
            raise StateError(self.two_writers(txid, tasks))
        return super()._together(txid, tasks)


def state_group(state: KeyedState, index: Any) -> StateGroup | CollectionGroup:
    """Create the group of unpublished rows of `state`; `index`: see `txstorm.state.index.ordered_index.state_index`."""
    return CollectionGroup(state, index) if isinstance(state, CollectionState) else StateGroup(state, index)


def _seen(
    rows: list[tuple[Place, Value]], own: list[tuple[Place, Value | None]], *, backwards: bool
) -> list[tuple[Place, Value]]:
    """Overlay `rows` with a task's own writes, dropping the rows that it has removed."""
    merged: list[tuple[Place, Value | None]] = over([*rows], own, backwards=backwards)
    return [(place, value) for place, value in merged if value is not None]


def _ends(kind: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_timestamp(kind):
        return datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    highest = (1 << (kind.bit_width - 1)) - 1
    return -highest - 1, highest
