"""Access of committers to maps: reads see the task's own writes, then unpublished txids, then the store.

Rows read from the store are not cached beyond the current txid, and nothing is written to it before the commit point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any, Never

import pyarrow as pa

from txstorm.api.external import NON_TRANSACTIONAL, OPAQUE, TRANSACTIONAL, MapRow, MapState, MarkedMapBackend
from txstorm.errors import FailedException, ReportedFailedException, StateError, TxstormError
from txstorm.misfits import shown
from txstorm.state.external.map_rows import STAGED_SCHEMA, json_value, key_text, staged_rows, staged_table
from txstorm.state.external.mark_rules import MarkedTarget, reached
from txstorm.state.external.targets import ExternalTarget
from txstorm.state.target import used_outside
from txstorm.storage.rows.update_rules import Row, base, is_applied, opaque, transactional
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import MAP, Intent, IntentTable

Key = Any
Change = Callable[[Any], Any]


class TaskMap:
    """Implementation of `txstorm.api.state.StateHandle` for a map, for one task in one txid.

    Attributes:
        active: whether `finish_batch` of this task is running; set by the commit runner.
        writes: rows written by this task, by encoded key.
    """

    def __init__(self, group: StoredMap, component: str, task: int, txid: int) -> None:
        self.active = False
        self.writes: dict[str, MapRow] = {}
        self._group = group
        self._kind = group.state.kind
        self._txid = txid
        self._where = f"map {group.state.name!r} ({component}[{task}], txid {txid})"
        self._found: dict[str, Row[Any] | None] = {}

    def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if it has none."""
        return self.get_many([key]).get(key, default)

    def get_many(self, keys: Iterable[Key]) -> dict[Key, Any]:
        """Return ``{key: value}`` for those `keys` that have a value."""
        texts = self._texts(keys)
        self._look_up(texts.values())
        found = {key: self._value(text) for key, text in texts.items()}
        return {key: deepcopy(value) for key, value in found.items() if value is not None}

    def put(self, key: Key, value: Any) -> None:
        """Set the value of `key`."""
        self.put_many({key: value})

    def put_many(self, values: Mapping[Key, Any]) -> None:
        """Set the values of many keys."""
        texts = self._texts(values)
        made = {key: json_value(value, self._where, key) for key, value in values.items()}
        self._look_up(texts.values())
        for key, text in texts.items():
            self._put(text, made[key])

    def update(self, key: Key, function: Change) -> Any:
        """Set `key` to ``function(old value or None)`` and return the new value."""
        return self.update_many({key: None}, lambda old, _: function(old))[key]

    def update_many(self, partials: Mapping[Key, Any], function: Callable[[Any, Any], Any]) -> dict[Key, Any]:
        """Set every key to ``function(old value or None, partial)``; return the new values, keyed by key.

        In a transactional map, a key that an earlier attempt of this txid has updated keeps its value.
        """
        texts = self._texts(partials)
        self._look_up(texts.values())
        for key, text in texts.items():
            self._update(text, self._changed(function, key, partials[key]))
        return {key: deepcopy(self._value(text)) for key, text in texts.items()}

    def _changed(self, function: Callable[[Any, Any], Any], key: Key, partial: Any) -> Change:
        return lambda old: json_value(function(deepcopy(old), partial), self._where, key)

    def merge(self, batch: Any, how: Mapping[str, str]) -> Never:
        """Raise `StateError`: `merge` is not supported, since maps have no columns."""
        raise StateError(f"{self._where}: merge needs value columns, which maps do not have; use update_many")

    def remove(self, key: Key) -> None:
        """Remove `key`; removing an absent key changes nothing."""
        self.remove_many([key])

    def remove_many(self, keys: Iterable[Key]) -> None:
        """Remove many keys."""
        texts = list(self._texts(keys).values())
        self._look_up(texts)
        for text in texts:
            found = self._found[text]
            # A row without a value may have had one before this txid, which an earlier attempt has removed.
            if text in self.writes or (found is not None and (found.value, self._value(text)) != (None, None)):
                self._put(text, None)

    def previous(self, key: Key) -> Any:
        """Return the value that `key` had before this txid, or None if it had none.

        Raises:
            StateError: the map is transactional and has already been updated in this txid, so the old value is lost.
        """
        (text,) = self._texts([key]).values()
        self._look_up([text])
        found = self._found[text]
        if self._kind == TRANSACTIONAL and found is not None and is_applied(found, self._txid):
            raise StateError(
                f"{self._where}, key {shown(key)}: a transactional map keeps no value before a txid; use kind='opaque'"
            )
        return deepcopy(base(found, self._txid))

    def _texts(self, keys: Iterable[Key]) -> dict[Key, str]:
        if not self.active:
            raise used_outside(self._where)
        return {key: key_text(key, self._where) for key in _hashable(keys, self._where)}

    def _look_up(self, texts: Iterable[str]) -> None:
        """Read the rows of those keys that the task has not read yet, in one call to the store."""
        wanted = [text for text in dict.fromkeys(texts) if text not in self._found]
        if wanted:
            self._found.update(zip(wanted, self._group.rows(wanted, self._txid, self._where), strict=True))

    def _value(self, text: str) -> Any:
        if text in self.writes:
            return self.writes[text].value
        found = self._found[text]
        if found is None:
            return None
        return base(found, self._txid) if self._kind == OPAQUE else found.value

    def _put(self, text: str, value: Any) -> None:
        if self._kind == OPAQUE or text in self.writes:
            self._update(text, lambda _: value)
        else:
            self._keep(text, Row(value, self._txid, None))

    def _update(self, text: str, change: Change) -> None:
        """Apply `change` to one key by the map's update rule, or to the row that this task has already written."""
        found, own = self._found[text], self.writes.get(text)
        if own is not None:
            self._keep(text, Row(change(own.value), self._txid, own.prev))
        elif self._kind == OPAQUE:
            self._keep(text, opaque(found, self._txid, change))
        elif self._kind == NON_TRANSACTIONAL:
            self._keep(text, Row(change(found and found.value), self._txid, None))
        elif (made := transactional(found, self._txid, change)) is not found:
            self._keep(text, made)

    def _keep(self, text: str, row: Row[Any]) -> None:
        self.writes[text] = MapRow(row.value, row.txid, self._group.timeline, row.prev)


