"""Checks of maps in external stores, and of their combination with an opaque spout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from txstorm.api.composite import is_opaque
from txstorm.api.external import MAP_KINDS, NON_TRANSACTIONAL, TRANSACTIONAL, MapState
from txstorm.api.names import name_fault
from txstorm.topology.components import ComponentInfo

_METHODS = ("multi_get", "multi_put")


def map_faults(components: Sequence[ComponentInfo]) -> Iterator[str]:
    """Yield the faults of all maps; a transactional map fed by an opaque spout requires `allow_opaque_spout`."""
    opaque = is_opaque(components[0].object)
    for one in components:
        for state in one.maps:
            yield from _faults(one.id, state)
            if opaque and state.kind == TRANSACTIONAL and not state.allow_opaque_spout:
                yield (
                    f"component {one.id!r}, map {state.name!r}: a transactional map keeps no value before a txid, and "
                    f"the opaque spout {components[0].id!r} may replay a txid with other content: a key that carries "
                    "the txid already would keep what the first attempt wrote, which is not exactly once; use "
                    "kind='opaque', or accept it with allow_opaque_spout=True"
                )
    yield from _shared(components)


def map_warnings(components: Sequence[ComponentInfo]) -> Iterator[str]:
    """Yield warnings about maps that are written at least once instead of exactly once."""
    for one in components:
        for state in one.maps:
            where = f"component {one.id!r}, map {state.name!r}"
            if state.kind == NON_TRANSACTIONAL and not getattr(state.backend, "is_a_function", False):
                yield f"{where}: a non_transactional map keeps no txid, so it counts at least once, not exactly once"
            elif state.kind != NON_TRANSACTIONAL and not state.marked:
                yield (
                    f"{where}: {type(state.backend).__name__} keeps no mark (put_marked), so it cannot refuse a late "
                    "put of a stale coordinator: it counts at least once"
                )


def _faults(owner: Any, state: MapState) -> Iterator[str]:
    if fault := name_fault(f"component {owner!r}: map", state.name):
        yield fault
    if state.kind not in MAP_KINDS:
        yield f"component {owner!r}, map {state.name!r}: kind {state.kind!r} is unknown; use {' or '.join(MAP_KINDS)}"
    missing = [name for name in _METHODS if not callable(getattr(state.backend, name, None))]
    if missing or isinstance(state.backend, type):
        yield (
            f"component {owner!r}, map {state.name!r}: expected a backend with {' and '.join(_METHODS)}, got "
            f"{_named(state.backend)}; pass an object such as MemoryBackend()"
        )


def _named(backend: object) -> str:
    """Return the type name of a backend for messages, never its text, which may be a URL with a password."""
    return (
        f"the class {backend.__name__}" if isinstance(backend, type) else f"an object of type {type(backend).__name__}"
    )


def _shared(components: Sequence[ComponentInfo]) -> Iterator[str]:
    first: dict[int, str] = {}
    for one in components:
        for state in one.maps:
            other = first.setdefault(id(state.backend), state.name)
            if other != state.name:
                yield f"maps {other!r} and {state.name!r} share one backend; give each its own, with its own table"
