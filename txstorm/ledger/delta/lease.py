"""The lease of a Delta ledger: a row that expires unless its holder renews it by writing.

Clock rules. Every version that the holder writes is a heartbeat (a renewal); if it has nothing to write, it writes
one after a third of the lease's length. A process that wants the lease waits, by its own monotonic clock, one full
length after it has *seen* the last heartbeat, and then acquires the lease with a compare-and-set on the version it has
seen. The holder counts from *before* it wrote its last heartbeat, trusts the lease for `TRUSTED` of its length, and
queries the store after that. Thus the clocks of two machines are never compared. Even a wrong clock does not let two
processes write: the ledger's versions and the tables' epochs prevent that; the lease only saves them from trying.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from txstorm.ledger.delta.versions import Content, LeaseRow
from txstorm.ledger.lease import process_has_ended

SECONDS = 10.0
"""Seconds that a lease lasts after its holder's last heartbeat."""

TRUSTED = 0.8
"""Fraction of a lease's length during which its holder trusts it without querying the store."""

SILENT = 6
"""Number of lease lengths, by the wall clock, after which a silent holder on another machine is no longer shown."""


@dataclass
class Held:
    """The lease that this handle has acquired.

    Attributes:
        row: the lease as stored in the ledger.
        renewed: time, by the boot-time clock, just before the last heartbeat was written.
        lost: why the lease was lost; empty while it is held.
        ended: set when the lease is released.
    """

    row: LeaseRow
    renewed: float
    lost: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def trusted(self, now: float) -> bool:
        """Return whether it is certain that no other process has acquired the lease by `now` (boot-time seconds)."""
        return now - self.renewed < self.row.seconds * TRUSTED

    def quiet(self, now: float) -> bool:
        """Return whether a heartbeat is due at `now` (seconds of the boot-time clock)."""
        return now - self.renewed >= self.row.seconds / 3


class Watch:
    """Watcher of a lease: measures the time since this handle saw the holder's last heartbeat.

    Args:
        now: clock in seconds; see `Lanes.boot`.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sign: tuple[str, int] | None = None
        self._since = 0.0

    def look(self, content: Content) -> None:
        """Check `content` for a new heartbeat; call this whenever `content` has been read."""
        sign = None if content.lease is None else (content.lease.token, content.sign)
        if sign != self._sign:
            self._sign, self._since = sign, self._now()

    def is_free(self, content: Content) -> bool:
        """Return whether the lease in `content`, already passed to `look`, may be acquired."""
        lease = content.lease
        return lease is None or process_has_ended(lease.process) or self._now() - self._since >= lease.seconds


def is_silent(content: Content, now: datetime) -> bool:
    """Return whether the holder's last heartbeat is so old that the holder should not be shown; for display only."""
    if content.lease is None or not content.written_at:
        return False
    return now - datetime.fromisoformat(content.written_at) > timedelta(seconds=SILENT * content.lease.seconds)
