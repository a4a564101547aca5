"""State in the user's own database: the port to it, and how a committer declares a map.

The mark: where something outside the data directory stands, kept there and changed together with its content.

Sinks in systems of the user's own: the port to them, and how a committer declares one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from txstorm.api.state import SinkTable


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a map or an outlet is: kept in its own system, and changed in one atomic step with its content.

    Attributes:
        topology: who owns it.
        incarnation: of the owner's data directory.
        epoch: of the coordinator that leads; one with a lower epoch must not write.
        timeline: counts rewinds.
        txid: the last transaction that was written.
        content: a digest of what was written with it.
    """

    topology: str
    incarnation: str
    epoch: int
    timeline: int
    txid: int
    content: str = ""


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


OUTLET_METHODS = ("open", "published", "publish", "close")


@runtime_checkable
class OutletWriter(Protocol):
    """Appends rows to a system of the user's own, exactly once; what one implements for another system.

    One primitive carries everything: `publish` appends rows and replaces the mark in one atomic step, if nobody else
    has replaced it since `published` gave it. Fencing is a `publish` without rows that raises the mark's epoch.
    Calls come from one thread at a time. What they raise while a decided transaction is written is shown as the cause
    of a block, and they are called again; the answer of a `publish` may get lost, and the mark says whether it worked.
    """

    def open(self, outlet: str, topology: str, incarnation: str) -> None:
        """Called in P0, before all else: the names under which marks are kept, and the place to check the target.

        Raises `txstorm.errors.InputError` for what only a changed setting can mend. Anything else, and
        `txstorm.errors.AwayError`, means that the target may answer later: a start waits for a target that it has
        led before, and ends at once where it is a new one.
        """

    def published(self) -> Mark | None:
        """The mark of this outlet, None before the first one.

        Whatever an earlier writer of this outlet has begun must have ended, one way or the other, before this returns.
        """

    def publish(self, rows: pa.Table, expected: Mark | None, mark: Mark) -> bool:
        """If the mark is `expected`, append `rows` in their order and store `mark`: all or nothing, and durable.

        `rows` has the declared columns and ``_txid``, in the order of the txids. Returns False, and changes nothing,
        when it is another mark.
        """

    def close(self) -> None:
        """Let go of connections; `open` may be called again."""


@dataclass(frozen=True)
class Outlet:
    """An append-only sink in a system of the user's own, such as a topic: rows go there exactly once, in txid order.

    Set it as an attribute of a committer; `context.sink(name)` gives its handle. Rows are staged with the transaction
    and handed to the writer once it is decided. A copy that is shipped to a task carries no writer: what it holds,
    such as a password, stays in the driver.

    Attributes:
        name: a letter, then letters, digits, ``_`` or ``-``; no sink of the topology has the same.
        columns: column → type, as for `txstorm.api.state.KeyedState`.
        writer: the system; one for each outlet.
    """

    name: str
    columns: Mapping[str, Any] = field(hash=False)
    writer: OutletWriter = field(repr=False)

    @property
    def table(self) -> SinkTable:
        """Its columns, as those of a sink."""
        return SinkTable(self.name, self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Outlet, (self.name, self.columns, None)
