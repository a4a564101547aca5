"""Sweep: delete unreferenced files that txstorm has written; recognised by their names, never by their age."""

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
    """Find the files that `sweep_table` would delete, in steps of `at_once` log entries.

    `handle` must be at the newest version; `kept` returns the files that are staged now. Files staged or published
    later are never returned: `kept` is called after the directory has been listed, since tasks of a large commit may be
    writing files.
    """
    listed = _unneeded((yield partial(_found, table)) or _found(table), epoch, set())
    needed = kept() if listed else set()
    candidates = [path for path in listed if path not in needed]
    if not candidates:
        return []
    logged: set[str] = set()
    logged.update(file.path for file in handle.files())
    names = (yield handle.entry_names) or handle.entry_names()
    for number, name in enumerate(names, start=1):
        logged.update(handle.paths_of_entry(name))
        if number % at_once == 0:
            yield None
    return [path for path in candidates if path not in logged]


def sweep_table(table: Path, epoch: int, kept: set[str], handle: DeltaHandle) -> list[str]:
    """Delete the staged files of `table` that are neither referenced by a kept version of its log nor in `kept`.

    Called by the coordinator with `epoch`; files of a newer coordinator, and files that txstorm did not write, are not
    touched. Paths, including those returned for the deleted files, are relative to the table.
    """
    return _removed(table, orphans(_found(table), epoch, kept, handle))


class Logged(Protocol):
    """Interface of a table's log for the sweep: the files that the log references."""

    def files(self) -> Sequence[DataFile]:
        """Return the data files of this version."""

    def logged_paths(self) -> Set[str]:
        """Return the paths of all files that any kept version references."""


def orphans(found: Iterable[str], epoch: int, kept: Set[str], log: Logged) -> list[str]:
    """Return those of the staged files `found` that `sweep_table` deletes."""
    candidates = _unneeded(found, epoch, kept)
    if candidates:
        current = {file.path for file in log.files()}
        candidates = [path for path in candidates if path not in current]
    if candidates:  # read the whole log only if candidates are left, which is rare
        logged = log.logged_paths()
        candidates = [path for path in candidates if path not in logged]
    return candidates


def sweep_unlogged(path: Path, epoch: int, kept: set[str]) -> list[str]:
    """Like `sweep_table`, for a directory `path` that is not a table, so that no log references its staged files."""
    return _removed(path, _unneeded(_found(path), epoch, kept))


def _found(table: Path) -> list[str]:
    return [f"{STAGED}/{file.name}" for file in sorted((table / STAGED).glob("*.parquet"))]


def _removed(table: Path, paths: list[str]) -> list[str]:
    for path in paths:
        (table / path).unlink(missing_ok=True)
        faults.point("sweep.removed")
    return paths


def remove_own(table: Path, paths: Iterable[str]) -> None:
    """Delete those of the files at `paths`, relative to `table`, that txstorm has written; ignore missing files.

    Passes the fault point ``thin.removed`` after each file.
    """
    for path in paths:
        if Path(path).parent == Path(STAGED) and epoch_of(Path(path).name) is not None:
            (table / path).unlink(missing_ok=True)
            faults.point("thin.removed")


def kept_by(intents: Sequence[Intent], uri: str) -> set[str]:
    """Return the paths of the staged files of the table `uri` that are named by `intents`."""
    tables = (table for intent in intents for table in intent.tables if table.uri == uri)
    return {staged.path for table in tables for staged in table.files}


def _unneeded(found: Iterable[str], epoch: int, kept: Set[str]) -> list[str]:
    """Filter out paths in `kept`, files of newer epochs, and files that txstorm did not write."""
    written = ((path, epoch_of(Path(path).name)) for path in found if path not in kept)
    return [path for path, by in written if by is not None and by <= epoch]
