"""Which committers can commit a large transaction as a job of the engine, each task with the keys of its own input."""

from __future__ import annotations

from collections.abc import Mapping

from txstorm.api.state import KeyedState, SinkTable
from txstorm.plan.stages import Plan

Tables = tuple[KeyedState | SinkTable, ...]


def spread_tables(plan: Plan) -> Mapping[str, Tables]:
    """Committer → its tables, of those committers of `plan` whose large transactions a job can commit.

    All they receive comes from the processing phase, grouped by exactly the key of each of their states, so that a key
    is in the input of one task only and known before `finish_batch`. Their other tables are sinks, whose rows have no
    key; nothing follows behind them in the commit phase, and nothing they do has an effect elsewhere.
    """
    return {name: _tables(plan, name) for name in plan.commit if _can(plan, name)}


def _can(plan: Plan, name: str) -> bool:
    topology, component = plan.topology, plan.topology.component(name)
    states, edges = topology.states.get(name, ()), plan.in_edges(name)
    keys = {tuple(one.key) for one in states}
    return (
        component.kind == "committer"
        and not component.external
        and name not in topology.maps
        and name not in topology.outlets
        and all(type(one) is KeyedState for one in states)
        and len(keys) == 1
        and all(one.boundary and one.grouping.kind == "fields" and {one.grouping.fields} == keys for one in edges)
        and not plan.out_edges(name)
    )


def _tables(plan: Plan, name: str) -> Tables:
    topology = plan.topology
    return (*topology.states[name], *topology.sinks.get(name, ()))
