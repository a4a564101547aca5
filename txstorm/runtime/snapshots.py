"""Snapshots at clocks of the source: savepoints of the transactions that have these clocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txstorm.clocks import Clock


@dataclass(frozen=True)
class ClockSnapshot:
    """A complete snapshot.

    Attributes:
        number: 1 for the topology's first one.
        clock: the clock of the source.
        txid: the transaction that has this clock.
        name: name of its savepoint.
        stamp: when it was made, microseconds since 1970 (UTC).
    """

    number: int
    clock: Clock
    txid: int
    name: str
    stamp: int

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as commands show it."""
        return {
            "number": self.number,
            "clock": dict(self.clock),
            "txid": self.txid,
            "name": self.name,
            "stamp": self.stamp,
        }


class Snapshots:
    """Takes the snapshots of a run; belongs to the driver thread.

    Attributes:
        complete: called with each snapshot once its savepoint exists.
        failed: called with the clock of a snapshot that was given up or could not be made, and why.
    """

    def __init__(self) -> None:
        self.complete: list[Callable[[ClockSnapshot], None]] = []
        self.failed: list[Callable[[Clock, str], None]] = []

    @property
    def planned(self) -> Clock | None:
        """The clock of the last planned transaction; None if the source has no clocks, or nothing is planned yet."""
        return None

    @property
    def wanted(self) -> Clock | None:
        """The clock that no transaction may pass; None if there is none."""
        return None

    def take(self, name: str | None = None) -> Clock:
        """Ask for a snapshot at the clock of the last planned transaction, and return it; nothing waits for it."""
        raise NotImplementedError

    def want(self, clock: Clock, name: str | None = None, wait: float | None = None) -> None:
        """Ask for a snapshot at `clock`, which no transaction passes before it is complete.

        Args:
            clock: the clock of the last planned transaction, or one that it has not reached.
            name: name of the savepoint; None: a number.
            wait: seconds after which it is given up; None: the setting ``snapshot_wait``.

        Raises:
            InputError: the clock names other partitions, is behind the last planned transaction or beyond the end of
                the source, or another one is wanted.
        """
        raise NotImplementedError

    def cancel(self, why: str) -> None:
        """Give up the wanted clock, if there is one."""

    def look(self) -> None:
        """Give up a wanted clock that is late; called in each turn of the driver's loop."""

    def committed(self, last: int) -> None:
        """Take the snapshots that are due now that all transactions up to `last` are committed."""
