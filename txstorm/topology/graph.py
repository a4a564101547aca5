"""The built topology: frozen components in topological order. Pure values.

Topological order of components, and the cycles that forbid one.

The tables a user's bolt declares by having them as attributes.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from types import MemberDescriptorType
from typing import Any, Literal, TypeVar

from txstorm.api.external import MapState, Outlet
from txstorm.api.grouping import Grouping
from txstorm.api.names import near
from txstorm.api.output import StreamDeclaration
from txstorm.api.state import CHANGES, CollectionState, KeyedState, SinkTable, arrow_type
from txstorm.errors import InputError
from txstorm.topology.settings import Settings

Table = TypeVar("Table", KeyedState, SinkTable, MapState, Outlet)


def found_tables(bolt: Any, kind: type[Table]) -> tuple[Table, ...]:
    """The tables of `kind` among the attributes of `bolt`: class attributes first, the instance's over them.

    An attribute may hold one table or a tuple or list of them; the same declaration found twice counts once.
    """
    attributes: dict[str, Any] = {}
    for base in reversed(type(bolt).__mro__):
        attributes.update(vars(base))
    attributes.update(getattr(bolt, "__dict__", {}))
    found: list[Table] = []
    for name, value in attributes.items():
        for one in _flat(getattr(bolt, name, None) if isinstance(value, MemberDescriptorType) else value):
            if isinstance(one, kind) and one not in found:
                found.append(one)
    return tuple(found)


def _flat(value: Any) -> tuple[Any, ...]:
    return tuple(value) if type(value) in (tuple, list) else (value,)


Kind = Literal["spout", "basic", "batch", "committer"]


@dataclass(frozen=True)
class Input:
    """One subscription of a bolt: whose stream, and how its tuples are divided among the bolt's tasks."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True, eq=False)
class Component:
    """One node of the graph.

    Attributes:
        id: its name, unique in the topology.
        kind: spout, basic bolt, batch bolt or committer.
        object: the user's spout or bolt, of which every task gets its own copy.
        parallelism: the number of its tasks, at least 1.
        inputs: its subscriptions, in the order they were declared; empty for the spout.
        streams: the streams it emits, name → declaration.
        configuration: what `add_configuration` set for this component only.
        external: whether its `finish_batch` has effects that no transaction holds.
    """

    id: str
    kind: Kind
    object: Any
    parallelism: int
    inputs: tuple[Input, ...]
    streams: Mapping[str, StreamDeclaration]
    configuration: Mapping[str, Any] = field(default_factory=dict)
    external: bool = False


