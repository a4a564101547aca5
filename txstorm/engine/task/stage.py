"""Work of one task in one stage; both engines run this code."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm import faults
from txstorm.api.context import TaskContext
from txstorm.engine.cargo import Cargo, Kind, split
from txstorm.engine.gc_pause import seldom_collected
from txstorm.engine.port import ErrorRow, Pack, TxidInput
from txstorm.engine.program import ComponentSpec, Program
from txstorm.engine.spill import spill
from txstorm.engine.task.collector import Emitted, Observe, OutputCollector
from txstorm.engine.task.component_run import ComponentRun, PhaseRun, Sent
from txstorm.engine.task.dead_letters import Letters
from txstorm.engine.task.digest import missing_digests
from txstorm.engine.task.error_rows import RAISED, error_row
from txstorm.engine.task.fingerprints import leaving_alone
from txstorm.errors import EmitError
from txstorm.plan.stages import Edge
from txstorm.spouts.executors import metadata_of, parts_without, skipped_parts, spout_task
from txstorm.spouts.port import SpoutTask
from txstorm.state.sinks import SinkGroup

log = logging.getLogger(__name__)
_NEVER = 1 << 62
FEW = 8
"""Rows for a frame sink are few if they take no more than this part of `spill_bytes` in a task."""


class StageTask:
    """Task `task` of the stage at `level`: turns the cargo it receives into the cargo for the next stage.

    The processing phase of a pack is one call of `run` per task and stage. Exceptions raised by user code do not
    propagate: the failed txid and later txids of the pack are skipped, here and, through ERROR cargo, in later stages.
    """

    def __init__(self, program: Program, level: int, task: int, pack: Pack, observe: Observe | None = None) -> None:
        self.program = program
        self.observe = observe
        self.stage = program.stages[level]
        self.task = task
        self.pack = pack
        self._last = level == len(program.stages) - 1
        self._specs = [
            program.components[name] for name in self.stage.components if task < program.components[name].parallelism
        ]
        self.levels = {edge.index: program.level(edge.target) for edge in program.edges}
        self._failed = _NEVER
        self._run: TxidRun | None = None
        self._spout: SpoutTask | None = None
        self._spout_context: TaskContext | None = None
        self._carried = dict(pack.carried)

    # -- the whole pack -----------------------------------------------------------------------------------------

    def run(self, arrived: Iterable[Cargo]) -> Iterator[Cargo]:
        """Process the pack; yield the cargo for the next stage or, in the last stage, for the driver."""
        mine: dict[int, list[Cargo]] = defaultdict(list)
        for cargo in arrived:
            forwarded = self._sort_in(cargo, mine)
            if forwarded is not None:
                yield forwarded
        try:
            for txid_input in self.pack.inputs:
                if txid_input.attempt.txid < self._failed:
                    yield from self._run_txid(txid_input, mine.pop(txid_input.attempt.txid, []))
        finally:
            self._close_spout()

    def _close_spout(self, *, last: bool = False) -> None:
        """Close the emitter; with `last`, raise `EmitError` if it emits a tuple, which would belong to no batch.

        Any other exception is only logged: all batches have been emitted, and a failure to close does not affect them.
        """
        spout, self._spout = self._spout, None
        if spout is None:
            return
        try:
            spout.close()
        except RAISED as error:
            emitted = _emission(error)
            if emitted is None or not last:
                log.exception("spout %s: close() of its emitter failed", self.program.spout)
                return
            emitted.args = (
                f"spout {self.program.spout!r}: close() of its emitter emitted a tuple: {emitted}; a batch is complete "
                "when emit_batch (or emit_partition_batch) returns: emit there",
            )
            raise emitted from None

    def _sort_in(self, cargo: Cargo, mine: dict[int, list[Cargo]]) -> Cargo | None:
        """Collect cargo for this stage in `mine`; return cargo that is to be forwarded, else None."""
        if cargo.kind is Kind.ERROR:
            self._failed = min(self._failed, cargo.txid)
            # Every task receives the failure; one of them passes it on.
            return cargo if self.task == 0 else None
        if cargo.kind is Kind.DATA and self.levels[cargo.edge] == self.stage.level:
            mine[cargo.txid].append(cargo)
            return None
        return cargo

    # -- one txid -----------------------------------------------------------------------------------------------

    def _run_txid(self, txid_input: TxidInput, cargo: Sequence[Cargo]) -> Iterator[Cargo]:
        started = time.perf_counter()
        self._run = run = TxidRun(self, txid_input, cargo)
        current = ""
        try:
            faults.point("p3.before")
            with seldom_collected():
                for spec in self._specs:
                    current = spec.name
                    run.run_component(spec)
                for current in self.program.frame_sinks:
                    run.stage(current)
            if txid_input is self.pack.inputs[-1]:
                current = self.program.spout
                self._close_spout(last=True)
            outcome: list[Cargo] = list(run.finished(time.perf_counter() - started))
            faults.point("p3.after")
        except RAISED as error:  # user code may raise anything; it becomes a row (R11)
            self._failed = txid_input.attempt.txid
            row = asdict(self.failure(current, error, run.at.input))
            outcome = [self.report(Kind.ERROR, txid_input, {"row": row, "parts": run.parts, "digests": run.digests})]
        finally:
            self._run = None
        yield from outcome

    def at_work(self) -> tuple[str, int, int]:
        """Return whose code runs, as ``component[task]``, its number of rows, and how many the spout has emitted.

        They are those of the present txid; may be called on any thread.
        """
        run, spout = self._run, self.program.spout
        if run is None:
            return "", 0, 0
        place, row = run.at.place()
        return place, row, row if place.startswith(f"{spout}[") else run.counts.get(spout, 0)

    def failure(self, component: str, error: BaseException, given: str = "") -> ErrorRow:
        """Build the error row for an exception raised by user code; call while its stack frames still exist."""
        return error_row(component, self.task, self.stage.level, error, given)

    def report(self, kind: Kind, txid_input: TxidInput, data: Any) -> Cargo:
        """Build the cargo that reports on one txid to the driver."""
        attempt = txid_input.attempt
        return Cargo(kind, attempt.txid, attempt.attempt_id, self.stage.level, self.task, 0, 0, data=data)

    def emit_spout(self, run: ComponentRun, collector: OutputCollector) -> dict[str, Any]:
        """Have this task's emitter emit its share of a batch; return its parts if the spout is task-planned."""
        txid_input = run.phase.input
        if self._spout is None or self._spout_context is None:
            self._spout_context = run.context()
            self._spout = spout_task(run.spec.fresh(), self._spout_context)
            if self.pack.committed:
                self._spout.cleanup_before(self.pack.committed)
        self._spout_context.attempt = txid_input.attempt
        self._spout_context.stamp = txid_input.stamp
        payload = txid_input.payload
        self._spout_context.payload = payload.get(run.spec.id, ()) if self.program.frames else payload
        emit = partial(self._spout.run, txid_input.attempt, txid_input.document, self._carried, collector)
        return emit() if self.observe is None else leaving_alone(txid_input.payload, run.spec.id, emit)

    def undigested(self, spec: ComponentSpec, emitted: Sequence[Emitted], digests: Mapping[str, str]) -> dict[str, str]:
        """Compute digests of the rows emitted by the spout task, for sources that have not provided any digest."""
        assert self._spout is not None
        if self.program.frames:  # Spark takes it, of the DataFrame
            return {}
        task = f"task {self.task} of {spec.parallelism}"
        return missing_digests(task, emitted, digests, self._spout.sources, self._spout.source_of)

    def rows_of_sources(self, spec: ComponentSpec, emitted: Sequence[Emitted]) -> Counter[str]:
        """Return the rows that each source of a composite spout has emitted, under ``SPOUT/SOURCE``."""
        assert self._spout is not None
        found = Counter({f"{spec.id}/{source}": 0 for source in self._spout.sources if source})
        for one in emitted if found else ():
            found[f"{spec.id}/{self._spout.source_of(one.stream)}"] += one.batch.num_rows
        return found

    def skip_spout(self, spec: ComponentSpec, txid_input: TxidInput) -> dict[str, Any] | None:
        """Return the parts of a batch that this task skips; None if the next batch's start would then be unknown."""
        if txid_input.facts.system:
            parts: dict[str, Any] | None = skipped_parts(
                txid_input.document, self._carried, self.task, spec.parallelism
            )
        else:
            parts = parts_without(txid_input.document, self.task, spec.parallelism)
        self._carried.update(parts or {})
        return parts


