"""Key-value states over a store that prepares and commits changes: reads through layers, text form of keys and values.

A state keeps its writes in memory until they are prepared. The store keeps what is committed and what is prepared, and
rejects the writes of coordinators with an older epoch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from txstorm.api.external import KeyValueState
from txstorm.errors import EmitError, StateError
from txstorm.keys import EQUAL, text
from txstorm.misfits import shown
from txstorm.tagged import text_of, value_of

Changes = Mapping[bytes, bytes | None]
"""Serialized key → serialized value; None: the key is deleted."""
CACHED = 100_000
"""Maximum number of values read from the store that a state keeps between two transactions."""


class Place(NamedTuple):
    """Place of a transaction in the commit order of a topology: the number of rewinds before it, and its txid."""

    timeline: int
    txid: int


class ChangeStore(Protocol):
    """Port to the store of one namespace, opened with an epoch.

    Every call that writes raises `FencedError`, and changes nothing, if the namespace was opened with a higher epoch.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the committed value of `key`; None if it has none."""

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the committed (key, value) pairs, in any order."""

    def places(self) -> tuple[Place | None, Place | None]:
        """Return the place last committed, and the one that is prepared; None for none."""

    def prepare(self, place: Place, changes: Changes, after: Place | None) -> None:
        """Keep `changes` durably as those of `place`, in place of any earlier ones.

        Raises `TableCorrupt` unless `after` is the place last committed: the store was emptied or replaced.
        """

    def commit(self, place: Place) -> None:
        """Apply the prepared changes of `place`; raise `StateError` if another place, or none, is prepared."""

    def rollback(self) -> None:
        """Drop the prepared changes, if there are any."""

    def write(self, changes: Changes) -> None:
        """Apply `changes` at once, all or nothing, without a place."""

    def close(self) -> None:
        """Release connections."""


class Serializer(Protocol):
    """Port that converts keys or values to bytes and back; equal keys must give equal bytes."""

    def serialize(self, value: Any) -> bytes:
        """Return the bytes of `value`; raise `ValueError` or `TypeError` if it has none."""

    def deserialize(self, data: bytes) -> Any:
        """Return the value that was serialized as `data`."""


class TextSerializer:
    """Default serializer of values: JSON with tags, which keeps all plain types apart."""

    def serialize(self, value: Any) -> bytes:
        """See `Serializer`."""
        return text_of(value, "value").encode()

    def deserialize(self, data: bytes) -> Any:
        """See `Serializer`."""
        return value_of(data.decode())


class KeySerializer:
    """Default serializer of keys: plain values and tuples of them; ``1``, ``"1"`` and ``True`` are different keys.

    Args:
        form: the form of their texts; see `txstorm.keys.text`.
    """

    def __init__(self, form: int = EQUAL) -> None:
        self._form = form

    def serialize(self, value: Any) -> bytes:
        """See `Serializer`."""
        for part in _parts(value):
            if isinstance(part, float):
                raise TypeError(f"a float cannot be a key; use {_KEY_TYPES}")
        try:
            return text(value, self._form).encode()
        except StateError as error:
            raise TypeError(f"a {type(value).__name__} cannot be a key; use {_KEY_TYPES} ({error})") from None

    def deserialize(self, data: bytes) -> Any:
        """See `Serializer`."""
        return value_of(data.decode())


_KEY_TYPES = "str, int, bool, bytes, datetime with a time zone, date, Decimal, None, or a tuple of these"


def _parts(value: Any) -> Iterator[Any]:
    """Yield the parts of a key."""
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    else:
        yield value


class Form(NamedTuple):
    """Serializers of a state, and the types that its keys and values must have; None: any that can be serialized."""

    keys: Serializer = KeySerializer()
    values: Serializer = TextSerializer()
    key_type: type | None = None
    value_type: type | None = None

    def key(self, given: Any, where: str) -> bytes:
        """Serialize a key; raise `StateError`, which names the state, if that is impossible."""
        return _serialized(self.keys, given, self.key_type, f"{where}: key")

    def value(self, given: Any, key: Any, where: str) -> bytes:
        """Serialize the value of `key`; raise `StateError`, which names both, if that is impossible."""
        what = f"{where}, key {shown(key)}: value"
        if given is None:
            raise StateError(f"{what} is None, which means that there is none; call delete to remove the key")
        return _serialized(self.values, given, self.value_type, what)


def _serialized(serializer: Serializer, given: Any, kind: type | None, what: str) -> bytes:
    if kind is not None and not isinstance(given, kind):
        raise StateError(f"{what} {shown(given)} is a {type(given).__name__}, expected a {kind.__name__} as configured")
    try:
        made = serializer.serialize(given)
    except EmitError:
        msg = f"{what} {shown(given)} has no text form; use strings, numbers, bytes, times, lists, tuples, dicts, sets"
        raise StateError(msg) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"{what} {shown(given)} cannot be stored: {error}") from None
    return made.encode() if isinstance(made, str) else made


class ManagedKeyValueState(KeyValueState):
    """Base class of states that a bolt uses, and that only the topology saves."""

    @abstractmethod
    def _refused(self, call: str) -> StateError:
        """Return the error for a call that saves the state."""

    def prepare_commit(self, txid: int) -> None:
        """Raise `StateError`."""
        raise self._refused("prepare_commit")

    def commit(self, txid: int | None = None) -> None:
        """Raise `StateError`."""
        raise self._refused("commit")

    def rollback(self) -> None:
        """Raise `StateError`."""
        raise self._refused("rollback")


