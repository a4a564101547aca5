"""Audit: committed txids are replayed, each against the state before it, and compared. Writes nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from txstorm.books.origin import first_suspect
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Engine, ErrorRow, Pack, Processed, TxidInput
from txstorm.engine.program import Program, program_of
from txstorm.engine.spill import sweep_spilled
from txstorm.engine.task.stage import StageTask
from txstorm.errors import EngineError, SpoutError
from txstorm.plan.stages import compile_plan
from txstorm.replay.compare import ReplayVerdict, compared
from txstorm.replay.recording import Recorded, Recording, Result, Source, Span, opened_source, span_of
from txstorm.replay.scratch_tables import ReplayTables
from txstorm.runtime.batches.txn import batch_digest
from txstorm.runtime.failures import batch_failure
from txstorm.topology.graph import Topology
from txstorm.user_code import Caught, ignore

PACK = 16
"""Number of txids in one job unless the topology sets it."""
TRIES = 3
"""Maximum number of attempts at a batch that raises `FailedException`, or whose worker dies."""
OPAQUE = (
    "the spout is opaque: what it emits for recorded extents is what its source holds today, which may have changed"
)


def audit(
    topology: Topology, recording: Recording, span: Span, engine: Engine, judged: Callable[[ReplayVerdict], None]
) -> Result:
    """Replay `span` on `engine`, and count the txids whose result differs from the committed one.

    Works beside a live run. A txid that differs, or whose source is missing, does not end the audit; later txids are
    compared as if that txid had not differed. `judged` is called with the verdict on each txid, in order. The engine is
    closed at the end.

    Raises:
        StateError: a state is now declared differently, or is no longer retained as of the txid before `span`.
    """
    result = Result(topology.id, span)
    for verdict in replayed(topology, recording, span, engine):
        result.count(verdict.txid, verdict.tuples, equal=verdict.equal, compared=verdict.not_compared is None)
        judged(verdict)
    return result


def replayed(
    topology: Topology,
    recording: Recording,
    span: Span,
    engine: Engine,
    *,
    caught: Caught = ignore,
    tries: int = TRIES,
) -> Iterator[ReplayVerdict]:
    """Replay `span` on `engine`, each txid against the committed state before it; see `audit`.

    `caught` is called with every exception of the commit phase, while its frames still exist. A batch gets at most
    `tries` attempts. The engine is closed at the end.
    """
    topology = topology.completed()
    spill = tempfile.mkdtemp(prefix="txstorm-replay-")
    program = program_of(compile_plan(topology), spill)
    try:
        tables = ReplayTables(recording.data_dir, topology, span.first - 1, recording.committed, caught)
        with opened_source(topology, program, recording) as source:
            engine.start(program)
            # A spout that continues from the previous txid must begin each pack where its first txid began.
            size = 1 if source.chained else topology.settings.max_pack_txids or PACK
            for done in _Packs(engine, source, size, topology.settings.max_jobs, tries).run(span):
                txid = done.recorded.txid
                if (txid - span.first) % size == 0:
                    tables.prefetch(txid, min(txid + size - 1, span.last))
                verdict = _judged(program, source, done, tables)
                suspect = None if verdict.equal else first_suspect(recording.origin)
                tables.follow(txid)
                sweep_spilled(spill, txid)
                yield verdict if suspect is None else replace(verdict, notes=(suspect, *verdict.notes))
    finally:
        engine.close()
        shutil.rmtree(spill, ignore_errors=True)


@dataclass(frozen=True)
class _Done:
    """One processed txid of a range."""

    recorded: Recorded
    txid_input: TxidInput
    processed: Processed


def _judged(program: Program, source: Source, done: _Done, tables: ReplayTables) -> ReplayVerdict:
    """Run the commit phase of a processed txid, and compare digest and rows with the committed ones."""
    recorded, processed, notes = done.recorded, done.processed, list[str]()
    tuples = sum(processed.counts.values())
    if processed.error is not None:
        return ReplayVerdict(recorded.attempt, recorded.digest, failure=processed.error, tuples=tuples)
    digest = batch_digest(processed.digests)
    if source.planner.opaque and digest != recorded.digest:
        notes.append(OPAQUE)
    if source.document(recorded, processed.parts) != recorded.document:
        notes.append("the spout read other extents than were recorded")
    counts = tables.commit(program, done.txid_input, processed)
    if isinstance(counts, ErrorRow):
        return ReplayVerdict(
            recorded.attempt, recorded.digest, digest, failure=counts, tuples=tuples, notes=tuple(notes)
        )
    ordered = not program.frames  # the rows of a DataFrame have no order
    rows = tables.rows(recorded.txid)
    tuples += sum(counts.values())
    why = tables.not_reproduced(rows)
    found = () if why else tuple(compared(table, one, ordered=ordered) for table, one in rows.items())
    return ReplayVerdict(
        recorded.attempt, recorded.digest, digest, found, tuples=tuples, not_compared=why, notes=tuple(notes)
    )


@dataclass(frozen=True)
class _Job:
    recorded: Sequence[Recorded]
    pack: Pack
    future: Future[list[Processed]]
    tries: int

    @property
    def txids(self) -> list[int]:
        return [one.txid for one in self.recorded]


class _Packs:
    """Processor of a range of txids on an engine: runs several packs at once, and yields the outcomes in txid order.

    A pack has `size` txids, and a batch gets at most `tries` attempts. The engine has been started.
    """

    def __init__(self, engine: Engine, source: Source, size: int, jobs: int, tries: int) -> None:
        self._engine = engine
        self._source = source
        self._size = size
        self._jobs = jobs
        self._tries = tries

    def run(self, span: Span) -> Iterator[_Done]:
        """Yield the outcome of every txid of `span`; for a failed txid, that of its last attempt."""
        waiting = deque(
            list(range(first, min(first + self._size, span.last + 1)))
            for first in range(span.first, span.last + 1, self._size)
        )
        running: deque[_Job] = deque()
        try:
            while waiting or running:
                while waiting and len(running) < self._jobs:
                    running.append(self._submit(waiting.popleft()))
                job = running.popleft()
                done, again = self._outcomes(job)
                yield from done
                running.extendleft(self._submit(txids, tries) for txids, tries in reversed(again))
        finally:
            for job in running:
                self._engine.cancel(job.future)

    def _submit(self, txids: Sequence[int], tries: int = 1) -> _Job:
        recorded = [self._source.recording.of(txid) for txid in txids]
        pack = self._source.pack(recorded)
        return _Job(recorded, pack, self._engine.submit(pack), tries)

    def _outcomes(self, job: _Job) -> tuple[list[_Done], list[tuple[list[int], int]]]:
        """Return the outcomes of a job, and the txids to retry, in packs with their attempt numbers."""
        try:
            processed = job.future.result()
        except EngineError as error:
            if len(job.txids) > 1:
                half = len(job.txids) // 2
                return [], [(job.txids[:half], 1), (job.txids[half:], 1)]
            lost = ErrorRow("the worker", 0, "lost", "EngineError", str(error), "", "")
            processed = [Processed(job.pack.inputs[0].attempt, error=lost)]
        done = [_Done(*one) for one in zip(job.recorded, job.pack.inputs, processed, strict=False)]
        rest = [(job.txids[len(done) :], 1)] if len(done) < len(job.txids) else []
        failure = processed[-1].error
        if failure is not None and failure.kind in ("failed", "lost") and job.tries < self._tries:
            return done[:-1], [([done[-1].recorded.txid], job.tries + 1), *rest]
        return done, rest


def replay_txid(topology: Topology, data_dir: str | Path, txid: int, caught: Caught = ignore) -> ReplayVerdict:
    """Replay a committed txid from its recorded extents against the state of ``txid - 1``.

    Works beside a live run. Spout and bolts run as on the local engine, on the calling thread, with the committed
    attempt id and stamp; the rows they write are compared with the committed ones and then dropped. `caught` is called
    with every exception of user code, while its frames still exist; an exception that it raises itself ends the replay.

    Raises:
        InputError: `data_dir` is not a data directory or belongs to another topology; `txid` is not committed, or no
            longer retained; or a state is now declared differently.
        SpoutError: the source can no longer return the recorded batch.
    """
    recording = Recording(data_dir)
    recording.check_topology(topology)
    span = span_of(recording, txid, txid)
    (verdict,) = replayed(topology, recording, span, _WatchedEngine(caught), caught=caught, tries=1)
    failure = verdict.failure
    if failure is not None and failure.component == topology.spout.id and failure.type == SpoutError.__name__:
        raise batch_failure(verdict.attempt, failure, 1)
    return verdict


class _WatchedEngine(LocalEngine):
    """Local engine on the calling thread, whose tasks report exceptions of user code."""

    def __init__(self, caught: Caught) -> None:
        super().__init__(caught=caught)

    def submit(self, pack: Pack) -> Future[list[Processed]]:
        done: Future[list[Processed]] = Future()
        done.set_result(self.run(pack))
        return done

    def task(self, level: int, number: int, pack: Pack) -> StageTask:
        assert self._program is not None
        return _WatchedTask(self._program, level, number, pack, self._caught)


class _WatchedTask(StageTask):
    def __init__(self, program: Program, level: int, number: int, pack: Pack, caught: Caught) -> None:
        super().__init__(program, level, number, pack)
        self._caught = caught

    def failure(self, component: str, error: BaseException, given: str = "") -> ErrorRow:
        self._caught(error)
        return super().failure(component, error, given)
