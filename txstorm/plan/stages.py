"""The compiled topology: stages of the processing phase, order of the commit phase, and the edges between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from txstorm.api.output import Grouping
from txstorm.plan.map_side import with_map_sides
from txstorm.topology.frames import FRAME, with_frame_tasks
from txstorm.topology.graph import Component, Input, Topology


@dataclass(frozen=True)
class Edge:
    """One subscription of a compiled topology, resolved to source, stream, target and numbers of tasks.

    Attributes:
        index: its number in the plan, by which the engine's cargo refers to its edge.
        source: the component that emits.
        stream: the stream it emits to.
        target: the component that receives.
        grouping: how tuples are divided among the tasks of `target`.
        sources: the number of tasks of `source`.
        targets: the number of tasks of `target`.
        local: whether task i of `source` sends only to task i of `target`, which needs no exchange within one stage.
        boundary: whether the edge leads from the processing phase into the commit phase.
    """

    index: int
    source: str
    stream: str
    target: str
    grouping: Grouping
    sources: int
    targets: int
    local: bool
    boundary: bool


@dataclass(frozen=True)
class Stage:
    """One stage of the engine's job: components with no exchange between them.

    Attributes:
        level: 0 for the stage of the spout; a stage reads only from stages of lower levels.
        tasks: the greatest parallelism of its components.
        components: in topological order.
    """

    level: int
    tasks: int
    components: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """A compiled topology; created by `compile_plan`.

    Attributes:
        topology: the compiled topology, with map-side stages as components.
        stages: the processing phase: one chain of stages, run as one job however deep the graph is.
        commit: the components of the commit phase, in topological order.
        edges: all edges, numbered in the order of their targets, then of the targets' inputs.
    """

    topology: Topology
    stages: tuple[Stage, ...]
    commit: tuple[str, ...]
    edges: tuple[Edge, ...]

    def level(self, component: str) -> int:
        """Return the number of a component's stage; for the commit phase, the number of stages."""
        return self._levels.get(self.topology.component(component).id, len(self.stages))

    def out_edges(self, component: str) -> tuple[Edge, ...]:
        """Return the edges that leave `component`."""
        return tuple(edge for edge in self.edges if edge.source == component)

    def in_edges(self, component: str) -> tuple[Edge, ...]:
        """Return the edges that arrive at `component`, in the order of its inputs."""
        return tuple(edge for edge in self.edges if edge.target == component)

    def fused(self, edge: Edge) -> bool:
        """Return whether `edge` stays within one task: it is local, and both its ends are in one stage."""
        return edge.local and self.level(edge.source) == self.level(edge.target)

    @cached_property
    def _levels(self) -> dict[str, int]:
        return {name: stage.level for stage in self.stages for name in stage.components}


def compile_plan(topology: Topology) -> Plan:
    """Compile `topology` into stages, commit order and edges.

    A processing-phase component is on the level of its furthest source, or on the next level if it reads that source
    through an exchange; the spout and frame bolts are on level 0. Commit-phase components (committers and all
    components downstream of them) have no level. Raises `InputError` if columns of frame bolts are not known.
    """
    topology = with_map_sides(with_frame_tasks(topology.completed()))
    edges = _edges(topology)
    levels = _levels(topology, edges)
    depth = max(levels.values()) + 1
    commit = tuple(component.id for component in topology.components if component.id in topology.commit_phase)
    return Plan(topology, tuple(_stage(topology, levels, level) for level in range(depth)), commit, edges)


def _edges(topology: Topology) -> tuple[Edge, ...]:
    tuples = (one for one in topology.components if one.kind != FRAME)  # the others read DataFrames, in the driver
    pairs = [(target, read) for target in tuples for read in target.inputs]
    return tuple(_edge(topology, index, target, read) for index, (target, read) in enumerate(pairs))


def _edge(topology: Topology, index: int, target: Component, read: Input) -> Edge:
    source = topology.component(read.component)
    commits = target.id in topology.commit_phase
    return Edge(
        index=index,
        source=source.id,
        stream=read.stream,
        target=target.id,
        grouping=read.grouping,
        sources=source.parallelism,
        targets=target.parallelism,
        local=target.part_of is not None
        or (not commits and _same_task(source.parallelism, target.parallelism, read.grouping)),
        boundary=commits and source.id not in topology.commit_phase,
    )


def _same_task(sources: int, targets: int, grouping: Grouping) -> bool:
    return sources == targets and (sources == 1 or grouping.kind == "local_or_shuffle")


def _levels(topology: Topology, edges: tuple[Edge, ...]) -> dict[str, int]:
    levels = {topology.spout.id: 0}
    for component in topology.components[1:]:
        if component.id not in topology.commit_phase:
            arriving = (edge for edge in edges if edge.target == component.id)
            reached = (levels[edge.source] + (0 if edge.local else 1) for edge in arriving)
            levels[component.id] = 0 if component.kind == FRAME else max(reached)
    return levels


def _stage(topology: Topology, levels: dict[str, int], level: int) -> Stage:
    inside = [component for component in topology.components if levels.get(component.id) == level]
    return Stage(level, max(component.parallelism for component in inside), tuple(component.id for component in inside))
