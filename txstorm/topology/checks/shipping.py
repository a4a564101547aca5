"""Checks that components can be pickled and shipped to the workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle

from txstorm.topology.components import ComponentInfo


def shipping_faults(one: ComponentInfo) -> Iterator[str]:
    """Yield a fault if a component, or a custom grouping of its inputs, cannot be serialized."""
    if one.kind is not None:
        yield from _faults(f"component {one.id!r}", one.object)
    for given in one.inputs:
        if given.grouping.custom is not None:
            yield from _faults(f"bolt {one.id!r}, custom grouping on {given.component!r}", given.grouping.custom)


def _faults(where: str, shipped: Any) -> Iterator[str]:
    error = _refused(shipped)
    if error is None:
        return
    name = type(shipped).__name__
    culprits = [attribute for attribute, value in getattr(shipped, "__dict__", {}).items() if _refused(value)]
    if culprits:
        what = f"its attribute{'s' * (len(culprits) > 1)} {', '.join(map(repr, culprits))} cannot be serialised"
        cure = "create such things in prepare (bolts) or emitter (spouts), where each task gets its own"
    else:
        what = "it or something its code refers to cannot be serialised"
        cure = "do not keep locks, connections or open files in it or in the globals its methods use"
    yield f"{where}: {name} cannot be shipped to a worker: {what} ({type(error).__name__}: {error}); {cure}"


def _refused(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - __reduce__ of a user's object may raise anything
        return error
    return None
