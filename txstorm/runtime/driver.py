"""The driver loop: feeds events to the state machine and carries out its commands. One thread decides; others work.

It is one module so that the effect of a command and the event that results from it can be read together.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from txstorm.api.attempt import EPOCH_BITS, TransactionAttempt
from txstorm.api.context import WorkProgress
from txstorm.coordinator import commands as cmd
from txstorm.coordinator import events as ev
from txstorm.coordinator import journal
from txstorm.coordinator.machine import Config, Mode, State, initial, step
from txstorm.engine.port import ErrorRow, Processed
from txstorm.engine.spill import sweep_spilled
from txstorm.engine.task.commit_phase import CommitFailed
from txstorm.errors import EngineError, InputError, without_advice
from txstorm.lanes import Flag
from txstorm.monitor.progress import Monitor
from txstorm.runtime.batches.flow import Job
from txstorm.runtime.batches.txn import Txn
from txstorm.runtime.commit.turn import Turn
from txstorm.runtime.companion import CommandHandler, Companion, CompanionSite
from txstorm.runtime.control import CORE_COMMANDS, Control, with_commands
from txstorm.runtime.failures import Warnings, batch_failure, letters_failure, spout_failure, spout_row
from txstorm.runtime.loop import LONGEST, Loop
from txstorm.runtime.maintenance import Upkeep
from txstorm.runtime.session import Session
from txstorm.runtime.snapshots import Snapshots

log = logging.getLogger(__name__)
LONG = 1.0
"""Duration of a job or a commit, in seconds, after which displays show how far it is."""


@dataclass(frozen=True)
class PhaseEnds:
    """Callbacks that are called when the work of a phase is done, and later report the end of the phase to the driver.

    Attributes:
        processed: called with a processed attempt; a call of `Driver.processed` or `Driver.fail` must follow.
        commit: called with the group whose turn to commit has come; a call of `Driver.group_done` must follow.
        discarded: called with discarded attempts; the end of their phase must not be reported.
    """

    processed: Callable[[TransactionAttempt], None]
    commit: Callable[[list[Txn]], None]
    discarded: Callable[[list[TransactionAttempt]], None]


class Driver:
    """Runs an opened session until it is done, stopped or failed.

    `run` is the body of the driver thread. A caller that steps through transactions on its own thread uses `open`,
    `turn`, `pass_time` and `close` instead, with `PhaseEnds` (see `txstorm.testing.stepping`).

    Args:
        session: the opened topology.
        monitor: observes the run.
        stopping: set when the run is to stop; interrupts the pauses between attempts to publish.
        ends: callbacks that decide when phases end; None: a phase ends when its work is done, and groups commit on the
            commit thread.
        commands: name → handler of the life-cycle commands.

    Attributes:
        control: answers life-cycle requests of other processes.
        snapshots: takes snapshots at clocks of the source.
        companion: what the front end of the topology adds to the run.
        doom: the error that ends the topology as soon as all txids before the failed one are committed.
    """

    def __init__(
        self,
        session: Session,
        monitor: Monitor,
        stopping: Flag,
        ends: PhaseEnds | None = None,
        commands: Mapping[str, CommandHandler[Any]] = CORE_COMMANDS,
    ) -> None:
        self._session, self._monitor = session, monitor
        self._planning, self._flow, self._line = session.planning, session.flow, session.line
        config = session.machine_config()
        self._loop: Loop[State, ev.Event, cmd.Command] = Loop(
            step, initial(config), self._carry_out, session.lanes, self._record(config), monitor.watch
        )
        self._wake_set = False
        self._attempts = session.books.epoch << EPOCH_BITS
        self._line.open(self._loop.put, self.group_done, self._failed_early)
        self._failure: BaseException | None = None
        self.doom: BaseException | None = None
        self._doomed = 0
        self._ends = ends or PhaseEnds(self.processed, self._line.commit, lambda dead: None)
        self._committing = 0
        self._upkeep = Upkeep(
            session.store.upkeep, self._line.in_turn, self._loop.put, self._fail, session.lanes, session.retention
        )
        self.snapshots = Snapshots(session, lambda: self.state, self._line.in_turn, self._loop.put, self._fail)
        self.companion: Companion = session.companion
        self._loop.longest = min(self._loop.longest, self.companion.every)
        handlers = with_commands(self.companion.commands(), commands)
        self.control = Control(session, monitor, lambda: self.state, self._loop.feed, self.stop, handlers)
        self.control.companion, self.control.snapshots = self.companion, self.snapshots
        self.stopping = stopping
        self._warnings = Warnings(log)
        monitor.at_work = self.at_work

    def at_work(self) -> tuple[WorkProgress, ...]:
        """Return how far the commit and the job are that have been going on for longer than `LONG`. Thread-safe."""
        turn = self._line.turn
        found = (None if turn is None else turn.how_far(LONG), self._flow.how_far(LONG))
        return tuple(one for one in found if one is not None)

    @property
    def state(self) -> State:
        """The coordinator's state."""
        return self._loop.state

    # -- the loop -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until the work is done or the run is stopped; raise the error that ended the topology, if any."""
        try:
            self.open()
            if not self._finished():
                self._line.call(self._line.warm_up)  # while the first transaction is processed
            while not self._finished():
                (self._loop.next(idle=self.state.idle) or self.pass_time)()
                self._loop.drain()
                if self._failure is None:
                    self.control.poll()
                    self._look()
                    self._ahead()
                    self._upkeep.look(idle=self.state.idle)
            self._count_letters()
        finally:
            self.close()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Cancel all jobs, and stop table upkeep and the commit threads; undecided work is dropped."""
        self._flow.give_up_all()
        self._upkeep.end()
        self._line.close()
        error = self._failure or sys.exception()
        self._flow.end(error)
        self.companion.close(error)

    def open(self) -> None:
        """Replay the undecided txids that have stored metadata, then plan new txids. Call once, first."""
        currtx = self._session.currtx
        stored = self._flow.open(
            currtx, lambda job: self._loop.put(lambda: self._job_done(job)), self._plan_failed, self._wake_in
        )
        self.snapshots.open()
        self._loop.feed(ev.Opened(currtx, stored))
        if self._flow.ended(currtx):
            log.warning(
                "the input of topology %s ended with txid %s, so nothing more is read; to continue, rewind it to a "
                "txid before that: txstorm rewind",
                self._session.topology.id,
                currtx - 1,
            )
        self.control.open()
        self.companion.open(CompanionSite(self._session, lambda: self.state, self.snapshots, self._monitor))
        self._look()

    def _look(self) -> None:
        """Check the lease, plan new transactions, store their plans, and only then submit them for processing."""
        self._session.books.check_lease()
        self.snapshots.look()
        self.companion.look()
        self._loop.feed(ev.Wake())
        self._flow.submit(self.state.currtx)
        self._flow.answer(self.state)
        if self._flow.draining and self.state.drained:  # all that it has read is committed
            waits = self._flow.waiting and self.state.mode is Mode.ACTIVE and self.doom is None
            if not waits:  # for window ends
                self._flow.draining = False
                self._loop.feed(ev.Stopping(drain=True))

    def _finished(self) -> bool:
        if self.doom is not None and self.state.idle and not any(txid < self._doomed for txid in self.state.holding):
            self._fail(self.doom)
        if self._failure is not None:
            return not self._committing
        if self.state.stopped or self._flow.past(self.state.currtx):
            return not self.snapshots.busy
        return self._flow.closed and self.state.drained and not (self._flow.waiting or self.snapshots.busy)

    def _count_letters(self) -> None:
        """Check the dead-letter limit again when a run ends by itself, so that it also applies to a short input."""
        if self._failure is None and not self.stopping.is_set() and not self.state.stopped:
            limit = self._line.letter_limit
            excess = None if limit is None else limit.at_end(self.state.currtx - 1)
            if excess is not None:
                self._failure = letters_failure(excess, self._session.data_dir)

    def pass_time(self) -> None:
        """Run the timers that are due, and cancel jobs and commits that exceed ``batch_timeout``."""
        self._loop.timers.run_due()
        self._expire(self._session.lanes.monotonic())

    # -- stepping on the caller's thread ------------------------------------------------------------------------

    def turn(self, call: Callable[[], None]) -> None:
        """Run `call` and process all resulting events; raise the error that ended the topology, if any."""
        if self._failure is None:
            call()
            self._look()
        while self._failure is None and self._loop.drain():
            self._flow.submit(self.state.currtx)
        self._finished()
        if self._failure is not None:
            raise self._failure

    def later(self, call: Callable[[], None]) -> None:
        """Queue `call` for the driver thread, to run after the current event."""
        self._loop.put(call)

    def processed(self, attempt: TransactionAttempt) -> None:
        """Report the end of the processing phase of `attempt` (P4). Ignored unless it is the txid's current attempt."""
        self._loop.feed(ev.Processed(*attempt))

    def fail(self, attempt: TransactionAttempt, row: ErrorRow) -> None:
        """Report that the current phase of `attempt` failed. Ignored unless it is the current attempt of its txid."""
        if self._current(attempt):
            self._user_failed(attempt, row)
        else:
            self._loop.feed(ev.Failed(*attempt))

    def lost(self, attempt: TransactionAttempt | None, why: str, processor: str | None = None) -> None:
        """Report a lost worker: `attempt` and all later ones are replayed, which counts as no failure of theirs."""
        self.companion.lost(why, processor)
        if attempt is not None:
            self._monitor.replayed()
            self._loop.feed(ev.Failed(*attempt))

    def group_done(self, ended: Turn | BaseException) -> None:
        """Process the end of the group that was handed over to be committed: its turn, or the error that ends all."""
        self._committing -= 1
        if isinstance(ended, BaseException):
            self._fail(ended)
            return
        if ended.finished:
            self._committed(ended)
        if ended.failed is not None:
            self._user_failed(*ended.failed)

    # -- calls from other threads -------------------------------------------------------------------------------

    def stop(self, drain: bool = False) -> None:
        """Ask the loop to end; with `drain`, after committing the transactions in flight. Thread-safe."""
        if not drain:
            self.stopping.set()
        self._loop.put(lambda: self._stop(drain=drain))

    def _stop(self, *, drain: bool) -> None:
        if drain and any(one.timers for one in self._session.program.components.values()):
            self._flow.draining = True  # window ends that are due fire first, which takes further transactions
        else:
            self._loop.feed(ev.Stopping(drain=drain))

    def ask(self, question: Callable[[], Any]) -> Future[Any]:
        """Call `question` on the driver thread, the only user of spout and planning; return a future. Thread-safe."""
        return self._loop.ask(question)

    def wait_for_all(self) -> Future[None]:
        """Return a future that completes once everything that the source currently holds is committed. Thread-safe.

        After this call, transactions start only if the source has new data.
        """
        done: Future[None] = Future()
        self._loop.put(lambda: self._flow.wait_for_all(done, self.state))
        return done

    # -- events and commands ------------------------------------------------------------------------------------

    def _record(self, config: Config) -> Callable[[ev.Event, Sequence[cmd.Command]], object] | None:
        """Begin the journal, if the run has one; return what adds a step to it."""
        file = self._session.journal
        if file is None:
            return None
        file.write(journal.header(config) + "\n")
        return lambda event, commands: file.write(journal.record(event, commands) + "\n")

    def _carry_out(self, command: cmd.Command) -> ev.Event | None:
        match command:
            case cmd.Plan():
                return self._plan(command)
            case cmd.Process():
                self._flow.add(TransactionAttempt(command.txid, command.attempt_id))
            case cmd.Commit():
                self._committing += 1
                self._ends.commit([self._flow.ready[txid] for txid in command.txids])
            case cmd.Discard():
                self._discard(command)
            case cmd.Forget():
                pass  # the ledger write of P8 deletes the metadata
        return None

    def _plan(self, command: cmd.Plan) -> ev.Event:
        txid = command.txid
        try:
            ends = self.doom is not None and txid >= self._doomed
            planned = not ends and self._flow.plan(txid, self.state, replay=command.replay)
        except InputError as error:  # the machine's clock is refused
            planned = False
            self._end_before(txid, error)
        if not planned:
            return ev.NotReady(txid)
        self._attempts += 1
        recorded = self._planning.planner.recorded(txid)
        return ev.Planned(txid, self._attempts if recorded is None else recorded.attempt_id)

    def _plan_failed(self, txid: int, error: BaseException) -> None:
        """Retry planning `txid` later if the policy allows; else end the topology once those in flight commit."""
        spout = self._session.program.spout
        attempt, row = TransactionAttempt(txid, self._attempts + 1), spout_row(error, spout)
        decision = self._session.retry.judge(txid, row, divertible=False)
        self._monitor.failed(attempt, str(row), decision.count)
        if decision.delay is None:
            self._end_before(txid, spout_failure(error, spout, txid))
            return
        log.warning("txid %s: %s; retrying (failure %s)", txid, row, decision.count)
        self._flow.pause(decision.delay)
        self._loop.timers.later(decision.delay, self._woken)

    def _wake_in(self, seconds: float) -> None:
        """Plan again in `seconds`, if that is before the source would be polled anyway."""
        if seconds < LONGEST and not self._wake_set:
            self._wake_set = True
            self._loop.timers.later(seconds, self._woken)

    def _woken(self) -> None:
        self._wake_set = False

    def _discard(self, command: cmd.Discard) -> None:
        dead = [TransactionAttempt(*pair) for pair in zip(command.txids, command.attempt_ids, strict=True)]
        self._flow.discard(dead)
        self._line.forget(dead)
        self._ends.discarded(dead)

    # -- processing ---------------------------------------------------------------------------------------------

    def _current(self, attempt: TransactionAttempt) -> bool:
        state = self.state
        place = attempt.txid - state.currtx
        return 0 <= place < len(state.entries) and state.entries[place].attempt_id == attempt.attempt_id

    def _job_done(self, job: Job) -> None:
        if not self._flow.finish(job) or self._failure is not None:
            return
        try:
            outcomes = job.future.result()
        except EngineError as error:
            self._job_failed(job, str(error))
            return
        except BaseException as error:  # noqa: BLE001 - a defect of txstorm: stop, with its traceback
            self._fail(error)
            return
        seconds = self._session.lanes.monotonic() - job.started
        self._flow.job_took(seconds, [outcome.busy for outcome in outcomes], len(job.attempts))
        good = [outcome for outcome in outcomes if outcome.error is None and self._current(outcome.attempt)]
        for place, outcome in enumerate(good):
            if (misread := self._planning.misread(outcome)) is not None:  # the txids before it are committed
                self._take_processed(job, good[:place], seconds)
                self._end_before(outcome.attempt.txid, misread)
                self._loop.feed(ev.Failed(*outcome.attempt, resume=False))
                return
        self._take_processed(job, good, seconds)
        last = outcomes[-1]
        if last.error is not None and self._current(last.attempt) and self._failure is None:
            self._take_failed(last.attempt, last, last.error)

    def _take_processed(self, job: Job, good: list[Processed], seconds: float) -> None:
        try:
            self._flow.processed(job, good, seconds)
        except Exception as error:  # noqa: BLE001 - a spout that replays a different batch, or a lost ledger
            self._fail(error)
            return
        self.companion.processed(good)
        for outcome in reversed(good):  # the lowest txid last: a larger group is then ready when its turn comes
            self._ends.processed(outcome.attempt)

    def _take_failed(self, attempt: TransactionAttempt, outcome: Processed, row: ErrorRow) -> None:
        try:
            self._planning.emitted(outcome)
        except Exception as error:  # noqa: BLE001 - as in `_take_processed`
            self._fail(error)
            return
        self._user_failed(attempt, row)

    def _job_failed(self, job: Job, cause: str) -> None:
        """After a worker died or timed out, retry its pack in halves, to isolate the txid at fault (R11, R12)."""
        if not (alive := [attempt for attempt in job.attempts if self._current(attempt)]):
            return
        if len(job.attempts) > 1:
            log.warning("txids %s-%s: %s; retrying in smaller packs", alive[0].txid, alive[-1].txid, cause)
            self._flow.cap(max(1, len(job.attempts) // 2), job.attempts[-1].txid)
            self.lost(alive[0], cause)
        else:
            self._user_failed(alive[0], ErrorRow("the worker", 0, "lost", "EngineError", cause, "", ""))

    def _expire(self, now: float) -> None:
        settings = self._session.settings
        timeout = settings.batch_timeout if settings.enable_timeouts else None
        self._line.expire(timeout, stopping=self.stopping.is_set())
        if timeout is None:
            return
        for job in self._flow.give_up_since(now - timeout):
            self._job_failed(job, f"no result within batch_timeout={timeout} s")

    def _user_failed(self, attempt: TransactionAttempt, row: ErrorRow | None) -> None:
        if row is None:  # the end of the run cut it short
            self._loop.feed(ev.Failed(*attempt, resume=False))
            return
        if row.kind == "lost":
            self.companion.lost(row.message)
        decision = self._session.retry.judge(attempt.txid, row)
        self._monitor.failed(attempt, str(row), decision.count)
        if decision.delay is None:
            self._end_before(attempt.txid, batch_failure(attempt, row, decision.count))
            self._loop.feed(ev.Failed(*attempt, resume=False))
            return
        if row.kind != "failed":
            text = f"txid {attempt}: {row}; replayed (failure {decision.count})"
            leaves_out = self._session.program.leaves_out
            self._warnings.say(row.component, row.type, row.frame, without_advice(text) if leaves_out else text)
        self._monitor.replayed()
        self._loop.feed(ev.Failed(*attempt, resume=decision.delay == 0))
        if decision.delay > 0:
            self._loop.timers.later(decision.delay, lambda: self._loop.feed(ev.Resume(attempt.txid)))

    # -- committing ---------------------------------------------------------------------------------------------

    def _ahead(self) -> None:
        """Have committers do as much work as possible on txids whose turn has not come yet."""
        ready = self._flow.ready
        if self._committing:
            self._line.early([ready[txid] for txid in self.state.following], finish=True)
        else:
            self._line.early(ready.values(), finish=False)

    def _failed_early(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """Handle an early failure; ignore it if the attempt's group is committing, where it recurs and is reported."""
        if not isinstance(error, CommitFailed):
            self._fail(error)
        elif self._current(attempt) and attempt.txid not in self.state.committing_txids and self._failure is None:
            self._user_failed(attempt, error.row)

    def _committed(self, turn: Turn) -> None:
        txns, spout = turn.finished, self._session.program.spout
        last = txns[-1].input.attempt
        self._flow.committed(txns)
        sweep_spilled(self._session.program.spill_dir, last.txid, self._session.books.epoch)
        # Messages of the spout belong to no particular batch: a processed one may still be discarded.
        notices = self._planning.planner.notices()
        self._monitor.committed(
            [txn.progress(spout, len(txns), turn.milliseconds, notices if txn is txns[-1] else ()) for txn in txns]
        )
        self._upkeep.committed()
        self._loop.feed(ev.Committed(*last))
        self._session.after_commit()
        self.snapshots.committed(txns)
        self.companion.committed(last.txid)
        empty = [txn.input.attempt.txid for txn in txns if txn.empty(spout)]
        self._flow.answer(self.state, empty=max(empty, default=0))

    # -- the end ------------------------------------------------------------------------------------------------

    def _end_before(self, txid: int, error: BaseException) -> None:
        """End the topology with `error` once the txids before `txid` are committed, replayed if they fail (R3)."""
        if self.doom is None or txid < self._doomed:
            self.doom, self._doomed = error, txid

    def _fail(self, error: BaseException) -> None:
        """End the topology with `error`; a group that is being committed still finishes."""
        if self._failure is None:
            self._failure = error
            self.stopping.set()
            self._flow.give_up_all()
