"""A driver without threads, in which a phase that has done its work is over only when somebody says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from txstorm.api.attempt import TransactionAttempt
from txstorm.coordinator import commands as cmd
from txstorm.coordinator import events as ev
from txstorm.coordinator.machine import AttemptStatus
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import ErrorRow, Pack, Processed
from txstorm.monitor.progress import Monitor
from txstorm.runtime.commit.outcome import GroupOutcome
from txstorm.runtime.commit.turn import CommitTurn
from txstorm.runtime.driver import Driver
from txstorm.runtime.session import Session
from txstorm.testing.emissions import Emissions

T = TypeVar("T")


class InlineEngine(LocalEngine):
    """The local engine on the caller's thread, so that a breakpoint in a bolt stops the test itself."""

    name = "inline"

    def __init__(self, emissions: Emissions) -> None:
        super().__init__(emissions.observe)
        self._emissions = emissions

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        """Process `pack` now."""
        self._emissions.attempts += [one.attempt for one in pack.inputs]
        return _done(lambda: self._run(pack))

    def _run(self, pack: Pack) -> list[Processed]:
        done = self.run(pack)
        self._emissions.partial |= {one.attempt for one in done if self._lacks_emitters(one)}
        return done

    def _lacks_emitters(self, one: Processed) -> bool:
        assert self._program is not None
        return one.emitters < self._program.components[self._program.spout].parallelism


@dataclass(frozen=True)
class Held:
    """An attempt that waits for its ack.

    Attributes:
        since: when its phase began, by the session's monotonic clock.
        finished: in the commit phase, the group whose committers have finished.
    """

    attempt: TransactionAttempt
    since: float
    finished: CommitTurn | None = None


class HeldDriver(Driver):
    """The driver of a run, turned by hand: every phase runs at once and is over when it is acked or failed.

    All that decides, plans, processes, commits and recovers is the driver's own; only the two moments at which an
    attempt leaves a phase are held back. Groups hold one txid.

    Attributes:
        held: txid → the attempt that waits for an ack.
    """

    def __init__(self, session: Session, monitor: Monitor) -> None:
        super().__init__(session, monitor, threading.Event())
        self.held: dict[int, Held] = {}
        self._told = False

    def open(self) -> None:
        """Begin: emit what is stored and what the source has. Called once; raises what ended the topology."""
        self._turn(self._open)

    def wake(self) -> None:
        """Ask the source again (Storm's ``nextTuple``)."""
        self._turn(lambda: None)

    def ack(self, attempt: TransactionAttempt) -> None:
        """The phase `attempt` is in is over. An attempt that is not the current one of its txid changes nothing."""
        self._turn(lambda: self._acked(attempt))

    def fail(self, attempt: TransactionAttempt, row: ErrorRow) -> None:
        """The phase `attempt` is in failed. An attempt that is not the current one of its txid changes nothing."""
        self._turn(lambda: self._failed(attempt, row))

    def pass_time(self) -> None:
        """The clock was advanced: timers that are due run, and phases that took too long fail."""
        self._turn(self._time_passed)

    def status(self, txid: int) -> AttemptStatus | None:
        """Where the current attempt of `txid` stands; None when there is none."""
        entry = self.state.active.get(txid)
        return None if entry is None else entry[1]

    def drop(self) -> None:
        """Let go of what was not decided, as a process that dies does."""
        for one in self.held.values():
            _forget(one)
        self.held.clear()
        self.jobs.give_up_all()
        self._commits.run(self._session.committer.close)
        self._commits.close()

    # -- one turn of the loop -----------------------------------------------------------------------------------

    def _turn(self, call: Callable[[], None]) -> None:
        if self._failure is not None:
            raise self._failure
        call()
        self._look()
        while self._failure is None and self._inbox.drain():
            self._planning.save()
            self.jobs.submit()
        self._raise()

    def _raise(self) -> None:
        """What ends the topology is raised when it happens, and again once the txids before it are committed."""
        self._finished()
        if self._failure is not None:
            raise self._failure
        if self._doom is not None and not self._told:
            self._told = True
            raise self._doom

    def _time_passed(self) -> None:
        self._on_time()
        settings, now = self._session.settings, self._session.monotonic()
        while settings.enable_timeouts:
            late = [one for one in self.held.values() if now - one.since > settings.batch_timeout]
            if not late:
                return
            cause = f"no ack within batch_timeout={settings.batch_timeout} s"
            row = ErrorRow("the worker", 0, "lost", "EngineError", cause, "", "")
            self._failed(min(late, key=lambda one: one.attempt.txid).attempt, row)

    # -- the two moments that are held back ---------------------------------------------------------------------

    def _processed(self, attempt: TransactionAttempt) -> None:
        self.held[attempt.txid] = Held(attempt, self._session.monotonic())

    def _commit(self, command: cmd.Commit) -> None:
        (txid,) = command.txids
        self._committing += 1
        finishing = _done(lambda: self._session.committer.finish([self._ready[txid]]))
        error = finishing.exception()
        if error is None and finishing.result().outcome.failed is None:
            attempt = TransactionAttempt(txid, command.attempt_ids[0])
            self.held[txid] = Held(attempt, self._session.monotonic(), finishing.result())
            return
        # What a committer raised needs nobody's word. It is answered later, since this is part of another event.
        ending = _done(lambda: finishing.result().outcome)
        self._inbox.put(lambda: self._commit_done(ending))

    def _acked(self, attempt: TransactionAttempt) -> None:
        one = self._take(attempt)
        if one is None or one.finished is None:
            self._feed(ev.Processed(*attempt))
        else:
            finished = one.finished
            self._commit_done(_done(lambda: self._session.committer.conclude(finished, self._session.housekeeping)))

    def _failed(self, attempt: TransactionAttempt, row: ErrorRow) -> None:
        one = self._take(attempt)
        if one is not None and one.finished is not None:
            _forget(one)
            self._commit_done(_done(lambda: GroupOutcome(failed=(attempt, row))))
        elif self._current(attempt):
            self._user_failed(attempt, row)
        else:
            self._feed(ev.Failed(*attempt))

    def _take(self, attempt: TransactionAttempt) -> Held | None:
        one = self.held.get(attempt.txid)
        return self.held.pop(attempt.txid) if one is not None and one.attempt == attempt else None

    def _discard(self, command: cmd.Discard) -> None:
        super()._discard(command)
        for pair in zip(command.txids, command.attempt_ids, strict=True):
            self._take(TransactionAttempt(*pair))


def _forget(one: Held) -> None:
    """What committers wrote is dropped."""
    if one.finished is not None:
        one.finished.tables.drop_from(one.attempt.txid)


def _done(call: Callable[[], T]) -> Future[T]:
    """A future that is done: with what `call` returns, or what it raises."""
    future: Future[T] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - handed to who asks the future
        future.set_exception(error)
    return future
