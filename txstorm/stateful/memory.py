"""States in the memory of the process: for tests, and for bolts whose state may be lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import RLock
from typing import Any, ClassVar

from txstorm.api.external import KeyValueState, StateContext, StateProvider
from txstorm.errors import FencedError, StateError, TableCorrupt
from txstorm.stateful.key_values import Changes, Place, StoredKeyValueState


class _Namespace:
    """Content and markers of one namespace."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.owner: tuple[str, str] | None = None
        self.epoch = 0
        self.data: dict[bytes, bytes] = {}
        self.committed: Place | None = None
        self.prepared: tuple[Place, dict[bytes, bytes | None]] | None = None


class MemoryStateProvider(StateProvider):
    """Provider of key-value states that live as long as the provider object.

    Attributes:
        volatile: True: a start that finds committed transactions refuses the provider.
    """

    volatile: ClassVar[bool] = True

    def __init__(self) -> None:
        self._namespaces: dict[str, _Namespace] = {}
        self._lock = RLock()

    def new_state(
        self, namespace: str, conf: Mapping[str, Any] | None = None, context: StateContext | None = None
    ) -> KeyValueState:
        """Open the state of `namespace`; see `txstorm.api.external.StateProvider`."""
        with self._lock:
            found = self._namespaces.setdefault(namespace, _Namespace())
        store = _MemoryStore(namespace, found, context)
        return StoredKeyValueState(namespace, store, 0 if context is None else context.timeline)


class _MemoryStore:
    """`ChangeStore` in memory."""

    def __init__(self, name: str, found: _Namespace, context: StateContext | None) -> None:
        self._name = name
        self._found = found
        with found.lock:
            self._epoch = found.epoch if context is None else context.epoch
            self._check()
            if context is not None:
                owner = (context.topology, context.incarnation)
                if found.owner not in (None, owner):
                    raise StateError(foreign(f"state {name!r}", owner[0], found.owner[0] if found.owner else ""))
                found.owner, found.epoch = owner, self._epoch

    def get(self, key: bytes) -> bytes | None:
        return self._found.data.get(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        yield from list(self._found.data.items())

    def places(self) -> tuple[Place | None, Place | None]:
        prepared = self._found.prepared
        return self._found.committed, prepared and prepared[0]

    def prepare(self, place: Place, changes: Changes, after: Place | None) -> None:
        with self._found.lock:
            self._check()
            if self._found.committed != after:
                found = self._found.committed
                msg = f"state {self._name!r}: expected {after} as last committed, found {found}: it was lost"
                raise TableCorrupt(msg)
            self._found.prepared = place, dict(changes)

    def commit(self, place: Place) -> None:
        with self._found.lock:
            self._check()
            prepared = self._found.prepared
            if prepared is None or prepared[0] != place:
                raise StateError(f"state {self._name!r}: txid {place.txid} cannot be committed, as it is not prepared")
            self._apply(prepared[1])
            self._found.committed, self._found.prepared = place, None

    def rollback(self) -> None:
        with self._found.lock:
            self._check()
            self._found.prepared = None

    def write(self, changes: Changes) -> None:
        with self._found.lock:
            self._check()
            self._apply(changes)

    def close(self) -> None:
        pass

    def _apply(self, changes: Changes) -> None:
        for key, value in changes.items():
            if value is None:
                self._found.data.pop(key, None)
            else:
                self._found.data[key] = value

    def _check(self) -> None:
        if self._found.epoch > self._epoch:
            raise FencedError(fenced(f"state {self._name!r}", self._epoch, self._found.epoch))


def fenced(label: str, own: int, found: int) -> str:
    """Return the message for a write of a coordinator whose epoch is too low."""
    return f"{label}: expected the epoch {own} of this coordinator, found {found}: another one has taken over"


def foreign(label: str, topology: str, owner: str) -> str:
    """Return the message for a namespace that belongs to another topology or data directory."""
    return (
        f"{label}: expected that of topology {topology!r} in this data directory, found that of topology {owner!r} in "
        "another one; name the component differently, or use another store"
    )