class StoredMap(ExternalTarget[TaskMap, dict[str, MapRow]]):
    """A map as a commit target: its declaration, its store, and the writes of unpublished txids over the store."""

    accessor = "state"
    holds = "one value per key"

    def __init__(self, data_dir: Path, owner: TopologyIdentity, component: str, state: MapState) -> None:
        super().__init__(TableRef(MAP, state.name), STAGED_SCHEMA)
        self.place(component, data_dir)
        self.state = state
        self.timeline = owner.timeline
        self._owner = owner
        self._overlay: dict[str, MapRow] = {}

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Check that map and ledger belong together, then set the mark's epoch to `epoch`; see `MarkedTarget.lead`.

        Without a commit mark, nothing is checked.
        """
        self.last = committed
        self.make_directory()
        if (marked := self._marked()) is not None:
            self.last = marked.lead(epoch, committed, recorded, live)

    def _write(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        rows = staged_rows(staged, intent.timeline, keeps_txid=self.state.kind != NON_TRANSACTIONAL)
        if (marked := self._marked()) is not None:
            marked.put(rows, table, intent, epoch)
        else:
            with reached(f"map {self.name!r}", f"put txids {intent.first}-{intent.last}"):
                self.state.backend.multi_put(rows)

    def _marked(self) -> MarkedTarget[Mapping[str, MapRow | None]] | None:
        backend = self.state.backend
        if not (self.state.marked and isinstance(backend, MarkedMapBackend)):
            return None
        label = f"map {self.name!r}"
        return MarkedTarget(label, "database", self.ref.uri, self._owner, backend.mark, backend.put_marked, {})

    def _new_handle(self, component: str, task: int, txid: int) -> TaskMap:
        return TaskMap(self, component, task, txid)

    def rows(self, texts: Sequence[str], txid: int, where: str) -> list[Row[Any] | None]:
        """Read the rows of the encoded keys `texts` as seen by `txid`: from the overlay, otherwise from the store.

        Raises:
            StateError: a row in the store was written by a txid later than `txid`.
            ReportedFailedException: the store cannot be reached; the batch is replayed.
        """
        # Read the overlay first: rows published meanwhile are found in one of the two.
        overlay = self._overlay
        missing = [text for text in texts if text not in overlay]
        found = {**overlay, **dict(zip(missing, self._get(missing, where), strict=True))}
        return [self._as_row(text, found[text], txid, where) for text in texts]

    def _get(self, texts: Sequence[str], where: str) -> Sequence[MapRow | None]:
        if not texts:
            return []
        try:
            found = self.state.backend.multi_get(list(texts))
        except (TxstormError, FailedException):
            raise
        except OSError as error:
            msg = f"{where}: the store cannot be read: {error}; the batch is tried again until it can"
            raise ReportedFailedException(msg) from error
        if len(found) != len(texts):
            msg = f"{where}: multi_get gave {len(found)} rows for {len(texts)} keys; expected one, or None, for each"
            raise StateError(msg)
        return found

    def _as_row(self, text: str, row: MapRow | None, txid: int, where: str) -> Row[Any] | None:
        if row is None or (row.value is None and self.state.kind == NON_TRANSACTIONAL):
            return None
        if self.state.kind == NON_TRANSACTIONAL or row.timeline < self.timeline:
            return Row(row.value, 0, None)
        known = Row(row.value, row.txid, row.prev)
        try:
            if row.timeline > self.timeline:
                msg = f"state is ahead: expected a row of timeline {self.timeline} or earlier, got {row.timeline}"
                raise StateError(msg)
            is_applied(known, txid)
        except StateError as ahead:
            raise StateError(f"{where}, key {text}: {ahead}") from None
        return known

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], TaskMap]) -> dict[str, MapRow] | None:
        rows: dict[str, MapRow] = {}
        for handle in tasks.values():
            rows.update(handle.writes)
        if len(rows) < sum(len(handle.writes) for handle in tasks.values()):
            raise StateError(self._two_writers(txid, tasks))
        return rows or None

    def _lay_over(self, ended: dict[str, MapRow]) -> None:
        self._overlay = {**self._overlay, **ended}

    def _keep_ended(self, ended: dict[int, dict[str, MapRow]]) -> None:
        self._ended, self._overlay = ended, _latest(ended)

    def _rows_of(self, ended: Mapping[int, dict[str, MapRow]]) -> pa.Table:
        return staged_table(_latest(ended))

    def _two_writers(self, txid: int, tasks: Mapping[tuple[str, int], TaskMap]) -> str:
        written = Counter(chain.from_iterable(handle.writes for handle in tasks.values()))
        key = min(key for key, times in written.items() if times > 1)
        names = [f"{component}[{task}]" for (component, task), handle in sorted(tasks.items()) if key in handle.writes]
        return (
            f"map {self.state.name!r}, txid {txid}: key {key} was changed by {len(names)} tasks ({', '.join(names)}), "
            "expected one task per key: use fields_grouping on the key in front of the committer"
        )


def _latest(ended: Mapping[int, dict[str, MapRow]]) -> dict[str, MapRow]:
    return {text: row for rows in ended.values() for text, row in rows.items()}


def _hashable(keys: Iterable[Key], where: str) -> Iterable[Key]:
    for key in keys:
        try:
            hash(key)
        except TypeError:
            kinds = "str, int, bool, bytes, datetime, date, Decimal, None or a tuple"
            raise StateError(f"{where}: key {shown(key)} cannot be a key; use {kinds}") from None
        yield key
