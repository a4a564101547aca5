"""Common model of all pictures of a topology: nodes, links and tables as printable text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txstorm.api.external import ManagedState, MapState, Outlet, TargetDeclaration
from txstorm.api.join_store import StoreUse
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.state import CollectionState, KeyedState, SinkTable
from txstorm.topology.graph import Component, Input, Kind, Topology

KIND_WORDS: dict[Kind, str] = {
    "spout": "spout",
    "frame": "frame bolt",
    "basic": "basic bolt",
    "batch": "batch bolt",
    "committer": "committer",
}


Declared = KeyedState | SinkTable | TargetDeclaration


@dataclass(frozen=True)
class Table:
    """A state, sink, map, outlet or join store as text: its name, and its columns (``word → n``) or its kind."""

    kind: str
    name: str
    columns: str


@dataclass(frozen=True)
class Node:
    """One component as printable text; `emits` has one text per stream."""

    id: str
    kind: Kind
    class_name: str
    parallelism: int
    commits: bool
    emits: tuple[str, ...]
    tables: tuple[Table, ...]
    external: bool = False

    @property
    def kind_word(self) -> str:
        """The node's kind in words."""
        return kind_word(self.kind, external=self.external)


@dataclass(frozen=True)
class Link:
    """One subscription; `stream` is empty for the default stream."""

    source: str
    target: str
    stream: str
    grouping: str
    commits: bool

    @property
    def label(self) -> str:
        """The grouping, preceded by the stream if it is not the default one."""
        return f"{self.stream}: {self.grouping}" if self.stream else self.grouping


@dataclass(frozen=True)
class Picture:
    """A topology as printable text: nodes in topological order, links in the order of targets and their inputs."""

    id: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def tasks(self) -> int:
        """The total number of tasks."""
        return sum(node.parallelism for node in self.nodes)

    @property
    def committing(self) -> tuple[Node, ...]:
        """The nodes of the commit phase, in topological order."""
        return tuple(node for node in self.nodes if node.commits)


def class_name(object: Any) -> str:  # noqa: A002 - the graph's word
    """Return the name of the user's class, also of a bolt that runs inside one of the framework."""
    return getattr(object, "class_name", type(object).__name__)


def view(topology: Topology) -> Picture:
    """Return the picture of `topology`."""
    nodes = tuple(_node(topology, component) for component in topology.components)
    links = tuple(_link(topology, target, one) for target in topology.components for one in target.inputs)
    return Picture(printable(topology.id), nodes, links)


def printable(text: object) -> str:
    """Escape control characters and lone surrogates in `text`, so that every output format can contain it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))


def kind_word(kind: Kind, *, external: bool) -> str:
    """Return the kind in words, with ", external" for a component with effects outside the transaction."""
    return KIND_WORDS[kind] + (", external" if external else "")


def _node(topology: Topology, component: Component) -> Node:
    return Node(
        id=printable(component.id),
        kind=component.kind,
        class_name=printable(class_name(component.object)),
        parallelism=component.parallelism,
        commits=component.id in topology.commit_phase,
        emits=tuple(_stream(name, one.fields, one.direct) for name, one in component.streams.items()),
        tables=tuple(_table(one) for one in _declared(topology, component.id)),
        external=component.external,
    )


def _declared(topology: Topology, component: str) -> tuple[Declared, ...]:
    outside = (one for one in topology.targets.get(component, ()) if not isinstance(one, ManagedState))
    return *topology.states.get(component, ()), *topology.sinks.get(component, ()), *outside


def _link(topology: Topology, target: Component, one: Input) -> Link:
    stream = "" if one.stream == DEFAULT_STREAM else printable(one.stream)
    commits = target.id in topology.commit_phase
    return Link(printable(one.component), printable(target.id), stream, printable(one.grouping), commits)


def _stream(name: str, fields: tuple[str, ...], direct: bool) -> str:
    prefix = "" if name == DEFAULT_STREAM else f"{name}: "
    return printable(f"{prefix}{', '.join(fields)}{' (direct)' if direct else ''}")


def _table(one: Declared) -> Table:
    if isinstance(one, StoreUse):
        return Table("store", printable(type(one.store).__name__), "filled" if one.fills else "looked up")
    if isinstance(one, Outlet):
        return Table("outlet", printable(one.name), printable(f"{type(one.writer).__name__}"))
    if isinstance(one, MapState):
        return Table("map", printable(one.name), printable(f"{one.kind}, {type(one.backend).__name__}"))
    if isinstance(one, TargetDeclaration):
        return Table(one.committed_as, printable(one.name), "")
    if isinstance(one, SinkTable):
        return Table("sink", printable(one.name), _columns(one.columns))
    arrow = f"{_columns(one.key)} → " if one.key else ""
    if isinstance(one, CollectionState):
        return Table("state", printable(one.name), f"{arrow}[{_columns(one.order)}, {_columns(one.value)}, …]")
    return Table("state", printable(one.name), arrow + _columns(one.value))


def _columns(columns: Mapping[str, Any]) -> str:
    return printable(", ".join(columns))
