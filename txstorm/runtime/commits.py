"""P5 of one group: committers finish, rows are staged; what follows is in `txstorm.runtime.concluding`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.engine.collecting import seldom_collected
from txstorm.engine.collector import Observe
from txstorm.engine.commit import CommitFailed, CommitRun
from txstorm.engine.failures import error_row
from txstorm.engine.letters import Letters, letters_table
from txstorm.engine.port import SOURCE, ErrorRow
from txstorm.engine.program import Program
from txstorm.errors import TxstormError
from txstorm.runtime.books import Books, Identity
from txstorm.runtime.concluding import Concluder, Housekeeping, timed
from txstorm.runtime.outcome import CommittedTxid, Outcome, Ready
from txstorm.runtime.turn import Turn
from txstorm.spouts.executors import spout_committer
from txstorm.spouts.port import SpoutCommitError, SpoutCommitter
from txstorm.state.group import Resources
from txstorm.state.intent import Intent, IntentTable, TxidRecord
from txstorm.state.store import CommitGroup, StateStore


@dataclass(frozen=True)
class Finished:
    """A group after P5.

    Attributes:
        tables: its rows, over the published ones.
        outcome: which of its txids finished.
        intent: what may be decided; None when no txid finished.
    """

    tables: CommitGroup
    outcome: Outcome
    intent: Intent | None


class Committer:
    """Commits groups, one at a time, on the commit thread.

    Args:
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
    ) -> None:
        self.turn: Turn | None = None
        self._monotonic = monotonic
        self._program = program
        self._observe = observe
        self._spout = _spout_committer(program)
        self._early: dict[TransactionAttempt, tuple[CommitRun, Resources]] = {}
        self._store = store
        self._books = books
        self._identity = identity
        self._concluder = Concluder(store, books, keep_intents=keep_intents, blocked=blocked, sleep=sleep)

    def execute(self, ready: Ready) -> None:
        """Let committers execute the input of `ready` before its turn, on the thread that commits.

        Nothing of it lasts, as they write in `finish_batch` only. Raises `CommitFailed` when one of them raises.
        """
        tables = self._store.group(ready.attempt.txid)
        turn = self.turn = Turn(tables, Outcome(), self._monotonic, ahead=True)
        turn.enter(ready.attempt)
        try:
            run = self._run(ready, tables.resources, turn)
            run.execute()
        finally:
            turn.leave()
        self._early[ready.attempt] = run, tables.resources

    def forget(self, attempts: Iterable[TransactionAttempt]) -> None:
        """What these attempts executed before their turn is not wanted any more."""
        for attempt in attempts:
            self._early.pop(attempt, None)

    def use(self, program: Program) -> None:
        """Finish later groups with `program`; called while none is under way."""
        self.close()
        self._program = program
        self._spout = _spout_committer(program)

    def close(self) -> None:
        """Let go of the spout's emitters; called on the thread that commits, after all else."""
        if self._spout is not None:
            self._spout.close()

    def commit(self, group: Sequence[Ready], housekeeping: Housekeeping) -> Outcome:
        """Commit as much of `group` as succeeds; `housekeeping(last)` gives ledger operations to go with P8."""
        with seldom_collected():
            return self.conclude(self.finish(group), housekeeping)

    def finish(self, group: Sequence[Ready]) -> Finished:
        """P5: committers finish in txid order, and what they wrote is staged; nothing refers to it yet."""
        turn = self.turn = Turn(self._store.group(group[0].attempt.txid), Outcome(), self._monotonic)
        with timed(turn.outcome.milliseconds, "finish"):
            faults.point("p5.before")
            self._finish(group, turn)
            faults.point("p5.after")
        return self._staged(turn)

    def rest(
        self, turn: Turn, attempt: TransactionAttempt, row: ErrorRow | None, housekeeping: Housekeeping
    ) -> Outcome:
        """P5 to P8 of what had finished before `turn` was taken away from its thread, at `attempt`."""
        self.leave(turn, attempt)
        turn.outcome.failed = (attempt, row)
        return self.conclude(self._staged(turn), housekeeping)

    def leave(self, turn: Turn, attempt: TransactionAttempt) -> None:
        """The thread of `turn` was left behind at `attempt`: what it wrote is void, and what else it executed early.

        That would be finished on another thread than it was prepared on.
        """
        self._early.clear()
        turn.tables.drop_from(attempt.txid)

    def _staged(self, turn: Turn) -> Finished:
        tables, outcome = turn.tables, turn.outcome
        if not outcome.committed:
            return Finished(tables, outcome, None)
        records = [_record(one) for one in outcome.committed]
        with timed(outcome.milliseconds, "stage"):
            return Finished(tables, outcome, self._intent(records, tables.stage(records, self._books.epoch)))

    def conclude(self, finished: Finished, housekeeping: Housekeeping) -> Outcome:
        """P6 to P8 of what `finish` gave: decide, publish, complete."""
        outcome, intent = finished.outcome, finished.intent
        if intent is not None:
            tuples = {one.ready.attempt.txid: sum(one.counts.values()) for one in outcome.committed}
            apply, took = finished.tables.apply, outcome.milliseconds
            self._concluder.conclude(intent, tuples, housekeeping, published=apply, milliseconds=took)
        return outcome

    def _finish(self, group: Sequence[Ready], turn: Turn) -> None:
        for ready in group:
            try:
                turn.outcome.committed.append(self._finish_txid(ready, turn))
            except CommitFailed as failure:
                # The failed txid ends the group; what it and later ones wrote vanishes from the overlays.
                turn.tables.drop_from(ready.attempt.txid)
                turn.outcome.failed = (ready.attempt, failure.row)
                return

    def _finish_txid(self, ready: Ready, turn: Turn) -> CommittedTxid:
        tables, txid = turn.tables, ready.attempt.txid
        run, resources = self._early.pop(ready.attempt, (None, None))
        resources = tables.begin_txid(txid, resources)
        turn.enter(ready.attempt)
        run = run or self._run(ready, resources, turn)
        run.begins = turn.begins
        try:
            self._commit_spout(ready, turn)
            run.run()
        finally:
            turn.leave()
        letters = _letters(ready, run.letters, self._program.spout) if ready.txid_input.divert else None
        try:
            if letters:
                tables.divert(txid, letters)
            tables.end_txid(txid)
        except TxstormError as error:
            raise CommitFailed(_rule_row(error)) from error
        counts = {**ready.processed.counts, **run.counts}
        reported = (*ready.processed.reported, *run.reported)
        return CommittedTxid(ready, counts, reported, len(letters) if letters else 0)

    def _run(self, ready: Ready, resources: Resources, turn: Turn) -> CommitRun:
        cargo = ready.processed.cargo
        return CommitRun(self._program, ready.txid_input, cargo, resources, self._observe, turn.begins)

    def _commit_spout(self, ready: Ready, turn: Turn) -> None:
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
    context = TaskContext(program.topology, spec.id, 0, spec.parallelism, spec.settings)
    return spout_committer(spec.fresh(), context)


def _letters(ready: Ready, committing: Sequence[pa.RecordBatch], spout: str) -> pa.Table:
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
