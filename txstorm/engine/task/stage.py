"""Work of one task in one stage: the code that both engines run."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from txstorm import faults
from txstorm.api.context import TaskContext
from txstorm.engine.cargo import Cargo, Kind, split
from txstorm.engine.gc_pause import seldom_collected
from txstorm.engine.port import ErrorRow, Pack, TxidInput
from txstorm.engine.program import ComponentSpec, Program
from txstorm.engine.task.bolt_run import Arrival, BoltRun
from txstorm.engine.task.collector import Emitted, Observe, OutputCollector
from txstorm.engine.task.dead_letters import DeadLetterRun, Work
from txstorm.engine.task.digest import missing_digests
from txstorm.engine.task.error_rows import RAISED, At, error_row
from txstorm.engine.task.fingerprints import collector_kind, leaving_alone
from txstorm.engine.task.routing import Router, routes
from txstorm.errors import EmitError
from txstorm.plan.stages import Edge
from txstorm.spouts.documents import metadata_of, parts_without
from txstorm.spouts.executors import spout_task
from txstorm.spouts.port import SpoutTask

log = logging.getLogger("txstorm.task")
_NEVER = 1 << 62


class StageTask:
    """Task `task` of the stage at `level`: turns the cargo that arrived into the cargo for the next stage.

    The processing phase of a pack is one call of `run` per task and stage. Errors of user code do not escape: the
    failed txid and the later ones of the pack are skipped, here and, through ERROR cargo, in the later stages.
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
        self.out_edges = {spec.id: program.out_edges(spec.id) for spec in self._specs}
        self.levels = {edge.index: program.level(edge.target) for edge in program.edges}
        self._failed = _NEVER
        self._spout: SpoutTask | None = None
        self._spout_context: TaskContext | None = None
        self._carried = dict(pack.carried)

    # -- the whole pack -----------------------------------------------------------------------------------------

    def run(self, arrived: Iterable[Cargo]) -> Iterator[Cargo]:
        """Process the pack; yields the cargo for the next stage or, in the last stage, for the driver."""
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
        """Close the emitter; with `last`, raise `EmitError` if it emitted: the tuple belongs to no batch.

        Any other exception is logged: all batches are emitted, and an emitter that fails to close changes none.
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
        """Keep cargo for this stage; return cargo that only passes through."""
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
        run = TxidRun(self, txid_input, cargo)
        current = ""
        try:
            faults.point("p3.before")
            with seldom_collected():
                for spec in self._specs:
                    current = spec.id
                    run.run_component(spec)
            if txid_input is self.pack.inputs[-1]:
                current = self.program.spout
                self._close_spout(last=True)
            outcome: list[Cargo] = list(run.finished(time.perf_counter() - started))
            faults.point("p3.after")
        except RAISED as error:  # user code may raise anything; it becomes a row (R11)
            self._failed = txid_input.attempt.txid
            row = asdict(self.failure(current, error, run.at.input))
            outcome = [self.report(Kind.ERROR, txid_input, {"row": row, "parts": run.parts, "digests": run.digests})]
        yield from outcome

    def failure(self, component: str, error: BaseException, given: str = "") -> ErrorRow:
        """Make the error row of an exception of user code; called while its frames still exist."""
        return error_row(component, self.task, self.stage.level, error, given)

    def report(self, kind: Kind, txid_input: TxidInput, data: Any) -> Cargo:
        """Make a piece of cargo that reports on one txid to the driver."""
        attempt = txid_input.attempt
        return Cargo(kind, attempt.txid, attempt.attempt_id, self.stage.level, self.task, 0, 0, data=data)

    def context(self, spec: ComponentSpec, txid_input: TxidInput) -> TaskContext:
        """The context of component `spec` for one txid."""
        return TaskContext(
            topology=self.program.topology,
            component=spec.id,
            task=self.task,
            parallelism=spec.parallelism,
            settings=spec.task_settings(),
            attempt=txid_input.attempt,
            stamp=txid_input.stamp,
        )

    def emit_spout(self, spec: ComponentSpec, txid_input: TxidInput, collector: OutputCollector) -> dict[str, Any]:
        """Let this task's emitter emit its share of a batch; returns the parts of task-planned spouts."""
        if self._spout is None or self._spout_context is None:
            self._spout_context = self.context(spec, txid_input)
            self._spout = spout_task(spec.fresh(), self._spout_context)
            if self.pack.committed:
                self._spout.cleanup_before(self.pack.committed)
        self._spout_context.attempt = txid_input.attempt
        self._spout_context.stamp = txid_input.stamp
        self._spout_context.payload = txid_input.payload
        emit = partial(self._spout.run, txid_input.attempt, txid_input.document, self._carried, collector)
        return emit() if self.observe is None else leaving_alone(txid_input.payload, spec.id, emit)

    def undigested(self, spec: ComponentSpec, emitted: Sequence[Emitted], digests: Mapping[str, str]) -> dict[str, str]:
        """Digests of the emissions of the spout's task, for sources that have not provided any."""
        assert self._spout is not None
        task = f"task {self.task} of {spec.parallelism}"
        return missing_digests(task, emitted, digests, self._spout.sources, self._spout.source_of)

    def skip_spout(self, spec: ComponentSpec, txid_input: TxidInput) -> dict[str, Any] | None:
        """The parts of a batch of which this task emits nothing; None if the start of the next batch is unknown."""
        parts = parts_without(txid_input.document, self.task, spec.parallelism)
        self._carried.update(parts or {})
        return parts


