"""A committer's view of its keyed state: reads through index, overlay and own writes; one group of txids at a time.

A `StateGroup` lives as long as the run. It holds what is decided or about to be: the writes of txids that have ended
but are not published yet (the overlay). `end_txid` adds a txid, `changes` renders a range of them, `apply` moves them
into the index after publishing, `drop_from` forgets them after a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from threading import RLock
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import KeyedState
from txstorm.errors import StateError
from txstorm.state.columns import shown
from txstorm.state.form import Key, KeyForm, Rows, Value, ValueForm, absences, row_arrays
from txstorm.state.index import KeyIndex, Stored
from txstorm.state.merge import aggregated, check_how, combined
from txstorm.state.schema import OP, REMOVED, TXID, UPDATED, changes_schema, in_order
from txstorm.state.semantics import Row, base

Overlay = dict[Key, Value | None]
_UPDATED, _REMOVED = pa.scalar(UPDATED, OP.type), pa.scalar(REMOVED, OP.type)


class TaskState:
    """The `txstorm.api.state.StateHandle` of one task in one txid.

    Attributes:
        active: whether `finish_batch` of this task is running; set by the commit runner.
        writes: what this task has written: key → value, None for removed.
        olds: the values before this txid of the keys it has read, so that nobody looks them up again.
    """

    def __init__(self, group: StateGroup, component: str, task: int, txid: int) -> None:
        self.active = False
        self.writes: Overlay = {}
        self.olds: Overlay = {}
        self.task = task
        self._group = group
        self._keys = group.keys
        self._values = group.values
        self._txid = txid
        self._where = f"{component}[{task}], txid {txid}"

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
        self._put(self._canonical(values), list(values.values()))

    def update(self, key: Key, function: Callable[[Any], Any]) -> Any:
        """Set `key` to ``function(old value or None)`` and return the new value."""
        keys = self._canonical([key])
        (old,) = self._values.public(self._now(keys))
        return self._put(keys, [function(old)])[0]

    def update_many(self, partials: Mapping[Key, Any], function: Callable[[Any, Any], Any]) -> dict[Key, Any]:
        """Set every key to ``function(old value or None, partial)``; returns the new values."""
        keys = self._canonical(partials)
        olds = self._values.public(self._now(keys))
        return dict(zip(keys, self._put(keys, list(map(function, olds, partials.values()))), strict=True))

    def merge(self, batch: pa.RecordBatch | pa.Table, how: Mapping[str, str]) -> dict[Key, Any]:
        """Fold the columns of `batch` into the state: value column → sum, count, min, max or last.

        Sums, minima and maxima leave nulls out. Returns the new values. Raises `StateError` when a column is missing
        or does not fit its declaration, or a sum leaves the range of its column.
        """
        self._check_active()
        check_how(self._values, how, self._where)
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        keys, partials = aggregated(self._keys, self._values, table, how, self._where)
        olds = self._values.columns_of(self._now(keys))
        ways = (how[name] for name in self._values.names)
        columns = [combined(way, old, new) for way, old, new in zip(ways, olds, partials, strict=True)]
        return dict(zip(keys, self._put_rows(keys, self._values.rows(columns, keys, self._where)), strict=True))

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
        return self._values.public(self._group.before(self._canonical([key]), self._txid))[0]

    def _canonical(self, keys: Iterable[Key]) -> list[Key]:
        self._check_active()
        return self._keys.canonical(keys, self._where)

    def _check_active(self) -> None:
        if not self.active:
            msg = (
                f"state {self._group.state.name!r} of {self._where} used outside finish_batch; state is read and "
                "written in finish_batch of a committer only: collect in execute, write there"
            )
            raise StateError(msg)

    def _now(self, keys: Sequence[Key]) -> list[Value | None]:
        rows = self._group.before(keys, self._txid)
        self.olds.update(zip(keys, rows, strict=True))
        own = self.writes
        return list(map(own.get, keys, rows)) if own else rows

    def _put(self, keys: Sequence[Key], values: Sequence[Any]) -> list[Any]:
        return self._put_rows(keys, self._values.canonical(values, keys, self._where))

    def _put_rows(self, keys: Sequence[Key], rows: Sequence[Value]) -> list[Any]:
        self.writes.update(zip(keys, rows, strict=True))
        return self._values.public(rows)


@dataclass(frozen=True)
class _Ended:
    """The writes of one txid that has ended, with the values before it."""

    txid: int
    keys: list[Key]
    values: list[Value | None]
    before: list[Value | None]
    removals: bool

    def changed(self) -> Iterable[tuple[Key, Stored]]:
        """The keys that have a value now, with their rows."""
        rows = zip(self.keys, cast("Iterable[Stored]", zip(self.values, repeat(self.txid), self.before)), strict=False)
        return (one for one in rows if one[1][0] is not None) if self.removals else rows

    def removed(self) -> Iterable[Key]:
        """The keys that have none any more."""
        rows = zip(self.keys, self.values, strict=True) if self.removals else ()
        return (key for key, value in rows if value is None)


class StateGroup:
    """The unpublished txids of one state over its index; made once per run, used in txid order.

    `end_txid`, `drop_from` and `apply` may be called from different threads; a txid's `finish_batch` may run while
    an earlier one is applied.
    """

    def __init__(self, state: KeyedState, index: KeyIndex) -> None:
        self.state = state
        self.keys = KeyForm(state)
        self.values = ValueForm(state)
        self._index = index
        self._schema = changes_schema(state)
        self._open: dict[int, dict[tuple[str, int], TaskState]] = {}
        self._ended: list[_Ended] = []
        self._overlay: Overlay = {}
        self._last = 0
        self._lock = RLock()

    def handle(self, component: str, task: int, txid: int) -> TaskState:
        """The handle of one task in `txid`: the same one until the txid ends or is dropped."""
        with self._lock:
            tasks = self._open.setdefault(txid, {})
            if (component, task) not in tasks:
                tasks[component, task] = TaskState(self, component, task, txid)
            return tasks[component, task]

    def undo(self, component: str, task: int, txid: int) -> None:
        """Forget what one task wrote in `txid`, which has not ended; its handle is of no more use."""
        with self._lock:
            handle = self._open.get(txid, {}).pop((component, task), None)
            if handle is not None:
                handle.active = False

    def settle(self, component: str, task: int, txid: int) -> None:
        """Nothing to do: what a task writes is checked when it writes it."""

    def before(self, keys: Sequence[Key], txid: int) -> list[Value | None]:
        """The values of canonical `keys` before `txid`, the next one to end; raises `StateError` if one is ahead."""
        # The overlay first: when a txid moves into the index meanwhile, its keys are found in the one or the other.
        overlay = self._overlay
        found = self._index.rows(keys)
        if self._index.last_txid >= txid:
            rows = [None if row is None else self._base(key, row, txid) for key, row in zip(keys, found, strict=True)]
        else:
            rows = [None if row is None else row[0] for row in found]
        return list(map(overlay.get, keys, rows)) if overlay else rows

    def _base(self, key: Key, row: Stored, txid: int) -> Value | None:
        try:
            return base(Row._make(row), txid)
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
            writes: Overlay = {}
            olds: Overlay = {}
            for handle in tasks.values():
                handle.active = False
                writes = writes | handle.writes if writes else handle.writes
                olds = olds | handle.olds if olds else handle.olds
            if len(writes) < sum(len(handle.writes) for handle in tasks.values()):
                raise StateError(self._two_writers(txid, tasks))
            if writes:
                self._take(txid, writes, olds)
            self._open.pop(txid, None)
            self._last = txid

    def drop_from(self, txid: int) -> None:
        """Forget `txid` and every later one, ended or open; nothing of them is published."""
        with self._lock:
            for later in [open_ for open_ in self._open if open_ >= txid]:
                for handle in self._open.pop(later).values():
                    handle.active = False
            self._keep([ended for ended in self._ended if ended.txid < txid])
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
        )
        columns = row_arrays(self.keys, self.values, rows)
        columns[OP.name] = pc.if_else(absences(rows.values), _REMOVED, _UPDATED)
        table = pa.table([columns[name] for name in self._schema.names], schema=self._schema)
        return in_order(table, [TXID.name, *self.keys.names])

    def apply(self, last: int) -> None:
        """Move the txids up to `last` into the index; called once they are published."""
        with self._lock:
            for ended in self._ended:
                if ended.txid <= last:
                    self._index.apply(ended.changed(), ended.removed(), ended.txid)
            self._keep([ended for ended in self._ended if ended.txid > last])

    def _take(self, txid: int, writes: Overlay, olds: Overlay) -> None:
        removals = None in writes.values()
        if removals:
            removed = [key for key, value in writes.items() if value is None]
            before = zip(removed, self._known(removed, olds, txid), strict=True)
            unborn = {key for key, old in before if old is None}  # put and removed again: nothing happened
            writes = {key: value for key, value in writes.items() if key not in unborn}
        if writes:
            keys = list(writes)
            self._ended.append(_Ended(txid, keys, list(writes.values()), self._known(keys, olds, txid), removals))
            self._overlay.update(writes)

    def _known(self, keys: Sequence[Key], olds: Overlay, txid: int) -> list[Value | None]:
        """As `before`; `olds` are the values that are known already."""
        unread = [key for key in keys if key not in olds]
        if unread:
            olds = {**olds, **dict(zip(unread, self.before(unread, txid), strict=True))}
        return list(map(olds.get, keys))

    def _keep(self, ended: list[_Ended]) -> None:
        """A new overlay, never a changed one: readers of the old one may still be at work."""
        overlay: Overlay = {}
        for one in ended:
            overlay.update(zip(one.keys, one.values, strict=True))
        self._ended, self._overlay = ended, overlay

    def _two_writers(self, txid: int, tasks: Mapping[tuple[str, int], TaskState]) -> str:
        written = Counter(chain.from_iterable(handle.writes for handle in tasks.values()))
        twice = [key for key, times in written.items() if times > 1]
        key = min(twice, key=repr)
        names = [f"{component}[{task}]" for (component, task), handle in sorted(tasks.items()) if key in handle.writes]
        more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        return (
            f"state {self.state.name!r}, txid {txid}: key {shown(key)}{more} was changed by {len(names)} tasks "
            f"({', '.join(names)}), expected one task per key: use fields_grouping on the state's key "
            f"{self.keys.names} in front of the committer"
        )
