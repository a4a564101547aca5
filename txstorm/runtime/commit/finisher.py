"""P5 of one group: committers finish, rows are staged; what follows is in `txstorm.runtime.commit.publisher`.

P5 is one thread's work and the rest another's: while a group is published, committers finish the txids behind it.

The group that is being finished before its turn, while the one before it is published.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.engine.cargo import Cargo
from txstorm.engine.gc_pause import seldom_collected
from txstorm.engine.port import LIMIT, SOURCE, ErrorRow
from txstorm.engine.program import Program
from txstorm.engine.task.collector import Observe
from txstorm.engine.task.commit_phase import CommitFailed, CommitRun
from txstorm.engine.task.dead_letters import Letters, letters_table
from txstorm.engine.task.error_rows import error_row
from txstorm.errors import TxstormError
from txstorm.runtime.commit.job import CommitJobs
from txstorm.runtime.commit.outcome import CommittedTxid, GroupOutcome, ProcessedBatch
from txstorm.runtime.commit.publisher import Housekeeping, Publisher, timed
from txstorm.runtime.commit.turn import CommitTurn
from txstorm.runtime.failures import LetterLimit, letters_command
from txstorm.spouts.executors import spout_committer
from txstorm.spouts.port import SpoutCommitError, SpoutCommitter
from txstorm.state.commit_group import CommitHandles
from txstorm.state.store import StateStore
from txstorm.storage.rows.schema import TUPLE
from txstorm.storage.tables.intent import Intent, IntentTable, TxidRecord


class EarlyFinish:
    """What has finished behind the group that is being published; used on the commit thread only.

    Order is kept by one number: a txid is finished ahead only if it follows the one that finished last. After a failure
    none does, until the failed txid has its next attempt.

    Args:
        begin: makes the turn of a group that begins with a txid.
        allowed: whether anything is to be finished ahead at all.

    Attributes:
        reached: the last txid that has finished, in its turn or ahead; None before the first.
    """

    def __init__(self, begin: Callable[[int], CommitTurn], *, allowed: bool) -> None:
        self.reached: int | None = None
        self._begin = begin
        self._allowed = allowed
        self._turn: CommitTurn | None = None

    def turn_of(self, attempt: TransactionAttempt) -> CommitTurn | None:
        """The turn that `attempt` is to be finished in; None when it is not to be, now."""
        turn = self._turn
        if not self._allowed or self.reached is None or attempt.txid != self.reached + 1:
            return None
        if turn is None:
            self._turn = turn = self._begin(attempt.txid)
        return turn if turn.outcome.failed is None else None

    def take(self, group: Sequence[ProcessedBatch]) -> CommitTurn | None:
        """It is the turn of `group`: what of it has finished, from its first txid on; None when nothing has."""
        turn, self._turn = self._turn, None
        if turn is None:
            return None
        tried = turn.tried
        if tried and tried == [one.attempt for one in group[: len(tried)]]:
            turn.ahead = False
            return turn
        turn.tables.drop_from(min([*tried, group[0].attempt]).txid)
        return None

    def forget(self, attempts: Collection[TransactionAttempt]) -> None:
        """These attempts were discarded: what they and later ones finished is void."""
        turn = self._turn
        dead = [one for one in turn.tried if one in attempts] if turn is not None else []
        if turn is None or not dead:
            return
        first = min(dead).txid
        turn.tables.drop_from(first)
        turn.outcome.committed = [one for one in turn.outcome.committed if one.ready.attempt.txid < first]
        turn.outcome.failed = None
        self.reached = first - 1
        self._turn = turn if turn.outcome.committed else None


class GroupFinisher:
    """Commits groups, one at a time.

    What runs user code, `execute` to `leave`, is called on the commit thread only, `conclude` on that which publishes.

    Args:
        ahead: whether committers may finish before the group ahead of theirs is decided.
        large: lets jobs do what is too much for the driver.
        letter_limit: how many records may be left out.
        blocked: told (table, cause) while a decided group cannot be published, and None when it can again.
        sleep: waits between tries; returns True when the run is to stop.
        observe: told what every task of the commit phase emitted.
        monotonic: seconds.

    Attributes:
        turn: the group that is, or was last, in P5.
    """

    def __init__(
        self,
        program: Program,
        store: StateStore,
        books: Books,
        identity: Identity,
        *,
        keep_intents: int,
        blocked: Callable[[str | None], None],
        sleep: Callable[[float], bool],
        observe: Observe | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        ahead: bool = False,
        large: CommitJobs,
        letter_limit: LetterLimit | None = None,
    ) -> None:
        self.letter_limit = letter_limit or LetterLimit(None)
        self._large = large
        self.turn: CommitTurn | None = None
        self._ahead = EarlyFinish(
            lambda txid: CommitTurn(store.group(txid), GroupOutcome(), monotonic, ahead=True), allowed=ahead
        )
        self._monotonic = monotonic
        self._program = program
        self._observe = observe
        self._spout = _spout_committer(program)
        self._early: dict[TransactionAttempt, tuple[CommitRun, CommitHandles]] = {}
        self._store = store
        self._books = books
        self._identity = identity
        self._concluder = Publisher(store, books, keep_intents=keep_intents, blocked=blocked, sleep=sleep)

    def execute(self, ready: ProcessedBatch) -> None:
        """Let committers execute the input of `ready` before its turn, on the thread that commits.

        Nothing of it lasts, as they write in `finish_batch` only. Raises `CommitFailed` when one of them raises.
        A large commit is left for its turn.
        """
        if self._large.of(ready):
            return
        tables = self._store.group(ready.attempt.txid)
        turn = self.turn = CommitTurn(tables, GroupOutcome(), self._monotonic, ahead=True, executes=True)
        turn.enter(ready.attempt)
        try:
            run = self._run(ready, tables.resources, turn)
            run.execute()
        finally:
            turn.leave()
        self._early[ready.attempt] = run, tables.resources

    def finish_ahead(self, ready: ProcessedBatch) -> None:
        """Let committers finish `ready` before its turn, over what is finished but not published yet.

        Nothing is done unless it follows what has finished last; behind a large commit, whose rows are not in memory,
        nothing does. When one of them raises, that is told in its turn.
        """
        turn = None if self._large.of(ready) else self._ahead.turn_of(ready.attempt)
        if turn is not None:
            self.turn = turn
            with seldom_collected(), timed(turn.outcome.milliseconds, "finish"):
                self._finish([ready], turn)

    def forget(self, attempts: Collection[TransactionAttempt]) -> None:
        """What these attempts did before their turn is not wanted any more."""
        for attempt in attempts:
            self._early.pop(attempt, None)
        self._ahead.forget(attempts)

    def use(self, program: Program) -> None:
        """Finish later groups with `program`; called while none is under way."""
        self.close()
        self._program = program
        self._large.use(program)
        self._spout = _spout_committer(program)

    def close(self) -> None:
        """Let go of the spout's emitters; called on the thread that commits, after all else."""
        if self._spout is not None:
            self._spout.close()

    def commit(self, group: Sequence[ProcessedBatch], housekeeping: Housekeeping) -> GroupOutcome:
        """Commit as much of `group` as succeeds; `housekeeping(last)` gives ledger operations to go with P8."""
        return self.conclude(self.finish(group), housekeeping)

    def finish(self, group: Sequence[ProcessedBatch]) -> CommitTurn:
        """P5, but for staging: committers finish in txid order; of what was finished ahead nothing is done again.

        A large commit is a group of its own: the others of `group` are told to commit again.
        """
        group = self._large.together(group)
        if self.letter_limit.limit is not None:
            self.letter_limit.settled(group[0].attempt.txid - 1)
        turn = self.turn = self._ahead.take(group) or CommitTurn(
            self._store.group(group[0].attempt.txid), GroupOutcome(), self._monotonic
        )
        with seldom_collected(), timed(turn.outcome.milliseconds, "finish"):
            faults.point("p5.before")
            self._finish(group[len(turn.outcome.committed) :], turn)
            faults.point("p5.after")
        return turn

    def leave(self, turn: CommitTurn, attempt: TransactionAttempt, row: ErrorRow | None) -> CommitTurn:
        """The thread of `turn` was left behind at `attempt`, which has failed: what it wrote is void.

        So is all that was executed early: that would be finished on another thread than it was prepared on.
        """
        self._large.cancel()
        self._early.clear()
        if turn.executes:
            turn.tables.drop_from(attempt.txid)
        else:
            self._failed(turn, attempt, row)
        return turn

    def conclude(self, turn: CommitTurn, housekeeping: Housekeeping) -> GroupOutcome:
        """Stage what has finished, then P6 to P8: decide, publish, complete."""
        with seldom_collected():
            intent = self._staged(turn)
            return turn.outcome if intent is None else self._concluded(intent, turn, housekeeping)

    def _staged(self, turn: CommitTurn) -> Intent | None:
        """The end of P5: what may be decided; None when no txid finished."""
        outcome = turn.outcome
        if not outcome.committed:
            return None
        records = [_record(one) for one in outcome.committed]
        with timed(outcome.milliseconds, "stage"):
            return self._intent(records, turn.tables.stage(records, self._books.epoch))

    def _concluded(self, intent: Intent, turn: CommitTurn, housekeeping: Housekeeping) -> GroupOutcome:
        outcome = turn.outcome
        tuples = {one.ready.attempt.txid: sum(one.counts.values()) for one in outcome.committed}
        self._concluder.conclude(
            intent, tuples, housekeeping, published=turn.tables.apply, milliseconds=outcome.milliseconds
        )
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
        """The failed txid ends the group; what it and later ones wrote vanishes from the overlays."""
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
            spread = self._large.run(ready, turn)
            run = run or self._run(ready, resources, turn, spread.sent)
            run.begins = turn.begins
            run.run()
        finally:
            turn.leave()
        letters = _letters(ready, run.letters, self._program.spout) if ready.txid_input.divert else None
        counts = {**ready.processed.counts, **run.counts, **spread.counts}
        if self.letter_limit.limit is not None:
            self._limit_letters(ready.attempt, letters, counts.get(self._program.spout, 0))
        try:
            for component, files in spread.staged.items():
                tables.take_over(component, txid, files)
            if letters:
                tables.divert(txid, letters)
            tables.end_txid(txid)
        except TxstormError as error:
            raise CommitFailed(_rule_row(error)) from error
        reported = (*ready.processed.reported, *spread.reported, *run.reported)
        return CommittedTxid(ready, counts, reported, len(letters) if letters else 0)

    def _limit_letters(self, attempt: TransactionAttempt, letters: pa.Table | None, emitted: int) -> None:
        """Raises `CommitFailed` when the run has too many dead letters with those of `attempt`."""
        found = [] if letters is None else letters.select(["what", "component", "type", "message"]).to_pylist()
        unread = sum(one["what"] != TUPLE for one in found)  # input that the spout has not emitted
        excess = self.letter_limit.add(attempt.txid, len(found), emitted + unread)
        if excess is not None:
            first = f"{found[0]['component']}: {found[0]['type']}: {found[0]['message']}"
            more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
            message = (
                f"txid {attempt.txid} is not committed: with it the dead letters are {excess}; what is before it is "
                f"committed. Left out of it would be: {first}{more}. Mend the source or the code, or raise the limit, "
                f"and start again; earlier ones: {letters_command(self._store.data_dir)}"
            )
            raise CommitFailed(ErrorRow("dead letters", 0, LIMIT, "TooManyDeadLetters", message, "", ""))

    def _run(
        self,
        ready: ProcessedBatch,
        resources: CommitHandles,
        turn: CommitTurn,
        elsewhere: Mapping[str, Sequence[Cargo]] | None = None,
    ) -> CommitRun:
        cargo = ready.processed.cargo
        return CommitRun(self._program, ready.txid_input, cargo, resources, self._observe, turn.begins, elsewhere)

    def _commit_spout(self, ready: ProcessedBatch, turn: CommitTurn) -> None:
        if self._spout is None:
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
    """The dead letters of both phases; of a batch that is one as a whole also its extents."""
    whole = Letters()
    if SOURCE in ready.txid_input.divert and ready.failure is not None:
        whole.add_metadata(ready.failure, spout, None, ready.extents)
    batches = [whole.take(), *ready.processed.diverted, *committing]
    return letters_table(batches, ready.attempt, ready.txid_input.stamp)


def _record(one: CommittedTxid) -> TxidRecord:
    ready = one.ready
    return TxidRecord(
        txid=ready.attempt.txid,
        attempt_id=ready.attempt.attempt_id,
        digest=ready.digest,
        extents=ready.extents,
        stamp=ready.txid_input.stamp,
    )


def _rule_row(error: TxstormError) -> ErrorRow:
    """A rule of the state broken by a committer, as an error row."""
    return ErrorRow("state", 0, "other", type(error).__name__, str(error), "", "")
