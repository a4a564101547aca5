"""A committer's view of its keyed state: reads through index, overlay and own writes; one group of txids at a time.

A group lives as long as the run. It holds what is decided or about to be: the writes of txids that have ended
but are not published yet (the overlay). `end_txid` adds a txid, `changes` renders a range of them, `apply` moves them
into the index after publishing, `drop_from` forgets them after a failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from threading import RLock
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import KeyedState
from txstorm.errors import StateError
from txstorm.state.index.index import KeyIndex
from txstorm.state.index.row_cache import Gone, Stored
from txstorm.state.unpublished import Bulk, Ended, Overlay, TaskWrites, newest, settled, with_stamp
from txstorm.storage.rows.columns import shown
from txstorm.storage.rows.fold import aggregated, check_how, combined
from txstorm.storage.rows.forms import Arrays, Key, KeyForm, Rows, Value, ValueForm, absences, joined, row_arrays
from txstorm.storage.rows.schema import OP, PREV, REMOVED, TXID, UPDATED, changes_schema, in_order
from txstorm.storage.rows.semantics import Row, base
from txstorm.storage.rows.ttl import moment

_UPDATED, _REMOVED = pa.scalar(UPDATED, OP.type), pa.scalar(REMOVED, OP.type)


class TaskState(TaskWrites):
    """The `txstorm.api.state.StateHandle` of one task in one txid."""

    def __init__(self, group: StateGroup, component: str, task: int, txid: int) -> None:
        super().__init__(group.state.name, component, task, txid, {})
        self._group = group
        self._keys = group.keys
        self._values = group.values

    def get(self, key: Key, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        (row,) = self._now(self._canonical([key]))
        return default if row is None else self._values.public([row])[0]

    def get_many(self, keys: Iterable[Key]) -> dict[Key, Any]:
        """``{key: value}`` of those `keys` that have a value."""
        wanted = self._canonical(keys)
        rows = self._now(wanted)
        public = self._values.public(rows)
        return {key: value for key, row, value in zip(wanted, rows, public, strict=True) if row is not None}

    def put(self, key: Key, value: Any) -> None:
        """Set the value of `key`; an equal value counts as a change too."""
        self._put(self._canonical([key]), [value])

    def put_many(self, values: Mapping[Key, Any]) -> None:
        """Set many values."""
        given = list(values)
        keys, key_arrays = self._checked(given)
        rows, value_arrays = self._values.checked(list(values.values()), keys, self._where)
        self._store(Bulk(keys, rows, None, key_arrays, value_arrays), distinct=keys is given)

    def update(self, key: Key, function: Callable[[Any], Any]) -> Any:
        """Set `key` to ``function(old value or None)`` and return the new value."""
        keys = self._canonical([key])
        (old,) = self._values.public(self._now(keys))
        return self._put(keys, [function(old)])[0]

    def update_many(self, partials: Mapping[Key, Any], function: Callable[[Any, Any], Any]) -> dict[Key, Any]:
        """Set every key to ``function(old value or None, partial)``; returns the new values."""
        given = list(partials)
        keys, key_arrays = self._checked(given)
        now, before = self._seen(keys)
        values = list(map(function, self._values.public(now), partials.values()))
        rows, value_arrays = self._values.checked(values, keys, self._where)
        new = self._store(Bulk(keys, rows, before, key_arrays, value_arrays), distinct=keys is given)
        return dict(zip(keys, new, strict=True))

    def merge(self, batch: pa.RecordBatch | pa.Table, how: Mapping[str, str]) -> dict[Key, Any]:
        """Fold the columns of `batch` into the state: value column → sum, count, min, max or last.

        Sums, minima and maxima leave nulls out. Returns the new values. Raises `StateError` when a column is missing
        or does not fit its declaration, or a sum leaves the range of its column.
        """
        self._check_active()
        check_how(self._values, how, self._where)
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        keys, partials = aggregated(self._keys, self._values, table, how, self._where)
        now, before = self._seen(keys)
        olds = self._values.columns_of(now)
        ways = (how[name] for name in self._values.names)
        columns = [combined(way, old, new) for way, old, new in zip(ways, olds, partials, strict=True)]
        rows, arrays = self._values.rows(columns, keys, self._where)
        return dict(zip(keys, self._store(Bulk(keys, rows, before, (), arrays), distinct=True), strict=True))

    def remove(self, key: Key) -> None:
        """Remove `key`; removing an absent key changes nothing."""
        self.remove_many([key])

    def remove_many(self, keys: Iterable[Key]) -> None:
        """Remove many keys."""
        wanted = self._canonical(keys)
        there = (key for key, row in zip(wanted, self._now(wanted), strict=True) if row is not None)
        self.writes.update(zip(there, repeat(None)))

    def previous(self, key: Key) -> Any:
        """The value `key` had before this txid, or None."""
        return self._values.public(self._group.before(self._canonical([key]), self._txid, keep=True))[0]

    def _canonical(self, keys: Iterable[Key]) -> list[Key]:
        return self._checked(keys)[0]

    def _checked(self, keys: Iterable[Key]) -> tuple[list[Key], Arrays]:
        self._check_active()
        return self._keys.checked(keys, self._where)

    def _now(self, keys: list[Key]) -> list[Value | None]:
        now, before = self._seen(keys, keep=True)
        self.olds.update(zip(keys, before, strict=True))
        return now

    def _seen(self, keys: list[Key], *, keep: bool = False) -> tuple[list[Value | None], list[Value | None]]:
        """The values that the task sees now, and those before the txid; see `RowGroup.before`."""
        before = self._group.before(keys, self._txid, keep=keep)
        own = self.writes
        return (list(map(own.get, keys, before)) if own else before), before

    def _put(self, keys: list[Key], values: Sequence[Any]) -> list[Any]:
        rows, arrays = self._values.checked(values, keys, self._where)
        return self._store(Bulk(keys, rows, None, (), arrays))

    def _store(self, rows: Bulk, *, distinct: bool = False) -> list[Any]:
        """Write `rows` and return their values as users see them; `distinct` when no key can be there twice."""
        self._write(self._group.stamped(rows, self._txid), distinct=distinct)
        return self._values.public(rows.values)


H = TypeVar("H", bound=TaskWrites)


class RowGroup(ABC, Generic[H]):
    """The unpublished txids of one state over its index; made once per run, used in txid order.

    `end_txid`, `drop_from` and `apply` may be called from different threads; a txid's `finish_batch` may run while
    an earlier one is applied.
    """

    def __init__(self, state: KeyedState, index: KeyIndex) -> None:
        self.state = state
        self.keys = KeyForm(state)
        self.values = ValueForm(state)
        self._index = index
        self.schema = changes_schema(state)
        self._stamps: dict[int, datetime] = {}
        self._open: dict[int, dict[tuple[str, int], H]] = {}
        self._ended: list[Ended] = []
        self._overlay = self._over([])
        self._last = 0
        self._lock = RLock()

    def begin(self, txid: int, stamp: int) -> None:
        """It is the turn of `txid`, planned at `stamp` (UTC microseconds); called before anything is read in it."""
        self._stamps[txid] = moment(stamp)

    def handle(self, component: str, task: int, txid: int) -> H:
        """The handle of one task in `txid`: the same one until the txid ends or is dropped."""
        with self._lock:
            tasks = self._open.setdefault(txid, {})
            if (component, task) not in tasks:
                tasks[component, task] = self._new_handle(component, task, txid)
            return tasks[component, task]

    @abstractmethod
    def _new_handle(self, component: str, task: int, txid: int) -> H:
        """The handle of a task that has none yet."""

    def undo(self, component: str, task: int, txid: int) -> None:
        """Forget what one task wrote in `txid`, which has not ended; its handle is of no more use."""
        with self._lock:
            handle = self._open.get(txid, {}).pop((component, task), None)
            if handle is not None:
                handle.active = False

    def settle(self, component: str, task: int, txid: int) -> None:
        """Nothing to do: what a task writes is checked when it writes it."""

    def before(self, keys: Sequence[Key], txid: int, *, keep: bool = False) -> list[Value | None]:
        """The values of canonical `keys` before `txid`, the next one to end; raises `StateError` if one is ahead.

        `keep`: unless `txid` writes these keys; see `KeyIndex.rows`.
        """
        # The overlay first: when a txid moves into the index meanwhile, its keys are found in the one or the other.
        found = self._rows(self._overlay, keys, keep=keep)
        if self._index.last_txid >= txid:
            values = [None if row is None else self._base(key, row, txid) for key, row in zip(keys, found, strict=True)]
        else:
            values = [None if row is None else row[0] for row in found]
        return self.alive(values, txid)

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
        """`values` as of the stamp of `txid`: without those whose time to live is over."""
        if self.state.ttl is None:
            return values
        over = self._stamps[txid] - self.state.ttl
        return [None if value is None or value[-1] <= over else value for value in values]

    def stamped(self, rows: Bulk, txid: int) -> Bulk:
        """`rows` as they are kept when they are written in `txid`."""
        return rows if self.state.ttl is None else with_stamp(rows, self._stamps[txid])

    def _base(self, key: Key, row: Stored | Gone, txid: int) -> Value | None:
        try:
            return base(Row[Value | None](*row), txid)
        except StateError as ahead:
            msg = f"state {self.state.name!r}, key {shown(key)}: {ahead}"
            raise StateError(msg) from None

    def end_txid(self, txid: int) -> None:
        """Take over the writes of `txid`: called after all its tasks have finished, in txid order.

        Raises:
            StateError: two tasks changed one key, or this txid or a later one has ended already.
        """
        with self._lock:
            if txid <= self._last:
                msg = (
                    f"state {self.state.name!r}: expected a txid after {self._last} to end, got {txid}; "
                    f"drop_from({txid}) before it runs again"
                )
                raise StateError(msg)
            tasks = self._open.get(txid, {})
            for handle in tasks.values():
                handle.active = False
            ended = self._together(txid, tasks)
            if ended is not None:
                self._ended.append(ended)
                self._overlay.update(ended.rows())
            self._open.pop(txid, None)
            self._stamps.pop(txid, None)
            self._last = txid

    def drop_from(self, txid: int) -> None:
        """Forget `txid` and every later one, ended or open; nothing of them is published."""
        with self._lock:
            for later in [open_ for open_ in self._open if open_ >= txid]:
                for handle in self._open.pop(later).values():
                    handle.active = False
            self._keep([ended for ended in self._ended if ended.txid < txid])
            self._stamps = {one: stamp for one, stamp in self._stamps.items() if one < txid}
            self._last = min(self._last, txid - 1)

    def changes(self, first: int, last: int) -> pa.Table | None:
        """The change rows of the ended txids `first` to `last`, by txid, then key; None if there are none."""
        with self._lock:
            ended = [one for one in self._ended if first <= one.txid <= last]
        if not ended:
            return None
        rows = Rows(
            keys=list(chain.from_iterable(one.keys for one in ended)),
            values=list(chain.from_iterable(one.values for one in ended)),
            txids=np.repeat([one.txid for one in ended], [len(one.keys) for one in ended]),
            before=list(chain.from_iterable(one.before for one in ended)),
            key_arrays=joined([one.key_arrays for one in ended]),
            value_arrays=joined([one.value_arrays for one in ended]),
        )
        columns = row_arrays(self.keys, self.values, rows)
        removals = any(one.removals for one in ended)
        columns[OP.name] = (
            pc.if_else(absences(rows.values), _REMOVED, _UPDATED) if removals else pa.repeat(_UPDATED, len(rows.keys))
        )
        table = pa.table([columns[name] for name in self.schema.names], schema=self.schema)
        return in_order(table, [TXID.name, *self.keys.names])

    def apply(self, last: int) -> None:
        """Move the txids up to `last` into the index; called once they are published."""
        with self._lock:
            published = [ended for ended in self._ended if ended.txid <= last]
            later = [ended for ended in self._ended if ended.txid > last]
            if published:
                rows = newest(published) if later else self._overlay
                self._index.apply(*settled(published, rows), published[-1].txid)
            self._keep(later)

    def enter(self, tables: Iterable[pa.Table], txid: int) -> None:
        """Move published change rows of `txid` into the index, which tasks of a job have written; after `apply`.

        The index is said to be at `txid` when all of them are there.
        """
        for rows in tables:
            ended = self._read(rows, txid)
            self._index.apply(*settled([ended], dict(ended.rows())), txid - 1)
        self._index.apply({}, (), txid)

    def _read(self, rows: pa.Table, txid: int) -> Ended:
        gone = pc.equal(rows[OP.name], _REMOVED).to_pylist()
        values = self.values.of_table(rows)
        return Ended(
            txid,
            self.keys.of_table(rows),
            [None if removed else value for value, removed in zip(values, gone, strict=True)],
            self.values.of_struct(rows[PREV]),
            removals=any(gone),
        )

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], H]) -> Ended | None:
        """What the tasks wrote in `txid`; None when nothing."""
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
        return Ended(
            txid,
            keys,
            list(chain.from_iterable(bulk.values for bulk in bulks)),
            list(chain.from_iterable(before)),
            key_arrays=joined([bulk.key_arrays for bulk in bulks]),
            value_arrays=joined([bulk.value_arrays for bulk in bulks]),
        )

    def _by_key(self, txid: int, tasks: Mapping[tuple[str, int], H]) -> Ended | None:
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
            unborn = {key for key, old in before if old is None}  # put and removed again: nothing happened
            writes = {key: value for key, value in writes.items() if key not in unborn}
        keys = list(writes)
        return Ended(txid, keys, list(writes.values()), self._known(keys, olds, txid), removals) if keys else None

    def _known(self, keys: Sequence[Key], olds: Overlay, txid: int) -> list[Value | None]:
        """As `before`; `olds` are the values that are known already."""
        unread = [key for key in keys if key not in olds]
        if unread:
            olds = {**olds, **dict(zip(unread, self.before(unread, txid), strict=True))}
        return list(map(olds.get, keys))

    def _keep(self, ended: list[Ended]) -> None:
        """A new overlay, never a changed one: readers of the old one may still be at work."""
        self._ended, self._overlay = ended, self._over(ended)

    def _over(self, ended: Sequence[Ended]) -> dict[Key, Stored | Gone]:
        """What `ended` lay over the index."""
        return newest(ended)

    def two_writers(self, txid: int, tasks: Mapping[tuple[str, int], H]) -> str:
        """What is said of tasks whose claims overlap."""
        claims = {place: self.claims(handle) for place, handle in sorted(tasks.items())}
        written = Counter(chain.from_iterable(claims.values()))
        twice = [key for key, times in written.items() if times > 1]
        key = min(twice, key=repr)
        names = [f"{component}[{task}]" for (component, task), claimed in claims.items() if key in claimed]
        more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        return (
            f"state {self.state.name!r}, txid {txid}: key {shown(key)}{more} was changed by {len(names)} tasks "
            f"({', '.join(names)}), expected one task per key: use fields_grouping on the state's key "
            f"{self.keys.names[: self.keys.grouped]} in front of the committer"
        )

    def claims(self, handle: H) -> Collection[Key]:
        """The keys that no other task may have changed in the same txid."""
        return handle.writes


class StateGroup(RowGroup[TaskState]):
    """The unpublished txids of a keyed state."""

    def _new_handle(self, component: str, task: int, txid: int) -> TaskState:
        return TaskState(self, component, task, txid)
