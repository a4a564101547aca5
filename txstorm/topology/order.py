"""Topological order of components, and the cycles that forbid one."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from txstorm.topology.graph import Component


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
