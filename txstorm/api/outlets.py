"""Sinks in systems of the user's own: the port to them, and how a committer declares one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from txstorm.api.marks import Mark
from txstorm.api.state import SinkTable

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
