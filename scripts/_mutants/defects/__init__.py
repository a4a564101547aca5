"""Known defects, by the room of `txstorm` whose code they change.

A file per room holds its `MUTANTS`; `mutants` returns those of all rooms. Start: books.py.
"""

import pkgutil
from importlib import import_module

from scripts._mutants.mutation import Mutant


def mutants() -> dict[str, Mutant]:
    """Return all mutants by name, room by room."""
    rooms = [import_module(f"{__name__}.{room.name}") for room in pkgutil.iter_modules(__path__)]
    every = [mutant for room in rooms for mutant in room.MUTANTS]
    names = [mutant.name for mutant in every]
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
    return dict(zip(names, every, strict=True))