class _Sent(NamedTuple):
    """Output of one component: (edge, receiving task, rows)."""

    collector: OutputCollector
    emitted: Sequence[Emitted]
    routed: Sequence[tuple[Edge, int, pa.RecordBatch]]


class TxidRun:
    """Run of one attempt at one txid in one stage task: components in topological order, then their output."""

    def __init__(self, task: StageTask, txid_input: TxidInput, cargo: Sequence[Cargo]) -> None:
        self._task = task
        self._input = txid_input
        self._arrivals: dict[str, list[Arrival]] = defaultdict(list)
        self._sent: list[Cargo] = []
        self._counts: dict[str, int] = {}
        # Rows that the spout's task emitted, by partition; None until it has emitted.
        self.parts: dict[str, Any] | None = None
        self.digests: dict[str, str] = {}
        self._reported: list[str] = []
        self._sequence = 0
        self.at = At()
        self._salvage = DeadLetterRun(txid_input.divert) if txid_input.divert else None
        for one in sorted(cargo, key=lambda one: one.order):
            edge = task.program.edges[one.edge]
            self._arrivals[edge.target].append(Arrival(edge.source, edge.stream, one.source, one.batch))

    def run_component(self, spec: ComponentSpec) -> None:
        """Run one component on its input, and send its output on."""
        if spec.kind == "spout":
            sent = self._emit(spec)
        else:
            work = self._work(spec)
            arrivals = self._arrivals.pop(spec.id, [])
            sent = work.run(arrivals) if self._salvage is None else self._salvage.run(work, arrivals)
        self._counts[spec.id] = 0
        if sent is not None:
            self._deliver(spec, sent)

    def _work(self, spec: ComponentSpec) -> Work[_Sent]:
        def finish(run: BoltRun) -> _Sent:
            run.finish()
            return self._routed(spec, run.collector, run.collector.take())

        return Work(
            spec,
            self._task.task,
            self._task.stage.level,
            lambda: self._task.context(spec, self._input),
            self.at,
            finish,
            collector=collector_kind(self._task.observe),
            repeatable=True,
        )

    def _emit(self, spec: ComponentSpec) -> _Sent | None:
        """Let the emitter emit its batch; returns its output, or None if all of it is diverted."""
        if self._salvage is not None and self._salvage.whole:
            self.parts = self._task.skip_spout(spec, self._input)
            if self.parts is None:  # it must emit, to find the rows that must not be processed
                self.parts = self._task.emit_spout(spec, self._input, OutputCollector(spec.id, spec.streams))
            return None
        collector = collector_kind(self._task.observe)(spec.id, spec.streams)
        letters = len(self._salvage.letters) if self._salvage else 0
        if self._salvage:
            collector.divert = self._salvage.spout(spec.id, self._task.task, self._task.stage.level)
        try:
            self.parts = self._task.emit_spout(spec, self._input, collector)
            emitted = collector.take()
            self.digests = {**collector.digests, **self._task.undigested(spec, emitted, collector.digests)}
            return self._routed(spec, collector, emitted)
        except RAISED as error:
            if self._salvage is None or not self._salvage.takes(error):
                raise
            parts = self.parts if self.parts is not None else self._task.skip_spout(spec, self._input)
            if parts is None:  # a replay would fail on it again, for ever
                raise
            self.parts = parts
            self._salvage.letters.cut(letters)
            row = error_row(spec.id, self._task.task, self._task.stage.level, error, trace=False)
            metadata = metadata_of(self._input.document, parts, self._task.task, spec.parallelism)
            self._salvage.letters.add_metadata(row, spec.id, self._task.task, metadata)
            return None

    def _routed(self, spec: ComponentSpec, collector: OutputCollector, emitted: Sequence[Emitted]) -> _Sent:
        """Route the output; nothing is sent before all of it is routed, since a grouping is user code too."""
        routed: list[tuple[Edge, int, pa.RecordBatch]] = []
        for edge in self._task.out_edges[spec.id]:
            salvage, level = self._salvage, self._task.stage.level
            divert = salvage.grouping(spec.id, self._task.task, level, edge.stream) if salvage else None
            router = Router(edge, self._input.attempt.txid, self._task.task, self.at, divert)
            routed += [(edge, *one) for one in routes(edge, router, emitted)]
        return _Sent(collector, emitted, routed)

    def _deliver(self, spec: ComponentSpec, sent: _Sent) -> None:
        sent.collector.close(self._input.attempt)
        if self._task.observe is not None:
            self._task.observe(spec.id, self._task.task, self._input.attempt, sent.emitted)
        for edge, target, batch in sent.routed:
            if edge.local and self._task.levels[edge.index] == self._task.stage.level:
                self._arrivals[edge.target].append(Arrival(edge.source, edge.stream, self._task.task, batch))
            else:
                self._put(edge, target, batch)
        self._counts[spec.id] = sent.collector.count
        self._reported += [f"{spec.id}[{self._task.task}]: {error!r}" for error in sent.collector.errors]

    def _put(self, edge: Edge, target: int, batch: pa.RecordBatch) -> None:
        attempt, settings = self._input.attempt, self._task.program.settings
        for piece in split(batch, settings["cargo_bytes"]):
            self._sequence += 1
            self._sent.append(
                Cargo(Kind.DATA, *attempt, edge.index, self._task.task, target, self._sequence, batch=piece)
            )

    def finished(self, seconds: float) -> Iterator[Cargo]:
        """The output of the task for this txid: the rows, then its report."""
        yield from self._spill(self._sent)
        if self._salvage is not None and len(self._salvage.letters):
            letters = self._task.report(Kind.DIVERTED, self._input, None)
            for piece in split(self._salvage.letters.take(), self._task.program.settings["cargo_bytes"]):
                yield replace(letters, batch=piece)
        data = {
            "counts": self._counts,
            "digests": self.digests,
            "parts": self.parts,
            "reported": self._reported,
            "busy": seconds,
        }
        yield self._task.report(Kind.RESULT, self._input, data)

    def _spill(self, sent: Sequence[Cargo]) -> Iterator[Cargo]:
        """Spill committers' input beyond the bound to a file; only its name is sent to the driver."""
        program = self._task.program
        boundary = [one for one in sent if program.edges[one.edge].boundary]
        size = sum(one.batch.nbytes for one in boundary if one.batch is not None)
        if program.spill_dir is None or size <= program.settings["spill_bytes"]:
            yield from sent
            return
        yield from (one for one in sent if not program.edges[one.edge].boundary)
        for one in boundary:
            yield spill(one, Path(program.spill_dir))


