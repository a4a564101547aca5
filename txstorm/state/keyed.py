"""Access of committers to keyed state: reads see the task's own writes, then unpublished txids, then the index.

A `StateGroup` exists for the whole run. It holds the overlay: the writes of txids that have ended but are not published
yet. `end_txid` adds a txid, `changes` returns the change rows of a range of txids, `apply` moves them into the index
after publishing, and `drop_from` discards them after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from txstorm.errors import StateError
from txstorm.state.unpublished import TaskWrites, UnpublishedRows, WriteBatch
from txstorm.storage.rows.fold import aggregated, check_how, combined, rows_beyond
from txstorm.storage.rows.forms import Arrays, Key, Value


class TaskState(TaskWrites):
    """Implementation of `txstorm.api.state.StateHandle` for keyed state, for one task in one txid."""

    def __init__(self, group: StateGroup, component: str, task: int, txid: int) -> None:
        super().__init__(group.state.name, component, task, txid, {})
        self._group = group
        self.declared = group.state
        self._keys = group.keys
        self._values = group.values

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if it has none."""
        (row,) = self._now(self._canonical([key]))
        return default if row is None else self._values.public([row])[0]

    def get_many(self, keys: Iterable[Key]) -> dict[Key, Any]:
        """Read many keys; return ``{key: value}`` for those that have a value."""
        wanted = self._canonical(keys)
        rows = self._now(wanted)
        public = self._values.public(rows)
        return {key: value for key, row, value in zip(wanted, rows, public, strict=True) if row is not None}

    def put(self, key: Key, value: Any) -> None:
        """Set the value of `key`; setting an equal value counts as a change, too."""
        self._put(self._canonical([key]), [value])

    def put_many(self, values: Mapping[Key, Any]) -> None:
        """Set the values of many keys."""
        given = list(values)
        keys, key_arrays = self._checked(given)
        rows, value_arrays = self._values.checked(list(values.values()), keys, self._where)
        self._store(WriteBatch(keys, rows, None, key_arrays, value_arrays), distinct=keys is given)

    def update(self, key: Key, function: Callable[[Any], Any]) -> Any:
        """Set `key` to ``function(old value or None)`` and return the new value."""
        keys = self._canonical([key])
        (old,) = self._values.public(self._now(keys))
        return self._put(keys, [function(old)])[0]

    def update_many(self, partials: Mapping[Key, Any], function: Callable[[Any, Any], Any]) -> dict[Key, Any]:
        """Set every key to ``function(old value or None, partial)``; return the new values, keyed by key."""
        given = list(partials)
        keys, key_arrays = self._checked(given)
        now, before = self._seen(keys)
        values = list(map(function, self._values.public(now), partials.values()))
        rows, value_arrays = self._values.checked(values, keys, self._where)
        new = self._store(WriteBatch(keys, rows, before, key_arrays, value_arrays), distinct=keys is given)
        return dict(zip(keys, new, strict=True))

    def merge(self, batch: pa.RecordBatch | pa.Table, how: Mapping[str, str]) -> dict[Key, Any]:
        """Aggregate `batch` by key into the state; return the new values, keyed by key.

        `how` maps every value column to ``sum``, ``count``, ``min``, ``max`` or ``last``. Sums, minima and maxima
        ignore nulls. Raises `StateError` if a column is missing or does not match its declaration, or a sum exceeds the
        range of its column.
        """
        self._check_active()
        check_how(self._values, how, self._where)
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        keys, partials = aggregated(self._keys, self._values, table, how, self._where)
        now, before = self._seen(keys)
        olds = self._values.columns_of(now)
        ways = (how[name] for name in self._values.names)
        columns = [combined(way, old, new) for way, old, new in zip(ways, olds, partials, strict=True)]
        try:
            rows, arrays = self._values.rows(columns, keys, self._where)
        except StateError as error:
            error.rows = rows_beyond(self._keys, self._values, table, how, olds, self._where)
            raise
        return dict(zip(keys, self._store(WriteBatch(keys, rows, before, (), arrays), distinct=True), strict=True))

    def remove(self, key: Key) -> None:
        """Remove `key`; removing an absent key changes nothing."""
        self.remove_many([key])

    def remove_many(self, keys: Iterable[Key]) -> None:
        """Remove many keys."""
        wanted = self._canonical(keys)
        there = (key for key, row in zip(wanted, self._now(wanted), strict=True) if row is not None)
        self.writes.update(zip(there, repeat(None)))

    def previous(self, key: Key) -> Any:
        """Return the value that `key` had before this txid, or None if it had none."""
        return self._values.public(self._group.before(self._canonical([key]), self._txid, keep=True))[0]

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Yield (key, value) of all keys as they were before this txid; reads the whole state."""
        self._check_active()
        found = self._group.everything(self._txid)
        yield from zip(found, self._values.public(list(found.values())), strict=True)

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
        """Return the current values, including the task's own writes, and the values before the txid.

        `keep` as in `UnpublishedRows.before`.
        """
        before = self._group.before(keys, self._txid, keep=keep)
        own = self.writes
        return (list(map(own.get, keys, before)) if own else before), before

    def _put(self, keys: list[Key], values: Sequence[Any]) -> list[Any]:
        rows, arrays = self._values.checked(values, keys, self._where)
        return self._store(WriteBatch(keys, rows, None, (), arrays))

    def _store(self, rows: WriteBatch, *, distinct: bool = False) -> list[Any]:
        """Write `rows`; return their values in the form that users see. `distinct`: no key occurs twice."""
        self._write(self._group.stamped(rows, self._txid), distinct=distinct)
        return self._values.public(rows.values)


class StateGroup(UnpublishedRows[TaskState]):
    """Writes of unpublished txids to a keyed state, as an overlay on its index."""

    def _new_handle(self, component: str, task: int, txid: int) -> TaskState:
        return TaskState(self, component, task, txid)
