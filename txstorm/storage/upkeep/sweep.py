"""The sweeper: removes the files that txstorm wrote and nothing refers to, by name, never by age."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from txstorm import faults
from txstorm.clients.delta.entry import DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.storage.tables.intent import STAGED, Intent
from txstorm.storage.tables.staging import epoch_of


def unlogged(
    table: Path, epoch: int, kept: Callable[[], set[str]], handle: DeltaHandle, at_once: int
) -> Generator[Callable[[], Any] | None, Any, list[str]]:
    """What `sweep_table` would remove, found in steps of `at_once` log entries.

    `handle` is at the newest version, and `kept` tells what is staged now: what is staged or published later is not
    found. It is asked after the look at what is there, since tasks of a large commit may be writing.
    """
    there = _unneeded((yield partial(_found, table)) or _found(table), epoch, set())
    needed = kept() if there else set()
    found = [path for path in there if path not in needed]
    if not found:
        return []
    logged: set[str] = set()
    logged.update(file.path for file in handle.files())
    names = (yield handle.entry_names) or handle.entry_names()
    for number, name in enumerate(names, start=1):
        logged.update(handle.paths_of_entry(name))
        if number % at_once == 0:
            yield None
    return [path for path in found if path not in logged]


def sweep_table(table: Path, epoch: int, kept: set[str], handle: DeltaHandle) -> list[str]:
    """Remove the staged files of `table` that no kept version of its log and no name in `kept` refers to.

    Called by the coordinator of `epoch`; files of a newer one are left alone, as is what txstorm did not name.
    `kept` holds paths relative to the table. Returns what was removed.
    """
    return _removed(table, orphans(_found(table), epoch, kept, handle))


class Logged(Protocol):
    """A table's log, as far as it tells which files it refers to."""

    def files(self) -> Sequence[DataFile]:
        """The files of this version."""

    def logged_paths(self) -> Set[str]:
        """Every file that any kept version refers to."""


def orphans(found: Iterable[str], epoch: int, kept: Set[str], log: Logged) -> list[str]:
    """Those of the staged files that are `found` which `sweep_table` removes."""
    candidates = _unneeded(found, epoch, kept)
    if candidates:
        current = {file.path for file in log.files()}
        candidates = [path for path in candidates if path not in current]
    if candidates:  # only now the log is read: usually there is nothing to do
        logged = log.logged_paths()
        candidates = [path for path in candidates if path not in logged]
    return candidates


def sweep_unlogged(path: Path, epoch: int, kept: set[str]) -> list[str]:
    """The same below a `path` that is no table: no log refers to what is staged there."""
    return _removed(path, _unneeded(_found(path), epoch, kept))


def _found(table: Path) -> list[str]:
    return [f"{STAGED}/{file.name}" for file in sorted((table / STAGED).glob("*.parquet"))]


def _removed(table: Path, paths: list[str]) -> list[str]:
    for path in paths:
        (table / path).unlink(missing_ok=True)
        faults.point("sweep.removed")
    return paths


def remove_own(table: Path, paths: Iterable[str]) -> None:
    """Remove those of the files at `paths`, relative to `table`, that txstorm has written; they need not be there.

    Passes the fault point ``thin.removed`` after each.
    """
    for path in paths:
        if Path(path).parent == Path(STAGED) and epoch_of(Path(path).name) is not None:
            (table / path).unlink(missing_ok=True)
            faults.point("thin.removed")


def kept_by(intents: Sequence[Intent], uri: str) -> set[str]:
    """The staged files of the table `uri` that `intents` name."""
    tables = (table for intent in intents for table in intent.tables if table.uri == uri)
    return {staged.path for table in tables for staged in table.files}


def _unneeded(found: Iterable[str], epoch: int, kept: Set[str]) -> list[str]:
    return [path for path in found if path not in kept and _is_older(path, epoch)]


def _is_older(path: str, epoch: int) -> bool:
    written = epoch_of(Path(path).name)
    return written is not None and written <= epoch
