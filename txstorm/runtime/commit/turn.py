"""The turn of a commit group in P5: its progress, and whether it was taken away from a commit thread that hangs."""

from __future__ import annotations

from collections.abc import Callable

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import WorkProgress
from txstorm.lanes import Lanes
from txstorm.runtime.commit.outcome import GroupOutcome
from txstorm.state.commit_group import CommitGroup


class Abandoned(BaseException):
    """Raised to end an abandoned commit thread. A BaseException, so that `except Exception` does not catch it."""


class CommitTurn:
    """One group's turn in P5, shared by the commit thread that runs it and the driver thread, which may take it away.

    For each txid, the commit thread calls `enter`, then `begins` before the code of each task, then `leave`. The group
    can be taken away only between `enter` and `leave`, while user code runs.

    Args:
        tables: the rows that the group writes.
        outcome: the group's outcome so far.
        lanes: gives the clock, and the lock between the two threads.
        ahead: whether this work is done before the group's turn.
        executes: whether the committers only execute their input and do not finish the batch.

    Attributes:
        at: returns whose code runs, as ``component[task]``, and how many rows it has taken.
    """

    def __init__(
        self,
        tables: CommitGroup,
        outcome: GroupOutcome,
        lanes: Lanes,
        *,
        ahead: bool = False,
        executes: bool = False,
    ) -> None:
        self.ahead = ahead
        self.executes = executes
        self.at: Callable[[], tuple[str, int]] = lambda: ("", 0)
        self.tables = tables
        self.outcome = outcome
        self._monotonic = lanes.monotonic
        self._lock = lanes.lock()
        self._since: float | None = None
        self._attempt: TransactionAttempt | None = None
        self._place = ("", 0)
        self._abandoned = False

    @property
    def tried(self) -> list[TransactionAttempt]:
        """The finished attempts, followed by the failed attempt if there is one."""
        failed = () if self.outcome.failed is None else (self.outcome.failed[0],)
        return [*(done.ready.attempt for done in self.outcome.committed), *failed]

    def enter(self, attempt: TransactionAttempt) -> None:
        """Record that the commit phase of `attempt` begins."""
        with self._lock:
            self._check()
            self._attempt, self._since = attempt, self._monotonic()

    def begins(self, component: str, task: int) -> None:
        """Record that the user code of this task is about to run."""
        with self._lock:
            self._check()
            self._place = (component, task)

    def leave(self) -> None:
        """Record that the user code of the current txid has ended.

        Raises:
            Abandoned: the group was taken away meanwhile.
        """
        with self._lock:
            self._check()
            self._since = None

    def take(self, limit: float) -> tuple[TransactionAttempt, tuple[str, int]] | None:
        """Take the group away from its thread if user code has been running for more than `limit` seconds.

        From then on that code can no longer change any table. Returns the attempt and the (component, task index) whose
        code was running; None if the group was not taken away.
        """
        with self._lock:
            if self._since is None or self._attempt is None or self._monotonic() - self._since <= limit:
                return None
            self._abandoned = True
            self._since = None
            self.tables.resources.close()
            return self._attempt, self._place

    def how_far(self, longer: float) -> WorkProgress | None:
        """Return how far the user code of a txid is that has been running for `longer` seconds; None: there is none.

        May be called on any thread; without the lock, as it is for display only.
        """
        since, attempt = self._since, self._attempt
        seconds = 0.0 if since is None else self._monotonic() - since
        if since is None or attempt is None or seconds < longer:
            return None
        place, row = self.at()
        return WorkProgress(attempt.txid, attempt.txid, "committing", seconds, place=place, row=row)

    def _check(self) -> None:
        if self._abandoned:
            raise Abandoned
