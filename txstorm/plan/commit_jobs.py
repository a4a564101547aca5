"""Commit jobs: committers whose large transactions the engine can commit as a job, divided among tasks by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from txstorm.api.external import ManagedState
from txstorm.api.join_store import StoreUse
from txstorm.api.state import CollectionState, KeyedState, SinkTable
from txstorm.plan.stages import Plan
from txstorm.topology.pictures.model import printable

Tables = tuple[KeyedState | SinkTable, ...]


def commit_job_tables(plan: Plan) -> Mapping[str, Tables]:
    """Return committer → its tables, for each committer of `plan` whose large transactions a job can commit.

    All input of such a committer comes from the processing phase, grouped by exactly the key that all its states
    have, so that each key is in the input of one task only and is known before `finish_batch`. Its other tables are
    sinks, whose rows have no key; it has no effects elsewhere. Tuples that it emits to downstream bolts go back to
    the driver.
    """
    topology = plan.topology
    return {
        name: (*topology.states[name], *topology.sinks.get(name, ()))
        for name in plan.commit
        if topology.component(name).kind == "committer" and not obstacles(plan, name)
    }


def obstacles(plan: Plan, committer: str) -> list[str]:
    """Return the reasons why a job cannot commit the large transactions of `committer`; empty if a job can."""
    return [*_table_obstacles(plan, committer), *_input_obstacles(plan, committer)]


def _table_obstacles(plan: Plan, name: str) -> Iterator[str]:
    topology = plan.topology
    if topology.component(name).external:
        yield "it has effects of its own (external)"
    if topology.component(name).is_stateful:
        yield "a stateful bolt may read any key of its state"
    if topology.component(name).timers:
        yield "it has timers, which the driver keeps"
    for one in topology.targets.get(name, ()):
        if not isinstance(one, ManagedState | StoreUse):
            yield f"{one.committed_as} {one.name} is reached through a connection of the driver"
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


def _input_obstacles(plan: Plan, name: str) -> Iterator[str]:
    keys = _keys(plan.topology.states.get(name, ()))
    for edge in plan.in_edges(name):
        if not edge.boundary:
            yield f"its input from {printable(edge.source)} is produced in the commit phase"
        elif len(keys) == 1:
            (key,) = keys
            if edge.grouping.kind != "fields" or edge.grouping.fields != key:
                expected = f", not by fields {_names(key)}" if key else ""
                yield f"its input from {printable(edge.source)} is grouped by {printable(edge.grouping)}{expected}"


def _keys(states: Sequence[KeyedState]) -> set[tuple[str, ...]]:
    return {tuple(state.key) for state in states}


def _names(key: tuple[str, ...]) -> str:
    return printable(", ".join(key)) or "no key"
