"""Commit phase of one txid: committers and the bolts after them, as logical tasks in the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from txstorm.api.context import CommitResources, TaskContext
from txstorm.engine.cargo import Cargo, Kind
from txstorm.engine.port import ErrorRow, TxidInput
from txstorm.engine.program import ComponentSpec, Program
from txstorm.engine.task.bolt_run import Arrival, BoltRun
from txstorm.engine.task.collector import Emitted, Observe, OutputCollector
from txstorm.engine.task.dead_letters import DeadLetterRun, Work
from txstorm.engine.task.error_rows import RAISED, At, error_row
from txstorm.engine.task.fingerprints import collector_kind
from txstorm.engine.task.routing import Router, routes
from txstorm.engine.task.stage import unspill
from txstorm.plan.stages import Edge


class CommitFailed(Exception):
    """A bolt of the commit phase raised; carries its error row."""

    def __init__(self, row: ErrorRow) -> None:
        self.row = row
        super().__init__(str(row))


class Resources(CommitResources, Protocol):
    """Commit resources whose handles can be opened for `finish_batch` and closed again."""

    def activate(self, active: bool) -> None:
        """Allow or forbid the use of handles."""

    def settle(self, component: str, task: int) -> None:
        """Raise `StateError` now for values written by the task that no table can hold."""

    def undo(self, component: str, task: int) -> None:
        """Undo the writes of the task in this txid."""


class _Sent(NamedTuple):
    collector: OutputCollector
    emitted: Sequence[Emitted]
    routed: Sequence[tuple[Edge, int, pa.RecordBatch]]


class CommitRun:
    """Run of the commit phase of one attempt.

    Components finish in topological order: every committer when its turn in the graph comes, a bolt behind a
    committer after it, all in this one commit phase (storm.md, items 37–40).

    Args:
        program: the topology.
        txid_input: the attempt.
        cargo: the input of the committers.
        resources: their tables.
        begins: called with (component, task) before any code of that task runs.
        elsewhere: committers finished by a job → the rows they sent to downstream bolts, in order.

    Attributes:
        resources: their tables.
        send: hands the rows of an edge from a source task to a target task.
        begins: the parameter `begins`; may be replaced between `execute` and `run`.
        letters: the dead letters, if the policy allows them.
    """

    def __init__(
        self,
        program: Program,
        txid_input: TxidInput,
        cargo: Sequence[Cargo],
        resources: Resources,
        observe: Observe | None = None,
        begins: Callable[[str, int], None] = lambda component, task: None,
        elsewhere: Mapping[str, Sequence[Cargo]] | None = None,
    ) -> None:
        self._program = program
        self._observe = observe
        self._elsewhere = elsewhere or {}
        self.begins = begins
        self.send: Callable[[Edge, int, int, pa.RecordBatch], None] = self._deliver
        self._at = At()
        self._level = len(program.stages)
        self._salvage = DeadLetterRun(txid_input.divert) if txid_input.divert else None
        self._input = txid_input
        self.resources = resources
        self._begun: dict[tuple[str, int], BoltRun] = {}
        self._arrivals: dict[tuple[str, int], list[Arrival]] = defaultdict(list)
        self.counts: dict[str, int] = {}
        self.reported: list[str] = []
        for one in sorted(cargo, key=lambda one: one.order):
            self._arrive(one)

    def _arrive(self, cargo: Cargo) -> None:
        edge = self._program.edges[cargo.edge]
        if edge.target in self._elsewhere:
            return
        batch = cargo.batch
        if cargo.kind is Kind.SPILLED:
            assert self._program.spill_dir is not None
            batch = unspill(cargo, Path(self._program.spill_dir))
        self._arrivals[edge.target, cargo.target].append(Arrival(edge.source, edge.stream, cargo.source, batch))

    def execute(self) -> None:
        """Let every task execute the input that the processing phase sent it; may be called before the txid's turn.

        Raises `CommitFailed` if user code raises. Nothing runs early if failures become dead letters: finding the
        tuples that a task cannot handle needs all of its input.
        """
        arrived = [] if self._salvage is not None else list(self._arrivals)
        for name, task in arrived:
            self.begins(name, task)
            try:
                run = self._work(self._program.components[name], task).begin(self._program.components[name].fresh())
                run.execute(self._arrivals.pop((name, task)))
            except RAISED as error:
                raise CommitFailed(error_row(name, task, self._level, error, self._at.input)) from error
            self._begun[name, task] = run

    def run(self) -> None:
        """Run the commit phase, or the rest of it after `execute`; raises `CommitFailed` if user code raises."""
        for name in self._program.commit:
            if name in self._elsewhere:
                for one in self._elsewhere[name]:
                    self._arrive(one)
                continue
            for task in range(self._program.components[name].parallelism):
                self.run_task(name, task)

    @property
    def letters(self) -> list[pa.RecordBatch]:
        """Take the dead letters of the commit phase; called once, after `run`."""
        return [self._salvage.letters.take()] if self._salvage is not None else []

    def run_task(self, component: str, task: int) -> None:
        """Run one task of one component; raises `CommitFailed` if its code raises."""
        spec = self._program.components[component]
        self.begins(spec.id, task)
        work = self._work(spec, task)
        arrivals = self._arrivals.pop((spec.id, task), [])
        try:
            begun = self._begun.pop((spec.id, task), None)
            sent = work.run(arrivals, begun) if self._salvage is None else self._salvage.run(work, arrivals)
        except RAISED as error:
            raise CommitFailed(error_row(spec.id, task, self._level, error, self._at.input)) from error
        if sent is None:
            return
        sent.collector.close(self._input.attempt)
        if self._observe is not None:
            self._observe(spec.id, task, self._input.attempt, sent.emitted)
        for edge, target, batch in sent.routed:
            self.send(edge, task, target, batch)
        self.counts[spec.id] = self.counts.get(spec.id, 0) + sent.collector.count
        self.reported += [f"{spec.id}[{task}]: {error!r}" for error in sent.collector.errors]

    def _deliver(self, edge: Edge, source: int, target: int, batch: pa.RecordBatch) -> None:
        self._arrivals[edge.target, target].append(Arrival(edge.source, edge.stream, source, batch))

    def _work(self, spec: ComponentSpec, task: int) -> Work[_Sent]:
        def finish(run: BoltRun) -> _Sent:
            self.resources.activate(True)
            try:
                run.finish()
            finally:
                self.resources.activate(False)
            if self._salvage is not None:
                self.resources.settle(spec.id, task)
            return self._routed(spec, task, run.collector)

        undo = lambda: self.resources.undo(spec.id, task)  # noqa: E731 - likewise
        context = lambda: self._context(spec, task)  # noqa: E731 - made for every fresh object
        return Work(spec, task, self._level, context, self._at, finish, undo, collector_kind(self._observe))

    def _context(self, spec: ComponentSpec, task: int) -> TaskContext:
        return TaskContext(
            topology=self._program.topology,
            component=spec.id,
            task=task,
            parallelism=spec.parallelism,
            settings=spec.task_settings(),
            attempt=self._input.attempt,
            stamp=self._input.stamp,
            resources=self.resources if spec.kind == "committer" else None,
        )

    def _routed(self, spec: ComponentSpec, task: int, collector: OutputCollector) -> _Sent:
        emitted = collector.take()
        routed: list[tuple[Edge, int, pa.RecordBatch]] = []
        for edge in self._program.out_edges(spec.id):
            divert = self._salvage.grouping(spec.id, task, self._level, edge.stream) if self._salvage else None
            router = Router(edge, self._input.attempt.txid, task, self._at, divert)
            routed += [(edge, *one) for one in routes(edge, router, emitted)]
        return _Sent(collector, emitted, routed)


def input_bytes(cargo: Sequence[Cargo]) -> int:
    """Count the bytes of committers' input held in memory."""
    return sum(one.batch.nbytes for one in cargo if one.batch is not None)
