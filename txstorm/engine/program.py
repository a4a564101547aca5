"""Program of a topology: everything that tasks need to run it, shipped once to each worker."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from txstorm.api.composite import is_live
from txstorm.api.context import TaskContext
from txstorm.api.output import StreamDeclaration
from txstorm.api.state import SinkTable
from txstorm.errors import InputError
from txstorm.plan.commit_jobs import Tables, commit_job_tables
from txstorm.plan.stages import Edge, Plan, Stage
from txstorm.topology.frames import FrameBolt
from txstorm.topology.graph import Component, Kind, Topology
from txstorm.user_code import copied


@dataclass(frozen=True)
class ComponentSpec:
    """One component of a program, with its pickled user object.

    Attributes:
        settings: the topology's settings, overridden by the component's own configuration.
        nested: names of the settings whose values are lists, dicts or sets.
        timers: whether it calls `TaskContext.wake_at`.
        part_of: for a map-side stage, the bolt that it belongs to, in whose name it reports.
        blob: the pickled user object, unpickled for every task and batch.
    """

    id: str
    kind: Kind
    parallelism: int
    streams: Mapping[str, StreamDeclaration]
    settings: Mapping[str, Any]
    nested: tuple[str, ...] = field(repr=False)
    timers: bool
    part_of: str | None
    blob: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """The component in messages and in the task context."""
        return self.part_of or self.id

    def task_settings(self) -> dict[str, Any]:
        """Copy the settings for one task, as user code may modify them."""
        settings = dict(self.settings)
        for name in self.nested:
            settings[name] = copied(settings[name])
        return settings

    def fresh(self) -> Any:
        """Unpickle a new copy of the user's object; raises `InputError` if its module cannot be imported."""
        try:
            return cloudpickle.loads(self.blob)
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"component {self.id!r} cannot be loaded in a worker: {error}; the module of its class must be one "
                "that workers can import: put its directory on PYTHONPATH before Spark starts, or install it there"
            ) from error


@dataclass(frozen=True)
class Program:
    """Everything tasks need to know about a topology.

    Attributes:
        topology: the topology's id.
        stages: the stages of the processing phase, each of which runs as one Spark stage.
        commit: components of the commit phase in topological order; they run in the driver.
        edges: all edges; `Cargo.edge` is an index into them.
        settings: the topology's settings, as plain values.
        spill_dir: directory for committers' input that is too large to travel through Spark; None: never spill.
        spread: committer → its tables, for the committers whose large transactions a job can commit.
        live: the components that tuples of a live source reach.
        frames: component → type of each of its columns, as Spark writes it, of the spout and bolts on DataFrames.
        frame_sinks: component → its table, of the sinks whose rows the tasks of the processing phase may stage.
        frame_bolts: (id, function, inputs) of each frame bolt, in topological order; in a worker without its function.
    """

    topology: str
    components: Mapping[str, ComponentSpec]
    stages: tuple[Stage, ...]
    commit: tuple[str, ...]
    edges: tuple[Edge, ...]
    settings: Mapping[str, Any]
    spill_dir: str | None = None
    spread: Mapping[str, Tables] = field(default_factory=dict)
    live: frozenset[str] = frozenset()
    frames: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    frame_sinks: Mapping[str, SinkTable] = field(default_factory=dict)
    frame_bolts: tuple[tuple[str, FrameBolt, tuple[str, ...]], ...] = ()

    def out_edges(self, component: str) -> tuple[Edge, ...]:
        """The edges that leave `component`."""
        return tuple(edge for edge in self.edges if edge.source == component)

    def upstream(self, component: str) -> set[str]:
        """Return all components from which tuples reach `component`."""
        found, todo = set[str](), [component]
        while todo:
            sources = {edge.source for edge in self.edges if edge.target == todo[-1]} - found
            found |= sources
            todo = [*todo[:-1], *sources]
        return found

    def level(self, component: str) -> int:
        """Return the stage level of a component; for a component of the commit phase, the number of stages."""
        for stage in self.stages:
            if component in stage.components:
                return stage.level
        return len(self.stages)

    def work_of(self, busy: Mapping[int, float]) -> float:
        """Return the seconds of work on the critical path of a job, given the busy seconds per stage."""
        return sum(busy.get(stage.level, 0.0) / stage.tasks for stage in self.stages)

    def with_plan(self, plan: Plan) -> Program:
        """Return a program with the same code but another plan, with different parallelism.

        Assembled bolts and their map-side stages depend on the parallelism, so they are made anew.
        """
        components = {}
        for one in plan.topology.components:
            known = self.components.get(one.id)
            if known is None or one.assembled is not None or one.part_of is not None:
                components[one.id] = _spec(one, self.settings)
            else:
                components[one.id] = replace(known, parallelism=one.parallelism)
        return replace(
            self,
            components=components,
            stages=plan.stages,
            commit=plan.commit,
            edges=plan.edges,
            spread=commit_job_tables(plan),
        )

    def driver_context(self, component: str) -> TaskContext:
        """Return the context of `component` for code that runs in the driver: a coordinator, or committing emitters."""
        spec = self.components[component]
        return TaskContext(self.topology, component, 0, spec.parallelism, spec.task_settings())

    @property
    def leaves_out(self) -> bool:
        """Whether records that fail become dead letters."""
        return str(self.settings["on_error"]).endswith("dead_letter")

    @property
    def spout(self) -> str:
        """The spout's id."""
        return self.stages[0].components[0]


def program_of(plan: Plan, spill_dir: str | None = None) -> Program:
    """Build the program of a compiled plan."""
    topology = plan.topology
    settings = topology.settings.model_dump()
    return Program(
        topology=topology.id,
        components={component.id: _spec(component, settings) for component in topology.components},
        stages=plan.stages,
        commit=plan.commit,
        edges=plan.edges,
        settings=settings,
        spill_dir=spill_dir,
        spread=commit_job_tables(plan),
        live=_live(topology),
        frames=_frames(topology),
        frame_sinks={one.id: topology.sinks[one.id][0] for one in topology.components if one.reads_frames},
        frame_bolts=tuple(
            (one.id, one.object, tuple(read.component for read in one.inputs))
            for one in topology.components
            if one.kind == "frame"
        ),
    )


def _frames(topology: Topology) -> Mapping[str, Mapping[str, str]]:
    own = (one for one in topology.components if getattr(one.object, "emits_frames", False))
    return {one.id: {name: column.spark for name, column in one.object.columns.items()} for one in own}


def _live(topology: Topology) -> frozenset[str]:
    spout, found = topology.spout, set[str]()
    for component in topology.components:
        if any(
            is_live(spout.object, one.stream) if one.component == spout.id else one.component in found
            for one in component.inputs
        ):
            found.add(component.id)
    return frozenset(found)


def _spec(component: Component, settings: Mapping[str, Any]) -> ComponentSpec:
    together = copied({**settings, **component.configuration})
    return ComponentSpec(
        id=component.id,
        kind=component.kind,
        parallelism=component.parallelism,
        streams=dict(component.streams),
        settings=together,
        nested=tuple(name for name, value in together.items() if isinstance(value, dict | list | tuple | set)),
        timers=component.timers,
        part_of=component.part_of,
        blob=cloudpickle.dumps(component.object),
    )


def digest_of(data: bytes) -> str:
    """Compute the digest under which workers cache a shipped program."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
