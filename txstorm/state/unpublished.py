"""Unpublished rows of states: the writes of tasks, of ended txids and of groups, column-wise, over an index.

It is one module, since the writes of one call, of one txid and of a group of txids share one column format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, repeat
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import MERGE, KeyedState
from txstorm.errors import StateError
from txstorm.misfits import shown
from txstorm.state.index.index import KeyIndex
from txstorm.state.target import E, H, Target, used_outside
from txstorm.storage.rows.forms import Arrays, Key, KeyForm, RowBatch, Value, ValueForm, absences, joined, row_arrays
from txstorm.storage.rows.schema import OP, PREV, REMOVED, TXID, UPDATED, changes_schema, in_order
from txstorm.storage.rows.ttl import moment
from txstorm.storage.rows.update_rules import Gone, Row, Stored, base
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, STATE


@dataclass(frozen=True)
class WriteBatch:
    """Rows written by one call of a handle, without removals.

    Attributes:
        keys, values: the keys and their new values, as parallel lists.
        before: the values before the txid; None if the call has not read them.
        key_arrays, value_arrays: the keys and values as Arrow arrays, as far as already built.
    """

    keys: list[Key]
    values: list[Value]
    before: list[Value | None] | None
    key_arrays: Arrays
    value_arrays: Arrays


@dataclass(frozen=True)
class TxidWrites:
    """Writes of one ended txid to a state, with the values before it, as parallel lists.

    Attributes:
        txid: the transaction.
        keys: the changed keys.
        values: their new values; None for a removed key.
        before: their values before the txid; None for a key without a value.
        removals: whether `values` may contain None.
        key_arrays, value_arrays: the keys and values as Arrow arrays, as far as already built.
    """

    txid: int
    keys: list[Key]
    values: list[Value | None]
    before: list[Value | None]
    removals: bool = False
    key_arrays: Arrays = ()
    value_arrays: Arrays = ()

    def rows(self) -> Iterable[tuple[Key, Stored | Gone]]:
        """Return pairs of key and row, one for every changed key."""
        return zip(self.keys, zip(self.values, repeat(self.txid), self.before), strict=False)  # type: ignore[arg-type]


def latest_rows(ended: Sequence[TxidWrites]) -> dict[Key, Stored | Gone]:
    """Return the latest row of every key changed by the txids in `ended`, which must be in txid order."""
    rows: dict[Key, Stored | Gone] = {}
    for one in ended:
        rows.update(one.rows())
    return rows


def split_deletes(
    ended: Sequence[TxidWrites], rows: Mapping[Key, Stored | Gone]
) -> tuple[Mapping[Key, Stored], Sequence[Key]]:
    """Split `rows`, the latest row of each key changed in `ended`, into rows with a value and deleted keys."""
    if any(one.removals for one in ended):
        changed = {key: row for key, row in rows.items() if row[0] is not None}
        return changed, [key for key, row in rows.items() if row[0] is None]
    return cast("Mapping[Key, Stored]", rows), ()


Overlay = dict[Key, Value | None]


class TaskWrites:
    """Base class of state handles: the writes of one task to a state in one txid.

    Most committers write many rows in one call; these rows are kept as columns until a key has to be looked up.

    Attributes:
        active: whether `finish_batch` of this task is running; set by the commit runner.
        bulk: all writes of the task, if they were made by a single call; otherwise None.
        task: the index of the task.
    """

    def __init__(self, name: str, component: str, task: int, txid: int, writes: Overlay) -> None:
        self.active = False
        self.bulk: WriteBatch | None = None
        self.task = task
        self._name = name
        self._writes = writes
        self._olds: Overlay = {}
        self._txid = txid
        self._where = f"{component}[{task}], txid {txid}"

    @property
    def wrote(self) -> bool:
        """Whether the task has written or removed anything."""
        return self.bulk is not None or bool(self._writes)

    @property
    def writes(self) -> Overlay:
        """The task's writes: the value of each key written, None if removed."""
        self._spread()
        return self._writes

    @property
    def olds(self) -> Overlay:
        """Cache of the values, before this txid, of the keys that the task has read."""
        self._spread()
        return self._olds

    def _check_active(self) -> None:
        if not self.active:
            raise used_outside(f"state {self._name!r} of {self._where}")

    def _write(self, rows: WriteBatch, *, distinct: bool) -> None:
        """Record `rows`; `distinct`: no key occurs twice."""
        if distinct and rows.keys and not self.wrote:
            self.bulk = rows
        else:
            self._spread()
            self._add(rows)

    def _spread(self) -> None:
        bulk, self.bulk = self.bulk, None
        if bulk is not None:
            self._add(bulk)

    def _add(self, rows: WriteBatch) -> None:
        self._writes.update(zip(rows.keys, rows.values, strict=True))
        if rows.before is not None:
            self._olds.update(zip(rows.keys, rows.before, strict=True))