class StoredKeyValueState(KeyValueState):
    """Key-value state over a `ChangeStore`: own writes, over the prepared ones, over the store.

    Args:
        name: its namespace, for messages.
        store: what is committed and prepared.
        timeline: number of rewinds of the topology.
        form: serializers and types.
    """

    def __init__(self, name: str, store: ChangeStore, timeline: int = 0, form: Form | None = None) -> None:
        self._where = f"state {name!r}"
        self._store = store
        self._timeline = timeline
        self._form = form or Form()
        self._written: dict[bytes, bytes | None] = {}
        self._prepared: dict[bytes, bytes | None] = {}
        self._cache: dict[bytes, bytes | None] = {}
        self._writes = 0
        self._committed, self._place = store.places()

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        name = self._form.key(key, self._where)
        self._written[name] = self._form.value(value, key, self._where)
        self._writes += 1

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`; `default`, which is not stored, if it has none."""
        found = self._found(self._form.key(key, self._where))
        return default if found is None else self._form.values.deserialize(found)

    def delete(self, key: Any) -> Any:
        """Remove `key`; return the value it had, None if it had none."""
        name = self._form.key(key, self._where)
        found = self._found(name)
        self._written[name] = None
        self._writes += 1
        return None if found is None else self._form.values.deserialize(found)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield (key, value) for each key, own writes included.

        Raises:
            StateError: the state was written after the iteration began.
        """
        writes, above = self._writes, {**self._prepared, **self._written}
        for key, value in _layered(self._store.items(), above):
            if self._writes != writes:
                raise StateError(
                    f"{self._where} was changed while it was iterated; iterate over list(state) to change it meanwhile"
                )
            yield self._form.keys.deserialize(key), self._form.values.deserialize(value)

    def prepare_commit(self, txid: int) -> None:
        """Save all writes so far durably as the content of `txid`; see `txstorm.api.external.State`."""
        place = Place(self._timeline, txid)
        if self._place not in (None, place):
            other = _named(self._place)
            msg = f"{self._where}: txid {txid} cannot be prepared while {other} is; commit it or roll back first"
            raise StateError(msg)
        if self._committed is not None and place <= self._committed:
            msg = f"{self._where}: txid {txid} cannot be prepared, {_named(self._committed)} is already committed"
            raise StateError(msg)
        changes = {**self._prepared, **self._written}
        self._store.prepare(place, changes, self._committed)
        self._place, self._prepared, self._written = place, changes, {}

    def commit(self, txid: int | None = None) -> None:
        """Make the prepared content of `txid`, or without a txid all writes so far, permanent."""
        if txid is None:
            self._commit_now()
            return
        place = Place(self._timeline, txid)
        if self._place != place:
            msg = f"{self._where}: txid {txid} cannot be committed: {_named(self._place)} is prepared; prepare it first"
            raise StateError(msg)
        try:
            self._store.commit(place)
        except (OSError, StateError):
            self._committed, self._place = self._store.places()  # an earlier response may have been lost
            if self._committed != place:
                raise
        self._settle(self._prepared)
        self._committed, self._place, self._prepared = place, None, {}

    def _commit_now(self) -> None:
        if self._place is not None:
            raise StateError(
                f"{self._where}: commit without a txid while {_named(self._place)} is prepared; commit it with its txid"
            )
        self._store.write(self._written)
        self._settle(self._written)
        self._written = {}

    def rollback(self) -> None:
        """Forget what is prepared and written, and restore the last commit."""
        self._writes += 1
        self._written, self._prepared, self._cache = {}, {}, {}
        self._store.rollback()
        self._committed, self._place = self._store.places()

    def last_committed(self) -> int | None:
        """Return the last txid committed on this timeline; None if there is none."""
        return self._txid(self._committed)

    @property
    def has_commits(self) -> bool:
        """Whether anything has been committed, on any timeline."""
        return self._committed is not None

    def prepared(self) -> int | None:
        """Return the prepared txid; None if there is none. One of an earlier timeline can only be rolled back."""
        return None if self._place is None else self._place.txid

    def close(self) -> None:
        """Release connections."""
        self._store.close()

    def _txid(self, place: Place | None) -> int | None:
        return place.txid if place is not None and place.timeline == self._timeline else None

    def _found(self, name: bytes) -> bytes | None:
        for layer in (self._written, self._prepared, self._cache):
            if name in layer:
                return layer[name]
        self._cache[name] = found = self._store.get(name)
        return found

    def _settle(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Add committed changes to the cache; empty it if it is full."""
        if len(self._cache) + len(changes) > CACHED:
            self._cache = {}
        else:
            self._cache.update(changes)


def _layered(stored: Iterable[tuple[bytes, bytes]], above: Changes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the stored pairs with the changes `above` them."""
    for key, value in stored:
        if key not in above:
            yield key, value
    for key, changed in above.items():
        if changed is not None:
            yield key, changed


def _named(place: Place | None) -> str:
    return (
        "no txid"
        if place is None
        else f"txid {place.txid}" + (f" of timeline {place.timeline}" if place.timeline else "")
    )
