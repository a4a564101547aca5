"""Collections: ordered rows per key, with the handles of their committers and the rows of unpublished txids.

A collection is stored as a keyed state with one key per row: the collection's key, the row's position in the order, and
a sequence number that distinguishes rows with the same position. So its rows are staged, published and read like those
of any state. Here they are columns throughout (`txstorm.state.index.sorted_rows`).

It is one module, since the handles and the group share the converters of keys, places and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import CollectionState, KeyedState
from txstorm.errors import StateError
from txstorm.misfits import shown
from txstorm.row_order import order_of
from txstorm.state.collection_changes import ChangeRows, combined, joined_blocks
from txstorm.state.index.collection_index import CollectionIndex, PublishedLayers, PublishedRows, RowForm
from txstorm.state.index.layers import Layers, Source, Sources
from txstorm.state.index.sorted_rows import ALL, Arrays, Found, Owners, SortedRows, Span, few
from txstorm.state.keyed import StateGroup
from txstorm.state.target import used_outside
from txstorm.state.unpublished import UnpublishedState, written_twice
from txstorm.storage.rows.columns import Column
from txstorm.storage.rows.eviction import NO_BOUND, Numbers, limit_of, words
from txstorm.storage.rows.forms import Key, KeyForm, Value
from txstorm.storage.rows.schema import (
    COUNT_BITS,
    PLACE,
    SEQUENCE,
    STAMP,
    order_field,
)
from txstorm.typed import python_values, restored

A = TypeVar("A")


@dataclass
class _Buffer:
    """Rows appended one by one, as parallel lists of keys, orders and values."""

    keys: list[Key]
    orders: list[Any]
    values: list[Value]


class TaskCollection:
    """Implementation of `txstorm.api.state.CollectionHandle`, for one task in one txid.

    Attributes:
        active: whether `finish_batch` of this task is running; set by the commit runner.
        tasks: number of tasks of the component.
        bound: the place of `evict_before` without a key; `NO_BOUND` if there was no such call.
        kept: the value of `remember`; None if there was no such call.
    """

    def __init__(self, group: CollectionGroup, component: str, task: int, txid: int) -> None:
        self.active = False
        self.tasks = 1
        self.bound = NO_BOUND
        self.kept: Any = None
        self.declared = group.state
        self._group, self._txid, self._place_of_task = group, txid, (component, task)
        self._where = f"{component}[{task}], txid {txid}"
        self._buffer = _Buffer([], [], [])
        self._loose: list[SortedRows] = []
        self._removed: list[SortedRows] = []
        self._cuts: list[SortedRows] = []
        self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, key: Key, at: Any, *values: Any) -> None:
        """Append one row to the collection of `key`, at position `at` in its order."""
        self._check_active()
        self._buffered([(key, at, *values)])

    def append_many(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append many rows, each a tuple ``(key, at, *values)``."""
        self._check_active()
        self._buffered(list(rows))
        if len(self._buffer.keys) > 1:
            self._flush()

    def append_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append the rows of a `pyarrow.RecordBatch` or `Table` that has the key, order and value columns."""
        self._check_active()
        group, table = self._group, _table(batch)
        columns = (*group.owners.columns, group.order, *group.values.columns)
        arrays = [self._taken(table, one, "append_batch") for one in columns]
        self._flush()
        width = len(group.owners.columns)
        self._check_placed(table, arrays[width])
        self._append(arrays[:width], words(arrays[width]), arrays[width + 1 :])

    def remove(self, key: Key, start: Any = None, end: Any = None) -> int:
        """Remove the rows of `key` from position `start` to `end`; return the number removed."""
        return self.remove_many([key], start, end)

    def remove_many(self, keys: Iterable[Key], start: Any = None, end: Any = None) -> int:
        """Remove the rows of many keys from position `start` to `end`; return the number removed."""
        owners, found = self._found(keys, self._span(start, end))
        if len(found):
            self._removed.append(SortedRows.of_owners(owners, found))
        return len(found)

    def evict_before(self, place: Any, key: Key = None) -> None:
        """Evict the rows of `key`, or of all collections if it is None, below `place` in the order."""
        self._check_active()
        (at,) = words(self._group.order.array([self._place(place, "place of evict_before")])).tolist()
        if key is None:
            self.bound = max(self.bound, at)
        else:
            self._cut(self._owners([key]), np.array([at]))

    def evict_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Evict the rows of many collections: for each key in `batch`, those below its value of the order column."""
        self._check_active()
        group, table = self._group, _table(batch)
        *keys, places = (self._taken(table, one, "evict_batch") for one in (*group.owners.columns, group.order))
        self._check_placed(table, places)
        owners, codes = Owners.distinct(keys, table.num_rows)
        highest = np.full(len(owners), NO_BOUND)
        np.maximum.at(highest, codes, words(places))
        self._cut(owners, highest)

    # -- reading ------------------------------------------------------------------------------------------------

    def scan(
        self, key: Key, start: Any = None, end: Any = None, *, limit: int | None = None, reverse: bool = False
    ) -> list[tuple[Any, ...]]:
        """Return at most `limit` rows of `key` from position `start` to `end`, both inclusive, in order or reversed.

        None stands for the lowest or highest position, or for no limit.
        """
        _, found = self._found([key], self._span(start, end, limit, reverse=reverse))
        rows = self._group.public_rows(found)
        return rows[::-1] if reverse else rows

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
        owners, found = self._found(keys, self._span(start, end, limit, reverse=reverse))
        rows, result, begin = self._group.public_rows(found), {}, 0
        for key, count in zip(self._group.public_keys(owners), found.counts(len(owners)).tolist(), strict=True):
            if count:
                part = rows[begin : begin + count]
                result[key] = part[::-1] if reverse else part
            begin += count
        return result

    def scan_table(
        self,
        keys: Iterable[Key] | pa.RecordBatch | pa.Table | None = None,
        start: Any = None,
        end: Any = None,
        *,
        last: int | None = None,
    ) -> pa.Table:
        """Return the rows of `keys` from position `start` to `end` as a table with the columns of `append_batch`."""
        owners, found = self._found(keys, self._span(start, end, last, reverse=True))
        return self._group.table(owners, found)

    def scan_parts(self, function: Callable[[Iterator[pa.Table]], A], start: Any = None, end: Any = None) -> A:
        """Pass the rows of all keys from position `start` to `end` to `function`, in tables and in no order."""
        span = self._span(start, end)
        self._check_active()
        return self._group.ask_parts(function, span, self._txid, self.layers)

    # -- derived values ------------------------------------------------------------------------------------------

    def remember(self, value: Any) -> None:
        """Keep a value derived from the rows after this txid for this task in the next one, in memory."""
        self._check_active()
        self.kept = value

    def recall(self) -> Any:
        """Return what this task has remembered in the previous txid; None if there is no such value."""
        self._check_active()
        return self._group.remembered(self._place_of_task, self._txid - 1)

    # -- the end of the txid ------------------------------------------------------------------------------------

    @property
    def rows(self) -> PublishedRows:
        """All writes of the task, except the bound of all collections; rows that were removed are still among them."""
        self._flush()
        return PublishedRows(joined_blocks(self._loose), joined_blocks(self._removed), joined_blocks(self._cuts))

    @property
    def layers(self) -> Layers:
        """All writes of the task as layers of a scan, except the bound of all collections."""
        self._flush()
        for blocks in (self._loose, self._removed, self._cuts):
            blocks[:] = few(blocks)
        return Layers([Sources.of(self._loose)], self._removed, self._cuts)

    # -- inside -------------------------------------------------------------------------------------------------

    def _buffered(self, given: list[tuple[Any, ...]]) -> None:
        group = self._group
        width = PLACE + len(group.values.names)
        for row in given:
            if not isinstance(row, tuple | list) or len(row) != width:
                names = ["key", group.order.name, *group.values.names]
                raise self._error(f"expected rows ({', '.join(names)}), got {shown(row)}")
        if not given:
            return
        keys, orders, *columns = zip(*given, strict=True)
        owners = group.owners.canonical(list(keys), self._where)
        places, _ = group.order.checked(orders, lambda i: f"key {shown(keys[i])} ({self._where})")
        for key, place in zip(group.tuples(owners), places, strict=True):
            if place is None:
                raise self._unplaced(key)
        values, _ = group.values.rows(columns, owners, self._where)
        self._buffer.keys.extend(owners)
        self._buffer.orders.extend(places)
        self._buffer.values.extend(values)

    def _flush(self) -> None:
        """Convert the rows that were appended one by one to columns."""
        buffer, group = self._buffer, self._group
        if buffer.keys:
            self._buffer = _Buffer([], [], [])
            orders = words(group.order.array(buffer.orders))
            values = [column.array([value[i] for value in buffer.values])
                      for i, column in enumerate(group.values.columns)]  # fmt: skip
            self._append(group.owners.arrays(buffer.keys), orders, values)

    def _append(self, keys: Arrays, orders: Numbers, values: Arrays) -> None:
        if not len(orders):
            return
        if self._group.state.ttl is not None:
            stamp = pa.scalar(self._group.stamp(self._txid), STAMP.type)
            values = [*values, pa.repeat(stamp, len(orders))]
        owners, codes = Owners.distinct(keys, len(orders))
        numbers = self._numbers(owners, codes)
        self._loose.append(SortedRows.of_owners(owners, Found(codes, orders, numbers, values)))

    def _numbers(self, owners: Owners, codes: Numbers) -> Numbers:
        """Number the appended rows of each collection in the order of arrival, after those of earlier calls."""
        known, counts = self._counts
        before = np.zeros(len(owners), np.int64)
        if len(known):
            turn = np.argsort(known)
            at = turn[np.minimum(np.searchsorted(known, owners.hashes, sorter=turn), len(known) - 1)]
            before = np.where(known[at] == owners.hashes, counts[at], 0)
        sizes, within = np.bincount(codes, minlength=len(owners)), np.zeros(len(codes), np.int64)
        if len(codes) > len(owners):
            turn = order_of(codes)
            within[turn] = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        after = before + sizes
        if (after > 1 << COUNT_BITS).any():
            (key,) = self._group.key_tuples(owners.taken(np.flatnonzero(after > 1 << COUNT_BITS)[:1]))
            raise self._error(f"key {shown(key)} gets more than {1 << COUNT_BITS} rows in one txid; use smaller ones")
        self._counts = owners.hashes, after
        if len(known):
            found, first = np.unique(np.concatenate([owners.hashes, known]), return_index=True)
            self._counts = found, np.concatenate([after, counts])[first]
        return (self._txid << COUNT_BITS) + before[codes] + within

    def _cut(self, owners: Owners, places: Numbers) -> None:
        if len(owners):
            limits = np.full(len(owners), limit_of(self._txid))
            self._cuts.append(SortedRows.of_owners(owners, Found(np.arange(len(owners)), places, limits, ())))

    def _found(self, keys: Any, span: Span) -> tuple[Owners, Found]:
        """Return the wanted collections and their rows in `span`, with the task's own writes."""
        self._check_active()
        return self._group.find(None if keys is None else self._owners(keys), span, self._txid, self.layers)

    def _owners(self, keys: Any) -> Owners:
        group = self._group
        if isinstance(keys, pa.RecordBatch | pa.Table):
            table = _table(keys)
            columns = [self._taken(table, one, "scan_table") for one in group.owners.columns]
            return Owners.distinct(columns, table.num_rows)[0]
        distinct = list(dict.fromkeys(group.owners.canonical(keys, self._where)))
        return Owners.of(group.owners.arrays(distinct), len(distinct))

    def _span(self, start: Any, end: Any, limit: int | None = None, *, reverse: bool = False) -> Span:
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise self._error(f"expected a limit that is an int above 0, or None, got {shown(limit)}")
        first = ALL.first if start is None else self._bits(start, "start of a range")
        last = ALL.last if end is None else self._bits(end, "end of a range")
        if first > last:
            raise self._error(f"expected a range with start <= end, got {shown(start)} to {shown(end)}")
        return Span(first, last, limit, reverse)

    def _bits(self, place: Any, what: str) -> int:
        return int(words(self._group.order.array([self._place(place, what)]))[0])

    def _place(self, place: Any, what: str) -> Any:
        (at,) = self._group.order.canonical([place], lambda _: f"{what} ({self._where})")
        if at is None:
            raise self._error(f"expected a {what} of the order column {self._group.order.name!r}, got None")
        return at

    def _taken(self, table: pa.Table, column: Column, call: str) -> pa.Array:
        if table.column_names.count(column.name) != 1:
            raise self._error(f"{call} expected one column {column.name!r}, got {table.column_names}")
        return pa.concat_arrays(column.conformed(table[column.name], self._where).chunks or [column.array([])])

    def _check_placed(self, table: pa.Table, places: pa.Array) -> None:
        if places.null_count:
            (row,) = table.filter(places.is_null()).slice(0, 1).to_pylist()
            raise self._unplaced(tuple(row[name] for name in self._group.owners.names))

    def _unplaced(self, key: Key) -> StateError:
        name = self._group.order.name
        return self._error(f"key {shown(key)}: expected a value of the order column {name!r}, got None")

    def _check_active(self) -> None:
        if not self.active:
            raise used_outside(f"state {self._group.state.name!r} of {self._where}")

    def _error(self, what: str) -> StateError:
        return StateError(f"state {self._group.state.name!r} ({self._where}): {what}")


