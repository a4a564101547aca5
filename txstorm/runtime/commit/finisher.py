"""P5, the turn of a commit group: committers finish its txids in order, and the rows they wrote are staged.

For P6 to P8, see `txstorm.runtime.commit.publisher`. Committers run on the commit thread and groups are published on
another thread, so committers can finish the following txids while a group is being published (`EarlyFinish`). It is one
module, since early and regular turns share their order.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.engine.cargo import Cargo
from txstorm.engine.gc_pause import seldom_collected
from txstorm.engine.port import SOURCE, ErrorRow
from txstorm.engine.program import Program
from txstorm.engine.task.collector import Observe
from txstorm.engine.task.commit_phase import CommitFailed, CommitRun, warm_up
from txstorm.engine.task.dead_letters import Letters, letters_in_order, letters_table
from txstorm.engine.task.error_rows import error_row
from txstorm.errors import TxstormError
from txstorm.lanes import THREADS, Lanes
from txstorm.runtime.commit.job import CommitJobs
from txstorm.runtime.commit.outcome import CommittedTxid, GroupOutcome, ProcessedBatch
from txstorm.runtime.commit.publisher import Housekeeping, Publisher, timed
from txstorm.runtime.commit.turn import CommitTurn
from txstorm.runtime.failures import LetterLimit, Warnings, letters_command, letters_text, tallies
from txstorm.spouts.executors import spout_committer
from txstorm.spouts.kept_rows import KeptRows
from txstorm.spouts.port import SpoutCommitError, SpoutCommitter
from txstorm.state.commit_group import CommitHandles
from txstorm.state.store import StateStore
from txstorm.storage.tables.intent import Intent, IntentTable, TxidRecord

log = logging.getLogger(__name__)
MakeRun = Callable[..., CommitRun]
"""Makes the commit phase of an attempt, given the arguments of `CommitRun`."""


class EarlyFinish:
    """Txids whose committers finish early, while the previous group is being published. Call on the commit thread only.

    A single number, `reached`, preserves the order: a txid finishes early only if it directly follows the txid that
    finished last. After a failure, no txid finishes early until the failed one has been retried.

    Args:
        begin: creates the turn of a group, given its first txid.
        allowed: False: no txid may finish early.

    Attributes:
        reached: the last txid that has finished, early or in its turn; None before the first.
    """

    def __init__(self, begin: Callable[[int], CommitTurn], *, allowed: bool) -> None:
        self.reached: int | None = None
        self._begin = begin
        self._allowed = allowed
        self._turn: CommitTurn | None = None

    def turn_of(self, attempt: TransactionAttempt) -> CommitTurn | None:
        """Return the turn in which `attempt` may finish early; None if it must wait for its own turn."""
        turn = self._turn
        if not self._allowed or self.reached is None or attempt.txid != self.reached + 1:
            return None
        if turn is None:
            self._turn = turn = self._begin(attempt.txid)
        return turn if turn.outcome.failed is None else None

    def take(self, group: Sequence[ProcessedBatch]) -> CommitTurn | None:
        """Begin the commit of `group`; return the turn in which its first txids finished early, or None if none did.

        If attempts other than those of `group` finished early, their rows are dropped.
        """
        turn, self._turn = self._turn, None
        if turn is None:
            return None
        tried = turn.tried
        if tried and tried == [ready.attempt for ready in group[: len(tried)]]:
            turn.ahead = False
            return turn
        turn.tables.drop_from(min([*tried, group[0].attempt]).txid)
        return None

    def forget(self, attempts: Collection[TransactionAttempt]) -> None:
        """Drop the rows written early by these discarded attempts and by all attempts after them."""
        turn = self._turn
        dead = [attempt for attempt in turn.tried if attempt in attempts] if turn is not None else []
        if turn is None or not dead:
            return
        first = min(dead).txid
        turn.tables.drop_from(first)
        turn.outcome.committed = [done for done in turn.outcome.committed if done.ready.attempt.txid < first]
        turn.outcome.failed = None
        self.reached = first - 1
        self._turn = turn if turn.outcome.committed else None


@dataclass(frozen=True)
class FinishOptions:
    """Options of the commit phase of one run.

    Attributes:
        ahead: whether committers may finish a group while the previous one is still undecided.
        letter_limit: the limit on dead letters of the run; None if failures do not become dead letters.
        observe: called with everything that a task of the commit phase emitted.
        lanes: give the clock, and the locks of turns.
        run: makes the commit phase of an attempt.
    """

    ahead: bool = False
    letter_limit: LetterLimit | None = None
    observe: Observe | None = None
    lanes: Lanes = THREADS
    run: MakeRun = CommitRun


class GroupFinisher:
    """Finishes, stages and concludes commit groups (P5 to P8), one at a time.

    Call the methods that run user code, `execute` to `leave`, on the commit thread only, and `conclude` on the
    publishing thread.

    Args:
        program: the compiled topology.
        store: the tables.
        books: the ledger's content.
        identity: identity of the topology in its data directory; written into every intent.
        publisher: decides, publishes and completes groups.
        large: runs large commits as jobs.
        options: see `FinishOptions`.

    Attributes:
        letter_limit: the limit on dead letters.
        turn: the turn of the group that is in P5 or, if there is none, of the last group that was in P5.
    """

    def __init__(
        self,
        program: Program,
        store: StateStore,
        books: Books,
        identity: Identity,
        publisher: Publisher,
        large: CommitJobs,
        options: FinishOptions,
    ) -> None:
        self._lanes = lanes = options.lanes
        self.letter_limit = options.letter_limit
        self._large = large
        self._make_run = options.run
        self.turn: CommitTurn | None = None
        self._ahead = EarlyFinish(
            lambda txid: CommitTurn(store.group(txid), GroupOutcome(), lanes, ahead=True), allowed=options.ahead
        )
        self._program = program
        self._observe = options.observe
        self._spout = _spout_committer(program)
        self._kept = KeptRows(program.spout, program.components[program.spout].fresh())
        self._early: dict[TransactionAttempt, tuple[CommitRun, CommitHandles]] = {}
        self._store = store
        self._books = books
        self._identity = identity
        self._publisher = publisher
        self._warnings = Warnings(log)
        self._see = letters_command(store.data_dir)

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

    def execute(self, ready: ProcessedBatch) -> None:
        """Run `execute` of the committers on the input of `ready` before its turn.

        This has no lasting effect, as committers write only in `finish_batch`. A large commit is not executed early.

        Raises:
            CommitFailed: a committer raised.
        """
        if self._large.of(ready):
            return
        tables = self._store.group(ready.attempt.txid)
        turn = self.turn = CommitTurn(tables, GroupOutcome(), self._lanes, ahead=True, executes=True)
        turn.enter(ready.attempt)
        try:
            run = self._run(ready, tables.resources, turn)
            turn.at = run.at.place
            run.execute()
        finally:
            turn.leave()
        self._early[ready.attempt] = run, tables.resources

    def finish_ahead(self, ready: ProcessedBatch) -> None:
        """Run the commit phase of `ready` before its turn; committers can read the unpublished rows of earlier txids.

        Does nothing unless `ready` directly follows the txid that finished last, or if that txid was a large commit,
        whose rows are not in memory. An exception raised by a committer is reported in the turn of its txid.
        """
        turn = None if self._large.of(ready) else self._ahead.turn_of(ready.attempt)
        if turn is not None:
            self.turn = turn
            with seldom_collected(), timed(turn.outcome.milliseconds, "finish", self._lanes.monotonic):
                self._finish([ready], turn)

    def forget(self, attempts: Collection[TransactionAttempt]) -> None:
        """Drop all work that committers did early on these discarded attempts."""
        for attempt in attempts:
            self._early.pop(attempt, None)
        self._ahead.forget(attempts)

    def use(self, program: Program) -> None:
        """Use `program` for all later groups. No group may be in P5."""
        self.close()
        self._program = program
        self._large.use(program)
        self._spout = _spout_committer(program)

    def close(self) -> None:
        """Close the emitters of a committing spout. Make this the last call on the commit thread."""
        if self._spout is not None:
            self._spout.close()

    def commit(self, group: Sequence[ProcessedBatch], housekeeping: Housekeeping) -> GroupOutcome:
        """Commit `group` up to the first failure; `housekeeping(last)` returns additional ledger operations for P8."""
        return self.conclude(self.finish(group), housekeeping)

    def finish(self, group: Sequence[ProcessedBatch]) -> CommitTurn:
        """Finish the txids of `group` in order, except those that finished early: P5 without staging.

        A large commit always forms a group by itself. If `group` is cut short for this reason, the coordinator commits
        the remaining txids in a later group.
        """
        group = self._large.together(group)
        if self.letter_limit is not None:
            self.letter_limit.settled(group[0].attempt.txid - 1)
        turn = self.turn = self._ahead.take(group) or CommitTurn(
            self._store.group(group[0].attempt.txid), GroupOutcome(), self._lanes
        )
        with seldom_collected(), timed(turn.outcome.milliseconds, "finish", self._lanes.monotonic):
            faults.point("p5.before")
            self._finish(group[len(turn.outcome.committed) :], turn)
            faults.point("p5.after")
        return turn

    def leave(self, turn: CommitTurn, attempt: TransactionAttempt, row: ErrorRow | None) -> CommitTurn:
        """Fail `attempt`, which hung until its commit thread was abandoned, and drop the rows it wrote.

        All work executed early is dropped too, as a committer must finish on the thread on which it was prepared.
        """
        self._large.cancel()
        self._early.clear()
        if turn.executes:
            turn.tables.drop_from(attempt.txid)
        else:
            self._failed(turn, attempt, row)
        return turn

    def conclude(self, turn: CommitTurn, housekeeping: Housekeeping) -> GroupOutcome:
        """Stage the rows of the finished txids (end of P5), then decide, publish and complete the group (P6 to P8)."""
        outcome = turn.outcome
        if not outcome.committed:
            return outcome
        with seldom_collected():
            records = [_record(done) for done in outcome.committed]
            if (last := outcome.committed[-1]).waiting:  # the next start, too, must know that further ones follow
                self._books.note_document(last.ready.attempt.txid, last.extents)
            with timed(outcome.milliseconds, "stage", self._lanes.monotonic):
                intent = self._intent(records, turn.tables.stage(records, self._books.epoch))
            tuples = {done.ready.attempt.txid: sum(done.counts.values()) for done in outcome.committed}
            self._publisher.conclude(
                intent, tuples, housekeeping, published=turn.tables.apply, milliseconds=outcome.milliseconds
            )
            self._store.outside.settle()
        return outcome

    def _finish(self, group: Sequence[ProcessedBatch], turn: CommitTurn) -> None:
        for ready in group:
            if turn.outcome.failed is not None:
                return
            try:
                turn.outcome.committed.append(self._finish_txid(ready, turn))
                if not self._large.of(ready):
                    self._ahead.reached = ready.attempt.txid
            except CommitFailed as failure:
                self._failed(turn, ready.attempt, failure.row)

    def _failed(self, turn: CommitTurn, attempt: TransactionAttempt, row: ErrorRow | None) -> None:
        """End the group before the failed `attempt`; drop the rows written by this attempt and by later txids."""
        turn.tables.drop_from(attempt.txid)
        turn.outcome.failed = (attempt, row)
        self._ahead.reached = attempt.txid - 1

    def _finish_txid(self, ready: ProcessedBatch, turn: CommitTurn) -> CommittedTxid:
        tables, txid = turn.tables, ready.attempt.txid
        run, resources = self._early.pop(ready.attempt, (None, None))
        resources = tables.begin_txid(txid, resources, ready.txid_input.stamp)
        turn.enter(ready.attempt)
        try:
            self._commit_spout(ready, turn)
            job = self._large.run(ready, turn)
            run = run or self._run(ready, resources, turn, job.sent)
            run.begins, turn.at = turn.begins, run.at.place
            run.run()
        finally:
            turn.leave()
        found = _letters(ready, run.letters, self._program.spout) if ready.left_out else None
        counts = {**ready.processed.counts, **run.counts, **job.counts}
        if self.letter_limit is not None:
            spout = self._program.spout
            received = Counter(ready.processed.received)
            received.update(run.received)  # also what is 0
            self._limit_letters(ready.attempt, found, {**received, spout: counts.get(spout, 0)})
        letters = None if found is None else letters_table(found, ready.attempt, ready.txid_input.stamp)
        try:
            for component, files in (*ready.processed.staged.items(), *job.staged.items()):
                tables.take_over(component, txid, files)
            if letters:
                tables.divert(txid, letters)
                self._warn(ready.attempt, letters)
            self._kept.write(ready.extents, resources)
            tables.end_txid(txid)
        except TxstormError as error:
            # A committer violated a constraint of its state.
            raise CommitFailed(ErrorRow("state", 0, "other", type(error).__name__, str(error), "", "")) from error
        reported = (*ready.processed.reported, *job.reported, *run.reported)
        return CommittedTxid(ready, counts, reported, len(letters) if letters else 0, run.timers, run.windows)

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

    def _run(
        self,
        ready: ProcessedBatch,
        resources: CommitHandles,
        turn: CommitTurn,
        sent_by_job: Mapping[str, Sequence[Cargo]] | None = None,
    ) -> CommitRun:
        cargo = ready.processed.cargo
        return self._make_run(
            self._program, ready.txid_input, cargo, resources, self._observe, turn.begins, sent_by_job
        )

    def _commit_spout(self, ready: ProcessedBatch, turn: CommitTurn) -> None:
        if self._spout is None or ready.txid_input.facts.system:
            return
        turn.begins(self._program.spout, 0)
        try:
            self._spout.commit(ready.attempt, ready.txid_input.stamp, ready.processed.parts)
        except SpoutCommitError as failure:
            row = error_row(failure.component, failure.task, len(self._program.stages), failure.error)
            raise CommitFailed(row) from failure.error

    def _intent(self, records: Sequence[TxidRecord], staged: Sequence[IntentTable]) -> Intent:
        return Intent(
            topology=self._identity.topology,
            incarnation=self._identity.incarnation,
            timeline=self._identity.timeline,
            epoch=self._books.epoch,
            txids=tuple(records),
            tables=tuple(staged),
        )


def _spout_committer(program: Program) -> SpoutCommitter | None:
    spec = program.components[program.spout]
    return spout_committer(spec.fresh(), program.driver_context(spec.id))


def _letters(ready: ProcessedBatch, committing: Sequence[pa.RecordBatch], spout: str) -> pa.Table:
    """Return the dead letters of both phases; if the whole batch is one dead letter, that letter holds its extents."""
    batches = [*ready.processed.diverted, *committing]
    if SOURCE in ready.txid_input.divert and ready.failure is not None:
        whole = Letters()
        whole.add_metadata(ready.failure, spout, None, ready.extents)
        batches.insert(0, whole.take())
    return letters_in_order(batches)


def _record(done: CommittedTxid) -> TxidRecord:
    ready = done.ready
    return TxidRecord(
        txid=ready.attempt.txid,
        attempt_id=ready.attempt.attempt_id,
        digest=ready.digest,
        extents=done.extents,
        stamp=ready.txid_input.stamp,
    )
