"""Commit jobs: if the committers' input of a txid exceeds the limits, the tasks of an engine job finish the txid.

The driver divides the work: each task of a committer gets its input, in files, and the current rows of the keys in that
input. The task runs the committer's `finish_batch` and stages its rows; the driver then decides and publishes them as
usual.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from txstorm.api.state import KeyedState
from txstorm.engine.arrow import is_tagged_column
from txstorm.engine.cargo import Cargo, Kind
from txstorm.engine.port import CommitShare, Engine, ErrorRow, LargeCommit, ShareDone
from txstorm.engine.program import Program
from txstorm.engine.spill import spill, unspill
from txstorm.engine.task.commit_phase import CommitFailed
from txstorm.errors import EngineError, StateError
from txstorm.lanes import THREADS, Lanes
from txstorm.runtime.batches.txn import Txn
from txstorm.runtime.commit.turn import Turn
from txstorm.state.commit_job import given_rows, input_keys, write_given
from txstorm.state.target import StagingPlace
from txstorm.storage.tables.intent import Staged

log = logging.getLogger(__name__)


@dataclass
class JobResult:
    """Result of a commit job: output of the part of a txid's commit phase that ran in tasks.

    Attributes:
        staged: committer → table → the staged files with its rows.
        sent: committer → the tuples that it emitted to downstream bolts.
        counts: component → number of tuples it emitted.
        reported: errors that were reported without making the batch fail.
    """

    staged: Mapping[str, Mapping[str, Sequence[Staged]]] = field(default_factory=dict)
    sent: Mapping[str, Sequence[Cargo]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    reported: list[str] = field(default_factory=list)


class CommitJobs:
    """Runs large commits as jobs. `cancel` is thread-safe; call all other methods on the commit thread only.

    Args:
        program: the compiled topology.
        engine: runs the jobs.
        place: where the tasks of jobs stage rows.
        allowed: False: no commit may run as a job.
        lanes: wait for the jobs.
    """

    def __init__(
        self, program: Program, engine: Engine, place: StagingPlace, *, allowed: bool, lanes: Lanes = THREADS
    ) -> None:
        self._program = program
        self._engine = engine
        self._place = place
        self._allowed = allowed
        self._lanes = lanes
        self._running: Future[list[ShareDone]] | None = None

    def use(self, program: Program) -> None:
        """Use `program` for the commits of all later txids."""
        self._program = program

    def of(self, txn: Txn) -> tuple[str, ...]:
        """Return the committers whose input in `txn` exceeds the limits and whose commit can run as a job."""
        program = self._program
        if not self._allowed or program.spill_dir is None or txn.input.divert or not program.spread:
            return ()
        rows, size = Counter[str](), Counter[str]()
        for cargo in txn.processed.cargo:
            target = program.edges[cargo.edge].target
            rows[target] += cargo.data["rows"] if cargo.batch is None else cargo.batch.num_rows
            size[target] += cargo.data["bytes"] if cargo.batch is None else cargo.batch.nbytes
        most_rows, most_bytes = program.settings["large_commit_rows"], program.settings["large_commit_bytes"]
        return tuple(
            name
            for name in program.spread
            if (most_rows is not None and rows[name] > most_rows)
            or (most_bytes is not None and size[name] > most_bytes)
        )

    def together(self, txns: Sequence[Txn]) -> Sequence[Txn]:
        """Return the leading ones of `txns` that may commit together: a large commit forms a group by itself."""
        for number, txn in enumerate(txns):
            if self.of(txn):
                return txns[: max(1, number)]
        return txns

    def run(self, txn: Txn, turn: Turn) -> JobResult:
        """Run the large part of the commit phase of `txn` as a job, in its group's turn; the job stages its rows.

        The caller adds the staged files to the turn after `Turn.leave`, when the turn can no longer be taken away
        from its thread.

        Raises:
            CommitFailed: a committer raised, a worker died, or the job was cancelled.
            OSError: a file cannot be read or written.
        """
        components: list[str] = []
        shares: list[CommitShare] = []  # one per task; the driver runs the committers that cannot be divided
        for name in self.of(txn):
            try:
                shares += self._shares_of(name, txn, turn)
            except StateError as error:  # the key fields of the input do not have the types of the state's key
                log.warning("txid %s: %s commits in the driver, large as it is: %s", txn.attempt, name, error)
            else:
                components.append(name)
        if not shares:
            return JobResult()
        txid_input = replace(txn.input, document=None, payload=None)
        work = LargeCommit(txid_input, self._place, tuple(shares))
        turn.begins(components[0], 0)
        log.info("txid %s: %s commit in %s tasks", txn.attempt, ", ".join(components), len(shares))
        answers = self._answers(work)
        result = JobResult(
            {name: _files(answers, name) for name in components},
            {
                name: [sent for answer in answers if answer.component == name for sent in answer.sent]
                for name in components
            },
        )
        for answer in answers:
            result.counts.update(answer.counts)
            result.reported += answer.reported
        return result

    def cancel(self) -> None:
        """Cancel the running job, if there is one."""
        running = self._running
        if running is not None:
            self._engine.cancel(running)

    def _answers(self, work: LargeCommit) -> list[ShareDone]:
        self._running = running = self._engine.commit(work)
        try:
            answers = self._lanes.result(running)
        except EngineError as error:
            raise CommitFailed(ErrorRow("the worker", 0, "lost", "EngineError", str(error), "", "")) from error
        finally:
            if self._running is running:  # otherwise this thread was abandoned, and another thread runs a job
                self._running = None
        for answer in answers:
            if answer.refused is not None:
                raise OSError(*answer.refused)
            if answer.error is not None:
                raise CommitFailed(answer.error)
        return answers

    def _shares_of(self, name: str, txn: Txn, turn: Turn) -> list[CommitShare]:
        edges, tasks = self._program.edges, range(self._program.components[name].parallelism)
        cargo: list[list[Cargo]] = [[] for _ in tasks]
        for item in txn.processed.cargo:
            if edges[item.edge].target == name:
                cargo[item.target].append(item if item.kind is Kind.SPILLED else spill(item, self._spill_dir))
        current = [self._current_rows(name, items, txn, turn) for items in cargo]
        return [CommitShare(name, task, tuple(cargo[task]), current[task]) for task in tasks]

    def _current_rows(self, name: str, cargo: Sequence[Cargo], txn: Txn, turn: Turn) -> dict[str, str]:
        """Write the current rows of the keys in `cargo` to files, one per state; return state → file name."""
        files = {}
        for state in self._program.spread[name]:
            if isinstance(state, KeyedState):
                attempt, where = txn.attempt, f"the input of {name}"
                batches = (unspill(item, self._spill_dir) for item in cargo)
                keys = input_keys(state, (_untagged(batch, state, where) for batch in batches), where)
                rows = given_rows(turn.tables.keyed(state.name), keys, attempt.txid)
                files[state.name] = f"{attempt.txid}-{attempt.attempt_id}-{state.name}-{uuid.uuid4().hex}.arrow"
                write_given(rows, self._spill_dir / files[state.name])
        return files

    @property
    def _spill_dir(self) -> Path:
        assert self._program.spill_dir is not None
        return Path(self._program.spill_dir)


def _untagged(batch: pa.RecordBatch, state: KeyedState, where: str) -> pa.RecordBatch:
    for name in state.key:
        if is_tagged_column(batch, batch.schema.get_field_index(name)):
            raise StateError(f"{where}: field {name!r} has values of several types; emit one type only")
    return batch


def _files(answers: Sequence[ShareDone], component: str) -> dict[str, list[Staged]]:
    files: dict[str, list[Staged]] = {}
    for answer in answers:
        for uri, staged in answer.staged.items() if answer.component == component else ():
            files.setdefault(uri, []).append(staged)
    return files