def _emission(error: BaseException | None) -> EmitError | None:
    """Find the refused emission among `error` and its chained exceptions."""
    while error is not None and not isinstance(error, EmitError):
        error = error.__context__
    return error


def spill(cargo: Cargo, directory: Path) -> Cargo:
    """Write the rows of `cargo` to a uniquely named, unreferenced file and return cargo that names it."""
    name = f"{cargo.txid}-{cargo.attempt_id}-{cargo.edge}-{cargo.source}-{uuid.uuid4().hex}.arrow"
    path = directory / name
    assert cargo.batch is not None
    with pa.OSFile(os.fspath(path), "wb") as sink, pa.ipc.new_file(sink, cargo.batch.schema) as writer:
        writer.write_batch(cargo.batch)
    return Cargo(
        Kind.SPILLED,
        cargo.txid,
        cargo.attempt_id,
        cargo.edge,
        cargo.source,
        cargo.target,
        cargo.sequence,
        data={"file": name, "rows": cargo.batch.num_rows, "bytes": cargo.batch.nbytes},
    )


def sweep_spilled(directory: str | None, upto: int) -> None:
    """Remove the files of SPILLED cargo of txids up to `upto`, which are committed, whatever attempt wrote them.

    A task whose attempt was abandoned, or whose pack failed elsewhere, leaves files that the driver does not know.
    """
    if directory is None:
        return
    with os.scandir(directory) as files:
        names = [(file.name.partition("-")[0], file.path) for file in files]
    for txid, path in names:
        if txid.isdecimal() and int(txid) <= upto:
            Path(path).unlink(missing_ok=True)


def unspill(cargo: Cargo, directory: Path) -> pa.RecordBatch:
    """Map the rows of SPILLED cargo from their file."""
    with pa.memory_map(os.fspath(directory / cargo.data["file"])) as source:
        return pa.ipc.open_file(source).get_batch(0)