def with_stamp(rows: WriteBatch, stamp: Any) -> WriteBatch:
    """Append the column `stamp` to the values of `rows`, which have only the columns that users see."""
    values = [(*value, stamp) for value in rows.values]
    return WriteBatch(
        rows.keys, values, rows.before, rows.key_arrays, (*rows.value_arrays, None) if rows.value_arrays else ()
    )


_UPDATED, _REMOVED = pa.scalar(UPDATED, OP.type), pa.scalar(REMOVED, OP.type)


W = TypeVar("W", bound=TaskWrites)


class UnpublishedState(Target[H, E]):
    """Writes of unpublished txids to one state: those of each ended txid, and an overlay of all on its index."""

    def __init__(self, state: KeyedState) -> None:
        super().__init__(TableRef(STATE if state.layout == MERGE else CHANGES, state.name), changes_schema(state))
        self._stamps: dict[int, datetime] = {}
        self._last = 0

    def begin(self, txid: int, stamp: int) -> None:
        """Begin the turn of `txid`; record `stamp` (UTC microseconds), which determines what has expired."""
        self._stamps[txid] = moment(stamp)

    def end_txid(self, txid: int) -> None:
        """Take over the tasks' writes of `txid`; called after all its tasks have finished, in txid order.

        Raises:
            StateError: two tasks changed the same key or collection, or this txid or a later one has ended already.
        """
        with self._lock:
            if txid <= self._last:
                raise StateError(
                    f"state {self.name!r}: expected a txid after {self._last} to end, got {txid}; "
                    f"drop_from({txid}) before it runs again"
                )
            super().end_txid(txid)
            self._stamps.pop(txid, None)
            self._last = txid

    def end_reads(self, txid: int) -> None:
        """End reads of `txid`, before its turn; keep what tasks have remembered, for that turn.

        Raises:
            StateError: a task has written.
        """
        with self._lock:
            tasks = self._open.pop(txid, {})
            self._stamps.pop(txid, None)
            if self._together(txid, tasks) is not None:
                self._drop_ended(txid)
                raise StateError(f"state {self.name!r}: written by warm_up; it may read only: write in finish_batch")

    def _drop_ended(self, txid: int) -> None:
        super()._drop_ended(txid)
        self._stamps = {one: stamp for one, stamp in self._stamps.items() if one < txid}
        self._last = min(self._last, txid - 1)


