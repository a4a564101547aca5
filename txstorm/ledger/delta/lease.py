"""The lease of a Delta ledger: a row that expires unless its holder renews it by writing.

Clock rules. Every version that the holder writes is a sign of life (a renewal); if it has nothing to write, it writes
one after a third of the lease's length. A process that wants the lease waits, by its own monotonic clock, one full
length after it has *seen* the last sign, and then acquires the lease with a compare-and-set on the version it has
seen. The holder counts from *before* it wrote its last sign, trusts the lease for `TRUSTED` of its length, and asks
the store after that. So the clocks of two machines are never compared. Even a wrong clock does not let two processes
write: the ledger's versions and the tables' epochs prevent that; the lease only saves them from trying.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from txstorm.ledger.delta.versions import Content, LeaseRow
from txstorm.ledger.lease import process_has_ended

SECONDS = 10.0
"""Seconds that a lease lasts after the last sign of life of its holder."""

TRUSTED = 0.8
"""Fraction of a lease's length during which the holder trusts it without asking the store."""

SILENT = 6
"""Number of lease lengths, by the wall clocks, after which a holder on another machine is no longer shown."""


def steady() -> float:
    """Seconds of a monotonic clock, one that keeps running while the machine sleeps if the system has it."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass
class Held:
    """The lease that this handle has acquired.

    Attributes:
        row: its row in the ledger.
        renewed: time, by `steady`, just before the last sign of life was written.
        pid: the process that acquired it; a forked child does not hold it.
        lost: why it is lost; empty while it is not.
        ended: set when it is released.
    """

    row: LeaseRow
    renewed: float
    pid: int
    lost: str = ""
    ended: threading.Event | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process acquired it: after a fork the child only has a copy."""
        return self.pid == os.getpid()

    def trusted(self, now: float) -> bool:
        """Return whether no other process can have acquired it by `now`."""
        return now - self.renewed < self.row.seconds * TRUSTED

    def quiet(self, now: float) -> bool:
        """Return whether a sign of life is due."""
        return now - self.renewed >= self.row.seconds / 3


class Watch:
    """Watcher of a lease: the time since this handle saw the last sign of life of the holder.

    Args:
        now: clock in seconds; see `steady`.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sign: tuple[str, int] | None = None
        self._since = 0.0

    def look(self, content: Content) -> None:
        """Note a new sign of life; call whenever `content` has been read."""
        sign = None if content.lease is None else (content.lease.token, content.sign)
        if sign != self._sign:
            self._sign, self._since = sign, self._now()

    def is_free(self, content: Content) -> bool:
        """Return whether the lease of `content`, which `look` has seen, may be acquired."""
        lease = content.lease
        return lease is None or process_has_ended(lease.process) or self._now() - self._since >= lease.seconds


def is_silent(content: Content, now: datetime) -> bool:
    """Return whether the holder's last sign is too old for the holder to be shown; for display only."""
    if content.lease is None or not content.told_at:
        return False
    return now - datetime.fromisoformat(content.told_at) > timedelta(seconds=SILENT * content.lease.seconds)
