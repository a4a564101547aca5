"""Where the tables of a topology are: what taking over, rolling forward and rewinding need of a data directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from txstorm.clients.delta.handle import is_table
from txstorm.errors import TableCorrupt
from txstorm.storage.tables.history import append_history, check_history
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import CHANGES, DIRECTORIES, LETTERS, SINK, STATE, Staged
from txstorm.storage.tables.staging import check_digest
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import TransactionalTable


class TableDirectory(Protocol):
    """Holds tables, staged files and the history. Its text names it in messages."""

    def has(self, ref: TableRef) -> bool:
        """Whether there is a table `ref`, readable or not."""

    def table(self, owner: TopologyIdentity, ref: TableRef) -> TransactionalTable:
        """The table `ref` at its newest version; raises `TableCorrupt` and `DataDirectoryError`."""

    def check_staged(self, uri: str, staged: Staged) -> None:
        """Raise `TableCorrupt` unless a file staged for the table `uri` is there as it was staged."""

    def check_history(self) -> None:
        """Raise where the history table is damaged."""

    def append_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the rows of the history that are not there yet."""


class Directory:
    """A data directory as a `TableDirectory`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def has(self, ref: TableRef) -> bool:
        """Whether there is a table `ref`, readable or not."""
        return is_table(self.path / ref.uri)

    def table(self, owner: TopologyIdentity, ref: TableRef) -> DeltaTableState:
        """The table `ref` at its newest version."""
        return DeltaTableState.open(self.path, owner, ref)

    def check_staged(self, uri: str, staged: Staged) -> None:
        """Raise `TableCorrupt` unless a file staged for the table `uri` is there as it was staged."""
        check_digest(self.path / uri, staged)

    def check_history(self) -> None:
        """Raise where the history table is damaged."""
        check_history(self.path)

    def append_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the rows of the history that are not there yet."""
        append_history(self.path, rows)


def placed(where: Path | TableDirectory) -> TableDirectory:
    """`where` as a place, if it is a data directory."""
    return Directory(where) if isinstance(where, Path) else where


def check_there(place: TableDirectory, ref: TableRef) -> None:
    """Raise `TableCorrupt` unless there is the table `ref`, readable or not."""
    if not place.has(ref):
        msg = (
            f"{place}: the ledger knows the table {ref.uri}, but there is none; restore the directory from a copy "
            "taken together with the ledger"
        )
        raise TableCorrupt(msg)


def table_refs(data_dir: Path) -> Iterator[TableRef]:
    """All tables that are in a data directory, whether a ledger knows them or not."""
    for kind in (CHANGES, SINK, STATE):
        folder = data_dir / DIRECTORIES[kind]
        names = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
        yield from (TableRef(kind, name) for name in names if is_table(folder / name))
    if is_table(data_dir / DIRECTORIES[LETTERS]):
        yield TableRef(LETTERS, "")
