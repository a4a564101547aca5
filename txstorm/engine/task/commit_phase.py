"""Commit phase of one txid: committers and the bolts downstream of them, as logical tasks in the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import Committer
from txstorm.engine.cargo import Cargo, Kind
from txstorm.engine.port import ErrorRow, TxidInput
from txstorm.engine.program import Program
from txstorm.engine.spill import unspill
from txstorm.engine.task.bolt_run import BoltRun
from txstorm.engine.task.collector import Observe
from txstorm.engine.task.component_run import ComponentRun, PhaseRun, Resources
from txstorm.engine.task.error_rows import RAISED
from txstorm.plan.stages import Edge


class CommitFailed(Exception):
    """Raised if a bolt of the commit phase fails; carries the error row."""

    def __init__(self, row: ErrorRow) -> None:
        self.row = row
        super().__init__(str(row))


class CommitRun(PhaseRun):
    """Run of the commit phase of one attempt.

    Components finish in topological order, so a bolt downstream of a committer finishes after it, within the same
    commit phase (storm.md, items 37–40).

    Args:
        program: the topology.
        txid_input: the attempt and its input.
        cargo: the input of the committers.
        resources: the committers' tables.
        begins: called with (component, task) before any code of that task runs.
        elsewhere: committer finished by a job → the rows it sent to downstream bolts, in order.

    Attributes:
        resources: the committers' tables.
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
        super().__init__(program, txid_input, len(program.stages), observe)
        self.resources = resources
        self.begins = begins
        self._elsewhere = elsewhere or {}
        self._begun: dict[tuple[str, int], BoltRun] = {}
        for one in sorted(cargo, key=lambda one: one.order):
            self._sort_in(one)

    def _sort_in(self, cargo: Cargo) -> None:
        edge = self.program.edges[cargo.edge]
        if edge.target in self._elsewhere:
            self.count_received(edge, cargo.data["rows"] if cargo.batch is None else cargo.batch.num_rows)
            return
        batch = cargo.batch
        if cargo.kind is Kind.SPILLED:
            assert self.program.spill_dir is not None
            batch = unspill(cargo, Path(self.program.spill_dir))
        self.arrive(edge, cargo.source, cargo.target, batch)

    def send(self, edge: Edge, source: int, target: int, batch: pa.RecordBatch, partition: int) -> None:
        """Pass rows of `edge` to a downstream bolt."""
        self.arrive(edge, source, target, batch)

    def execute(self) -> None:
        """Have every task execute its input from the processing phase; may be called before the txid's turn.

        Raises `CommitFailed` if user code raises. Does nothing if failures become dead letters, as all input of a task
        is needed to find the tuples that it cannot handle.
        """
        for name, task in [] if self.diversion is not None else list(self.arrivals):
            self._execute(name, task)

    def _execute(self, name: str, task: int) -> None:
        """Have a task execute its input so far."""
        component, key = self._begin(name, task), (name, task)
        try:
            run = self._begun.get(key) or component.begin(component.spec.fresh())
            self._begun[key] = run
            run.execute(self.arrivals.pop(key, ()))
        except RAISED as error:
            raise CommitFailed(component.failure(error)) from error

    def run(self) -> None:
        """Run the commit phase, or the rest of it after `execute`; raises `CommitFailed` if user code raises.

        All tasks of a component execute their input before the first of them finishes the batch.
        """
        for name in self.program.commit:
            if name in self._elsewhere:
                for one in self._elsewhere[name]:
                    self._sort_in(one)
                continue
            tasks = range(self.program.components[name].parallelism)
            if self.diversion is None:  # else all input of a task is needed at once
                for task in tasks:
                    self._execute(name, task)
            for task in tasks:
                self.run_task(name, task)

    @property
    def letters(self) -> list[pa.RecordBatch]:
        """Return the dead letters of the commit phase; call once, after `run`."""
        return [self.diversion.letters.take()] if self.diversion is not None else []

    def run_task(self, component: str, task: int) -> None:
        """Run one task of one component; raises `CommitFailed` if its code raises."""
        run = self._begin(component, task)
        key = component, task
        try:
            sent = run.run(self.arrivals.pop(key, []), self._begun.pop(key, None))
        except RAISED as error:
            raise CommitFailed(run.failure(error)) from error
        if sent is not None:
            run.hand_on(sent)

    def _begin(self, component: str, task: int) -> ComponentRun:
        self.begins(component, task)
        return ComponentRun(self, self.program.components[component], task, self.resources)


def warm_up(program: Program, txid: int, resources: Resources, observe: Observe | None) -> None:
    """Have the committers of `program` load what they hold in memory, as `txid` will see it.

    `resources`: their tables, for reading. Exceptions raised by committers propagate.
    """
    run = CommitRun(program, TxidInput(TransactionAttempt(txid, 0), None, 0), (), resources, observe)
    for name in program.commit:
        spec = program.components[name]
        bolt = spec.fresh()
        if isinstance(bolt, Committer) and type(bolt).warm_up is not Committer.warm_up:
            resources.activate(True)
            for task in range(spec.parallelism):
                spec.fresh().warm_up(ComponentRun(run, spec, task, resources).context())


def input_bytes(cargo: Sequence[Cargo]) -> int:
    """Return the size, in bytes, of the committers' input that is held in memory."""
    return sum(one.batch.nbytes for one in cargo if one.batch is not None)
