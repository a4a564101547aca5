"""The sweeper: removes the files that txstorm wrote and nothing refers to, by name, never by age."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from txstorm.clients.delta import DeltaHandle
from txstorm.state.intent import Intent
from txstorm.state.staging import STAGED, epoch_of


def sweep_table(table: Path, epoch: int, kept: set[str], handle: DeltaHandle) -> list[str]:
    """Remove the staged files of `table` that no kept version of its log and no name in `kept` refers to.

    Called by the coordinator of `epoch`; files of a newer one are left alone, as is what txstorm did not name.
    `kept` holds paths relative to the table. Returns what was removed.
    """
    found = [f"{STAGED}/{file.name}" for file in sorted((table / STAGED).glob("*.parquet"))]
    candidates = [path for path in found if path not in kept and _is_older(path, epoch)]
    if candidates:
        current = {file.path for file in handle.files()}
        candidates = [path for path in candidates if path not in current]
    if candidates:  # only now the log is read: usually there is nothing to do
        logged = handle.logged_paths()
        candidates = [path for path in candidates if path not in logged]
    for path in candidates:
        (table / path).unlink(missing_ok=True)
    return candidates


def kept_by(intents: Sequence[Intent], uri: str) -> set[str]:
    """The staged files of the table `uri` that `intents` name."""
    return {table.staged.path for intent in intents for table in intent.tables if table.uri == uri}


def _is_older(path: str, epoch: int) -> bool:
    written = epoch_of(Path(path).name)
    return written is not None and written <= epoch
