"""Rebalance: change the parallelism of components of a built topology (Storm's ``rebalance``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from txstorm.api.external import ManagedState, MapState
from txstorm.api.names import counted
from txstorm.errors import InputError
from txstorm.topology.checks.declared_tables import one_task_per_key
from txstorm.topology.checks.validate import MAX_PARALLELISM
from txstorm.topology.graph import Component, Topology

SPREADING = ("shuffle", "local_or_shuffle", "all", "none")
log = logging.getLogger(__name__)


def rebalanced(topology: Topology, chosen: Mapping[str, int], *, again: bool = False) -> Topology:
    """Return `topology` with the parallelism in `chosen` (component → number of tasks); other components keep theirs.

    Keyed state needs no migration: the task of a key is computed from the key and the number of tasks. `again`: whether
    it was so before, so that others know these tasks.

    Raises:
        InputError: `chosen` has faults, all of which are listed: unknown components, numbers out of range, components
            whose number is fixed.
    """
    faults = [fault for name, tasks in chosen.items() for fault in _faults(topology, name, tasks, again=again)]
    if faults:
        raise InputError("\n".join(faults))
    components = tuple(
        one if chosen.get(one.id, one.parallelism) == one.parallelism else one.with_tasks(chosen[one.id])
        for one in topology.components
    )
    return replace(topology, components=components)


def rebalanced_before(topology: Topology, known: Mapping[str, Mapping[str, int]]) -> Topology:
    """Re-apply an earlier rebalance; an override is dropped if the code's own parallelism has changed since.

    All overrides are dropped if the current topology does not allow them.

    Args:
        topology: the topology as built by its code.
        known: component → ``{"declared": the code's number at the time, "chosen": the override}``.
    """
    declared = {one.id: one.parallelism for one in topology.components}
    chosen = {name: one["chosen"] for name, one in known.items() if declared.get(name) == one["declared"]}
    for name in sorted(set(known) - set(chosen)):
        log.warning(
            "topology %s: the code of %s has changed since it was rebalanced; the code counts",
            topology.id,
            name,
        )
    if not chosen:
        return topology
    try:
        made = rebalanced(topology, chosen, again=True)
    except InputError as error:
        log.warning(
            "topology %s: the code no longer allows the earlier rebalance; using the parallelism of the code: %s",
            topology.id,
            error,
        )
        return topology
    log.info("topology %s: rebalanced to %s", topology.id, chosen)
    return made


def _faults(topology: Topology, name: str, tasks: int, *, again: bool) -> Iterator[str]:
    try:
        component = topology.component(name)
    except InputError as unknown:
        yield str(unknown)
        return
    if isinstance(tasks, bool) or not isinstance(tasks, int) or not 1 <= tasks <= MAX_PARALLELISM:
        yield f"component {name!r}: expected a number of tasks from 1 to {MAX_PARALLELISM}, got {tasks!r}"
    elif tasks != component.parallelism and (
        reason := _fixed(topology, component, tasks) or (None if again else _named(topology, name))
    ):
        yield f"component {name!r} cannot go from {counted(component.parallelism, 'task')} to {tasks}: {reason}"


def _named(topology: Topology, name: str) -> str | None:
    """Return the reason why no other component can do with other tasks of this one; None if all can."""
    bound = [owner for owner, states in topology.states.items() if any(name in one.tasks_of for one in states)]
    return f"{bound[0]!r} knows the message ids of each of its tasks, and would drop new ones" if bound else None


def _fixed(topology: Topology, component: Component, tasks: int) -> str | None:
    """Return the reason why `component` cannot run with `tasks` tasks; None if it can."""
    managed, states = topology.declared(component.id, ManagedState), topology.states.get(component.id, ())
    if any(one.tasks is not None and one.fixed and not (one.derive or one.tasks_of) for one in states):
        return (
            "its windows belong to its tasks; declare windows with_key and group its inputs by the key: they can move"
        )
    bound = [f"state {one.name!r}" for one in states if one.tasks is not None]
    if bound or any(one.provider is not None and not one.shared for one in managed):
        return f"{bound[0] if bound else 'its state'} belongs to its tasks; share the state in the code (shared = True)"
    if component.assembled is not None:
        return _unfit(component, tasks)
    if tasks == 1:
        return None
    if component.inputs and all(one.grouping.kind == "global" for one in component.inputs):
        return "all its tuples go to one task (global_grouping); give it another grouping in the code first"
    if component.parallelism > 1:
        return None  # the author of the code has seen the warnings of `validate`
    by = {one.grouping.fields for one in component.inputs if one.grouping.kind == "fields"}
    for state in states:
        if len(by) > 1 or not all(one_task_per_key(one, list(state.key)) for one in component.inputs):
            fields = f"fields of the state's key ({', '.join(state.key) or 'it has none'})"
            return _shared_row(f"state {state.name!r}", fields)
    for one in topology.declared(component.id, MapState):
        # Only the bolt knows the fields that make up the keys of a map.
        if len(by) > 1 or any(source.grouping.kind in SPREADING for source in component.inputs):
            return _shared_row(f"map {one.name!r}", "the fields that its keys are made of")
    return None


def _unfit(component: Component, tasks: int) -> str | None:
    try:
        component.with_tasks(tasks)
    except InputError as error:
        return str(error)
    return None


def _shared_row(what: str, fields: str) -> str:
    return (
        f"several tasks might change one row of its {what} in one txid, which fails the batch; group its inputs by "
        f"{fields} first"
    )
