"""Topology: an immutable graph of components in topological order, with the tables that its committers declare."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from types import FunctionType, MemberDescriptorType
from typing import Any, Literal, TypeVar

from txstorm.api.assembly import AssembledBolt, AssembledCommitter, Site
from txstorm.api.composite import kept_states
from txstorm.api.external import MapState, Outlet, OwnTarget, TargetDeclaration
from txstorm.api.join_store import StoreUse, same_store
from txstorm.api.names import near
from txstorm.api.output import Grouping, StreamDeclaration
from txstorm.api.state import CHANGES, CollectionState, KeyedState, SinkTable, arrow_type
from txstorm.errors import InputError
from txstorm.topology.settings import Settings

_NO_TABLES = frozenset({FunctionType, property, str, staticmethod, classmethod, type(None), type})
"""Types of most attributes of a class, which hold no table."""
Table = TypeVar("Table", bound=KeyedState | SinkTable | TargetDeclaration)
Outside = TypeVar("Outside", bound=TargetDeclaration)


def found_tables(bolt: Any, kind: type[Table]) -> tuple[Table, ...]:
    """Return the tables of `kind` that `bolt` declares as attributes; instance attributes override class attributes.

    An attribute may hold one table, or a tuple or list of them. Equal declarations count once.
    """
    attributes: dict[str, Any] = {}
    for base in reversed(type(bolt).__mro__):
        attributes.update(vars(base))
    attributes.update(getattr(bolt, "__dict__", {}))
    found: list[Table] = []
    for name, value in attributes.items():
        if type(value) in _NO_TABLES or not isinstance(value, (kind, tuple, list, MemberDescriptorType)):
            continue
        for one in _flat(getattr(bolt, name, None) if isinstance(value, MemberDescriptorType) else value):
            if isinstance(one, kind) and one not in found:
                found.append(one)
    return tuple(found)


def _flat(value: Any) -> tuple[Any, ...]:
    return tuple(value) if type(value) in (tuple, list) else (value,)


PROVIDING = ("state_provider", "state_provider_config", "state_may_be_lost")
"""Settings that determine where the states of managed bolts are."""
Kind = Literal["spout", "frame", "basic", "batch", "committer"]


@dataclass(frozen=True)
class Input:
    """One subscription of a bolt: source component, stream, and grouping."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True, eq=False)
class Component:
    """One node of the graph.

    Attributes:
        id: name, unique in the topology.
        kind: spout, frame bolt, basic bolt, batch bolt or committer.
        object: the user's spout or bolt; every task works with a copy.
        parallelism: number of tasks, at least 1.
        inputs: subscriptions in the order of their declaration; empty for the spout.
        streams: output streams, name → declaration.
        configuration: the component's own configuration, set by `add_configuration`.
        external: whether its commit phase has effects outside the transaction.
        part_of: for a map-side stage in a plan, the bolt that it belongs to.
        assembled: the user's bolt that `object` was assembled from, with its place; None for other components.
    """

    id: str
    kind: Kind
    object: Any
    parallelism: int
    inputs: tuple[Input, ...]
    streams: Mapping[str, StreamDeclaration]
    configuration: Mapping[str, Any] = field(default_factory=dict)
    external: bool = False
    part_of: str | None = None
    assembled: tuple[AssembledBolt, Site] | None = field(default=None, repr=False)

    @property
    def timers(self) -> bool:
        """Whether it is a committer that calls `TaskContext.wake_at`."""
        return self.kind == "committer" and bool(getattr(self.object, "timers", False))

    @property
    def reads_frames(self) -> bool:
        """Whether it is a frame sink, whose rows tasks of the processing phase may stage."""
        return bool(getattr(self.object, "reads_frames", False))

    @property
    def is_stateful(self) -> bool:
        """Whether it runs a stateful bolt."""
        return isinstance(self.object, AssembledCommitter) and self.object.stateful

    @property
    def by_clock(self) -> bool:
        """Whether the time between transactions changes what it does: it has a ttl, or processing time."""
        states = found_tables(self.object, KeyedState) if self.kind == "committer" else ()
        return any(one.ttl is not None for one in states) or bool(getattr(self.object, "by_clock", self.timers))

    @property
    def pins(self) -> bool:
        """Whether it pins a value for each transaction: its class defines ``pin``."""
        return callable(getattr(self.object, "pin", None))

    def under(self, settings: Settings) -> Component:
        """Return the component under other settings; raise `InputError` if they do not fit it."""
        return self._assembled_at(settings=settings)

    def with_tasks(self, tasks: int) -> Component:
        """Return the component with another parallelism; raise `InputError` if it does not fit it."""
        return replace(self._assembled_at(parallelism=tasks), parallelism=tasks)

    def _assembled_at(self, **changes: Any) -> Component:
        if self.assembled is None:
            return self
        bolt, site = self.assembled[0], replace(self.assembled[1], **changes)
        made = bolt.assemble(site)
        if made.faults:
            raise InputError("; ".join(made.faults))
        before, now = (bool(getattr(one, "external", False)) for one in (self.object, made.committer))
        external = self.external if now == before else now
        return replace(self, object=made.committer, external=external, assembled=(bolt, site))


