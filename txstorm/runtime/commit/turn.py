"""A group's turn in P5: how far it has come, and whether it was taken away from the thread it hangs on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from txstorm.api.attempt import TransactionAttempt
from txstorm.runtime.commit.outcome import GroupOutcome
from txstorm.state.commit_group import CommitGroup


class Abandoned(BaseException):
    """Ends a commit thread that comes back after its group was taken away from it; no code of a user's catches it."""


class CommitTurn:
    """One group in P5, seen from the commit thread that runs it and the driver thread that may end it.

    The commit thread calls `enter`, `begins` before each task's code and `leave`, per txid; only between `enter` and
    `leave`, where user code runs, can the group be taken away.

    Args:
        tables: the group's rows.
        outcome: what is done so far.
        monotonic: seconds.
        ahead: it is not the group's turn yet.
        executes: its committers do not finish: they only execute.
    """

    def __init__(
        self,
        tables: CommitGroup,
        outcome: GroupOutcome,
        monotonic: Callable[[], float],
        *,
        ahead: bool = False,
        executes: bool = False,
    ) -> None:
        self.ahead = ahead
        self.executes = executes
        self.tables = tables
        self.outcome = outcome
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._since: float | None = None
        self._attempt: TransactionAttempt | None = None
        self._place = ("", 0)
        self._abandoned = False

    @property
    def tried(self) -> list[TransactionAttempt]:
        """The attempts that have finished, and the one that failed to, in their order."""
        failed = () if self.outcome.failed is None else (self.outcome.failed[0],)
        return [*(one.ready.attempt for one in self.outcome.committed), *failed]

    def enter(self, attempt: TransactionAttempt) -> None:
        """The commit phase of `attempt` begins."""
        with self._lock:
            self._check()
            self._attempt, self._since = attempt, self._monotonic()

    def begins(self, component: str, task: int) -> None:
        """The code of a task is about to run."""
        with self._lock:
            self._check()
            self._place = (component, task)

    def leave(self) -> None:
        """User code of this txid has come to its end; raises `Abandoned` when that was too late."""
        with self._lock:
            self._check()
            self._since = None

    def take(self, limit: float) -> tuple[TransactionAttempt, tuple[str, int]] | None:
        """Take the group away if its user code has been running for more than `limit` seconds.

        From then on nothing that code does has an effect on any table. Returns the attempt it was at, and whose code.
        """
        with self._lock:
            if self._since is None or self._attempt is None or self._monotonic() - self._since <= limit:
                return None
            self._abandoned = True
            self._since = None
            self.tables.resources.close()
            return self._attempt, self._place

    def _check(self) -> None:
        if self._abandoned:
            raise Abandoned
