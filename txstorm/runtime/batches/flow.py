"""Flow of transactions up to their commit: planned (P1), admitted, packed into jobs (P2), and processed (P4).

It is one module, since what is planned next depends on what waits, what runs and what is held in memory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import Any

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import Kind, WorkProgress
from txstorm.coordinator.machine import State
from txstorm.engine.port import SOURCE, Engine, Pack, Processed
from txstorm.engine.program import Program
from txstorm.engine.task.commit_phase import input_bytes
from txstorm.engine.task.error_rows import RAISED
from txstorm.errors import FailedException, StoppedError
from txstorm.ledger import paths as names
from txstorm.ledger.port import Delete, Op
from txstorm.runtime.batches.planning import Planning
from txstorm.runtime.batches.txn import Txn
from txstorm.runtime.batches.wall_clock import StampClock
from txstorm.runtime.failures import RetryPolicy
from txstorm.state.target import StagingPlace

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FlowOptions:
    """Limits of a run on what is read ahead, and when it ends by itself.

    Attributes:
        pending: the setting ``max_spout_pending``; None: the number of transactions in flight is learnt.
        pack: the setting ``max_pack_txids``; None: no limit.
        jobs: maximum number of concurrent jobs.
        held_bytes: maximum total size of the processed batches that await their commit.
        min_interval: minimum number of seconds between the starts of two transactions.
        until_txid: the last txid of the run; None: no limit.
        bounded: whether the run ends once everything that the source held at its start has been read.
        heartbeat: minimum number of seconds between two heartbeats.
        timers: whether timers count: committers have some, and the run does not end by itself.
        end: whether an end-of-input transaction follows the last data.
        follows: whether transactions follow one that leaves window ends waiting.
        place: where tasks stage the rows of frame sinks.
        monotonic: a clock in seconds.
    """

    monotonic: Callable[[], float]
    pending: int | None = None
    pack: int | None = None
    jobs: int = 2
    held_bytes: int = 1 << 62
    min_interval: float = 0.0
    until_txid: int | None = None
    bounded: bool = False
    heartbeat: float = 1.0
    timers: bool = False
    end: bool = False
    follows: bool = True
    place: StagingPlace | None = None


@dataclass(frozen=True)
class Job:
    """A pack that has been submitted to the engine as a job."""

    number: int
    pack: Pack
    started: float
    future: Future[list[Processed]]

    @property
    def attempts(self) -> list[TransactionAttempt]:
        """The attempts of the pack, in txid order."""
        return [txid_input.attempt for txid_input in self.pack.inputs]


@dataclass(frozen=True)
class _Waiter:
    """A caller that waits until everything that the source held at `mark` is committed."""

    mark: Any
    since: int
    done: Future[None]


class Flow:
    """Plans, admits and packs transactions, and keeps those that are processed. Call from the driver thread only.

    A job has a fixed overhead of tens of milliseconds. Packs therefore grow while user code accounts for less than
    `SHARE` of a job's duration and a pack of twice the size would still finish within `LONG` seconds. After a job that
    takes longer than `LONG`, the next packs are half its size. The number of transactions in flight follows the packs,
    and shrinks more slowly: otherwise the batches that await their commit would exceed it as soon as packs shrink, and
    no job could run meanwhile.

    Replays are always admitted, up to `until_txid`. That processed batches take up too much memory cannot block
    forever: they precede the queued attempts, and their commits free memory.

    Args:
        planning: the plans.
        engine: runs the packs.
        program: the compiled topology.
        retry: knows the failures of each txid.
        clock: gives the stamps.
        options: see `FlowOptions`.

    Attributes:
        ready: txid → the processed transaction that awaits its commit.
        closed: True once the run has reached its end; no new transaction is admitted.
        blocked: True while a decided group cannot be published; no new transaction is admitted then (R13, blocked). Set
            by the publishing thread.
        automatic: False: timers are ignored; a test plans system transactions itself, with `ask`.
        waiting: whether the last committed transaction has left window ends that its watermark has reached.
        draining: whether no more data is read; window ends that are due still fire.
        pack: the pack size learnt so far.
    """

    SHARE = 0.7
    LONG = 3.0
    LIMIT = 256

    def __init__(
        self,
        planning: Planning,
        engine: Engine,
        program: Program,
        retry: RetryPolicy,
        clock: StampClock,
        options: FlowOptions,
    ) -> None:
        self.planning, self._engine, self._program = planning, engine, program
        self._retry, self._clock, self._options = retry, clock, options
        self._monotonic = options.monotonic
        self.ready: dict[int, Txn] = {}
        self.closed = self.blocked = self.waiting = self.draining = False
        self.automatic = True
        self.pack = self._reached = 1
        self._data_only = self._seen_empty = False
        self._mark = planning.planner.latest() if options.bounded else None
        self._next_start = self._plan_after = self._no_heartbeat_before = 0.0
        self._timer: int | None = None
        self._asked: Kind | None = None
        self._queue: deque[TransactionAttempt] = deque()
        self._running: dict[int, Job] = {}
        self._number = 0
        self._cap: tuple[int, int] | None = None
        self._waiters: list[_Waiter] = []
        self._dry = False
        self._job_done: Callable[[Job], None] = lambda job: None
        self._failed: Callable[[int, BaseException], None] = lambda txid, error: None
        self._wake_in: Callable[[float], None] = lambda seconds: None

    def open(
        self,
        currtx: int,
        job_done: Callable[[Job], None],
        failed: Callable[[int, BaseException], None],
        wake_in: Callable[[float], None],
    ) -> tuple[int, ...]:
        """Begin a run at `currtx`; return the txids that are to be replayed with their stored plans.

        Timers are not stored, so one heartbeat is due at once if any txid is committed.

        Args:
            currtx: the next txid to commit.
            job_done: called with a finished job, on a thread of the engine.
            failed: called with the txid and the error if the spout's coordinator fails to plan it.
            wake_in: called with a number of seconds after which a transaction may be planned.
        """
        self._job_done, self._failed, self._wake_in = job_done, failed, wake_in
        self._timer = 0 if currtx > 1 else None
        self.waiting = self._options.follows and bool(self.planning.waiting(currtx - 1))
        return self.planning.open(currtx)

    def use(self, program: Program) -> None:
        """Use `program` for all later transactions. None may be in flight."""
        self._program = program

    # -- plan (P1) ----------------------------------------------------------------------------------------------

    def plan(self, txid: int, state: State, *, replay: bool) -> bool:
        """Plan `txid` if it may begin and there is something for it; return whether it did. `submit` stores the plan.

        Raises:
            InputError: the machine's clock is refused.
        """
        planning, early = self.planning, self._monotonic() < self._plan_after
        if early or (self.draining and not replay and not self.waiting) or self.past(txid) or self.ended(txid):
            return False
        fixed = replay and planning.is_fixed(txid)
        if self._clock.holds() and not fixed:
            return False
        if fixed and not planning.planner.is_at_hand(planning.document(txid)):
            return False
        if self._asked is not None:
            asked = False
        elif planning.kind(txid - 1) == "end" and planning.planner.recorded(txid) is None:
            asked = replay and not planning.planner.opaque
        else:  # a replay whose plan is stored, or a transaction that may have data
            asked = replay or (not self.draining and self.opens(txid, in_flight=len(state.entries)))
        try:
            read = asked and planning.plan(txid, replay=replay)
            planned = read or self.plan_system(txid, idle=state.idle, replay=replay)
        except FailedException as error:
            log.info("txid %s: the spout's coordinator raised %r; retrying later", txid, error)
            return False
        except RAISED as error:
            self._failed(txid, error)
            return False
        if asked and not read and planning.bound(txid) is None:  # otherwise it may have data that is held back
            self._dry = self._seen_empty = True  # an empty batch, for a source without a latest offset
        if not planned and (seconds := self.until_heartbeat()):
            self._wake_in(seconds)
        return planned

    def pause(self, seconds: float) -> None:
        """Plan nothing for `seconds`, after a failure to plan."""
        self._plan_after = self._monotonic() + seconds

    def opens(self, txid: int, *, in_flight: int) -> bool:
        """Return whether the limits allow the new `txid` to be planned now; asked before the source is."""
        previous, planner = self.planning.document(txid - 1), self.planning.planner
        wait = max(0.0, self._next_start - self._monotonic()) if self._options.min_interval else 0.0
        covered = self._seen_empty if self._mark is None else planner.reached(previous, self._mark)
        if self.past(txid) or (self._options.bounded and covered):
            self.closed = True
        elif not (in_flight >= self.width or self.full or self.blocked or wait) and not (
            self._data_only and planner.caught_up(previous)
        ):
            self._next_start = self._monotonic() + self._options.min_interval
            return True
        if wait:
            self._wake_in(wait)
        return False

    def past(self, txid: int) -> bool:
        """Return whether `txid` is beyond `until_txid`, a limit that applies to replays too."""
        return self._options.until_txid is not None and txid > self._options.until_txid

    def ended(self, txid: int) -> bool:
        """Return whether the input has ended before `txid`; no transaction is admitted then.

        While the end of input goes on, because ends of windows wait, only its further transactions are.
        """
        ended = self.planning.ended(txid - 1)
        self.closed = self.closed or ended
        return ended

    @property
    def ends(self) -> bool:
        """True if the run ends by itself (`available_now` or `until_txid`)."""
        return self._options.bounded or self._options.until_txid is not None

    @property
    def full(self) -> bool:
        """True if the processed batches take up more than `held_bytes` in total."""
        return sum(txn.size for txn in self.ready.values()) > self._options.held_bytes

    @property
    def width(self) -> int:
        """Maximum number of transactions in flight."""
        return self._options.pending or min(self.LIMIT, 8 * self._reached)

    # -- system transactions ------------------------------------------------------------------------------------

    def ask(self, kind: Kind | None) -> None:
        """Plan a system transaction of this kind when the next txid is planned; None: withdraw the request."""
        self._asked = kind

    def plan_system(self, txid: int, *, idle: bool, replay: bool) -> bool:
        """Plan `txid` as the system transaction that is due; return False if none is.

        Args:
            txid: the transaction, for which the source has no data.
            idle: whether no transaction is in flight.
            replay: whether `txid` was started before; if it was a system transaction, it is one again.
        """
        kind = self._due(txid, idle=idle, replay=replay)
        if kind is None:
            return False
        self._asked = None
        self._no_heartbeat_before = self._monotonic() + self._options.heartbeat
        self.planning.plan_system(txid, kind)
        return True

    def _due(self, txid: int, *, idle: bool, replay: bool) -> Kind | None:
        if self._asked is not None:
            return self._asked
        if replay:
            kind = self.planning.kind(txid)
            return None if kind == "data" or not self.automatic else kind
        due = idle and self.waiting and self.automatic  # what a transaction leaves is not known before its commit
        if self.planning.kind(txid - 1) == "end":
            return "end" if due else None
        if self._options.end and self.closed:
            return "end"
        return "heartbeat" if due or (idle and self.until_heartbeat() == 0) else None

    def until_heartbeat(self) -> float | None:
        """Return the seconds until a heartbeat may be due, 0 if one is; None if no timer is set."""
        if self._timer is None or not self._options.timers or not self.automatic:
            return None
        until_timer = (self._timer - self.planning.now()) / 1_000_000
        return max(0.0, until_timer, self._no_heartbeat_before - self._monotonic())

    # -- emit (P2) ----------------------------------------------------------------------------------------------

    @property
    def pack_size(self) -> int:
        """Maximum number of transactions in one job.

        If the number in flight is fixed, this is half of it, so that jobs overlap, or more if overhead dominates the
        duration of a job.
        """
        pending, limit = self._options.pending, self._options.pack
        most = self.pack if pending is None else max(1, pending // 2, min(self.pack, pending))
        return min(most, limit or most)

    def add(self, attempt: TransactionAttempt) -> None:
        """Queue an attempt for the next job."""
        self._queue.append(attempt)

    def cap(self, size: int, upto: int) -> None:
        """After a failed job, limit the packs that start at or before the txid `upto` to `size` txids."""
        self._cap = (size, upto)

    def submit(self, currtx: int) -> None:
        """Store the new plans; then submit packs as jobs until nothing is queued or no further job may start.

        `currtx`: the next txid to commit.
        """
        self.planning.save()
        # Each job of a task-planned spout needs the extents that the one before it has read.
        jobs = 1 if self.planning.planner.task_planned else self._options.jobs
        while self._queue and len(self._running) < jobs and not self.full:
            size = self.pack_size
            if self._cap is not None:
                size = min(size, self._cap[0]) if self._queue[0].txid <= self._cap[1] else size
            self._number += 1
            faults.point("p2.before")
            pack = self._pack(list(islice(self._queue, size)), currtx - 1)
            for _ in pack.inputs:
                self._queue.popleft()
            job = Job(self._number, pack, self._monotonic(), self._engine.submit(pack))
            faults.point("p2.after")
            self._running[job.number] = job
            # By its number: the future, which keeps its callbacks, would be in a reference cycle with the job.
            job.future.add_done_callback(partial(self._report, job.number))

    def _report(self, number: int, _: object) -> None:
        """Report the end of a job, unless it was abandoned."""
        job = self._running.get(number)
        if job is not None:
            self._job_done(job)

    def _pack(self, attempts: Sequence[TransactionAttempt], committed: int) -> Pack:
        """Build the pack of the first of `attempts`: up to a system transaction, which has a pack of its own."""
        planning, inputs = self.planning, []
        together = takewhile(lambda one: planning.kind(one.txid) == "data", attempts)
        for attempt in tuple(together) or attempts[:1]:
            recorded = planning.planner.recorded(attempt.txid)
            if recorded is not None:
                committed = 0  # emitters must not clean up what a live run of the recorded directory still needs
            divert = self._retry.divert(attempt.txid) if recorded is None else recorded.divert
            inputs.append(planning.txid_input(attempt, divert))
        place = self._options.place if self._program.frame_sinks else None
        return Pack(tuple(inputs), planning.carried(attempts[0].txid), committed, place)

    @property
    def running(self) -> list[Job]:
        """The jobs in progress, except abandoned jobs."""
        return list(self._running.values())

    @property
    def queued(self) -> int:
        """Number of attempts waiting to be submitted as part of a job."""
        return len(self._queue)

    def how_far(self, longer: float) -> WorkProgress | None:
        """Return how far the oldest job is, if it runs for `longer` seconds; unlike the rest, thread-safe."""
        job = next(iter(self.running), None)
        seconds = 0.0 if job is None else self._monotonic() - job.started
        if job is None or seconds < longer or (found := self._engine.how_far(job.future)) is None:
            return None
        return replace(found, first=job.attempts[0].txid, last=job.attempts[-1].txid, seconds=seconds)

    def discard(self, dead: Iterable[TransactionAttempt]) -> None:
        """Drop discarded attempts, and cancel the jobs that consist only of discarded attempts."""
        discarded = set(dead)
        for attempt in discarded:
            self.ready.pop(attempt.txid, None)
        self._queue = deque(attempt for attempt in self._queue if attempt not in discarded)
        for job in self.running:
            if discarded.issuperset(job.attempts):
                self.give_up(job)

    def give_up(self, job: Job) -> None:
        """Cancel a job and ignore its result."""
        self._running.pop(job.number, None)
        self._engine.cancel(job.future)

    def give_up_since(self, moment: float) -> list[Job]:
        """Cancel the jobs that started before `moment`, in seconds of the monotonic clock; return those jobs."""
        late = [job for job in self.running if job.started < moment]
        for job in late:
            self.give_up(job)
        return late

    def give_up_all(self) -> None:
        """Empty the queue and cancel all jobs."""
        self._queue.clear()
        for job in self.running:
            self.give_up(job)

    # -- processed (P4), committed (P8) -------------------------------------------------------------------------

    def finish(self, job: Job) -> bool:
        """Remove a finished job from the running jobs; return False if it had already been abandoned."""
        return self._running.pop(job.number, None) is not None

    def job_took(self, seconds: float, busy: Iterable[dict[int, float]], txids: int) -> None:
        """Adapt the size of packs to a finished job of `txids` txids.

        Args:
            seconds: how long it took.
            busy: for each txid, stage level → seconds for which user code ran.
            txids: number of txids.
        """
        work = sum(self._program.work_of(one) for one in busy)
        if seconds > self.LONG:
            # Half of the job's own txids, not of `pack`: overlapping slow jobs must not halve it repeatedly.
            self.pack = min(self.pack, max(1, txids // 2))
        elif work < self.SHARE * seconds and txids >= self.pack and 2 * seconds <= self.LONG:
            self.pack = min(self.LIMIT // 2, self.pack * 2)
        self._reached = max(self.pack, min(self._reached, 4 * self.pack))

    def processed(self, job: Job, outcomes: Sequence[Processed], seconds: float) -> None:
        """Take the transactions that a job has processed in `seconds`.

        Raises:
            SpoutError: a transactional spout emitted a different batch in a replay.
        """
        self.planning.processed(outcomes)
        inputs, spout = {txid_input.attempt: txid_input for txid_input in job.pack.inputs}, self._program.spout
        for outcome in outcomes:
            txid, txid_input = outcome.attempt.txid, inputs[outcome.attempt]
            # A dead-lettered batch had data, even if none of it was emitted; a system transaction says nothing of that.
            left_out = len(txid_input.divert) + len(outcome.diverted)
            if not (txid_input.facts.system or outcome.counts.get(spout, 0) or left_out):
                self._seen_empty = True
            failed = self._retry.failure(txid)
            self.ready[txid] = Txn(
                txid_input,
                outcome,
                self.planning.document(txid),
                job_seconds=seconds,
                pack=len(inputs),
                size=input_bytes(outcome.cargo),
                failure=failed.error if SOURCE in txid_input.divert and failed.row is not None else None,
                failures=failed.count,
                cause=failed.cause if failed.count else None,
            )

    def outlived(self, last: int) -> list[Op]:
        """Return the ledger deletions for P8 (complete) of a group up to `last`; called on the publishing thread.

        They are failure records up to `last`, and the metadata of all txids before it: the next txid is planned from
        that of `last`.
        """
        failed = [Delete(names.failure_path(txid)) for txid in self._retry.forget(last)]
        return [*(Delete(names.meta_path(txid)) for txid in list(self.planning.metas) if txid < last), *failed]

    def committed(self, txns: Sequence[Txn]) -> None:
        """Forget the committed transactions; the timers of the last one replace all earlier ones."""
        last = txns[-1]
        for txn in txns:
            self.ready.pop(txn.input.attempt.txid, None)
        waiting = last.waiting
        self.planning.committed(last.input.attempt.txid, waiting)
        self._timer = min(last.timers, default=None)
        self.waiting = self._options.follows and bool(waiting)

    # -- callers that wait --------------------------------------------------------------------------------------

    def wait_for_all(self, done: Future[None], state: State) -> None:
        """Complete `done` once everything that the source currently holds is committed.

        For the rest of the run, a transaction is admitted only if the source has new data.
        """
        self._data_only, self._dry = True, False
        since = state.currtx + len(state.entries)
        self._waiters.append(_Waiter(self.planning.planner.latest(), since, done))

    def answer(self, state: State, *, empty: int = 0) -> None:
        """Complete the futures for which everything the source held is now committed, unless window ends wait.

        A source that cannot report its latest offset counts as fully read once it has been asked and had no data, or
        once a batch that was planned after `wait_for_all` turns out to be empty.

        Args:
            state: the coordinator's state.
            empty: the highest committed txid without tuples; 0: none.
        """
        if not self._waiters or self.waiting:
            return
        document = self.planning.document(state.currtx - 1)
        reached = self.planning.planner.reached
        for waiter in list(self._waiters):
            exhausted = empty >= waiter.since or (state.idle and self._dry)
            if exhausted if waiter.mark is None else reached(document, waiter.mark):
                self._waiters.remove(waiter)
                waiter.done.set_result(None)

    def end(self, error: BaseException | None) -> None:
        """Fail the futures of callers that wait, as the run has ended: with `error`, or with `StoppedError`."""
        cause = error or StoppedError("the run was stopped before everything available was committed")
        for waiter in self._waiters:
            waiter.done.set_exception(cause)
        self._waiters.clear()
