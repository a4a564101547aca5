"""The turn of a commit group: what is finished of it, how far its user code is, and who may go on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import WorkProgress
from txstorm.engine.port import ErrorRow
from txstorm.lanes import Lanes
from txstorm.runtime.batches.txn import Txn
from txstorm.state.commit_group import CommitGroup


class Abandoned(BaseException):
    """Raised to end an abandoned commit thread. A BaseException, so that `except Exception` does not catch it."""


class Turn:
    """One group's way from P5 to P8, or what its committers do early, before the group's turn has come.

    The commit thread works on it, and the driver thread may take it away. For each txid, the commit thread calls
    `enter`, then `begins` before the code of each task, then `leave`. The turn can be taken away only between `enter`
    and `leave`, while user code runs; from then on only the next commit thread touches it.

    Args:
        tables: the rows that the group writes.
        lanes: gives the clock, and the lock between the two threads.
        early: whether this work is done before the group's turn.
        executes: whether the committers only execute their input and do not finish the batch.

    Attributes:
        finished: the transactions whose committers have finished, in txid order; committed when the turn has ended.
        failed: the failed attempt and its error, which ends the group; the error is None if the attempt was cut short
            by the end of the run. None if no txid failed.
        milliseconds: step of the commit → its duration in milliseconds.
        at: returns whose code runs, as ``component[task]``, and how many rows it has taken.
    """

    def __init__(self, tables: CommitGroup, lanes: Lanes, *, early: bool = False, executes: bool = False) -> None:
        self.tables, self.early, self.executes = tables, early, executes
        self.finished: list[Txn] = []
        self.failed: tuple[TransactionAttempt, ErrorRow | None] | None = None
        self.milliseconds: dict[str, float] = {}
        self.at: Callable[[], tuple[str, int]] = lambda: ("", 0)
        self._monotonic = lanes.monotonic
        self._lock = lanes.lock()
        self._since: float | None = None
        self._attempt: TransactionAttempt | None = None
        self._place = ("", 0)
        self._abandoned = False

    @property
    def tried(self) -> list[TransactionAttempt]:
        """The finished attempts, followed by the failed attempt if there is one."""
        failed = () if self.failed is None else (self.failed[0],)
        return [*(txn.input.attempt for txn in self.finished), *failed]

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Measure a step, and add its duration to the step's entry in `milliseconds`."""
        started = self._monotonic()
        try:
            yield
        finally:
            took = (self._monotonic() - started) * 1000
            self.milliseconds[step] = self.milliseconds.get(step, 0.0) + took

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
            Abandoned: the turn was taken away meanwhile.
        """
        with self._lock:
            self._check()
            self._since = None

    def take(self, limit: float) -> tuple[TransactionAttempt, tuple[str, int]] | None:
        """Take the turn away from its thread if user code has been running for more than `limit` seconds.

        From then on that code can no longer change any table. Returns the attempt and the (component, task index) whose
        code was running; None if the turn was not taken away.
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