class TxidRun(PhaseRun):
    """Run of one attempt in one task of a stage: runs components in topological order, then yields their output."""

    def __init__(self, task: StageTask, txid_input: TxidInput, cargo: Sequence[Cargo]) -> None:
        super().__init__(task.program, txid_input, task.stage.level, task.observe)
        self._task = task
        self._sent: list[Cargo] = []
        self.letters = Letters() if self.diversion is None else self.diversion.letters
        # Rows that the spout's task emitted, by partition; None until it has emitted.
        self.parts: dict[str, Any] | None = None
        self.digests: dict[str, str] = {}
        for one in sorted(cargo, key=lambda one: one.order):
            self.arrive(task.program.edges[one.edge], one.source, task.task, one.batch)

    def run_component(self, spec: ComponentSpec) -> None:
        """Run one component on its input, and send its output downstream."""
        run = ComponentRun(self, spec, self._task.task)
        if spec.kind == "spout":
            sent = self._emit(run)
        elif spec.kind == "frame":
            sent = self._pass_on(run)
        else:
            arrivals = self.arrivals.pop((spec.id, run.task), [])
            sent = run.run(sorted(arrivals, key=lambda one: one.order))
        if spec.part_of is None:
            self.counts[spec.id] = 0
        if sent is not None:
            run.hand_on(sent)

    def _emit(self, run: ComponentRun) -> Sent | None:
        """Have the emitter emit its batch; return its output, or None if there is none or all of it is diverted."""
        spec, diversion = run.spec, self.diversion
        if self.input.facts.system or (diversion is not None and diversion.whole):
            self.parts = self._task.skip_spout(spec, self.input)
            if self.parts is None:  # the emitter must run, to find the rows that must not be processed
                self.parts = self._task.emit_spout(run, OutputCollector(spec.id, spec.streams))
            return None
        collector = run.collector()
        self.at.begin(spec.id, run.task, collector)
        letters = len(self.letters)
        if self.program.leaves_out:  # at once: a record that cannot be decoded now never can
            collector.divert, collector.divert_all = self.letters.refuse(run)
        elif diversion is not None:
            collector.divert = diversion.records(run)
        try:
            self.parts = self._task.emit_spout(run, collector)
            emitted = collector.take()
            self.digests = {**collector.digests, **self._task.undigested(spec, emitted, collector.digests)}
            self.received.update(self._task.rows_of_sources(spec, emitted))
            return run.routed(collector, emitted)
        except RAISED as error:
            if diversion is None or not diversion.takes(error):
                raise
            parts = self.parts if self.parts is not None else self._task.skip_spout(spec, self.input)
            if parts is None:  # every replay would fail on it again
                raise
            self.parts = parts
            self.letters.cut(letters)
            metadata = metadata_of(self.input.document, parts, run.task, spec.parallelism)
            self.letters.add_metadata(run.failure(error, trace=False), spec.id, run.task, metadata)
            return None

    def _pass_on(self, run: ComponentRun) -> Sent | None:
        """Return the rows of a frame bolt, whose work Spark has done; None if there are none, or all are diverted."""
        if self.input.facts.system or (self.diversion is not None and self.diversion.whole):
            return None
        collector = run.collector()
        self.at.begin(run.spec.id, run.task, collector)
        if self.program.leaves_out:
            collector.divert, _ = self.letters.refuse(run)
        for batch in self.input.payload.get(run.spec.id, ()):
            collector.emit_batch(batch)
        return run.routed(collector, collector.take())

    def send(self, edge: Edge, source: int, target: int, batch: pa.RecordBatch, partition: int) -> None:
        """Pass rows of `edge` to the next component of this task, or keep them as cargo."""
        if edge.local and self._task.levels[edge.index] == self.level:
            self.arrive(edge, source, target, batch, partition)
            return
        for piece in split(batch, self.program.settings["cargo_bytes"]):
            number = len(self._sent) + 1
            place = edge.index, source, target, number
            cargo = Cargo(Kind.DATA, *self.input.attempt, *place, batch=piece, partition=partition)
            self._sent.append(cargo)

    def finished(self, seconds: float) -> Iterator[Cargo]:
        """Yield the output of the task for this txid: the rows, followed by its report."""
        yield from self._spill(self._sent)
        if len(self.letters):
            letters = self._task.report(Kind.DIVERTED, self.input, None)
            for piece in split(self.letters.take(), self.program.settings["cargo_bytes"]):
                yield replace(letters, batch=piece)
        data = {
            "counts": self.counts,
            "received": dict(self.received),
            "digests": self.digests,
            "parts": self.parts,
            "reported": self.reported,
            "busy": seconds,
            "process": [socket.gethostname(), os.getpid()],
        }
        yield self._task.report(Kind.RESULT, self.input, data)

    def stage(self, sink: str) -> None:
        """Stage the rows for a frame sink unless they are few, which the driver stages, those of all tasks in one file.

        Raises:
            StateError: a value does not fit its column.
            OSError: the file cannot be written.
        """
        program, place = self.program, self._task.pack.place
        own = [one.batch for one in self._sent if program.edges[one.edge].target == sink and one.batch is not None]
        few = sum(batch.nbytes for batch in own) <= program.settings["spill_bytes"] // FEW
        if place is None or few or self.diversion is not None:
            return
        table, task, attempt = program.frame_sinks[sink], self._task.task, self.input.attempt
        rows = SinkGroup(table)
        handle = rows.handle(sink, task, attempt.txid)
        handle.active = True
        for batch in own:
            handle.append_batch(batch)
        self._sent = [one for one in self._sent if program.edges[one.edge].target != sink]
        for uri, staged in place.stage({rows.ref.uri: rows}, attempt, sink, task).items():
            data = {"component": sink, "uri": uri, "staged": staged.to_json()}
            self._sent.append(self._task.report(Kind.STAGED, self.input, data))

    def _spill(self, sent: Sequence[Cargo]) -> Iterator[Cargo]:
        """Spill committers' input that exceeds the bound to files; only the file names are sent to the driver."""
        program = self.program
        boundary = [one for one in sent if one.kind is Kind.DATA and program.edges[one.edge].boundary]
        size = sum(one.batch.nbytes for one in boundary if one.batch is not None)
        if program.spill_dir is None or size <= program.settings["spill_bytes"]:
            yield from sent
            return
        yield from (one for one in sent if one.kind is not Kind.DATA or not program.edges[one.edge].boundary)
        for one in boundary:
            yield spill(one, Path(program.spill_dir))


def _emission(error: BaseException | None) -> EmitError | None:
    """Return the first `EmitError` among `error` and its chained exceptions; None if there is none."""
    while error is not None and not isinstance(error, EmitError):
        error = error.__context__
    return error
