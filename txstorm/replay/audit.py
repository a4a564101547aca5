"""Audit: replay committed txids and compare digests and rows with the committed ones. Writes nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable

from txstorm.engine.port import Engine
from txstorm.engine.program import program_of
from txstorm.engine.task.stage import sweep_spilled
from txstorm.plan.stages import compile_plan
from txstorm.replay.compare import ReplayVerdict
from txstorm.replay.ranges import Packs, Result, Span
from txstorm.replay.recording import Recording, opened_source
from txstorm.replay.scratch_tables import ReplayTables
from txstorm.replay.single import judge
from txstorm.topology.graph import Topology


def audit(
    topology: Topology, recording: Recording, span: Span, engine: Engine, told: Callable[[ReplayVerdict], None]
) -> Result:
    """Replay `span` on `engine`, each txid against the committed state before it.

    Works beside a live run. A txid that differs, or whose source is missing, does not end the audit; later txids are
    compared as if it had not differed.

    Args:
        topology: the code.
        recording: the recording of the directory to audit.
        span: the txids to replay.
        engine: runs the packs; closed at the end.
        told: called with the verdict on each txid, in order.

    Raises:
        StateError: a state is declared differently now, or is no longer kept as of the txid before `span`.
    """
    spill = tempfile.mkdtemp(prefix="txstorm-replay-")
    program = program_of(compile_plan(topology), spill)
    tables = ReplayTables(recording.data_dir, topology, span.first - 1, recording.committed)
    result = Result(topology.id, span)
    try:
        with opened_source(topology, program, recording) as source:
            engine.start(program)
            packs = Packs(engine, source, topology.settings)
            for done in packs.run(span):
                txid = done.recorded.txid
                if (txid - span.first) % packs.size == 0:
                    tables.prefetch(txid, min(txid + packs.size - 1, span.last))
                verdict = judge(program, source, done.recorded, done.txid_input, done.processed, tables)
                tables.follow(txid)
                sweep_spilled(spill, txid)
                result.count(txid, verdict.tuples, equal=verdict.equal)
                told(verdict)
    finally:
        engine.close()
        shutil.rmtree(spill, ignore_errors=True)
    return result
