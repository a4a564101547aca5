"""Stepper: runs one transaction at a time on the caller's thread; the caller ends each phase by `ack` or `fail`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import Kind
from txstorm.clocks import Clock
from txstorm.coordinator.machine import AttemptStatus
from txstorm.engine.port import ErrorRow
from txstorm.monitor.progress import Monitor
from txstorm.runtime.batches.txn import Txn
from txstorm.runtime.commit.turn import Turn
from txstorm.runtime.driver import Driver, PhaseEnds
from txstorm.runtime.session import Session

ONE_AT_A_TIME = {"max_pack_txids": 1, "max_group_txids": 1}
"""Settings that the topology of a stepper needs: packs and groups of one txid."""


@dataclass(frozen=True)
class _Held:
    """An attempt whose work in the current phase is done and which awaits `ack` or `fail`.

    Attributes:
        since: the time at which it began to wait, by the session's monotonic clock.
        finished: in the commit phase, the turn of the group whose committers have finished; otherwise None.
    """

    attempt: TransactionAttempt
    since: float
    finished: Turn | None = None

    def drop(self) -> None:
        """Drop what the committers of this attempt have done."""
        if self.finished is not None:
            self.finished.tables.drop_from(self.attempt.txid)
            self.finished.finished.clear()


class Stepper:
    """Steps through the transactions of an opened session. Not thread-safe.

    As in any run, the driver decides, plans, processes, commits and recovers. Only the end of each phase is delayed: a
    batch is processed immediately, and committers finish as soon as their turn comes, but the transaction counts as
    processed, or is decided and published, only after `ack`.

    Args:
        session: opened with the settings `ONE_AT_A_TIME`, on an engine that runs packs on the caller's thread.
        monitor: observes the transactions.

    Every method that performs a step raises the error that ends the topology as soon as it occurs, and again once the
    transactions before the failed one are committed.
    """

    def __init__(self, session: Session, monitor: Monitor) -> None:
        self._session = session
        session.flow.automatic = False
        self._held: dict[int, _Held] = {}
        self._doom_raised = False
        self._driver = Driver(
            session, monitor, session.lanes.event(), PhaseEnds(self._hold_processed, self._finish, self._discarded)
        )

    @property
    def active(self) -> Mapping[int, tuple[int, AttemptStatus]]:
        """Txid → (attempt id, status) of the transactions in flight."""
        return self._driver.state.active

    @property
    def committed(self) -> int:
        """The last committed txid; 0 before the first."""
        return self._driver.state.currtx - 1

    def open(self) -> None:
        """Emit the stored transactions and then, if the source has data, new transactions. Call once, first."""
        self._session.line.warm_up()
        self._step(self._driver.open)

    def wake(self) -> None:
        """Ask the source for new data (Storm's ``nextTuple``)."""
        self._step(lambda: None)

    def ack(self, attempt: TransactionAttempt) -> None:
        """End the current phase of `attempt`. Ignored unless it is the current attempt of its txid."""
        self._step(lambda: self._acked(attempt))

    def fail(self, attempt: TransactionAttempt, row: ErrorRow) -> None:
        """Fail the current phase of `attempt`. Ignored unless it is the current attempt of its txid."""
        self._step(lambda: self._failed(attempt, row))

    def lose(self, processor: str) -> None:
        """Lose a processor: all transactions in flight are replayed, as none of them is decided before its `ack`."""
        self._step(lambda: self._lost(processor))

    def pass_time(self, *, timers: bool = True) -> None:
        """Process the passage of time: run the timers that are due, and fail the phases that have timed out.

        Only here do timers of committers lead to heartbeats, and only if `timers`.
        """
        self._session.flow.automatic = timers
        try:
            self._step(self._time_passed)
        finally:
            self._session.flow.automatic = False

    def plan_system(self, kind: Kind) -> None:
        """Plan a system transaction as the next transaction, even if the source has data."""
        self._session.flow.ask(kind)
        try:
            self.wake()
        finally:
            self._session.flow.ask(None)

    def want(self, clock: Clock, name: str | None) -> None:
        """Ask for a snapshot at a clock; see `Snapshots.want`."""
        self._step(lambda: self._driver.snapshots.want(clock, name))

    def close(self) -> None:
        """Drop everything undecided, as if the process had been killed. The caller releases the session afterwards."""
        for held in self._held.values():
            held.drop()
        self._held.clear()
        self._driver.close()

    def _step(self, call: Callable[[], None]) -> None:
        self._driver.turn(call)
        if self._driver.doom is not None and not self._doom_raised:
            self._doom_raised = True
            raise self._driver.doom

    def _time_passed(self) -> None:
        self._driver.pass_time()
        settings, now = self._session.settings, self._session.lanes.monotonic()
        while settings.enable_timeouts:
            late = [held for held in self._held.values() if now - held.since > settings.batch_timeout]
            if not late:
                return
            cause = f"no ack within batch_timeout={settings.batch_timeout} s"
            row = ErrorRow("the worker", 0, "lost", "EngineError", cause, "", "")
            self._failed(min(late, key=lambda held: held.attempt.txid).attempt, row)

    # -- the two delayed ends of phases -------------------------------------------------------------------------

    def _hold_processed(self, attempt: TransactionAttempt) -> None:
        self._held[attempt.txid] = _Held(attempt, self._session.lanes.monotonic())

    def _finish(self, group: list[Txn]) -> None:
        (txn,) = group
        ended: Turn | BaseException
        try:
            ended = self._session.line.finish(group)
        except Exception as error:  # noqa: BLE001 - ends the topology
            ended = error
        if isinstance(ended, Turn) and ended.failed is None:
            self._held[txn.attempt.txid] = _Held(txn.attempt, self._session.lanes.monotonic(), ended)
        else:
            # A failed committer does not wait for `ack` or `fail`. Reported later, since this is part of another event.
            self._driver.later(lambda: self._driver.group_done(ended))

    def _acked(self, attempt: TransactionAttempt) -> None:
        held = self._take(attempt)
        if held is None or held.finished is None:
            self._driver.processed(attempt)
            return
        ended: Turn | BaseException = held.finished
        try:
            self._session.line.conclude(held.finished)
        except Exception as error:  # noqa: BLE001 - ends the topology
            ended = error
        self._driver.group_done(ended)

    def _failed(self, attempt: TransactionAttempt, row: ErrorRow) -> None:
        held = self._take(attempt)
        if held is not None and held.finished is not None:
            held.drop()
            held.finished.failed = (attempt, row)
            self._driver.group_done(held.finished)
        else:
            self._driver.fail(attempt, row)

    def _lost(self, processor: str) -> None:
        for held in list(self._held.values()):
            held.drop()
            if held.finished is not None:
                self._driver.group_done(held.finished)
        self._held.clear()
        first = next((TransactionAttempt(txid, entry[0]) for txid, entry in self.active.items()), None)
        self._driver.lost(first, "by the test", processor)

    def _take(self, attempt: TransactionAttempt) -> _Held | None:
        held = self._held.get(attempt.txid)
        return self._held.pop(attempt.txid) if held is not None and held.attempt == attempt else None

    def _discarded(self, attempts: Iterable[TransactionAttempt]) -> None:
        for attempt in attempts:
            self._take(attempt)
