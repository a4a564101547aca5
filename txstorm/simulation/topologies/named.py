"""Kinds of worlds by name."""

from __future__ import annotations

import importlib

from txstorm.errors import InputError
from txstorm.simulation.topologies.counts import CountsWorld
from txstorm.simulation.topologies.kind import WorldKind

KINDS: dict[str, type[WorldKind]] = {"counts": CountsWorld}


def kind_named(name: str) -> type[WorldKind]:
    """Return the kind of world with this name, or the class ``MODULE:CLASS``.

    Raises:
        InputError: there is none.
    """
    if name in KINDS:
        return KINDS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None) if module and attribute else None
    except ImportError as error:
        raise InputError(
            f"kind {name!r}: expected the MODULE of MODULE:CLASS to be importable, got: {error}"
        ) from error
    if isinstance(found, type) and issubclass(found, WorldKind):
        return found
    msg = f"kind {name!r}: expected {', '.join(KINDS)}, or MODULE:CLASS with a subclass of WorldKind"
    raise InputError(msg)