class UnpublishedRows(UnpublishedState[W, TxidWrites]):
    """Writes of unpublished txids to one keyed state."""

    accessor = "state"
    holds = "one value per key"

    def __init__(self, state: KeyedState, index: KeyIndex) -> None:
        super().__init__(state)
        self.state = state
        self.keys = KeyForm(state)
        self.values = ValueForm(state)
        self._index = index
        self._overlay = latest_rows([])

    def before(self, keys: Sequence[Key], txid: int, *, keep: bool = False) -> list[Value | None]:
        """Return the values of canonical `keys` before `txid`, which is the next txid to end.

        Args:
            keys: the keys.
            txid: the transaction.
            keep: whether to cache rows read from disk; False if `txid` is about to overwrite them; see `KeyIndex.rows`.

        Raises:
            StateError: a row was written by a later txid.
        """
        # Read the overlay first: if a txid moves into the index meanwhile, its keys are found in one of the two.
        found = self._rows(self._overlay, keys, keep=keep)
        if self._index.last_txid >= txid:
            values = [None if row is None else self._base(key, row, txid) for key, row in zip(keys, found, strict=True)]
        else:
            values = [None if row is None else row[0] for row in found]
        return self.alive(values, txid)

    def everything(self, txid: int) -> dict[Key, Value]:
        """Return the values of all keys before `txid`, which is the next txid to end."""
        overlay = dict(self._overlay)  # read first, as in `before`
        rows: dict[Key, Stored | Gone] = {**self._index.everything(), **overlay}
        keys = [key for key, row in rows.items() if row[0] is not None]
        values = self.alive([rows[key][0] for key in keys], txid)
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    def _rows(
        self, overlay: Mapping[Key, Stored | Gone], keys: Sequence[Key], *, keep: bool
    ) -> Sequence[Stored | Gone | None]:
        if not overlay:
            return self._index.rows(keys, keep=keep)
        found = list(map(overlay.get, keys))
        if None not in found:
            return found
        absent = [key for key, row in zip(keys, found, strict=True) if row is None]
        rest = iter(self._index.rows(absent, keep=keep))
        return [next(rest) if row is None else row for row in found]

    def alive(self, values: list[Value | None], txid: int) -> list[Value | None]:
        """Replace values that have expired as of the stamp of `txid` with None."""
        if self.state.ttl is None:
            return values
        over = self._stamps[txid] - self.state.ttl
        return [None if value is None or value[-1] <= over else value for value in values]

    def stamped(self, rows: WriteBatch, txid: int) -> WriteBatch:
        """Convert `rows` written in `txid` to stored form, with the txid's stamp if keys have a time to live."""
        return rows if self.state.ttl is None else with_stamp(rows, self._stamps[txid])

    def _base(self, key: Key, row: Stored | Gone, txid: int) -> Value | None:
        try:
            return base(Row[Value | None](*row), txid)
        except StateError as ahead:
            raise StateError(f"state {self.state.name!r}, key {shown(key)}: {ahead}") from None

    def _rows_of(self, ended: Mapping[int, TxidWrites]) -> pa.Table:
        # Sorted by txid and key.
        all_ = list(ended.values())
        rows = RowBatch(
            keys=list(chain.from_iterable(one.keys for one in all_)),
            values=list(chain.from_iterable(one.values for one in all_)),
            txids=np.repeat([one.txid for one in all_], [len(one.keys) for one in all_]),
            before=list(chain.from_iterable(one.before for one in all_)),
            key_arrays=joined([one.key_arrays for one in all_]),
            value_arrays=joined([one.value_arrays for one in all_]),
        )
        columns = row_arrays(self.keys, self.values, rows)
        removals = any(one.removals for one in all_)
        columns[OP.name] = (
            pc.if_else(absences(rows.values), _REMOVED, _UPDATED) if removals else pa.repeat(_UPDATED, len(rows.keys))
        )
        table = pa.table([columns[name] for name in self.schema.names], schema=self.schema)
        return in_order(table, [TXID.name, *self.keys.names])

    def _release(self, last: int) -> None:
        with self._lock:
            published = [ended for txid, ended in self._ended.items() if txid <= last]
            if published:
                rows = latest_rows(published) if len(published) < len(self._ended) else self._overlay
                self._index.apply(*split_deletes(published, rows), published[-1].txid)
            super()._release(last)

    def _enter(self, tables: Iterable[pa.Table], txid: int) -> None:
        # The index reports `txid` as its last txid only once it contains all of these rows.
        for rows in tables:
            ended = self._read(rows, txid)
            self._index.apply(*split_deletes([ended], dict(ended.rows())), txid - 1)
        self._index.apply({}, (), txid)

    def _read(self, rows: pa.Table, txid: int) -> TxidWrites:
        gone = pc.equal(rows[OP.name], _REMOVED).to_pylist()
        values = self.values.of_table(rows)
        return TxidWrites(
            txid,
            self.keys.of_table(rows),
            [None if removed else value for value, removed in zip(values, gone, strict=True)],
            self.values.of_struct(rows[PREV]),
            removals=any(gone),
        )

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], W]) -> TxidWrites | None:
        handles = [handle for handle in tasks.values() if handle.wrote]
        bulks = [handle.bulk for handle in handles if handle.bulk is not None]
        if len(bulks) < len(handles):
            return self._by_key(txid, tasks)
        if not bulks:
            return None
        keys = list(chain.from_iterable(bulk.keys for bulk in bulks))
        if len(bulks) > 1 and len(set(keys)) < len(keys):
            raise StateError(self.two_writers(txid, tasks))
        before = (self.before(bulk.keys, txid) if bulk.before is None else bulk.before for bulk in bulks)
        return TxidWrites(
            txid,
            keys,
            list(chain.from_iterable(bulk.values for bulk in bulks)),
            list(chain.from_iterable(before)),
            key_arrays=joined([bulk.key_arrays for bulk in bulks]),
            value_arrays=joined([bulk.value_arrays for bulk in bulks]),
        )

    def _by_key(self, txid: int, tasks: Mapping[tuple[str, int], W]) -> TxidWrites | None:
        writes: Overlay = {}
        olds: Overlay = {}
        for handle in tasks.values():
            writes = writes | handle.writes if writes else handle.writes
            olds = olds | handle.olds if olds else handle.olds
        if len(writes) < sum(len(handle.writes) for handle in tasks.values()):
            raise StateError(self.two_writers(txid, tasks))
        removals = None in writes.values()
        if removals:
            removed = [key for key, value in writes.items() if value is None]
            before = zip(removed, self._known(removed, olds, txid), strict=True)
            unborn = {key for key, old in before if old is None}  # put and then removed in the same txid: no change
            writes = {key: value for key, value in writes.items() if key not in unborn}
        keys = list(writes)
        return TxidWrites(txid, keys, list(writes.values()), self._known(keys, olds, txid), removals) if keys else None

    def _known(self, keys: Sequence[Key], olds: Overlay, txid: int) -> list[Value | None]:
        """Like `before`, but use the values in `olds` for the keys that were already read."""
        unread = [key for key in keys if key not in olds]
        if unread:
            olds = {**olds, **dict(zip(unread, self.before(unread, txid), strict=True))}
        return list(map(olds.get, keys))

    def _lay_over(self, ended: TxidWrites) -> None:
        self._overlay.update(ended.rows())

    def _keep_ended(self, ended: dict[int, TxidWrites]) -> None:
        self._ended, self._overlay = ended, latest_rows(list(ended.values()))

    def two_writers(self, txid: int, tasks: Mapping[tuple[str, int], W]) -> str:
        """Return the error message for a txid in which several tasks have changed the same key."""
        claims = {place: handle.writes for place, handle in sorted(tasks.items())}
        return written_twice(self.state.name, txid, self.keys.names, claims)


def written_twice(state: str, txid: int, key_names: Sequence[str], claims: Mapping[Any, Collection[Key]]) -> str:
    """Return the error message for a txid in which several tasks have changed the same key.

    `claims`: the keys that each task, by component and number, has changed.
    """
    written = Counter(chain.from_iterable(claims.values()))
    twice = [key for key, times in written.items() if times > 1]
    key = min(twice, key=repr)
    names = [f"{component}[{task}]" for (component, task), claimed in claims.items() if key in claimed]
    more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
    return (
        f"state {state!r}, txid {txid}: key {shown(key)}{more} was changed by {len(names)} tasks "
        f"({', '.join(names)}), expected one task per key: use fields_grouping on the state's key "
        f"{list(key_names)} in front of the committer"
    )
