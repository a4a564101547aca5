"""The commit thread: one group after the other, and another thread when a committer does not come to an end.

A second thread publishes what has finished, so that the commit thread can go on with what follows.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow
from txstorm.engine.task.commit_phase import CommitFailed
from txstorm.runtime.commit.finisher import GroupFinisher
from txstorm.runtime.commit.outcome import GroupOutcome, ProcessedBatch
from txstorm.runtime.commit.publisher import Housekeeping
from txstorm.runtime.commit.turn import Abandoned, CommitTurn

log = logging.getLogger("txstorm.commit")
STOP_SECONDS = 5.0
"""How long a run that ends waits for a committer that does not come to an end."""


class Worker:
    """One daemon thread that makes calls one after the other; it may be left to itself in the middle of one."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Not a thread pool: its threads would keep the process from ending.
        self._thread = threading.Thread(target=self._body, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any], answer: Future[Any]) -> None:
        """Have `call` made; `answer` gets what it gives or raises."""

        def make() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - handed to who waits for it
                answer.set_exception(error)

        self._calls.put(make)

    def end(self) -> None:
        """The thread ends after the calls it has; nobody waits for it here."""
        self._calls.put(None)

    def leave(self) -> list[Callable[[], None] | None]:
        """The calls it has not begun; it ends after the one it is at, if that ever comes to an end."""
        calls: list[Callable[[], None] | None] = []
        while True:
            try:
                calls.append(self._calls.get_nowait())
            except queue.Empty:
                self.end()
                return calls

    def take_over(self, calls: Iterable[Callable[[], None] | None]) -> None:
        """Make the calls that another one had not begun."""
        for call in calls:
            self._calls.put(call)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread's end; False when it did not come in time (seconds; None: wait for ever)."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _body(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class CommitThread:
    """What is done in the committer's turn; told and asked by the driver thread only.

    Args:
        committer: does it.
        done: called with a finished future, on the thread that finished it.
        failed_ahead: called with an attempt that failed before its turn, and how; on any thread.
        monotonic: seconds.
    """

    def __init__(
        self,
        committer: GroupFinisher,
        done: Callable[[Future[GroupOutcome]], None],
        failed_ahead: Callable[[TransactionAttempt, BaseException], None],
        monotonic: Callable[[], float],
    ) -> None:
        self._failed_ahead = failed_ahead
        self._ahead: Future[None] | None = None
        self._tried: set[TransactionAttempt] = set()
        self._behind: set[TransactionAttempt] = set()
        self._committer = committer
        self._monotonic = monotonic
        self._stopped_at: float | None = None
        self._done = done
        self._worker = Worker("txstorm-commit")
        self._publisher = Worker("txstorm-publish")
        self._current: Future[GroupOutcome] | None = None
        self._housekeeping: Housekeeping | None = None

    def commit(self, group: Sequence[ProcessedBatch], housekeeping: Housekeeping) -> None:
        """Commit `group` when its turn comes."""
        self._housekeeping = housekeeping
        attempts = [one.attempt for one in group]
        self._tried.difference_update(attempts)
        self._behind.difference_update(attempts)  # what of it is not begun yet, is finished in its turn
        self._submit(lambda: self._committer.finish(group), housekeeping)

    def execute(self, ready: Iterable[ProcessedBatch]) -> None:
        """Let the committers of the lowest of `ready` execute ahead of its turn; called while no commit is due.

        One txid at a time, so that a commit that falls due waits for one at most, and on the commit thread, so that
        what a committer opens in `prepare` is used on the thread it was opened on.
        """
        if self._ahead is not None and not self._ahead.done():
            return
        waiting = [one for one in ready if one.attempt not in self._tried]
        if waiting:
            first = min(waiting, key=lambda one: one.attempt)
            self._tried.add(first.attempt)
            self._ahead = self.run(lambda: self._committer.execute(first))
            self._ahead.add_done_callback(lambda done: self._executed(first.attempt, done))

    def finish_ahead(self, following: Iterable[ProcessedBatch]) -> None:
        """Let the committers of `following` finish while the group before them is published; called while one commits.

        They are the processed txids right behind the group that commits, in order. Each is told here again and again.
        """
        for one in following:
            if one.attempt not in self._behind:
                self._behind.add(one.attempt)
                self._finish_ahead(one)

    def _finish_ahead(self, ready: ProcessedBatch) -> None:
        def finish() -> None:
            if ready.attempt in self._behind:  # else its turn has come, or it was discarded
                self._committer.finish_ahead(ready)

        self.run(finish).add_done_callback(lambda done: self._executed(ready.attempt, done))

    def _executed(self, attempt: TransactionAttempt, done: Future[None]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, Abandoned):
            self._failed_ahead(attempt, error)

    def forget(self, attempts: Iterable[TransactionAttempt]) -> None:
        """These attempts were discarded."""
        dead = set(attempts)
        self._tried.difference_update(dead)
        self._behind.difference_update(dead)
        self.run(lambda: self._committer.forget(dead))  # after what may just be executing

    def run(self, call: Callable[[], Any]) -> Future[Any]:
        """Have something else done on the commit thread."""
        answer: Future[Any] = Future()
        self._worker.submit(call, answer)
        return answer

    def in_turn(self, call: Callable[[], Any]) -> Future[Any]:
        """Have something done in the committer's turn: while nothing is decided or published."""
        answer: Future[Any] = Future()
        self._publisher.submit(call, answer)
        return answer

    def is_current(self, future: Future[GroupOutcome]) -> bool:
        """Whether `future` is the answer that is waited for; that of an abandoned thread is not."""
        return future is self._current

    def expire(self, timeout: float | None, *, stopping: bool) -> None:
        """Take the group away whose committers have been at one txid for more than `timeout` seconds (None: never).

        The txids before it are decided, on a fresh thread; it and the later ones have failed. A run that is stopping
        waits for `STOP_SECONDS` at most, and that is no failure of the txid's.
        """
        if stopping:
            self._stopped_at = self._stopped_at or self._monotonic()
            if self._monotonic() - self._stopped_at > STOP_SECONDS:
                self._take_away(0, "did not come to an end when the run was stopped", counts=False)
        if timeout is not None:
            self._take_away(timeout, f"did not come to an end within batch_timeout={timeout} s", counts=True)

    def _take_away(self, limit: float, cause: str, *, counts: bool) -> None:
        turn = self._committer.turn
        taken = turn.take(limit) if turn is not None else None
        if turn is None or taken is None:
            return
        attempt, (component, task) = taken
        log.warning("txid %s: %s[%s] %s; its thread is left behind", attempt, component, task, cause)
        waiting, self._worker = self._worker.leave(), Worker("txstorm-commit")
        row = ErrorRow(component, task, "lost", "Timeout", cause, "", "") if counts else None
        if turn.ahead:
            self._ahead = self.run(lambda: self._committer.leave(turn, attempt, row))
            if row is not None and turn.executes:  # else it is told in its turn
                self._failed_ahead(attempt, CommitFailed(row))
        else:
            housekeeping = self._housekeeping
            assert housekeeping is not None
            self._submit(lambda: self._committer.leave(turn, attempt, row), housekeeping)
        self._worker.take_over(waiting)

    def close(self) -> None:
        """Wait for the end of what is under way, but not for user code that does not come to one."""
        self._behind.clear()
        self._worker.end()
        while not self._worker.join(STOP_SECONDS):
            turn = self._committer.turn
            if turn is not None and turn.take(STOP_SECONDS) is not None:
                break
        self._publisher.end()
        self._publisher.join()

    def _submit(self, finish: Callable[[], CommitTurn], housekeeping: Housekeeping) -> None:
        """Have a group finished here, and then published there."""
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
