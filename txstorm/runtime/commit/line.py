"""The commit line: committers finish txids in order (P5) on one thread; another one publishes the groups (P6 to P8).

So committers can finish the next txids while a group is being published. The commit thread is replaced if a committer
hangs. It is one module, since early and regular turns share their order.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.books.books import Books
from txstorm.engine.cargo import Cargo
from txstorm.engine.gc_pause import seldom_collected
from txstorm.engine.port import SOURCE, ErrorRow
from txstorm.engine.program import Program
from txstorm.engine.task.collector import Observe
from txstorm.engine.task.commit_phase import CommitFailed, CommitRun, warm_up
from txstorm.engine.task.dead_letters import Letters, letters_in_order, letters_table
from txstorm.engine.task.error_rows import error_row
from txstorm.errors import TxstormError
from txstorm.lanes import THREADS, Call, Lane, Lanes
from txstorm.runtime.batches.txn import Txn
from txstorm.runtime.commit.job import CommitJobs
from txstorm.runtime.commit.publication import Publisher
from txstorm.runtime.commit.turn import Abandoned, Turn
from txstorm.runtime.failures import LetterLimit, Warnings, letters_command, letters_text, tallies
from txstorm.spouts.executors import spout_committer
from txstorm.spouts.kept_rows import KeptRows
from txstorm.spouts.port import SpoutCommitError, SpoutCommitter
from txstorm.state.commit_group import CommitHandles
from txstorm.state.store import StateStore

log = logging.getLogger(__name__)
MakeRun = Callable[..., CommitRun]
"""Makes the commit phase of an attempt, given the arguments of `CommitRun`."""
STOP_SECONDS = 5.0
"""Maximum time, in seconds, that a stopping run waits for a committer that hangs."""


@dataclass(frozen=True)
class LineOptions:
    """Options of the commit phase of one run.

    Attributes:
        ahead: whether committers may finish a group while the previous one is still undecided.
        letter_limit: the limit on dead letters of the run; None if failures do not become dead letters.
        observe: called with everything that a task of the commit phase emitted.
        lanes: run the committers and the publishing; give the clock, and the locks of turns.
        run: makes the commit phase of an attempt.
    """

    ahead: bool = False
    letter_limit: LetterLimit | None = None
    observe: Observe | None = None
    lanes: Lanes = THREADS
    run: MakeRun = CommitRun


class CommitLine:
    """Finishes commit groups in order on the commit thread, and has them published on the publishing thread.

    The driver thread calls `open` to `close`. `warm_up` to `leave` run on the commit thread, `conclude` on the
    publishing thread; a caller without threads, such as the test driver, calls these itself.

    A single number, `reached`, preserves the order of early work: a txid finishes early only if it directly follows
    the txid that finished last. After a failure, no txid finishes early until the failed one has been retried.

    Args:
        program: the compiled topology.
        store: the tables.
        books: the ledger's content.
        publisher: stages, decides, publishes and completes groups.
        large: runs large commits as jobs.
        options: see `LineOptions`.

    Attributes:
        letter_limit: the limit on dead letters.
        turn: the turn of the group that is in P5 or, if there is none, of the last group that was in P5.
        reached: the last txid that has finished, early or in its turn; None before the first.
    """

    def __init__(
        self,
        program: Program,
        store: StateStore,
        books: Books,
        publisher: Publisher,
        large: CommitJobs,
        options: LineOptions,
    ) -> None:
        self._program, self._store, self._books = program, store, books
        self._publisher, self._large = publisher, large
        self._lanes, self._make_run, self._observe = options.lanes, options.run, options.observe
        self._ahead, self.letter_limit = options.ahead, options.letter_limit
        self._spout = _spout_committer(program)
        self._kept = KeptRows(program.spout, program.components[program.spout].fresh())
        self._warnings = Warnings(log)
        self._see = letters_command(store.data_dir)
        self.turn: Turn | None = None
        self.reached: int | None = None
        self._early_turn: Turn | None = None
        self._executed: dict[TransactionAttempt, tuple[CommitRun, CommitHandles]] = {}
        # of the driver thread
        self._asked: dict[TransactionAttempt, str] = {}
        self._executing: Future[Any] | None = None
        self._number = 0
        self._stopped_at: float | None = None

    # -- called on the driver thread ----------------------------------------------------------------------------

    def open(
        self,
        back: Callable[[Call], object],
        ended: Callable[[Turn | BaseException], None],
        failed_early: Callable[[TransactionAttempt, BaseException], None],
    ) -> None:
        """Start the threads. Call once, first.

        Args:
            back: queues a call for the driver thread.
            ended: called there with the turn of each group, once it is committed or has failed, or with the error that
                ends the run.
            failed_early: called there with an attempt that failed before its turn, and the error.
        """
        self._back, self._ended, self._failed_early = back, ended, failed_early
        self._commit_lane: Lane = self._lanes.lane("txstorm-commit")
        self._publish_lane: Lane = self._lanes.lane("txstorm-publish")

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Queue `work` to run on the commit thread; return a future of its result."""
        return self._commit_lane.submit(work)

    def in_turn(self, work: Callable[[], Any]) -> Future[Any]:
        """Queue `work` to run on the publishing thread between two groups; return a future of its result."""
        return self._publish_lane.submit(work)

    def commit(self, txns: Sequence[Txn]) -> None:
        """Queue the group `txns`, to be committed in its turn."""
        for txn in txns:
            self._asked.pop(txn.input.attempt, None)  # txids that have not finished early finish in their turn
        self._queue(partial(self.finish, txns))

    def _queue(self, finish: Callable[[], Turn]) -> None:
        """Finish a group on the commit thread, then conclude it on the publishing thread; report how it has ended."""
        self._number += 1
        number = self._number

        def work() -> None:
            try:
                turn = finish()
            except BaseException as error:  # noqa: BLE001 - ends the run, or its thread was abandoned
                self._back(partial(self._tell, number, error))
            else:
                self._publish_lane.queue(partial(self._publish, number, turn))

        self._commit_lane.queue(work)

    def _publish(self, number: int, turn: Turn) -> None:
        ended: Turn | BaseException = turn
        try:
            self.conclude(turn)
        except BaseException as error:  # noqa: BLE001 - ends the run
            ended = error
        self._back(partial(self._tell, number, ended))

    def _tell(self, number: int, ended: Turn | BaseException) -> None:
        if number == self._number:  # else its thread was abandoned, and another one has the group
            self._ended(ended)

    def early(self, txns: Iterable[Txn], *, finish: bool) -> None:
        """Have committers work on `txns` before their turn; repeated calls with the same ones have no further effect.

        It runs on the commit thread, so that a resource that a committer opens in `prepare` is always used on the same
        thread.

        Args:
            txns: processed transactions.
            finish: while a group commits: finish these, which directly follow it in this order. Otherwise only run
                `execute` for the lowest one, and for one at a time, so that a commit never waits for more than one.
        """
        if finish:
            for txn in txns:
                if self._asked.get(txn.input.attempt) != "finish":
                    self._ask(txn, "finish", self.finish_early)
        elif self._executing is None or self._executing.done():
            waiting = [txn for txn in txns if txn.input.attempt not in self._asked]
            if waiting:
                first = min(waiting, key=lambda txn: txn.input.attempt)
                self._executing = self._ask(first, "execute", self.execute)

    def _ask(self, txn: Txn, step: str, call: Callable[[Txn], None]) -> Future[None]:
        attempt = txn.input.attempt
        self._asked[attempt] = step

        def work() -> None:
            if self._asked.get(attempt) == step:  # else its turn has come, or it was discarded
                call(txn)

        def ended(done: Future[None]) -> None:
            error = done.exception()
            if error is not None and not isinstance(error, Abandoned):
                self._back(lambda: self._failed_early(attempt, error))

        done = self.call(work)
        done.add_done_callback(ended)
        return done

    def forget(self, attempts: Iterable[TransactionAttempt]) -> None:
        """Drop the work that committers did early on these discarded attempts."""
        dead = set(attempts)
        for attempt in dead:
            self._asked.pop(attempt, None)
        self.call(lambda: self.drop(dead))  # runs after the call that may be in progress

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
        turn = self.turn
        taken = turn.take(limit) if turn is not None else None
        if turn is None or taken is None:
            return
        attempt, (component, task) = taken
        log.warning("txid %s: %s[%s] %s; its thread is abandoned", attempt, component, task, cause)
        waiting, self._commit_lane = self._commit_lane.leave(), self._lanes.lane("txstorm-commit")
        row = ErrorRow(component, task, "lost", "Timeout", cause, "", "") if counts else None
        if turn.early:
            self._executing = self.call(lambda: self.leave(turn, attempt, row))
            if row is not None and turn.executes:  # otherwise it is reported in its turn
                error = CommitFailed(row)
                self._back(lambda: self._failed_early(attempt, error))
        else:
            self._queue(lambda: self.leave(turn, attempt, row))
        for call in waiting:
            self._commit_lane.queue(call)

    def use(self, program: Program) -> None:
        """Use `program` for all later groups. No group may be in P5."""
        self._close_spout()
        self._program = program
        self._large.use(program)
        self._spout = _spout_committer(program)

    def _close_spout(self) -> None:
        """Close the emitters of a committing spout."""
        if self._spout is not None:
            self._spout.close()

    def close(self) -> None:
        """Wait for the work in progress to end, but not for user code that hangs; then stop the threads."""
        self.call(self._close_spout)
        self._asked.clear()
        self._commit_lane.end()
        while not self._commit_lane.join(STOP_SECONDS):
            if self.turn is not None and self.turn.take(STOP_SECONDS) is not None:
                break
        self._publish_lane.end()
        self._publish_lane.join()

    # -- early work, on the commit thread -----------------------------------------------------------------------

    def warm_up(self) -> None:
        """Open the tables, and have committers load what they hold in memory, before the first group.

        This only saves time later: whatever fails is tried again in the turn of the first txid, and reported there.
        """
        txid = self._books.currtx()
        try:
            tables = self._store.group(txid)
            if txid == 1:
                return
            try:
                warm_up(self._program, txid, tables.begin_txid(txid), self._observe)
            finally:
                tables.end_reads()
        except Exception as error:  # noqa: BLE001 - see above
            log.info("could not load states before the first transaction: %r", error)

    def execute(self, txn: Txn) -> None:
        """Run `execute` of the committers on the input of `txn` before its turn.

        This has no lasting effect, as committers write only in `finish_batch`. A large commit is not executed early.

        Raises:
            CommitFailed: a committer raised.
        """
        if self._large.of(txn):
            return
        attempt = txn.input.attempt
        tables = self._store.group(attempt.txid)
        turn = self.turn = Turn(tables, self._lanes, early=True, executes=True)
        turn.enter(attempt)
        try:
            run = self._run(txn, tables.resources, turn)
            turn.at = run.at.place
            run.execute()
        finally:
            turn.leave()
        self._executed[attempt] = run, tables.resources

    def finish_early(self, txn: Txn) -> None:
        """Run the commit phase of `txn` before its turn; committers can read the unpublished rows of earlier txids.

        Does nothing unless `txn` directly follows the txid that finished last, or if that txid was a large commit,
        whose rows are not in memory. An exception raised by a committer is reported in the turn of its txid.
        """
        txid, turn = txn.input.attempt.txid, self._early_turn
        if not self._ahead or self.reached is None or txid != self.reached + 1 or self._large.of(txn):
            return
        if turn is None:
            self._early_turn = turn = Turn(self._store.group(txid), self._lanes, early=True)
        if turn.failed is None:
            self.turn = turn
            with seldom_collected(), turn.timed("finish"):
                self._finish([txn], turn)

    def drop(self, attempts: Collection[TransactionAttempt]) -> None:
        """Drop all that committers did early on these discarded attempts, and the rows of all attempts after them."""
        for attempt in attempts:
            self._executed.pop(attempt, None)
        turn = self._early_turn
        dead = [attempt for attempt in turn.tried if attempt in attempts] if turn is not None else []
        if turn is None or not dead:
            return
        first = min(dead).txid
        turn.tables.drop_from(first)
        turn.finished = [txn for txn in turn.finished if txn.input.attempt.txid < first]
        turn.failed = None
        self.reached = first - 1
        self._early_turn = turn if turn.finished else None

    # -- P5, on the commit thread -------------------------------------------------------------------------------

    def finish(self, txns: Sequence[Txn]) -> Turn:
        """Finish a group in order, except those txids that finished early: P5 without staging.

        A large commit always forms a group by itself. If the group is cut short for this reason, the coordinator
        commits the remaining txids in a later group. If other attempts than those of the group finished early, their
        rows are dropped.
        """
        txns = self._large.together(txns)
        first = txns[0].input.attempt.txid
        if self.letter_limit is not None:
            self.letter_limit.settled(first - 1)
        turn, self._early_turn = self._early_turn, None
        tried = [] if turn is None else turn.tried
        if turn is not None and (not tried or tried != [txn.input.attempt for txn in txns[: len(tried)]]):
            turn.tables.drop_from(min([*tried, txns[0].input.attempt]).txid)
            turn = None
        turn = self.turn = turn or Turn(self._store.group(first), self._lanes)
        turn.early = False
        with seldom_collected(), turn.timed("finish"):
            faults.point("p5.before")
            self._finish(txns[len(turn.finished) :], turn)
            faults.point("p5.after")
        return turn

    def leave(self, turn: Turn, attempt: TransactionAttempt, row: ErrorRow | None) -> Turn:
        """Fail `attempt`, which hung until its commit thread was abandoned, and drop the rows it wrote.

        All work executed early is dropped too, as a committer must finish on the thread on which it was prepared.
        """
        self._large.cancel()
        self._executed.clear()
        if turn.executes:
            turn.tables.drop_from(attempt.txid)
        else:
            self._fail(turn, attempt, row)
        return turn

    def _finish(self, txns: Sequence[Txn], turn: Turn) -> None:
        for txn in txns:
            if turn.failed is not None:
                return
            try:
                self._finish_txid(txn, turn)
            except CommitFailed as failure:
                self._fail(turn, txn.input.attempt, failure.row)

    def _fail(self, turn: Turn, attempt: TransactionAttempt, row: ErrorRow | None) -> None:
        """End the group before the failed `attempt`; drop the rows written by this attempt and by later txids."""
        turn.tables.drop_from(attempt.txid)
        turn.failed = (attempt, row)
        self.reached = attempt.txid - 1

    def _finish_txid(self, txn: Txn, turn: Turn) -> None:
        tables, attempt, processed = turn.tables, txn.input.attempt, txn.processed
        run, handles = self._executed.pop(attempt, (None, None))
        handles = tables.begin_txid(attempt.txid, handles, txn.input.stamp)
        turn.enter(attempt)
        try:
            if self._spout is not None and not txn.input.facts.system:
                self._commit_spout(self._spout, txn, turn)
            job = self._large.run(txn, turn)
            run = run or self._run(txn, handles, turn, job.sent)
            run.begins, turn.at = turn.begins, run.at.place
            run.run()
        finally:
            turn.leave()
        counts = {**processed.counts, **run.counts, **job.counts}
        found = self._letters(txn, run.letters) if txn.left_out else None
        if self.letter_limit is not None:
            received = Counter(processed.received)
            received.update(run.received)  # also what is 0
            spout = self._program.spout
            self._limit_letters(attempt, found, {**received, spout: counts.get(spout, 0)})
        letters = None if found is None else letters_table(found, attempt, txn.input.stamp)
        try:
            for component, files in (*processed.staged.items(), *job.staged.items()):
                tables.take_over(component, attempt.txid, files)
            if letters:
                tables.divert(attempt.txid, letters)
                self._warn(attempt, letters)
            self._kept.write(txn.document, handles)
            tables.end_txid(attempt.txid)
        except TxstormError as error:
            # A committer violated a constraint of its state.
            raise CommitFailed(ErrorRow("state", 0, "other", type(error).__name__, str(error), "", "")) from error
        txn.counts, txn.reported = counts, (*processed.reported, *job.reported, *run.reported)
        txn.letters, txn.timers, txn.windows = len(letters) if letters else 0, run.timers, run.windows
        turn.finished.append(txn)
        if not self._large.of(txn):
            self.reached = attempt.txid

    def _run(
        self, txn: Txn, handles: CommitHandles, turn: Turn, sent_by_job: Mapping[str, Sequence[Cargo]] | None = None
    ) -> CommitRun:
        cargo = txn.processed.cargo
        return self._make_run(self._program, txn.input, cargo, handles, self._observe, turn.begins, sent_by_job)

    def _commit_spout(self, spout: SpoutCommitter, txn: Txn, turn: Turn) -> None:
        turn.begins(self._program.spout, 0)
        try:
            spout.commit(txn.input.attempt, txn.input.stamp, txn.processed.parts)
        except SpoutCommitError as failure:
            row = error_row(failure.component, failure.task, len(self._program.stages), failure.error)
            raise CommitFailed(row) from failure.error

    def _letters(self, txn: Txn, committing: Sequence[pa.RecordBatch]) -> pa.Table:
        """Return the dead letters of both phases; if the whole batch is one, that letter holds its extents."""
        batches = [*txn.processed.diverted, *committing]
        if SOURCE in txn.input.divert and txn.failure is not None:
            whole = Letters()
            whole.add_metadata(txn.failure, self._program.spout, None, txn.document)
            batches.insert(0, whole.take())
        return letters_in_order(batches)

    def _limit_letters(self, attempt: TransactionAttempt, found: pa.Table | None, received: Mapping[str, int]) -> None:
        """Raise `CommitFailed` if the run must end before `attempt` because of its dead letters."""
        assert self.letter_limit is not None
        row = self.letter_limit.add(attempt.txid, tallies(received, found))
        if row is not None:
            rows = 0 if found is None else found.num_rows
            first = found.slice(0, 1).to_pylist() if found is not None else []
            first = [f"{one['component']}: {one['type']}: {one['message']}" for one in first]
            more = f", and {rows - 1:,} more" if rows > 1 else ""
            message = (
                f"txid {attempt.txid} is not committed: with it {letters_text(row)}; what is before it is "
                f"committed. Left out of it would be: {''.join(first) or 'nothing'}{more}. Mend the source or the "
                f"code, or raise the limit, and start again; earlier ones: {self._see}"
            )
            raise CommitFailed(replace(row, message=message))

    def _warn(self, attempt: TransactionAttempt, letters: pa.Table) -> None:
        """Log a warning for each cause of dead letters that is new, and count the others."""
        causes = list(zip(*(letters[name].to_pylist() for name in ("component", "type", "frame")), strict=True))
        for (component, kind, frame), times in Counter(causes).items():
            message = letters["message"][causes.index((component, kind, frame))].as_py()
            text = f"txid {attempt}: {component} left out a record: {kind}: {message}; see: "
            self._warnings.say(component, kind, frame, text + self._see, times)

    # -- P6 to P8, on the publishing thread ---------------------------------------------------------------------

    def conclude(self, turn: Turn) -> None:
        """Stage the rows of the finished txids (end of P5), then decide, publish and complete the group (P6 to P8)."""
        if turn.finished:
            with seldom_collected():
                self._publisher.conclude(turn)


def _spout_committer(program: Program) -> SpoutCommitter | None:
    spec = program.components[program.spout]
    return spout_committer(spec.fresh(), program.driver_context(spec.id))
