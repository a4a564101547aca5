"""The commit phase of one txid: committers and what they feed, as logical tasks in the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from txstorm.api.context import CommitResources, TaskContext
from txstorm.engine.bolts import Arrival, BoltRun, error_row
from txstorm.engine.cargo import Cargo, Kind
from txstorm.engine.collector import Emitted, Observe, OutputCollector
from txstorm.engine.port import ErrorRow, TxidInput
from txstorm.engine.program import ComponentSpec, Program
from txstorm.engine.routing import Router, check_target
from txstorm.engine.task import unspill


class CommitFailed(Exception):
    """A commit-phase bolt raised; carries what is reported of it."""

    def __init__(self, row: ErrorRow) -> None:
        self.row = row
        super().__init__(str(row))


class Resources(CommitResources, Protocol):
    """Commit resources whose handles can be opened for `finish_batch` and closed again."""

    def activate(self, active: bool) -> None:
        """Let handles be used, or not."""


class CommitRun:
    """The commit phase of one attempt.

    Components finish in topological order: every committer when its turn in the graph comes, a bolt behind a
    committer after it, all in this one commit phase (storm.md, items 37–40).
    """

    def __init__(
        self,
        program: Program,
        txid_input: TxidInput,
        cargo: Sequence[Cargo],
        resources: Resources,
        observe: Observe | None = None,
    ) -> None:
        self._program = program
        self._observe = observe
        self._input = txid_input
        self._resources = resources
        self._arrivals: dict[tuple[str, int], list[Arrival]] = defaultdict(list)
        self._begun: dict[tuple[str, int], BoltRun] = {}
        self._executed = False
        self._failed: CommitFailed | None = None
        self.counts: dict[str, int] = {}
        self.reported: list[str] = []
        for one in sorted(cargo, key=lambda one: one.order):
            self._arrive(one)

    def _arrive(self, cargo: Cargo) -> None:
        edge = self._program.edges[cargo.edge]
        batch = cargo.batch
        if cargo.kind is Kind.SPILLED:
            assert self._program.spill_dir is not None
            batch = unspill(cargo, Path(self._program.spill_dir))
        self._arrivals[edge.target, cargo.target].append(Arrival(edge.source, edge.stream, cargo.source, batch))

    def execute(self) -> None:
        """Let every task execute what the processing phase has sent to it; may be called before the txid's turn.

        Raises `CommitFailed` when user code raises, and again whenever it or `run` is called then.
        """
        if self._failed is not None:
            raise self._failed
        if self._executed:
            return
        self._executed = True
        for spec, task in self._tasks():
            if (spec.id, task) in self._arrivals:
                try:
                    self._execute(spec, task)
                except (Exception, SystemExit) as error:
                    self._failed = CommitFailed(error_row(spec.id, task, len(self._program.stages), error))
                    raise self._failed from error

    def run(self) -> None:
        """Run the commit phase, or what `execute` has left of it; raises `CommitFailed` when user code raises."""
        self.execute()
        for spec, task in self._tasks():
            self._run_task(spec, task)

    def _tasks(self) -> Iterator[tuple[ComponentSpec, int]]:
        specs = (self._program.components[name] for name in self._program.commit)
        return ((spec, task) for spec in specs for task in range(spec.parallelism))

    def _execute(self, spec: ComponentSpec, task: int) -> BoltRun:
        """Hand the task what has arrived for it; what it is sent later follows in `run`."""
        run = self._begun.get((spec.id, task))
        if run is None:
            run = BoltRun(spec.fresh(), self._context(spec, task), OutputCollector(spec.id, spec.streams))
            self._begun[spec.id, task] = run
        run.execute(self._arrivals.pop((spec.id, task), ()))
        return run

    def _run_task(self, spec: ComponentSpec, task: int) -> None:
        try:
            run = self._execute(spec, task)
            del self._begun[spec.id, task]
            collector = run.collector
            self._resources.activate(True)
            try:
                run.finish()
            finally:
                self._resources.activate(False)
            emitted = collector.take()
            self._send(spec, task, emitted)
            collector.close(self._input.attempt)
        except (Exception, SystemExit) as error:
            raise CommitFailed(error_row(spec.id, task, len(self._program.stages), error)) from error
        if self._observe is not None:
            self._observe(spec.id, task, self._input.attempt, emitted)
        self.counts[spec.id] = self.counts.get(spec.id, 0) + collector.count
        self.reported += [f"{spec.id}[{task}]: {error!r}" for error in collector.errors]

    def _context(self, spec: ComponentSpec, task: int) -> TaskContext:
        return TaskContext(
            topology=self._program.topology,
            component=spec.id,
            task=task,
            parallelism=spec.parallelism,
            settings=spec.settings,
            attempt=self._input.attempt,
            stamp=self._input.stamp,
            resources=self._resources if spec.kind == "committer" else None,
        )

    def _send(self, spec: ComponentSpec, task: int, emitted: Sequence[Emitted]) -> None:
        for edge in self._program.out_edges(spec.id):
            router = Router(edge, self._input.attempt.txid, task)
            for one in emitted:
                if one.stream == edge.stream:
                    if one.direct is not None:
                        check_target(edge, one.direct)
                    routed = [(one.direct, one.batch)] if one.direct is not None else router.route(one.batch)
                    for target, batch in routed:
                        self._arrivals[edge.target, target].append(Arrival(edge.source, edge.stream, task, batch))


def input_bytes(cargo: Sequence[Cargo]) -> int:
    """Bytes of committers' input held in memory."""
    return sum(one.batch.nbytes for one in cargo if one.batch is not None)
