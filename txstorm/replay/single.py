"""Replay of one committed txid, in this process and on this thread, against the state before it. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from txstorm.books.origin import first_suspect
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import ErrorRow, Pack, Processed, TxidInput
from txstorm.engine.program import Program, program_of
from txstorm.engine.task.stage import StageTask
from txstorm.errors import SpoutError
from txstorm.plan.stages import compile_plan
from txstorm.replay.compare import ReplayVerdict, compared
from txstorm.replay.recording import Recorded, Recording, Source, opened_source
from txstorm.replay.scratch_tables import ReplayTables
from txstorm.runtime.commit.outcome import batch_digest
from txstorm.runtime.failures import batch_failure
from txstorm.topology.graph import Topology

Caught = Callable[[BaseException], None]

OPAQUE = "the spout is opaque: for recorded extents it emits the present content of its source, which may have changed"


def replay_txid(
    topology: Topology, data_dir: str | Path, txid: int, caught: Caught = lambda error: None
) -> ReplayVerdict:
    """Replay a committed txid from its recorded extents against the state of ``txid - 1``.

    Works beside a live run. Spout and bolts run as on the local engine, on the calling thread, with the committed
    attempt id and stamp; the rows they write are compared with the committed ones and then dropped.

    Args:
        topology: the code; it must have the recorded id.
        data_dir: the data directory of the topology.
        txid: the transaction to replay.
        caught: called with every exception of user code, while its frames still exist. An exception that it raises
            itself ends the replay.

    Raises:
        InputError: not a data directory, another topology, a txid that is not committed or no longer kept, a state
            that is declared differently now.
        SpoutError: the source can no longer return the recorded batch.
    """
    recording = Recording(data_dir)
    recording.check_topology(topology)
    recorded = recording.of(txid)
    program = program_of(compile_plan(topology))
    tables = _WatchedTables(recording.data_dir, topology, txid - 1, recording.committed, caught)
    with opened_source(topology, program, recording) as source:
        pack = source.pack([recorded])
        engine = _WatchedEngine(caught)
        engine.start(program)
        (processed,) = engine.run(pack)
        if processed.error is not None and processed.error.component == program.spout:
            raise_unreadable(processed)
        return judge(program, source, recorded, pack.inputs[0], processed, tables)


def judge(
    program: Program,
    source: Source,
    recorded: Recorded,
    txid_input: TxidInput,
    processed: Processed,
    tables: ReplayTables,
) -> ReplayVerdict:
    """Run the commit phase of a processed txid and compare digest and rows with the committed ones."""
    verdict = _judged(program, source, recorded, txid_input, processed, tables)
    suspect = None if verdict.equal else first_suspect(source.recording.origin)
    return verdict if suspect is None else replace(verdict, notes=(suspect, *verdict.notes))


def _judged(
    program: Program,
    source: Source,
    recorded: Recorded,
    txid_input: TxidInput,
    processed: Processed,
    tables: ReplayTables,
) -> ReplayVerdict:
    notes: list[str] = []
    tuples = sum(processed.counts.values())
    if processed.error is not None:
        return ReplayVerdict(recorded.attempt, recorded.digest, failure=processed.error, tuples=tuples)
    digest = batch_digest(processed.digests)
    if source.planner.opaque and digest != recorded.digest:
        notes.append(OPAQUE)
    if source.document(recorded, processed.parts) != recorded.document:
        notes.append("the spout read other extents than were recorded")
    counts = tables.commit(program, txid_input, processed)
    if isinstance(counts, ErrorRow):
        return ReplayVerdict(
            recorded.attempt, recorded.digest, digest, failure=counts, tuples=tuples, notes=tuple(notes)
        )
    found = tuple(compared(table, rows) for table, rows in tables.rows(recorded.txid).items())
    tuples += sum(counts.values())
    return ReplayVerdict(recorded.attempt, recorded.digest, digest, found, tuples=tuples, notes=tuple(notes))


def raise_unreadable(processed: Processed) -> None:
    """Raise the error of a spout that can no longer read its recorded batch; ignore other failures."""
    row = processed.error
    if row is not None and row.type == SpoutError.__name__:
        raise batch_failure(processed.attempt, row, 1)


class _WatchedTables(ReplayTables):
    """Replay tables that report exceptions of the commit phase."""

    def __init__(self, data_dir: Path, topology: Topology, before: int, committed: int, caught: Caught) -> None:
        super().__init__(data_dir, topology, before, committed)
        self._caught = caught

    def caught(self, error: BaseException) -> None:
        self._caught(error.__cause__ or error)


class _WatchedEngine(LocalEngine):
    """Local engine whose tasks report exceptions of user code."""

    def __init__(self, caught: Caught) -> None:
        super().__init__()
        self._caught = caught

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
