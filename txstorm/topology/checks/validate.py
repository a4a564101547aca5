"""Validation of a topology: all checks are run, and every fault is reported with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from txstorm.api.names import name_fault
from txstorm.topology.checks.declared_tables import key_warnings, stream_faults, table_faults
from txstorm.topology.checks.external import map_faults, map_warnings
from txstorm.topology.checks.shipping import shipping_faults
from txstorm.topology.checks.streams import subscription_faults
from txstorm.topology.components import ComponentInfo
from txstorm.topology.graph import cycles

MAX_PARALLELISM = 32768


@dataclass(frozen=True)
class Report:
    """Result of the checks of a topology: faults and warnings, each as a sentence.

    Attributes:
        faults: errors, any of which prevents the topology from being built.
        warnings: possible mistakes, which do not prevent it from being built.
    """

    faults: tuple[str, ...]
    warnings: tuple[str, ...]


def validate(topology: Any, components: Sequence[ComponentInfo]) -> Report:
    """Check the topology named `topology`; the first of `components` is the spout. Never raises.

    Bolts that were assembled from columns that are not known yet are checked when they are, at the start of a run.
    """
    certain = [one for one in components if not (one.deferred and one.assembled)]
    known = {one.id: one for one in components if isinstance(one.id, str)}
    faults = [
        *_name_faults(topology, components),
        *(fault for one in components for fault in one.faults),
        *(fault for one in components for fault in _parallelism_faults(one)),
        *(fault for one in certain for fault in stream_faults(one)),
        *(fault for one in certain for fault in subscription_faults(one, known)),
        *_cycle_faults(known),
        *table_faults(certain),
        *map_faults(certain),
        *(fault for one in components for fault in shipping_faults(one)),
    ]
    warnings = [warning for one in certain for warning in (*one.warnings, *key_warnings(one, known))]
    warnings += map_warnings(certain)
    return Report(tuple(dict.fromkeys(faults)), tuple(dict.fromkeys(warnings)))


def _name_faults(topology: Any, components: Sequence[ComponentInfo]) -> Iterator[str]:
    if fault := name_fault("topology", topology):
        yield fault
    folded: dict[str, str] = {}
    for one in components:
        if fault := name_fault("component", one.id):
            yield fault
            continue
        first = folded.setdefault(one.id.casefold(), one.id)
        if first == one.id and one is not next(other for other in components if other.id == first):
            yield f"component {one.id!r}: two components have this id; give each its own"
        elif first != one.id:
            yield f"components {first!r} and {one.id!r} differ only in case; give one of them another id"


def _parallelism_faults(one: ComponentInfo) -> Iterator[str]:
    given = one.parallelism
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_PARALLELISM:
        yield (
            f"component {one.id!r}: parallelism is {given!r}, expected a whole number from 1 to {MAX_PARALLELISM}; "
            "it is the number of the component's tasks"
        )


def _cycle_faults(known: dict[str, ComponentInfo]) -> Iterator[str]:
    sources = {
        name: [str(given.component) for given in one.inputs if str(given.component) in known]
        for name, one in known.items()
    }
    for path in cycles(sources):
        yield f"cycle {' → '.join(path)}: tuples would never end; remove one of these subscriptions"
