"""Origin of a run, recorded for replays: the location of its topology's code and its hash seed."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import repeat
from operator import is_
from pathlib import Path
from types import ModuleType
from typing import Any

from txstorm.errors import DataDirectoryError
from txstorm.masks import masked_call
from txstorm.topology.graph import Topology

VERSION = 1
RANDOM = "random"
NOTEBOOK = "a notebook or an interactive session"

_LIBRARIES = sys.stdlib_module_names | {
    "txstorm",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "pyspark",
    "deltalake",
    "rich",
}
"""Packages, most of whose hundred thousand attributes would be looked at in vain at each start."""


@dataclass(frozen=True)
class HashSeed:
    """Python's hash seed in a process, on which the order of a set of strings depends.

    Attributes:
        seed: ``random``, or the number that was set.
        probe: the hash of a fixed text, which distinguishes random seeds.
        python: the version of Python; hashes may differ between versions.
    """

    seed: str
    probe: int
    python: str

    @classmethod
    def here(cls) -> HashSeed:
        """Return the hash seed of this process."""
        chosen = "0" if not sys.flags.hash_randomization else os.environ.get("PYTHONHASHSEED", "")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls(chosen if chosen.isdecimal() else RANDOM, hash("txstorm"), version)

    def __str__(self) -> str:
        return f"{self.seed} (Python {self.python})"


def first_suspect(origin: CodeOrigin | None) -> str | None:
    """Return a note on the hash seed, to explain a replay's difference; None if this process has the run's seed."""
    run, here = None if origin is None else origin.hash_seed, HashSeed.here()
    if run is None:
        return f"first suspect: Python's hash seed, which the run did not record; here it is {here}"
    if run.probe == here.probe:
        return None
    remedy = f"replay with PYTHONHASHSEED={run.seed}"
    if run.seed == RANDOM:
        remedy = "the run's order of sets of strings cannot be reproduced; use PYTHONHASHSEED=0 for runs"
    return f"first suspect: Python's hash seed: the last run had {run}, here it is {here}; {remedy}"


@dataclass(frozen=True)
class CodeOrigin:
    """Location of a topology's code, as its run recorded it.

    Attributes:
        target: MODULE:ATTRIBUTE or MODULE:FACTORY(ARGUMENTS), without secrets; None if the topology has no such name.
        place: the program that ran it, in words.
        directory: the directory from which the run imported its modules.
        hash_seed: Python's hash seed in the driver; None if recorded by an earlier txstorm.
    """

    target: str | None
    place: str
    directory: str
    hash_seed: HashSeed | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the origin as JSON values, with the version of the format."""
        seed = {} if self.hash_seed is None else {"hash_seed": asdict(self.hash_seed)}
        return {"version": VERSION, "target": self.target, "place": self.place, "directory": self.directory, **seed}

    @classmethod
    def from_json(cls, found: Any) -> CodeOrigin:
        """Read the result of `to_json`; raise `DataDirectoryError` for another format."""
        if not isinstance(found, Mapping) or found.get("version") != VERSION:
            msg = f"ledger entry origin: expected version {VERSION}, got {str(found)[:80]}; use a newer txstorm"
            raise DataDirectoryError(msg)
        seed = found.get("hash_seed")
        return cls(found["target"], found["place"], found["directory"], None if seed is None else HashSeed(**seed))


def origin_of(topology: Topology, target: str | None = None) -> CodeOrigin:
    """Determine where the code of `topology` can be imported from; called when the topology is run.

    Args:
        topology: as it was passed to `run`.
        target: its name as in `CodeOrigin.target`, if the caller knows it.
    """
    main = sys.modules.get("__main__")
    found, directory = (_masked(target), os.getcwd()) if target else _found(topology, main)
    return CodeOrigin(found, _place(main), directory, HashSeed.here())


def _masked(target: str) -> str:
    """Return `target` as everybody may read it who may read the ledger; secrets may be given by position, too."""
    module, _, rest = target.partition(":")
    factory = getattr(sys.modules.get(module), rest.partition("(")[0].strip(), None)
    try:
        return masked_call(target, list(inspect.signature(factory).parameters) if callable(factory) else [])
    except (TypeError, ValueError):  # a builtin has no signature
        return masked_call(target)


def _found(topology: Topology, main: ModuleType | None) -> tuple[str | None, str]:
    """Find the attribute that is `topology`, preferably in an imported module, and the directory to import from."""
    for name, module in list(sys.modules.items()):
        known = name.partition(".")[0] in _LIBRARIES
        if not known and module is not main and (attributes := _attributes(module, topology)):
            return f"{name}:{attributes[0]}", os.getcwd()
    importable = None if main is None else _importable(main)
    if main is None or importable is None or not (attributes := _attributes(main, topology)):
        return None, os.getcwd()
    return f"{importable[0]}:{attributes[0]}", importable[1]


def _attributes(module: ModuleType, topology: Topology) -> list[str]:
    known = getattr(module, "__dict__", {})
    if not any(map(is_, list(known.values()), repeat(topology))):  # without libraries there still are ten thousand
        return []
    return [name for name, value in list(known.items()) if value is topology and name.isidentifier()]


def _importable(main: ModuleType) -> tuple[str, str] | None:
    """Return the module name of the main program and the directory to import it from; None for a notebook."""
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
