"""P5 to P8 of one group: committers finish, rows are staged, the intent is decided, tables are published."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.engine.collector import Observe
from txstorm.engine.commit import CommitFailed, CommitRun
from txstorm.engine.failures import error_row
from txstorm.engine.letters import Letters, letters_table
from txstorm.engine.port import SOURCE, ErrorRow, Processed, TxidInput
from txstorm.engine.program import Program
from txstorm.errors import BlockedError, ConflictError, FencedError, TableCorrupt, TxstormError
from txstorm.ledger import names
from txstorm.ledger.store import Delete, Op
from txstorm.monitor.progress import TransactionProgress
from txstorm.runtime.books import Books, Identity
from txstorm.runtime.collecting import seldom_collected
from txstorm.runtime.turn import Turn
from txstorm.spouts.executors import spout_committer
from txstorm.spouts.port import SpoutCommitError, SpoutCommitter
from txstorm.state.intent import Intent, IntentTable, TxidRecord
from txstorm.state.store import CommitGroup, StateStore

Housekeeping = Callable[[int], list[Op]]


@dataclass(frozen=True)
class Ready:
    """A processed txid that waits for its turn.

    Attributes:
        digests: of its input; `extents`: what it read, for the history.
        failure: why the batch as a whole is a dead letter, when it is one.
    """

    txid_input: TxidInput
    processed: Processed
    digest: str
    extents: Any
    job_seconds: float = 0.0
    pack: int = 1
    failure: ErrorRow | None = None

    @property
    def attempt(self) -> TransactionAttempt:
        """The attempt that was processed."""
        return self.txid_input.attempt


@dataclass(frozen=True)
class CommittedTxid:
    """What a committed txid did, for progress and history."""

    ready: Ready
    counts: dict[str, int]
    reported: tuple[str, ...]
    letters: int = 0

    def empty(self, spout: str) -> bool:
        """Whether the source gave nothing; a batch that is left out has been something."""
        return self.counts.get(spout, 0) == 0 and not self.ready.txid_input.divert


@dataclass
class Outcome:
    """How a group ended: the txids that are committed, and the failure that ended it early.

    Attributes:
        failed: the attempt, and its error; None when the end of the run cut it short.
    """

    committed: list[CommittedTxid] = field(default_factory=list)
    failed: tuple[TransactionAttempt, ErrorRow | None] | None = None
    milliseconds: dict[str, float] = field(default_factory=dict)


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

    TRIES = 8

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
        self._store = store
        self._books = books
        self._identity = identity
        self._keep = keep_intents
        self._blocked = blocked
        self._sleep = sleep
        self._tables = dict(store.last_txids())
        self._kept = [intent.last for intent in books.intents()]

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
        with _timed(turn.outcome, "finish"):
            faults.point("p5.before")
            self._finish(group, turn)
            faults.point("p5.after")
        return self._staged(turn)

    def rest(
        self, turn: Turn, attempt: TransactionAttempt, row: ErrorRow | None, housekeeping: Housekeeping
    ) -> Outcome:
        """P5 to P8 of what had finished before `turn` was taken away from its thread, at `attempt`."""
        turn.tables.drop_from(attempt.txid)
        turn.outcome.failed = (attempt, row)
        return self.conclude(self._staged(turn), housekeeping)

    def _staged(self, turn: Turn) -> Finished:
        tables, outcome = turn.tables, turn.outcome
        if not outcome.committed:
            return Finished(tables, outcome, None)
        records = [_record(one) for one in outcome.committed]
        with _timed(outcome, "stage"):
            return Finished(tables, outcome, self._intent(records, tables.stage(records, self._books.epoch)))

    def conclude(self, finished: Finished, housekeeping: Housekeeping) -> Outcome:
        """P6 to P8 of what `finish` gave: decide, publish, complete."""
        outcome, intent = finished.outcome, finished.intent
        if intent is None:
            return outcome
        versions = self._decide_and_publish(intent, outcome)
        finished.tables.apply(intent.last)
        touched = (table.uri for table in intent.tables if table.uri in self._tables)  # some maps are not recorded
        self._tables.update(dict.fromkeys(touched, intent.last))
        with _timed(outcome, "complete"):
            tuples = {one.ready.attempt.txid: sum(one.counts.values()) for one in outcome.committed}
            ops = [*housekeeping(intent.last), *(self._old_intents(intent.last) if intent.tables else [])]
            self._books.complete(intent.last, self._tables, history_rows(intent, versions, tuples), ops)
            self._store.maps.forget(before=self._kept[0] if self._kept else intent.last)
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
        resources = tables.begin_txid(txid)
        turn.enter(ready.attempt)
        cargo = ready.processed.cargo
        run = CommitRun(self._program, ready.txid_input, cargo, resources, self._observe, turn.begins)
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

    def _decide_and_publish(self, intent: Intent, outcome: Outcome) -> dict[str, int]:
        """P6 and P7. A group that changed no table has nothing to publish: P8 alone makes it committed."""
        if not intent.tables:
            return {}
        with _timed(outcome, "decide"):
            self._books.decide(intent)
        with _timed(outcome, "publish"):
            return self._publish(intent)

    def _publish(self, intent: Intent) -> dict[str, int]:
        """Publish a decided intent. It cannot be given up: tried again until it works or the run stops."""
        for attempt in range(self.TRIES):
            self._books.check_lease()
            try:
                versions = self._store.publish(intent, self._books.epoch)
            except FencedError:
                raise
            except (BlockedError, TableCorrupt, ConflictError, OSError) as error:
                self._blocked(str(error))
                cause = error
            else:
                self._blocked(None)
                return versions
            if self._sleep(min(5.0, 0.05 * 2**attempt)):
                break
        msg = (
            f"txids {intent.first}-{intent.last} are decided but cannot be published: {cause}; mend the cause and "
            "start the topology again, they are rolled forward then"
        )
        raise BlockedError(msg) from cause

    def _old_intents(self, last: int) -> list[Op]:
        self._kept.append(last)
        old, self._kept = self._kept[: -self._keep], self._kept[-self._keep :]
        return [Delete(names.intent_path(one)) for one in old]


def _spout_committer(program: Program) -> SpoutCommitter | None:
    spec = program.components[program.spout]
    context = TaskContext(program.topology, spec.id, 0, spec.parallelism, spec.settings)
    return spout_committer(spec.fresh(), context)


class _timed:  # noqa: N801 - a context manager, used like a function
    """Adds the milliseconds of a step to an outcome."""

    def __init__(self, outcome: Outcome, step: str) -> None:
        self._outcome = outcome
        self._step = step

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self._outcome.milliseconds[self._step] = (time.perf_counter() - self._started) * 1000


def batch_digest(digests: Mapping[str, str]) -> str:
    """One digest of a batch from those of its partitions."""
    text = json.dumps(digests, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def progress_list(
    outcome: Outcome, spout: str, failures_of: Callable[[int], tuple[int, str | None]]
) -> list[TransactionProgress]:
    """What is reported of the committed transactions; `failures_of` tells how often one had failed before, and why."""
    return [_progress(one, outcome, spout, *failures_of(one.ready.attempt.txid)) for one in outcome.committed]


def _progress(
    one: CommittedTxid, outcome: Outcome, spout: str, failures: int, cause: str | None
) -> TransactionProgress:
    ready = one.ready
    return TransactionProgress(
        txid=ready.attempt.txid,
        attempt=ready.attempt.attempt_id,
        stamp=ready.txid_input.stamp,
        spout=spout,
        tuples=one.counts,
        pack=ready.pack,
        group=len(outcome.committed),
        job_ms=ready.job_seconds * 1000,
        commit_ms=outcome.milliseconds,
        reported=one.reported,
        dead_letters=one.letters,
        failures=failures,
        cause=cause,
    )


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


def history_rows(
    intent: Intent, versions: Mapping[str, int], tuples: Mapping[int, int] | None = None
) -> list[dict[str, Any]]:
    """The history of a decided group, one row per txid. After a roll-forward the number of tuples is not known."""
    return [
        {
            "txid": one.txid,
            "attempt": one.attempt_id,
            "stamp": one.stamp,
            "first": intent.first,
            "last": intent.last,
            "digest": one.digest,
            "extents": one.extents,
            "tuples": None if tuples is None else tuples[one.txid],
            "versions": dict(versions),
            "timeline": intent.timeline,
        }
        for one in intent.txids
    ]
