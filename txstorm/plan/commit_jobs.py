"""Which committers can commit a large transaction as a job of the engine, each task with the keys of its own input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from txstorm.api.state import CollectionState, KeyedState, SinkTable
from txstorm.plan.stages import Edge, Plan
from txstorm.topology.pictures.model import printable

Tables = tuple[KeyedState | SinkTable, ...]


def commit_job_tables(plan: Plan) -> Mapping[str, Tables]:
    """Committer → its tables, of those committers of `plan` whose large transactions a job can commit.

    All they receive comes from the processing phase, grouped by exactly the key of each of their states, so that a key
    is in the input of one task only and known before `finish_batch`. Their other tables are sinks, whose rows have no
    key; nothing they do has an effect elsewhere. What they emit for bolts behind them goes back to the driver.
    """
    committers = (name for name in plan.commit if plan.topology.component(name).kind == "committer")
    return {name: _tables(plan, name) for name in committers if not obstacles(plan, name)}


def obstacles(plan: Plan, committer: str) -> list[str]:
    """Why the driver commits the large transactions of a committer itself, one reason a line; none when a job can."""
    return [*_of_its_tables(plan, committer), *_of_its_edges(plan, committer)]


def _of_its_tables(plan: Plan, name: str) -> Iterator[str]:
    topology = plan.topology
    if topology.component(name).external:
        yield "it has effects of its own (external)"
    for kind, elsewhere in (("map", topology.maps), ("outlet", topology.outlets)):
        for one in elsewhere.get(name, ()):
            yield f"{kind} {one.name} is reached through a connection of the driver"
    states = topology.states.get(name, ())
    for state in states:
        if isinstance(state, CollectionState):
            yield f"state {state.name} holds collections, and what a scan reads is not bounded by the input"
        elif not state.key:
            yield f"state {state.name} has one row, so there is nothing to divide"
    if not states:
        yield "it has no keyed state"
    elif len(_keys(states)) > 1:
        keys = " and ".join(f"{state.name} by {_names(tuple(state.key))}" for state in states)
        yield f"its states have different keys: {keys}"


def _of_its_edges(plan: Plan, name: str) -> Iterator[str]:
    keys = _keys(plan.topology.states.get(name, ()))
    for edge in plan.in_edges(name):
        if not edge.boundary:
            yield f"what it gets from {printable(edge.source)} is made in the commit phase"
        elif len(keys) == 1 and not _divides(edge, *keys):
            (key,) = keys
            expected = f", not by fields {_names(key)}" if key else ""
            yield f"what it gets from {printable(edge.source)} is grouped by {printable(edge.grouping)}{expected}"


def _divides(edge: Edge, key: tuple[str, ...]) -> bool:
    return edge.grouping.kind == "fields" and edge.grouping.fields == key


def _keys(states: Sequence[KeyedState]) -> set[tuple[str, ...]]:
    return {tuple(state.key) for state in states}


def _names(key: tuple[str, ...]) -> str:
    return printable(", ".join(key)) or "no key"


def _tables(plan: Plan, name: str) -> Tables:
    topology = plan.topology
    return (*topology.states[name], *topology.sinks.get(name, ()))
