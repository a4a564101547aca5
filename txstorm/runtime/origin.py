"""Where a topology's code is: recorded by every run, so that a replay finds it again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from txstorm.errors import DataDirectoryError
from txstorm.topology.graph import Topology

VERSION = 1
NOTEBOOK = "a notebook or an interactive session"


@dataclass(frozen=True)
class Origin:
    """What a run knows of its topology's code.

    Attributes:
        target: MODULE:ATTRIBUTE or MODULE:FACTORY(ARGUMENTS); None when the topology has no such name.
        place: the program that ran it, in words.
        directory: the current directory of the run, from which modules were found.
    """

    target: str | None
    place: str
    directory: str

    def to_json(self) -> dict[str, Any]:
        """The fields and the version of this format, for the ledger."""
        return {"version": VERSION, "target": self.target, "place": self.place, "directory": self.directory}

    @classmethod
    def from_json(cls, found: Any) -> Origin:
        """What `to_json` made; raises `DataDirectoryError` for another format."""
        if not isinstance(found, Mapping) or found.get("version") != VERSION:
            msg = f"ledger entry origin: expected version {VERSION}, got {str(found)[:80]}; use a newer txstorm"
            raise DataDirectoryError(msg)
        return cls(found["target"], found["place"], found["directory"])


def origin_of(topology: Topology, target: str | None = None) -> Origin:
    """Where `topology` can be found again; called when it is run.

    Args:
        topology: as it was passed to `run`.
        target: its name, where the caller knows it.
    """
    main = sys.modules.get("__main__")
    found, directory = (target, os.getcwd()) if target else _found(topology, main)
    return Origin(found, _place(main), directory)


def _found(topology: Topology, main: ModuleType | None) -> tuple[str | None, str]:
    """The module attribute that is `topology`, one of an imported module first, and from where it is imported."""
    for name, module in list(sys.modules.items()):
        if module is not main and (attributes := _attributes(module, topology)):
            return f"{name}:{attributes[0]}", os.getcwd()
    importable = None if main is None else _importable(main)
    if main is None or importable is None or not (attributes := _attributes(main, topology)):
        return None, os.getcwd()
    return f"{importable[0]}:{attributes[0]}", importable[1]


def _attributes(module: ModuleType, topology: Topology) -> list[str]:
    names = list(getattr(module, "__dict__", {}).items())
    return [name for name, value in names if value is topology and name.isidentifier()]


def _importable(main: ModuleType) -> tuple[str, str] | None:
    """The name under which the main program can be imported, and in which directory; None for a notebook."""
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name), os.getcwd()
    if file and Path(file).suffix == ".py" and Path(file).stem.isidentifier():
        return Path(file).stem, str(Path(file).absolute().parent)
    return None


def _place(main: ModuleType | None) -> str:
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return f"module {spec.name}"
    return f"script {Path(file).absolute()}" if file and os.path.exists(file) else NOTEBOOK