class CollectionGroup(UnpublishedState[TaskCollection, PublishedRows]):
    """Writes of unpublished txids to a collection state, as layers over its index.

    Attributes:
        state: the state.
        owners: the converter for the keys of the collections.
        keys, values: the converters for the keys and values of rows.
        order: the order column.
    """

    accessor = "collection"
    holds = "collections"

    def __init__(self, state: CollectionState, index: CollectionIndex) -> None:
        super().__init__(state)
        self.state = state
        self.owners = KeyForm(KeyedState(state.name, state.key, state.value))
        self.order = Column(f"state {state.name!r}", "order column", order_field(state))
        self._form = RowForm(state)
        self.keys, self.values = self._form.keys, self._form.values
        self._rows = ChangeRows(self._form, self.schema)
        self._index = index
        # All of `_ended`: in few blocks and, until they are read, which many committers never do, as they are.
        self._overlay: tuple[PublishedLayers, Sequence[PublishedRows]] = PublishedLayers(), ()
        self._memory: dict[int, dict[tuple[str, int], Any]] = {}  # txid → task → what it has remembered
        self._applied = 0

    def stamp(self, txid: int) -> datetime:
        """Return the stamp of `txid`, whose turn it is."""
        return self._stamps[txid]

    def find(self, owners: Owners | None, span: Span, txid: int, own: Layers) -> tuple[Owners, Found]:
        """Find the rows of `owners` (None: of all collections, sorted by key) in `span`, as `txid` sees them.

        `own`: the writes of a task in `txid`, which is the next to end.

        Raises:
            StateError: a row was written by a txid later than `txid`.
        """
        # Before the index: rows that move there meanwhile are found in either.
        later = self._unpublished().layers.over(own)
        return self._index.ask(later, lambda layers: self._found_in(layers, owners, span, txid))

    def _found_in(self, layers: Layers, owners: Owners | None, span: Span, txid: int) -> tuple[Owners, Found]:
        form = self._form
        wanted = layers.owners(span, form.names, form.no_keys) if owners is None else owners
        found = layers.find(wanted, span, lambda rows: self._living(rows, txid), form.no_values)
        self._check_not_ahead(found.numbers, txid)
        return wanted, found

    def _check_not_ahead(self, numbers: Numbers, txid: int) -> None:
        if len(numbers) and (newest := int(numbers.max()) >> COUNT_BITS) > txid:
            raise StateError(
                f"state {self.state.name!r}: state is ahead: expected rows of txid {txid} or earlier, got one of txid "
                f"{newest}; another topology, or an older run of this one, wrote this table: use another state name or "
                "data directory"
            )

    def ask_parts(self, function: Callable[[Iterator[pa.Table]], A], span: Span, txid: int, own: Layers) -> A:
        """Return what `function` returns for the rows of all collections in `span`, as `find` returns them, unsorted.

        Only one part of the rows need be in memory at a time. `function` is called again if upkeep replaces the files
        meanwhile.
        """
        later = self._unpublished().layers.over(own)
        return self._index.ask(later, lambda layers: function(self._parts(layers, span, txid)))

    def _parts(self, layers: Layers, span: Span, txid: int) -> Iterator[pa.Table]:
        if layers.tombstones or layers.removed or self.state.ttl is not None:
            yield self.table(*self._found_in(layers, None, span, txid))
            return
        span, groups = layers.reaching(span)
        known = set[int]()  # txids of later layers: their rows may just have moved to earlier ones
        for sources in reversed(groups):
            txids = set[int]()
            for source in sources:
                rows, orders, numbers = self._part(source)
                self._check_not_ahead(numbers, txid)
                there = (orders >= span.first) & (orders <= span.last)
                if known:
                    there &= ~np.isin(numbers >> COUNT_BITS, list(known))
                if source.table is None:
                    txids.update(np.unique(numbers >> COUNT_BITS).tolist())
                yield rows if there.all() else rows.filter(pa.array(there))
            known |= txids

    def _part(self, source: Source) -> tuple[pa.Table, Numbers, Numbers]:
        """Return the rows of a source as users see them, and their orders and sequence numbers."""
        if source.table is None:
            block = source.read()
            return self.table(block.keys, block.rows), block.orders, block.numbers
        rows = source.table()
        names = [*self.owners.names, self.order.name, *self.values.names]
        return rows.select(names), words(rows[self.order.name]), words(rows[SEQUENCE.name])

    def table(self, owners: Owners, rows: Found) -> pa.Table:
        """Convert the `rows` of `owners` to a table with the columns that users see."""
        numbers = pa.array(rows.owners)
        keys = [column.take(numbers) for column in owners.keys]
        columns = [*keys, self._orders(rows.orders), *rows.values[: len(self.values.columns)]]
        return pa.table(columns, names=[*self.owners.names, self.order.name, *self.values.names])

    def public_rows(self, rows: Found) -> list[tuple[Any, ...]]:
        """Convert `rows` to the tuples that users see."""
        columns = [self._orders(rows.orders), *rows.values[: len(self.values.columns)]]
        return list(zip(*map(python_values, columns), strict=True))

    def key_tuples(self, owners: Owners) -> list[tuple[Any, ...]]:
        """Convert the keys of `owners` to tuples of column values."""
        if not owners.keys:
            return [()] * len(owners)
        return list(zip(*map(python_values, owners.keys), strict=True))

    def public_keys(self, owners: Owners) -> list[Key]:
        """Convert the keys of `owners` to the form that users see."""
        return python_values(owners.keys[0]) if len(owners.keys) == 1 else self.key_tuples(owners)

    def tuples(self, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
        """Convert collection keys to tuples of their column values."""
        return [(key,) for key in keys] if len(self.owners.columns) == 1 else list(keys)

    def _new_handle(self, component: str, task: int, txid: int) -> TaskCollection:
        return TaskCollection(self, component, task, txid)

    def _rows_of(self, ended: Mapping[int, PublishedRows]) -> pa.Table:
        # By txid, key group and key.
        return pa.concat_tables([self._rows.table(txid, changes) for txid, changes in ended.items()])

    def _release(self, last: int) -> None:
        with self._lock:
            published = {txid: changes for txid, changes in self._ended.items() if txid <= last}
            if published:
                self._index.apply(list(published.values()), max(published))
            super()._release(last)
            self._applied = last

    def remembered(self, task: tuple[str, int], txid: int) -> Any:
        """Return what a task has remembered in `txid`; None if that is not known."""
        with self._lock:
            return self._memory.get(txid, {}).get(task)

    def end_reads(self, txid: int) -> None:
        """End reads of `txid`, before its turn; keep what tasks have remembered, for that turn."""
        with self._lock:
            super().end_reads(txid)
            self._memory = {txid - 1: self._memory.get(txid, {})}

    def _drop_ended(self, txid: int) -> None:
        super()._drop_ended(txid)
        self._memory = {one: values for one, values in self._memory.items() if one < txid}

    def _lay_over(self, ended: PublishedRows) -> None:
        layers, apart = self._overlay
        self._overlay = layers, [*apart, ended]

    def _keep_ended(self, ended: dict[int, PublishedRows]) -> None:
        self._ended, self._overlay = ended, (PublishedLayers(), list(ended.values()))

    def _unpublished(self) -> PublishedLayers:
        """Return the rows of the ended txids in few blocks."""
        read = layers, apart = self._overlay
        if not apart:
            return layers
        layers = reduce(PublishedLayers.added, apart, layers)
        if self._lock.acquire(blocking=False):  # else rows are being published: they are in memory or in the index
            try:
                if self._overlay is read:
                    self._overlay = layers, ()
            finally:
                self._lock.release()
        return layers

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], TaskCollection]) -> PublishedRows | None:
        kept = {place: handle.kept for place, handle in tasks.items() if handle.kept is not None}
        if kept:
            needed = self._applied, txid - 1  # the txids after which this one, or the first one of its group, can run
            self._memory = {txid: kept, **{one: self._memory[one] for one in needed if one in self._memory}}
        written = {place: handle.rows for place, handle in tasks.items()}
        self._check_claims(txid, written)
        layers, apart = self._overlay
        known = max([self._index.bound, layers.bound, *(one.bound for one in apart)])
        return combined(txid, list(written.values()), known, self._bound(list(tasks.values())))

    def _bound(self, handles: Sequence[TaskCollection]) -> int:
        """Return the lowest bound that the tasks have given; `NO_BOUND` if any has given none."""
        given = [handle.bound for handle in handles if handle.bound > NO_BOUND]
        return min(given) if given and len(given) >= max(handle.tasks for handle in handles) else NO_BOUND

    def _check_claims(self, txid: int, written: Mapping[tuple[str, int], PublishedRows]) -> None:
        """Raise `StateError` if several tasks have changed the same collection."""
        claims = {place: [one.keys for one in (part.rows, part.removed, part.tombstones) if one is not None]
                  for place, part in written.items()}  # fmt: skip
        claims = {place: owners for place, owners in claims.items() if owners}
        if len(claims) < 2:
            return
        parts = [owner for owners in claims.values() for owner in owners]
        tasks = np.repeat(np.repeat(np.arange(len(claims)), list(map(len, claims.values()))), list(map(len, parts)))
        columns = [pa.concat_arrays([part.keys[i] for part in parts]) for i in range(len(self.owners.columns))]
        distinct, codes = Owners.distinct(columns, sum(map(len, parts)))
        pairs = np.unique(codes * len(claims) + tasks) // len(claims)
        twice = np.flatnonzero(np.bincount(pairs, minlength=len(distinct)) > 1)
        if len(twice):
            names = {place: {key for one in owners for key in self.key_tuples(one)} for place, owners in claims.items()}
            raise StateError(written_twice(self.state.name, txid, self.owners.names, dict(sorted(names.items()))))

    def _living(self, rows: Found, txid: int) -> Found:
        """Drop the rows that have expired as of the stamp of `txid`."""
        if self.state.ttl is None or not len(rows):
            return rows
        over = pa.scalar(self._stamps[txid] - self.state.ttl, STAMP.type)
        return rows.taken(pc.greater(rows.values[-1], over).to_numpy(zero_copy_only=False))

    def _orders(self, orders: Numbers) -> pa.Array:
        return restored(pa.array(orders), self.order.field.type)


def state_group(state: KeyedState, index: Any) -> StateGroup | CollectionGroup:
    """Create the group of unpublished rows of `state`; `index`: its index, see `txstorm.state.index.open`."""
    return CollectionGroup(state, index) if isinstance(state, CollectionState) else StateGroup(state, index)


def _table(batch: pa.RecordBatch | pa.Table) -> pa.Table:
    return batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
