"""The lease of a Delta ledger: a row with an end, which its holder moves on by writing.

Clock rules. Every version that the holder writes is a sign of life; when it has nothing to write it writes such a sign
after a third of the lease's length. Who wants the lease waits, by a clock of its own that never goes back, one full
length after it has *seen* the last sign, and then takes the lease with a compare-and-set on the version it has seen.
The holder counts from *before* it wrote its last sign, trusts `TRUSTED` of the length, and asks the store after that.
So no two clocks are compared. Nor does a wrong clock let two write: the ledger's versions and the tables' epochs see to
that, the lease only saves them from trying.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from txstorm.ledger.delta.versions import Content, LeaseRow
from txstorm.ledger.lease import is_gone

SECONDS = 10.0
"""How long a lease lasts after the last sign of its holder."""

TRUSTED = 0.8
"""The part of a lease's length during which the holder is sure of it without asking."""

SILENT = 6
"""Lengths of a lease after which a holder of another machine is no longer shown as one, by the wall clocks."""


def steady() -> float:
    """Seconds of a clock that never goes back, and goes on while the machine sleeps where the system has such a one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass
class Held:
    """The lease that this handle has taken.

    Attributes:
        row: as it stands in the ledger.
        told: when, by `steady`, the last sign was begun to be written.
        pid: the process that took it; a forked child does not have it.
        lost: why it is lost, or empty.
        ended: set when it is given back.
    """

    row: LeaseRow
    told: float
    pid: int
    lost: str = ""
    ended: threading.Event | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process took it: after a fork the child has a copy."""
        return self.pid == os.getpid()

    def trusted(self, now: float) -> bool:
        """Whether nobody can have taken it by `now`."""
        return now - self.told < self.row.seconds * TRUSTED

    def quiet(self, now: float) -> bool:
        """Whether it is time for a sign of life."""
        return now - self.told >= self.row.seconds / 3


class Watch:
    """How long the holder of a lease has given no sign, as this handle has seen it.

    Args:
        now: seconds, see `steady`.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sign: tuple[str, int] | None = None
        self._since = 0.0

    def look(self, content: Content) -> None:
        """Called whenever `content` was read anew."""
        sign = None if content.lease is None else (content.lease.token, content.sign)
        if sign != self._sign:
            self._sign, self._since = sign, self._now()

    def is_free(self, content: Content) -> bool:
        """Whether the lease of `content`, at which `look` has looked, may be taken."""
        lease = content.lease
        return lease is None or is_gone(lease.process) or self._now() - self._since >= lease.seconds


def is_silent(content: Content, now: datetime) -> bool:
    """Whether the holder's last sign is so old that it is not shown any more; decides nothing."""
    if content.lease is None or not content.told_at:
        return False
    return now - datetime.fromisoformat(content.told_at) > timedelta(seconds=SILENT * content.lease.seconds)