@dataclass(frozen=True, eq=False)
class Topology:
    """A checked, frozen graph; made by `TransactionalTopologyBuilder.build_topology`.

    Attributes:
        id: the topology's name; also names its data directory.
        components: in topological order, the spout first, ties by order of declaration.
        settings: the topology's settings.
        warnings: what the checks found worth saying without refusing the topology.
    """

    id: str
    components: tuple[Component, ...]
    settings: Settings = field(default_factory=Settings)
    warnings: tuple[str, ...] = ()

    @property
    def spout(self) -> Component:
        """The one spout."""
        return self.components[0]

    def component(self, id: str) -> Component:
        """The component named `id`; raises `InputError` when there is none."""
        try:
            return self._by_id[id]
        except KeyError:
            hint = near(str(id), list(self._by_id))
            msg = f"topology {self.id!r} has no component {id!r}{hint}; it has {', '.join(self._by_id)}"
            raise InputError(msg) from None

    @cached_property
    def commit_phase(self) -> frozenset[str]:
        """The committers and everything that can be reached from them."""
        inside: set[str] = set()
        for component in self.components:
            if component.kind == "committer" or any(one.component in inside for one in component.inputs):
                inside.add(component.id)
        return frozenset(inside)

    @cached_property
    def states(self) -> dict[str, tuple[KeyedState, ...]]:
        """Committer → the states it declares, in the order of its attributes; committers without one are left out."""
        return {owner: found for owner, found in self._tables(KeyedState).items() if found}

    @cached_property
    def sinks(self) -> dict[str, tuple[SinkTable, ...]]:
        """Committer → the sinks it declares; committers without one are left out."""
        return {owner: found for owner, found in self._tables(SinkTable).items() if found}

    @cached_property
    def maps(self) -> dict[str, tuple[MapState, ...]]:
        """Committer → the maps it declares; committers without one are left out."""
        return {owner: found for owner, found in self._tables(MapState).items() if found}

    @cached_property
    def outlets(self) -> dict[str, tuple[Outlet, ...]]:
        """Committer → the outlets it declares; committers without one are left out."""
        return {owner: found for owner, found in self._tables(Outlet).items() if found}

    @property
    def external(self) -> bool:
        """Whether a component has effects of its own, so that transactions are decided one by one."""
        return any(component.external for component in self.components)

    @property
    def outside(self) -> bool:
        """Whether its commits reach other systems: what comes before them is committed first."""
        return self.external or bool(self.maps) or bool(self.outlets)

    def with_settings(self, changes: Mapping[str, Any]) -> Topology:
        """The same graph with some settings changed; raises `SettingError` as `Settings.parse` does."""
        return replace(self, settings=self.settings.updated(changes))

    def fingerprint(self) -> str:
        """A digest of the graph's shape: equal for two builds of one topology, in any process.

        Covers ids, kinds, parallelism, inputs, groupings, streams, states, sinks, maps and outlets; not the code and
        not the settings.
        """
        shape = {"topology": self.id, "components": [self._shape(component) for component in self.components]}
        return blake2b(json.dumps(shape, sort_keys=True).encode(), digest_size=16).hexdigest()

    def describe(self, format: str = "text") -> str:  # noqa: A002 - the public word
        """The topology as ``text``, ``mermaid``, ``dot``, ``json`` or ``svg``; raises `InputError` on another."""
        from txstorm.topology.pictures.describe import describe

        return describe(self, format)

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """What a notebook shows; see `txstorm.topology.pictures.describe.mimebundle`."""
        from txstorm.topology.pictures.describe import mimebundle

        return mimebundle(self)

    def __str__(self) -> str:
        return f"Topology({self.id}: {' → '.join(component.id for component in self.components)})"

    __repr__ = __str__

    @cached_property
    def _by_id(self) -> dict[str, Component]:
        return {component.id: component for component in self.components}

    def _tables(self, kind: type[Table]) -> dict[str, tuple[Table, ...]]:
        committers = (component for component in self.components if component.kind == "committer")
        return {component.id: found_tables(component.object, kind) for component in committers}

    def _shape(self, component: Component) -> dict[str, Any]:
        maps = [[one.name, one.kind] for one in self.maps.get(component.id, ())]
        outlets = [[one.name, _columns_shape(one.columns)] for one in self.outlets.get(component.id, ())]
        return {
            **({"maps": maps} if maps else {}),  # those without keep the fingerprint they had before there were maps
            **({"outlets": outlets} if outlets else {}),
            "id": component.id,
            "kind": component.kind,
            "parallelism": component.parallelism,
            "inputs": [[one.component, one.stream, *_grouping_shape(one.grouping)] for one in component.inputs],
            "streams": {name: [list(one.fields), one.direct] for name, one in component.streams.items()},
            "states": [
                [state.name, _columns_shape(state.key), _columns_shape(state.value), *_more_shape(state)]
                for state in self.states.get(component.id, ())
            ],
            "sinks": [[sink.name, _columns_shape(sink.columns)] for sink in self.sinks.get(component.id, ())],
        }


def _grouping_shape(grouping: Grouping) -> list[Any]:
    """The grouping without memory addresses: a custom one counts by its class."""
    custom = None if grouping.custom is None else type(grouping.custom).__qualname__
    return [grouping.kind, list(grouping.fields), custom]


def _more_shape(state: KeyedState) -> list[Any]:
    """What not every state has; those without keep the fingerprint they had before there was such."""
    order = [_columns_shape(state.order)] if isinstance(state, CollectionState) else []
    ttl = [] if state.ttl is None else [str(state.ttl)]
    return [*order, *ttl, *([] if state.layout == CHANGES else [state.layout])]


def _columns_shape(columns: Mapping[str, Any]) -> list[list[str]]:
    return [[name, str(arrow_type(declared))] for name, declared in columns.items()]


def topological(components: Sequence[Component]) -> tuple[Component, ...]:
    """The components in topological order, ties by their place in `components`; there must be no cycle."""
    place = {component.id: i for i, component in enumerate(components)}
    sorter = TopologicalSorter({one.id: [given.component for given in one.inputs] for one in components})
    sorter.prepare()
    ordered: list[Component] = []
    ready: list[int] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, place[name])
        first = components[heapq.heappop(ready)]
        ordered.append(first)
        sorter.done(first.id)
    return tuple(ordered)


def cycles(sources: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Cycles of the graph component → its sources, in the direction the tuples flow, first and last alike.

    Each cycle found is cut before the next is looked for, so independent cycles are all named.
    """
    left = {name: list(dict.fromkeys(given)) for name, given in sources.items()}
    found: list[tuple[str, ...]] = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            path = tuple(error.args[1])
            found.append(path)
            left[path[1]].remove(path[0])
        else:
            return found
