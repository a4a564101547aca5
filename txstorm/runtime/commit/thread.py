"""The commit thread: runs the committers of one group at a time, and is replaced if a committer hangs.

A second thread publishes the finished groups, so that the commit thread can continue with the following ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow
from txstorm.engine.task.commit_phase import CommitFailed
from txstorm.lanes import Lane, Lanes
from txstorm.runtime.commit.finisher import GroupFinisher
from txstorm.runtime.commit.outcome import GroupOutcome, ProcessedBatch
from txstorm.runtime.commit.publisher import Housekeeping
from txstorm.runtime.commit.turn import Abandoned, CommitTurn

log = logging.getLogger(__name__)
STOP_SECONDS = 5.0
"""Maximum time, in seconds, that a stopping run waits for a committer that hangs."""


class CommitThread:
    """Runs commit groups in order on one thread and publishes them on another. Call from the driver thread only.

    Args:
        committer: finishes and concludes the groups.
        done: called with the completed future of a group's outcome, on the thread that completed it.
        failed_ahead: called, on any thread, with an attempt that failed before its turn, and the error.
        lanes: run the committers, and the publishing.
    """

    def __init__(
        self,
        committer: GroupFinisher,
        done: Callable[[Future[GroupOutcome]], None],
        failed_ahead: Callable[[TransactionAttempt, BaseException], None],
        lanes: Lanes,
    ) -> None:
        self._failed_ahead = failed_ahead
        self._ahead: Future[None] | None = None
        self._tried: set[TransactionAttempt] = set()
        self._behind: set[TransactionAttempt] = set()
        self._committer = committer
        self._lanes = lanes
        self._stopped_at: float | None = None
        self._done = done
        self._worker: Lane = lanes.lane("txstorm-commit")
        self._publisher = lanes.lane("txstorm-publish")
        self._current: Future[GroupOutcome] | None = None
        self._housekeeping: Housekeeping | None = None

    def commit(self, group: Sequence[ProcessedBatch], housekeeping: Housekeeping) -> None:
        """Queue `group`, to be committed in its turn."""
        self._housekeeping = housekeeping
        attempts = [ready.attempt for ready in group]
        self._tried.difference_update(attempts)
        self._behind.difference_update(attempts)  # txids that have not finished early finish in their turn
        self._submit(lambda: self._committer.finish(group), housekeeping)

    def execute(self, ready: Iterable[ProcessedBatch]) -> None:
        """Run `execute` of the committers for the lowest txid in `ready` before its turn. Call while no commit is due.

        Only one txid is executed early at a time, so that a commit never waits for more than one. It runs on the commit
        thread, so that a resource that a committer opens in `prepare` is always used on the same thread.
        """
        if self._ahead is not None and not self._ahead.done():
            return
        waiting = [batch for batch in ready if batch.attempt not in self._tried]
        if waiting:
            first = min(waiting, key=lambda batch: batch.attempt)
            self._tried.add(first.attempt)
            self._ahead = self.run(lambda: self._committer.execute(first))
            self._ahead.add_done_callback(lambda done: self._executed(first.attempt, done))

    def finish_ahead(self, following: Iterable[ProcessedBatch]) -> None:
        """Finish the txids in `following` early, while the preceding group is published. Call while a group commits.

        `following` holds the processed txids directly after the committing group, in order. Repeated calls with the
        same txids have no further effect.
        """
        for ready in following:
            if ready.attempt not in self._behind:
                self._behind.add(ready.attempt)
                self._finish_ahead(ready)

    def _finish_ahead(self, ready: ProcessedBatch) -> None:
        def finish() -> None:
            if ready.attempt in self._behind:  # otherwise its turn has come, or it was discarded
                self._committer.finish_ahead(ready)

        self.run(finish).add_done_callback(lambda done: self._executed(ready.attempt, done))

    def _executed(self, attempt: TransactionAttempt, done: Future[None]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, Abandoned):
            self._failed_ahead(attempt, error)

    def forget(self, attempts: Iterable[TransactionAttempt]) -> None:
        """Drop the work that committers did early on these discarded attempts."""
        dead = set(attempts)
        self._tried.difference_update(dead)
        self._behind.difference_update(dead)
        self.run(lambda: self._committer.forget(dead))  # runs after the call that may be in progress

    def run(self, call: Callable[[], Any]) -> Future[Any]:
        """Queue `call` to run on the commit thread; return a future of its result."""
        return self._worker.submit(call)

    def in_turn(self, call: Callable[[], Any]) -> Future[Any]:
        """Queue `call` to run on the publishing thread between two groups; return a future of its result."""
        return self._publisher.submit(call)

    def is_current(self, future: Future[GroupOutcome]) -> bool:
        """Return whether `future` belongs to the current group, and not to an abandoned thread."""
        return future is self._current

    def expire(self, timeout: float | None, *, stopping: bool) -> None:
        """Abandon the commit thread if user code has been running for one txid for more than `timeout` seconds.

        If `timeout` is None, there is no limit. A new thread commits the txids before that txid; that txid and later
        txids fail. A stopping run waits at most `STOP_SECONDS`, and does not count this as a failure of the txid.
        """
        if stopping:
            self._stopped_at = self._stopped_at or self._lanes.monotonic()
            if self._lanes.monotonic() - self._stopped_at > STOP_SECONDS:
                self._take_away(0, "did not come to an end when the run was stopped", counts=False)
        if timeout is not None:
            self._take_away(timeout, f"did not come to an end within batch_timeout={timeout} s", counts=True)

    def _take_away(self, limit: float, cause: str, *, counts: bool) -> None:
        turn = self._committer.turn
        taken = turn.take(limit) if turn is not None else None
        if turn is None or taken is None:
            return
        attempt, (component, task) = taken
        log.warning("txid %s: %s[%s] %s; its thread is abandoned", attempt, component, task, cause)
        waiting, self._worker = self._worker.leave(), self._lanes.lane("txstorm-commit")
        row = ErrorRow(component, task, "lost", "Timeout", cause, "", "") if counts else None
        if turn.ahead:
            self._ahead = self.run(lambda: self._committer.leave(turn, attempt, row))
            if row is not None and turn.executes:  # otherwise it is reported in its turn
                self._failed_ahead(attempt, CommitFailed(row))
        else:
            housekeeping = self._housekeeping
            assert housekeeping is not None
            self._submit(lambda: self._committer.leave(turn, attempt, row), housekeeping)
        for call in waiting:
            self._worker.queue(call)

    def close(self) -> None:
        """Wait for the work in progress to end, but not for user code that hangs."""
        self._behind.clear()
        self._worker.end()
        while not self._worker.join(STOP_SECONDS):
            turn = self._committer.turn
            if turn is not None and turn.take(STOP_SECONDS) is not None:
                break
        self._publisher.end()
        self._publisher.join()

    def _submit(self, finish: Callable[[], CommitTurn], housekeeping: Housekeeping) -> None:
        """Finish a group on the commit thread, then conclude it on the publishing thread."""
        answer: Future[GroupOutcome] = Future()
        self._current = answer
        answer.add_done_callback(self._done)

        def finished(done: Future[CommitTurn]) -> None:
            error = done.exception()
            if error is not None:
                answer.set_exception(error)
            else:
                self._publisher.submit(lambda: self._committer.conclude(done.result(), housekeeping), answer)

        self.run(finish).add_done_callback(finished)
