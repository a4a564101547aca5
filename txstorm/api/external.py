"""State in the user's own database: the port to it, and how a committer declares a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from txstorm.api.marks import Mark

MapKind = Literal["opaque", "transactional", "non_transactional"]
OPAQUE, TRANSACTIONAL, NON_TRANSACTIONAL = "opaque", "transactional", "non_transactional"
MAP_KINDS = (OPAQUE, TRANSACTIONAL, NON_TRANSACTIONAL)


@dataclass(frozen=True, slots=True)
class MapRow:
    """What a store keeps of one key; Storm's ``OpaqueValue`` and ``TransactionalValue``.

    Attributes:
        value: a JSON value; None says that the key was removed in `txid`.
        txid: the transaction that last changed it; 0 in a map that keeps none.
        timeline: counts rewinds; order is by (timeline, txid).
        prev: the value before that transaction, in an opaque map; None when there was none.
    """

    value: Any
    txid: int = 0
    timeline: int = 0
    prev: Any = None


MapMark = Mark
"""What a store of maps keeps beside their rows."""


class MapBackend(Protocol):
    """A store of rows by key, in bulk; what a user implements for a database of their own.

    Keys are text. Calls come from one thread at a time, mostly two a transaction. While the store cannot be reached,
    both raise an `OSError` (`ConnectionError`, `TimeoutError`): a read then fails the batch, which is tried again, a
    put is repeated until it works. A put may be repeated in any case: it must overwrite.

    A store that offers no more is counted as *at least once*: a process that was taken over while it slept in
    `multi_put` may set rows back when it wakes up. See `MarkedMapBackend`.
    """

    def multi_get(self, keys: Sequence[str]) -> Sequence[MapRow | None]:
        """The rows of `keys`, in their order; None where there is none."""

    def multi_put(self, rows: Mapping[str, MapRow | None]) -> None:
        """Store `rows`, durably; None deletes.

        A row whose value is None is a removal that must still be found until a row of a later txid is put; it may
        be deleted then.
        """


@runtime_checkable
class MarkedMapBackend(MapBackend, Protocol):
    """A store that changes rows and a mark in one atomic step; with it a map is *exactly once*."""

    def mark(self) -> MapMark | None:
        """The mark that was stored last, None before the first."""

    def put_marked(self, rows: Mapping[str, MapRow | None], expected: MapMark | None, mark: MapMark) -> bool:
        """If the stored mark is `expected`, store `rows` (as `multi_put` does) and `mark`, all or nothing.

        Returns False, and changes nothing, when it is another one. The answer may get lost: the caller then reads
        the mark again.
        """


@dataclass(frozen=True)
class MapState:
    """One JSON value per key, kept in a store of the user's own.

    Set it as an attribute of a committer, as a `txstorm.api.state.KeyedState`; `context.state(name)` gives its handle.
    Writes are staged with the transaction, and put once it is decided. A copy that is shipped to a task carries no
    backend: what it holds, such as a password, stays in the driver.

    Attributes:
        name: a letter, then letters, digits, ``_`` or ``-``; no state of the topology has the same.
        backend: the store; one for each map.
        kind: what a row remembers: ``opaque`` (value, value before, txid), ``transactional`` (value, txid) or
            ``non_transactional`` (value).
        allow_opaque_spout: accept an opaque spout in front of a transactional map, which is not exactly once.
    """

    name: str
    backend: MapBackend = field(repr=False)
    kind: MapKind = "opaque"
    allow_opaque_spout: bool = False

    @property
    def marked(self) -> bool:
        """Whether the store keeps a mark for this map, which makes it exactly once."""
        return self.kind != NON_TRANSACTIONAL and isinstance(self.backend, MarkedMapBackend)

    def __reduce__(self) -> tuple[Any, ...]:
        return MapState, (self.name, None, self.kind, self.allow_opaque_spout)
