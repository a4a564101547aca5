"""Run of one component on a batch in one task, in either phase: input, dead letters, routing of the output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import pyarrow as pa

from txstorm.api.bolt import BasicBolt, BatchBolt
from txstorm.api.context import CommitResources, TaskContext, WindowProgress
from txstorm.engine.port import ErrorRow, TxidInput
from txstorm.engine.program import ComponentSpec, Program
from txstorm.engine.task.bolt_run import Arrival, BoltRun
from txstorm.engine.task.collector import Emitted, Observe, OutputCollector
from txstorm.engine.task.dead_letters import DeadLetterRun
from txstorm.engine.task.error_rows import At, error_row
from txstorm.engine.task.fingerprints import collector_kind
from txstorm.engine.task.routing import Router, routes
from txstorm.errors import EmitError
from txstorm.plan.stages import Edge


class Resources(CommitResources, Protocol):
    """Commit resources whose handles can be opened for `finish_batch` and closed again."""

    def activate(self, active: bool) -> None:
        """Allow or forbid the use of handles."""

    def settle(self, component: str, task: int) -> None:
        """Raise `StateError` immediately if the task has written a value that its table cannot store."""

    def undo(self, component: str, task: int) -> None:
        """Undo the writes of the task made in this txid."""


class Sent(NamedTuple):
    """Output of one component in one task; `routed` is (edge, receiving task, rows, partition of the source)."""

    collector: OutputCollector
    emitted: Sequence[Emitted]
    routed: Sequence[tuple[Edge, int, pa.RecordBatch, int]]


class PhaseRun(ABC):
    """Run of one phase of an attempt: the data shared by its components, and what they report.

    Attributes:
        at: position at which user code raised, with the tuple.
        diversion: diverts failures to dead letters; None if any failure fails the attempt.
        arrivals: (component, task) → its input so far.
        counts: component → number of tuples it emitted.
        received: component → number of tuples that it received.
        reported: errors that components reported without failing the attempt.
        timers: times, in UTC microseconds, at which committers want to be called.
        windows: (component, task) → what a task with windows has last reported.
    """

    def __init__(self, program: Program, txid_input: TxidInput, level: int, observe: Observe | None) -> None:
        self.program = program
        self.input = txid_input
        self.level = level
        self.observe = observe
        self.at = At()
        self.diversion = DeadLetterRun(txid_input.divert) if txid_input.divert else None
        self.arrivals: dict[tuple[str, int], list[Arrival]] = defaultdict(list)
        self.counts: dict[str, int] = {}
        self.received: Counter[str] = Counter()
        self.reported: list[str] = []
        self.timers: list[int] = []
        self.windows: dict[tuple[str, int], WindowProgress] = {}

    @property
    def waiting(self) -> set[str]:
        """The components with window ends to fire that their watermark has reached."""
        return {component for (component, _), one in self.windows.items() if one.waiting}

    @abstractmethod
    def send(self, edge: Edge, source: int, target: int, batch: pa.RecordBatch, partition: int) -> None:
        """Pass rows of `edge`, which come from a partition of the source, from a source task to a target task."""

    def arrive(self, edge: Edge, source: int, target: int, batch: pa.RecordBatch, partition: int = 0) -> None:
        """Add rows to the input of a task of this phase; `partition`: the partition that its output comes from."""
        arrival = Arrival(edge.source, edge.stream, source, batch, edge.index, partition)
        self.arrivals[edge.target, target].append(arrival)
        self.count_received(edge, batch.num_rows)

    def count_received(self, edge: Edge, rows: int) -> None:
        """Count rows that a component has received, but not those from its own map-side stages."""
        components = self.program.components
        name = components[edge.target].name
        if components[edge.source].name != name:
            self.received[name] += rows
            self.received[f"{name}/{components[edge.source].name}/{edge.stream}"] += rows


class ComponentRun:
    """Run of one component in one task for one attempt; can be restarted any number of times.

    Args:
        phase: the run of the phase to which it belongs.
        spec: the component.
        task: index of the task.
        resources: the tables, in the commit phase; None in the processing phase, where a failed run may be repeated
            immediately to find the line at fault.
    """

    def __init__(self, phase: PhaseRun, spec: ComponentSpec, task: int, resources: Resources | None = None) -> None:
        self.phase = phase
        self.spec = spec
        self.task = task
        self.resources = resources

    def context(self) -> TaskContext:
        """Return the task context for a new user object."""
        committer = self.spec.kind == "committer"
        commits = committer and self.resources is not None
        phase = self.phase
        read = None if phase.observe else frozenset(one.stream for one in phase.program.out_edges(self.spec.id))
        return TaskContext(
            topology=phase.program.topology,
            component=self.spec.name,
            task=self.task,
            parallelism=self.spec.parallelism,
            settings=self.spec.task_settings(),
            attempt=phase.input.attempt,
            stamp=phase.input.stamp,
            facts=phase.input.facts,
            resources=self.resources if committer else None,
            alarm=phase.timers.append if commits and self.spec.timers else None,
            report=self._report if commits else None,
            subscribed=read,
            divert=phase.diversion.records(self) if commits and phase.diversion is not None else None,
            upstream_waits=None if self.resources is None else self._upstream_waits,
            resumed=not phase.input.facts.resumes or self._resumed(),
        )

    def _upstream_waits(self) -> bool:
        waiting = self.phase.waiting
        return bool(waiting) and not waiting.isdisjoint(self.phase.program.upstream(self.spec.id))

    def _resumed(self) -> bool:
        """Return whether the end of input came to this component, or to one upstream of it, but is not over."""
        reached = {self.spec.id, *self.phase.program.upstream(self.spec.id)}
        return not reached.isdisjoint(self.phase.input.facts.resumes)

    def _report(self, progress: WindowProgress) -> None:
        if self.spec.id not in self.phase.program.live:
            progress = replace(progress, delay=None)
        self.phase.windows[self.spec.id, self.task] = progress  # replaces that of a run that is repeated

    def collector(self) -> OutputCollector:
        """Create a collector for the component's streams."""
        kind = collector_kind(self.phase.observe)
        return kind(self.spec.id, self.spec.streams, ordered=self.phase.level == 0)

    def begin(self, bolt: BasicBolt | BatchBolt, collector: OutputCollector | None = None) -> BoltRun:
        """Prepare `bolt`, a newly created object, and return its run."""
        return BoltRun(bolt, self.context(), collector or self.collector(), self.phase.at)

    def run(self, arrivals: Sequence[Arrival], begun: BoltRun | None = None) -> Sent | None:
        """Run the component on its input, or continue the run `begun`; None if all of the input became dead letters.

        Exceptions raised by user code propagate unless they are diverted.
        """
        if self.phase.diversion is not None:
            return self.phase.diversion.run(self, arrivals)
        run = begun or self.begin(self.spec.fresh())
        try:
            run.execute(arrivals)
            return self.finish(run)
        except EmitError as error:
            if error.late and self.resources is None:
                # Eager, so that the emission itself fails, while the tuple being handled is known.
                eager = OutputCollector(self.spec.id, self.spec.streams, eager=True)
                again = self.begin(self.spec.fresh(), eager)
                again.execute(arrivals)
                self.finish(again)
            raise

    def finish(self, run: BoltRun) -> Sent:
        """Finish the batch after all its input has been executed, and route the output."""
        if self.resources is None:
            run.finish()
        else:
            self.resources.activate(True)
            try:
                run.finish()
            finally:
                self.resources.activate(False)
            if self.phase.diversion is not None:
                self.resources.settle(self.spec.id, self.task)
        return self.routed(run.collector, run.collector.take())

    def undo(self) -> None:
        """Undo the writes to tables made in `finish`."""
        if self.resources is not None:
            self.resources.undo(self.spec.id, self.task)

    def routed(self, collector: OutputCollector, emitted: Sequence[Emitted]) -> Sent:
        """Route the output without sending any of it: a custom grouping is user code and may raise."""
        phase = self.phase
        sent: list[tuple[Edge, int, pa.RecordBatch, int]] = []
        for edge in phase.program.out_edges(self.spec.id):
            divert = phase.diversion.grouping(self, edge.stream) if phase.diversion is not None else None
            router = Router(edge, phase.input.attempt.txid, self.task, phase.at, divert)
            sent += [(edge, *one) for one in routes(edge, router, emitted)]
        return Sent(collector, emitted, sent)

    def hand_on(self, sent: Sent) -> None:
        """Close the collector, send the output to the downstream components, and count it."""
        phase, id = self.phase, self.spec.id
        sent.collector.close(phase.input.attempt)
        if phase.observe is not None:
            phase.observe(id, self.task, phase.input.attempt, sent.emitted)
        for edge, target, batch, partition in sent.routed:
            phase.send(edge, self.task, target, batch, partition)
        if self.spec.part_of is None:
            phase.counts[id] = phase.counts.get(id, 0) + sent.collector.count
        phase.reported += [f"{self.spec.name}[{self.task}]: {error!r}" for error in sent.collector.errors]

    def failure(self, error: BaseException, *, trace: bool = True) -> ErrorRow:
        """Build the error row for an exception raised by the component's code."""
        return error_row(self.spec.name, self.task, self.phase.level, error, self.phase.at.input, trace=trace)