@dataclass(frozen=True, eq=False)
class Topology:
    """A checked, immutable topology; built by `TransactionalTopologyBuilder.build_topology`.

    Attributes:
        id: the topology's name; also names its data directory.
        components: in topological order, the spout first; ties in the order of declaration.
        settings: the topology's settings.
        warnings: warnings of the checks, which did not prevent the topology from being built.
        pending: builds the topology once there is a Spark session, if the columns of frame bolts are not known without;
            None: all are known.
        companion: makes what a front end adds to a run of this topology (`txstorm.runtime.companion.Companion`), given
            the topology; None: nothing.
    """

    id: str
    components: tuple[Component, ...]
    settings: Settings = field(default_factory=Settings)
    warnings: tuple[str, ...] = ()
    pending: Callable[[Settings, Sequence[str], Any], Topology] | None = field(default=None, repr=False)
    companion: Callable[[Topology], Any] | None = field(default=None, repr=False)

    def completed(self, session: Any = None) -> Topology:
        """Return the topology with the columns of all its frame bolts, for which a Spark session is asked if need be.

        Args:
            session: the session; None: that of the process.

        Raises:
            TopologyError: what reads a frame bolt has faults.
            InputError: there is no session, and columns are not known.
        """
        if self.pending is None:
            return self
        made = self.pending(self.settings, (), session)
        if made.pending is not None:
            raise InputError(
                f"topology {self.id}: the columns of its frame bolts are not known without Spark: create a session "
                "first (SparkSession.builder…getOrCreate()), or declare them (set_frame_bolt(…, columns='id INT, …'))"
            )
        return replace(made, companion=self.companion)

    @property
    def spout(self) -> Component:
        """The topology's spout."""
        return self.components[0]

    def component(self, id: str) -> Component:
        """Return the component named `id`; raises `InputError` if there is none."""
        try:
            return self._by_id[id]
        except KeyError:
            hint = near(str(id), list(self._by_id))
            msg = f"topology {self.id!r} has no component {id!r}{hint}; it has {', '.join(self._by_id)}"
            raise InputError(msg) from None

    @cached_property
    def commit_phase(self) -> frozenset[str]:
        """The ids of the committers and of all components downstream of them."""
        inside: set[str] = set()
        for component in self.components:
            if component.kind == "committer" or any(one.component in inside for one in component.inputs):
                inside.add(component.id)
        return frozenset(inside)

    @cached_property
    def states(self) -> dict[str, tuple[KeyedState, ...]]:
        """Committer → the states it declares, in attribute order; omits committers that declare none."""
        tables = self._tables(KeyedState).items()
        return {owner: tuple(self._with_tasks(one) for one in found) for owner, found in tables if found}

    @cached_property
    def kept(self) -> dict[str, tuple[KeyedState, ...]]:
        """Spout → the states in which it keeps rows of its own; empty if it keeps none."""
        found = tuple(state for state, _ in kept_states(self.spout.object).values())
        return {self.spout.id: found} if found else {}

    @cached_property
    def sinks(self) -> dict[str, tuple[SinkTable, ...]]:
        """Committer → the sinks it declares; omits committers that declare none."""
        return {owner: found for owner, found in self._tables(SinkTable).items() if found}

    @cached_property
    def targets(self) -> dict[str, tuple[TargetDeclaration, ...]]:
        """Committer → what it declares outside of the tables: maps, outlets, a state, …; omits those without any."""
        return {owner: found for owner, found in self._tables(TargetDeclaration).items() if found}

    def declared(self, component: str, kind: type[Outside]) -> list[Outside]:
        """Return those of `targets` that a component declares as `kind`, such as its maps."""
        return [one for one in self.targets.get(component, ()) if isinstance(one, kind)]

    @property
    def external(self) -> bool:
        """Whether a component has effects outside the transaction, so that transactions are decided one at a time."""
        return any(component.external for component in self.components)

    @property
    def outside(self) -> bool:
        """Whether commits have effects in other systems, so that all earlier transactions must be committed first."""
        return self.external or any(one.commits for found in self.targets.values() for one in found)

    def with_settings(self, changes: Mapping[str, Any]) -> Topology:
        """Return this topology with `changes` applied to its settings; raises `SettingError` like `Settings.parse`."""
        settings = self.settings.updated(changes)
        unchanged = all(getattr(settings, name) == getattr(self.settings, name) for name in PROVIDING)
        if unchanged or self.pending is not None:
            return replace(self, settings=settings)
        components = tuple(one.under(settings) for one in self.components)
        return replace(self, settings=settings, components=components)

    def fingerprint(self) -> str:
        """Return a digest of the graph's shape; it is the same for every build of the topology, in any process.

        It covers ids, kinds, parallelism, inputs, groupings, streams, states, sinks, maps and outlets, but neither the
        code nor the settings.
        """
        shape = {"topology": self.id, "components": [self._shape(component) for component in self.components]}
        return blake2b(json.dumps(shape, sort_keys=True).encode(), digest_size=16).hexdigest()

    def describe(self, format: str = "text") -> str:  # noqa: A002 - the public word
        """Return the topology as ``text``, ``mermaid``, ``dot``, ``json`` or ``svg``; raise `InputError` otherwise."""
        from txstorm.topology.pictures.describe import describe

        return describe(self, format)

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """Return the notebook display of the topology; see `txstorm.topology.pictures.describe.mimebundle`."""
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

    def _with_tasks(self, state: KeyedState) -> KeyedState:
        """Return a state whose fixed facts include the parallelism of the components whose tasks its rows name."""
        tasks = {f"tasks of {name!r}": str(self.component(name).parallelism) for name in state.tasks_of}
        return replace(state, fixed={**(state.fixed or {}), **tasks}) if tasks else state

    def _shape(self, component: Component) -> dict[str, Any]:
        maps = [[one.name, one.kind] for one in self.declared(component.id, MapState)]
        outlets = [[one.name, _columns_shape(one.columns)] for one in self.declared(component.id, Outlet)]
        own = [[one.name, one.committed_as] for one in self.declared(component.id, OwnTarget)]
        fills = any(one.fills for one in self.declared(component.id, StoreUse))
        return {
            **({"maps": maps} if maps else {}),  # none: same fingerprint as before maps existed
            **({"outlets": outlets} if outlets else {}),
            **({"targets": own} if own else {}),
            **({"fills": True} if fills else {}),
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
    """Return the parts of a grouping that are equal in all processes; for a custom grouping, the name of its class."""
    custom = None if grouping.custom is None else type(grouping.custom).__qualname__
    return [grouping.kind, list(grouping.fields), custom]


def _more_shape(state: KeyedState) -> list[Any]:
    """Return the optional parts of a state's shape (order, ttl, layout), omitting defaults.

    A state without them thus has the same fingerprint as in versions that did not have them.
    """
    order = [_columns_shape(state.order)] if isinstance(state, CollectionState) else []
    ttl = [] if state.ttl is None else [str(state.ttl)]
    return [*order, *ttl, *([] if state.layout == CHANGES else [state.layout])]


def _columns_shape(columns: Mapping[str, Any]) -> list[list[str]]:
    return [[name, str(arrow_type(declared))] for name, declared in columns.items()]


def topological(components: Sequence[Component]) -> tuple[Component, ...]:
    """Return the components in topological order, ties in the order of `components`, which must be acyclic.

    A component that looks rows up in a join store comes after the one that fills it, so that it sees the rows of the
    same transaction; unless the latter is downstream of it.
    """
    place = {component.id: i for i, component in enumerate(components)}
    sources = {one.id: [source.component for source in one.inputs] for one in components}
    uses = [(one.id, use) for one in components for use in found_tables(one.object, StoreUse)]
    for filled in (one for one in uses if one[1].fills):
        for reader, use in uses:
            if not use.fills and same_store(use.store, filled[1].store) and not _reads_from(sources, filled[0], reader):
                sources[reader].append(filled[0])
    sorter = TopologicalSorter(sources)
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


def _reads_from(sources: Mapping[str, Sequence[str]], component: str, other: str) -> bool:
    """Whether what `other` emits can reach `component`, directly or through further components."""
    return component == other or any(_reads_from(sources, one, other) for one in sources[component])


def cycles(sources: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the cycles of the graph `sources`, a mapping of components to the components that they read from.

    A cycle is a path in the direction of the tuples whose last component is its first. One edge of each cycle is
    removed before the search for the next, so all independent cycles are found.
    """
    left = {name: list(dict.fromkeys(inputs)) for name, inputs in sources.items()}
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
