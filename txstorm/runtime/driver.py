"""The driver loop: feeds events to the state machine and carries out its commands. One thread decides; others work.

It is one module so that the effect of a command and the event that results from it can be read together.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from txstorm.api.attempt import EPOCH_BITS, TransactionAttempt
from txstorm.api.context import WorkProgress
from txstorm.coordinator import commands as cmd
from txstorm.coordinator import events as ev
from txstorm.coordinator import journal
from txstorm.coordinator.machine import Config, Mode, State, initial, step
from txstorm.engine.port import SOURCE, ErrorRow, Pack, Processed
from txstorm.engine.spill import sweep_spilled
from txstorm.engine.task.commit_phase import CommitFailed, input_bytes
from txstorm.engine.task.error_rows import RAISED
from txstorm.errors import EngineError, FailedException, InputError, without_advice
from txstorm.lanes import Flag
from txstorm.monitor.progress import Monitor
from txstorm.runtime.batches.packs import Job, PackQueue
from txstorm.runtime.commit.outcome import GroupOutcome, ProcessedBatch, batch_digest, progress_list
from txstorm.runtime.commit.thread import CommitThread
from txstorm.runtime.companion import CommandHandler, Companion, CompanionSite
from txstorm.runtime.control import CORE_COMMANDS, Control, with_commands
from txstorm.runtime.failures import Warnings, batch_failure, letters_failure, spout_failure, spout_row
from txstorm.runtime.loop import LONGEST, Loop, Waiters
from txstorm.runtime.maintenance import Upkeep
from txstorm.runtime.session import Session
from txstorm.runtime.snapshots import Snapshots

log = logging.getLogger("txstorm.driver")
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
    commit: Callable[[list[ProcessedBatch]], None]
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
        jobs: the queue of packs, and the running jobs.
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
        self._planning = session.planning
        self._gate = session.gate
        self._system = session.system
        self._window = session.window
        config = session.machine_config()
        self._loop: Loop[State, ev.Event, cmd.Command] = Loop(
            step, initial(config), self._carry_out, session.lanes, self._record(config), monitor.watch
        )
        self._ready: dict[int, ProcessedBatch] = {}
        self._wake_set = False
        self._draining = False
        self._attempts = session.books.epoch << EPOCH_BITS
        self._commits = CommitThread(session.committer, self._commit_ended, self._ahead_ended, session.lanes)
        self._plan_after = 0.0
        self._failure: BaseException | None = None
        self.doom: BaseException | None = None
        self._ends = ends or PhaseEnds(self.processed, self._commit_group, lambda dead: None)
        self._committing = 0
        self._upkeep = Upkeep(
            session.store.upkeep, self._commits.in_turn, self._loop.put, self._fail, session.lanes, session.retention
        )
        self._waiters = Waiters(session.planning)
        self.snapshots = Snapshots(session, lambda: self.state, self._commits.in_turn, self._loop.put, self._fail)
        self.companion: Companion = session.companion
        self._loop.longest = min(self._loop.longest, self.companion.every)
        handlers = with_commands(self.companion.commands(), commands)
        self.control = Control(session, monitor, lambda: self.state, self._loop.feed, self.stop, handlers)
        self.control.companion, self.control.snapshots = self.companion, self.snapshots
        self.stopping = stopping
        self._warnings = Warnings(log)
        self.jobs = PackQueue(
            session.engine,
            session.window,
            self._make_pack,
            lambda job: self._loop.put(lambda: self._job_done(job)),
            limit=1 if session.planning.planner.task_planned else session.settings.max_jobs,
            monotonic=session.lanes.monotonic,
            full=lambda: session.gate.full,
        )
        monitor.at_work = self.at_work

    def at_work(self) -> tuple[WorkProgress, ...]:
        """Return how far the commit and the job are that have been going on for longer than `LONG`. Thread-safe."""
        turn = self._session.committer.turn
        found = (None if turn is None else turn.how_far(LONG), self.jobs.how_far(LONG))
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
                self._commits.run(self._session.committer.warm_up)  # while the first transaction is processed
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
        self.jobs.give_up_all()
        self._upkeep.end()
        self._commits.run(self._session.committer.close)
        self._commits.close()
        error = self._failure or sys.exception()
        self._waiters.end(error)
        self.companion.close(error)

    def open(self) -> None:
        """Replay the undecided txids that have stored metadata, then plan new txids. Call once, first."""
        currtx = self._session.currtx
        self._system.open(currtx)
        stored = self._planning.open(currtx)
        self.snapshots.open()
        self._loop.feed(ev.Opened(currtx, stored))
        if self._input_ended(currtx):
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
        self._planning.save()
        self.jobs.submit()
        self._waiters.answer(self.state, waiting=self._system.waiting)
        self._end_drain()

    def _end_drain(self) -> None:
        """Stop a draining run when all that it has read is committed, and no window end waits."""
        waits = self._system.waiting and self.state.mode is Mode.ACTIVE and self.doom is None
        if self._draining and self.state.drained and not waits:
            self._draining = False
            self._loop.feed(ev.Stopping(drain=True))

    def _finished(self) -> bool:
        if self.doom is not None and self.state.idle:
            self._fail(self.doom)
        if self._failure is not None:
            return not self._committing
        if self.state.stopped or self._gate.past(self.state.currtx):
            return not self.snapshots.busy
        return self._gate.closed and self.state.drained and not (self._system.waiting or self.snapshots.busy)

    def _count_letters(self) -> None:
        """Check the dead-letter limit again when a run ends by itself, so that it also applies to a short input."""
        if self._failure is None and not self.stopping.is_set() and not self.state.stopped:
            limit = self._session.committer.letter_limit
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
            self._planning.save()
            self.jobs.submit()
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

    def group_done(self, done: Future[GroupOutcome]) -> None:
        """Process the outcome of the group that was handed over to be committed."""
        self._committing -= 1
        if (error := done.exception()) is not None:
            self._fail(error)
            return
        outcome = done.result()
        if outcome.committed:
            self._committed(outcome)
        if outcome.failed is not None:
            self._user_failed(*outcome.failed)

    # -- calls from other threads -------------------------------------------------------------------------------

    def stop(self, drain: bool = False) -> None:
        """Ask the loop to end; with `drain`, after committing the transactions in flight. Thread-safe."""
        if not drain:
            self.stopping.set()
        self._loop.put(lambda: self._stop(drain=drain))

    def _stop(self, *, drain: bool) -> None:
        if drain and any(one.timers for one in self._session.program.components.values()):
            self._draining = True  # window ends that are due fire first, which takes further transactions
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
        self._loop.put(lambda: self._add_waiter(done))
        return done

    def _add_waiter(self, done: Future[None]) -> None:
        self._gate.data_only()
        self._waiters.add(done, self.state)

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
                self.jobs.add(TransactionAttempt(command.txid, command.attempt_id))
            case cmd.Commit():
                self._commit(command)
            case cmd.Discard():
                self._discard(command)
            case cmd.Forget():
                pass  # the ledger write of P8 deletes the metadata
        return None

    def _plan(self, command: cmd.Plan) -> ev.Event:
        txid = command.txid
        if self.doom is not None or self._session.lanes.monotonic() < self._plan_after:
            return ev.NotReady(txid)
        over = self._draining and not command.replay and not self._system.waiting
        if over or self._gate.past(txid) or self._input_ended(txid) or self._clock_holds(command):
            return ev.NotReady(txid)
        if command.replay and not self._planning.is_at_hand(txid):
            return ev.NotReady(txid)
        asked = not self._system.asked and self._may_read(txid, replay=command.replay)
        try:
            read = asked and self._planning.plan(txid, replay=command.replay)
            planned = read or self._system.plan(txid, idle=self.state.idle, replay=command.replay)
        except FailedException as error:
            log.info("txid %s: the spout's coordinator raised %r; retrying later", txid, error)
            return ev.NotReady(txid)
        except RAISED as error:
            self._plan_failed(txid, error)
            return ev.NotReady(txid)
        if asked and not read and self._planning.bound(txid) is None:  # otherwise it may have data that is held back
            self._waiters.dry = True
            self._gate.saw(0)  # an empty batch, for a source without a latest offset
        if not planned:
            self._wake_in(self._system.wait())
            return ev.NotReady(txid)
        self._attempts += 1
        recorded = self._planning.planner.recorded(txid)
        return ev.Planned(txid, self._attempts if recorded is None else recorded.attempt_id)

    def _clock_holds(self, command: cmd.Plan) -> bool:
        """Return whether the transaction has no stamp yet, and can get none now; a clock that is refused is the end."""
        try:
            return self._session.clock.holds() and not (command.replay and self._planning.is_fixed(command.txid))
        except InputError as error:
            self.doom = error
            return True

    def _plan_failed(self, txid: int, error: BaseException) -> None:
        """Retry planning `txid` later if the policy allows; else end the topology once those in flight commit."""
        spout = self._session.program.spout
        attempt, row = TransactionAttempt(txid, self._attempts + 1), spout_row(error, spout)
        decision = self._session.retry.judge(txid, row, divertible=False)
        self._monitor.failed(attempt, str(row), decision.count)
        if decision.delay is None:
            self.doom = spout_failure(error, spout, txid)
            return
        log.warning("txid %s: %s; retrying (failure %s)", txid, row, decision.count)
        self._plan_after = self._session.lanes.monotonic() + decision.delay
        self._loop.timers.later(decision.delay, self._woken)

    def _may_read(self, txid: int, *, replay: bool) -> bool:
        """Return whether `txid` may have data, or is a replay whose plan is stored."""
        planner = self._planning.planner
        if self._planning.kind(txid - 1) == "end" and planner.recorded(txid) is None:
            return replay and not planner.opaque
        return replay or (not self._draining and self._opens(txid))

    def _opens(self, txid: int) -> bool:
        previous = self._planning.document(txid - 1)
        opens = self._gate.opens(txid, previous, in_flight=len(self.state.entries), width=self._window.width)
        if not opens:
            self._wake_in(self._gate.wait())
        return opens

    def _input_ended(self, txid: int) -> bool:
        """Return whether the input has ended before `txid`; no transaction is admitted then.

        While the end of input goes on, because ends of windows wait, only its further transactions are.
        """
        ended = self._planning.ended(txid - 1)
        self._gate.closed = self._gate.closed or ended
        return ended

    def _wake_in(self, seconds: float | None) -> None:
        """Plan again in `seconds`, if that is before the source would be polled anyway."""
        if seconds and seconds < LONGEST and not self._wake_set:
            self._wake_set = True
            self._loop.timers.later(seconds, self._woken)

    def _woken(self) -> None:
        self._wake_set = False

    def _discard(self, command: cmd.Discard) -> None:
        dead = [TransactionAttempt(*pair) for pair in zip(command.txids, command.attempt_ids, strict=True)]
        for attempt in dead:
            self._ready.pop(attempt.txid, None)
            self._gate.release(attempt.txid)
        self.jobs.discard(dead)
        self._commits.forget(dead)
        self._ends.discarded(dead)

    # -- processing ---------------------------------------------------------------------------------------------

    def _make_pack(self, attempts: list[TransactionAttempt]) -> Pack:
        pack = self._planning.pack(attempts, self.state.currtx - 1, self._session.retry.divert)
        return replace(pack, place=self._session.store.staging_place) if self._session.program.frame_sinks else pack

    def _current(self, attempt: TransactionAttempt) -> bool:
        return self.state.active.get(attempt.txid, (None,))[0] == attempt.attempt_id

    def _job_done(self, job: Job) -> None:
        if not self.jobs.finish(job) or self._failure is not None:
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
        work = sum(self._session.program.work_of(outcome.busy) for outcome in outcomes)
        self._window.job_took(seconds, work, len(job.attempts))
        good = [outcome for outcome in outcomes if outcome.error is None and self._current(outcome.attempt)]
        for place, outcome in enumerate(good):
            if (misread := self._planning.misread(outcome)) is not None:  # the txids before it are committed
                self._take_processed(job, good[:place], seconds)
                self.doom = misread
                self._loop.feed(ev.Failed(*outcome.attempt, resume=False))
                return
        self._take_processed(job, good, seconds)
        last = outcomes[-1]
        if last.error is not None and self._current(last.attempt) and self._failure is None:
            self._take_failed(last.attempt, last, last.error)

    def _take_processed(self, job: Job, good: list[Processed], seconds: float) -> None:
        try:
            self._planning.processed(good)
        except Exception as error:  # noqa: BLE001 - a spout that replays a different batch, or a lost ledger
            self._fail(error)
            return
        self.companion.processed(good)
        inputs = {txid_input.attempt: txid_input for txid_input in job.pack.inputs}
        for outcome in good:
            txid = outcome.attempt.txid
            document = self._planning.document(txid)
            txid_input = inputs[outcome.attempt]
            # A dead-lettered batch had data, even if none of it was emitted; a system transaction says nothing of that.
            if not txid_input.facts.system:
                left_out = len(txid_input.divert) + len(outcome.diverted)
                self._gate.saw(outcome.counts.get(self._session.program.spout, 0) or left_out)
            failed = self._session.retry.failure(txid)
            self._ready[txid] = ProcessedBatch(
                txid_input,
                outcome,
                batch_digest(outcome.digests),
                document,
                job_seconds=seconds,
                pack=len(job.attempts),
                failure=failed.error if SOURCE in txid_input.divert and failed.row is not None else None,
                failures=failed.count,
                cause=failed.cause if failed.count else None,
            )
            self._gate.hold(txid, input_bytes(outcome.cargo))
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
            self.jobs.cap(max(1, len(job.attempts) // 2), job.attempts[-1].txid)
            self.lost(alive[0], cause)
        else:
            self._user_failed(alive[0], ErrorRow("the worker", 0, "lost", "EngineError", cause, "", ""))

    def _expire(self, now: float) -> None:
        settings = self._session.settings
        timeout = settings.batch_timeout if settings.enable_timeouts else None
        self._commits.expire(timeout, stopping=self.stopping.is_set())
        if timeout is None:
            return
        for job in self.jobs.give_up_since(now - timeout):
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
            # This ends the topology, but the txids before the failed one are committed first (R3, replay).
            self.doom = batch_failure(attempt, row, decision.count)
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

    def _commit(self, command: cmd.Commit) -> None:
        group = [self._ready[txid] for txid in command.txids]
        self._committing += 1
        self._ends.commit(group)

    def _commit_group(self, group: list[ProcessedBatch]) -> None:
        self._commits.commit(group, self._session.housekeeping)

    def _ahead(self) -> None:
        """Have committers do as much work as possible on txids whose turn has not come yet."""
        if self._committing:
            self._commits.finish_ahead(self._ready[txid] for txid in self.state.following)
        else:
            self._commits.execute(self._ready.values())

    def _commit_ended(self, done: Future[GroupOutcome]) -> None:
        self._loop.put(lambda: self.group_done(done) if self._commits.is_current(done) else None)

    def _ahead_ended(self, attempt: TransactionAttempt, error: BaseException) -> None:
        self._loop.put(lambda: self._failed_ahead(attempt, error))

    def _failed_ahead(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """Handle an early failure; ignore it if the attempt's group is committing, where it recurs and is reported."""
        if not isinstance(error, CommitFailed):
            self._fail(error)
        elif self._current(attempt) and attempt.txid not in self.state.committing_txids and self._failure is None:
            self._user_failed(attempt, error.row)

    def _committed(self, outcome: GroupOutcome) -> None:
        last = outcome.committed[-1].ready.attempt
        for done in outcome.committed:
            self._ready.pop(done.ready.attempt.txid, None)
            self._gate.release(done.ready.attempt.txid)
        sweep_spilled(self._session.program.spill_dir, last.txid, self._session.books.epoch)
        waiting = outcome.committed[-1].waiting
        self._planning.committed(last.txid, waiting)
        self._system.committed(outcome.committed[-1].timers, waiting=bool(waiting))
        spout = self._session.program.spout
        notices = self._planning.planner.notices()
        self._monitor.committed(progress_list(outcome, spout, notices))
        self._upkeep.committed()
        self._loop.feed(ev.Committed(*last))
        self._session.after_commit()
        self.snapshots.committed(outcome.committed)
        self.companion.committed(last.txid)
        empty = [done.ready.attempt.txid for done in outcome.committed if done.empty(spout)]
        self._waiters.answer(self.state, empty=max(empty, default=0), waiting=self._system.waiting)

    # -- the end ------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """End the topology with `error`; a group that is being committed still finishes."""
        if self._failure is None:
            self._failure = error
            self.stopping.set()
            self.jobs.give_up_all()
