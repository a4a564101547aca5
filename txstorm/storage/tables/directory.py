"""Access to the tables of a data directory: the port that take-over, roll-forward and rewind use, and its adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from txstorm.clients.delta.handle import is_table
from txstorm.errors import TableCorrupt
from txstorm.storage.tables.history import append_history, check_history
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import CHANGES, DIRECTORIES, LETTERS, SINK, STATE, Staged
from txstorm.storage.tables.staging import checked_bytes
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import TransactionalTable


class TableDirectory(Protocol):
    """Port: the tables, staged files and history table of one topology. Its `str()` names the directory in messages."""

    def has(self, ref: TableRef) -> bool:
        """Whether the table `ref` exists, even if it cannot be read."""

    def table(self, owner: TopologyIdentity, ref: TableRef) -> TransactionalTable:
        """Open the table `ref` at its newest version.

        Raises:
            TableCorrupt: the table is missing or damaged.
            DataDirectoryError: the table does not belong to `owner`.
        """

    def check_staged(self, uri: str, staged: Staged) -> None:
        """Raise `TableCorrupt` unless the file staged for the table `uri` exists and is unchanged."""

    def check_history(self) -> None:
        """Raise `TableCorrupt` if the history table is damaged, `DataDirectoryError` if its format is too new."""

    def append_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append those of the `rows` that the history table does not contain yet; idempotent."""


class Directory:
    """Adapter: the `TableDirectory` of a data directory in a file system.

    It remembers the tables that it has opened, since opening is most of the work of a start: a table that no other
    writer has changed since is not opened again. Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: dict[TableRef, DeltaTableState] = {}

    def __str__(self) -> str:
        return str(self.path)

    def has(self, ref: TableRef) -> bool:
        """Whether the table `ref` exists, even if it cannot be read."""
        return is_table(self.path / ref.uri)

    def table(self, owner: TopologyIdentity, ref: TableRef) -> DeltaTableState:
        """Open the table `ref` at its newest version; a later call returns the same object, not a second one."""
        known = self._opened.get(ref)
        if known is None or not known.is_newest():
            known = DeltaTableState.open(self.path, owner, ref)
        elif known.owner != owner:  # a rewind, which puts the table on the next timeline
            known = DeltaTableState(self.path, owner, ref, known.handle)
        self._opened[ref] = known
        return known

    def check_staged(self, uri: str, staged: Staged) -> None:
        """Raise `TableCorrupt` unless the file staged for the table `uri` exists and is unchanged."""
        checked_bytes(self.path / uri, staged)

    def check_history(self) -> None:
        """Raise `TableCorrupt` if the history table is damaged, `DataDirectoryError` if its format is too new."""
        check_history(self.path)

    def append_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append those of the `rows` that the history table does not contain yet; idempotent."""
        append_history(self.path, rows)


def placed(where: Path | TableDirectory) -> TableDirectory:
    """Wrap a path into a `TableDirectory`; return a `TableDirectory` unchanged."""
    return Directory(where) if isinstance(where, Path) else where


def check_there(place: TableDirectory, ref: TableRef) -> None:
    """Raise `TableCorrupt` unless the table `ref` exists, even if it cannot be read."""
    if not place.has(ref):
        msg = (
            f"{place}: the ledger knows the table {ref.uri}, but there is none; restore the directory from a copy "
            "taken together with the ledger"
        )
        raise TableCorrupt(msg)


def table_refs(data_dir: Path) -> Iterator[TableRef]:
    """Yield every table found in a data directory, whether or not the ledger records it."""
    for kind in (CHANGES, SINK, STATE):
        folder = data_dir / DIRECTORIES[kind]
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        yield from (TableRef(kind, name) for name in names if is_table(folder / name))
    if is_table(data_dir / DIRECTORIES[LETTERS]):
        yield TableRef(LETTERS, "")
