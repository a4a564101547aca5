"""Access to the tables of a data directory: the port that take-over, roll-forward and rewind use, and its adapter."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import LOG, is_table, torn_creation
from txstorm.clients.files import sync_file
from txstorm.errors import TableCorrupt
from txstorm.storage.tables.history import (
    HISTORY,
    Opened,
    append_history,
    check_history,
    describe_history,
    open_history,
)
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import CHANGES, KINDS, LETTERS, SINK, STAGED, STATE, Staged, kind_in
from txstorm.storage.tables.staging import checked_bytes
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import TransactionalTable

log = logging.getLogger(__name__)


def unshared() -> None:
    """Check nothing: for readers, and for a directory that no other process uses yet."""


class TableDirectory(ABC):
    """Port: the tables, staged files and history table of one topology. Its `str()` names the directory in messages.

    Everything that a coordinator creates here, apart from staged files and log entries, passes `check_leads` first.
    That is no guarantee, since a process may pause in between. So what a fenced coordinator may have created
    nevertheless is opened instead of created, and an empty table that the ledger does not record is taken over
    (`TransactionalTable.raise_epoch`).

    Args:
        check_leads: raises `FencedError` unless the ledger, asked now, says that the caller leads.
    """

    def __init__(self, check_leads: Callable[[], None] = unshared) -> None:
        self._check_leads = check_leads

    def create(
        self, owner: TopologyIdentity, ref: TableRef, schema: pa.Schema, txid: int, about: Mapping[str, str]
    ) -> None:
        """Create the table `ref`, empty and as of `txid`, unless another coordinator has just created it.

        Raises:
            FencedError: another coordinator has taken over.
            TableCorrupt: the table cannot be created.
        """
        self._check_leads()
        try:
            self.create_table(owner, ref, schema, txid, about)
        except TableCorrupt:
            if not self.has(ref):
                raise
            self.secure_names(owner, ref)

    def append_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append those of the `rows` that the history table does not contain yet; idempotent.

        Raises:
            FencedError: another coordinator has taken over.
        """
        self._check_leads()
        self.add_history(rows)

    @abstractmethod
    def has(self, ref: TableRef) -> bool:
        """Whether the table `ref` exists, even if it cannot be read."""

    @abstractmethod
    def table(self, owner: TopologyIdentity, ref: TableRef) -> TransactionalTable:
        """Open the table `ref` at its newest version.

        Raises:
            TableCorrupt: the table is missing or damaged.
            DataDirectoryError: the table does not belong to `owner`.
        """

    @abstractmethod
    def check_staged(self, uri: str, staged: Staged) -> None:
        """Raise `TableCorrupt` unless the file staged for the table `uri` exists and is unchanged."""

    @abstractmethod
    def check_history(self) -> None:
        """Raise `TableCorrupt` if the history table is damaged, `DataDirectoryError` if its format is too new."""

    @abstractmethod
    def create_table(
        self, owner: TopologyIdentity, ref: TableRef, schema: pa.Schema, txid: int, about: Mapping[str, str]
    ) -> None:
        """Create the table `ref`; raise `TableCorrupt` if it exists. Called by `create` only."""

    @abstractmethod
    def discard_torn(self, ref: TableRef) -> None:
        """Remove what a power failure may have left of the creation of a table that the ledger does not record.

        That is a log with a first entry that is not complete, and nothing else; the table is then created anew.

        Raises:
            FencedError: another coordinator has taken over.
        """

    @abstractmethod
    def secure_names(self, owner: TopologyIdentity, ref: TableRef) -> None:
        """Make durable the directory names of a table that another coordinator has created."""

    @abstractmethod
    def add_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append `rows` to the history table, which is created if it is missing. Called by `append_history` only."""


class Directory(TableDirectory):
    """Adapter: the `TableDirectory` of a data directory in a file system.

    It remembers the tables that it has opened, since opening is most of the work of a start: a table that no other
    writer has changed since is not opened again. Not thread-safe.
    """

    def __init__(self, path: Path, check_leads: Callable[[], None] = unshared) -> None:
        super().__init__(check_leads)
        self.path = path
        self._opened: dict[TableRef, DeltaTableState] = {}
        self._histories: Opened = {}

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
        check_history(self.path, self._histories)

    def create_table(
        self, owner: TopologyIdentity, ref: TableRef, schema: pa.Schema, txid: int, about: Mapping[str, str]
    ) -> None:
        """Create the table `ref`; raise `TableCorrupt` if it exists."""
        self._opened[ref] = DeltaTableState.create(self.path, owner, ref, schema, txid, about)

    def discard_torn(self, ref: TableRef) -> None:
        """Remove the first entry of a log if it is not complete, and nothing else belongs to the table."""
        path = self.path / ref.uri
        if (entry := torn_creation(path / LOG)) is None or any((path / STAGED).glob("*")):
            return
        self._check_leads()
        log.warning("table %s: its creation was interrupted by a power failure; it is created again", ref.uri)
        entry.unlink()
        sync_file(entry.parent)

    def secure_names(self, owner: TopologyIdentity, ref: TableRef) -> None:
        """Make durable the directory names of a table that another coordinator has created."""
        self.table(owner, ref).renew_directories()

    def add_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append `rows` to the history table, which is created if it is missing."""
        append_history(self.path, rows, self._histories)

    def describe_history(self, wanted: Mapping[str, str]) -> None:
        """Set those of the `wanted` table properties that the history table lacks; values set by a user are kept."""
        self._check_leads()
        describe_history(self.path, wanted, self._histories)

    def history(self) -> DeltaHandle | None:
        """Open the history table at its newest version; None if there is none. A later call returns the same handle."""
        path = self.path / HISTORY
        return open_history(path, self._histories) if is_table(path) else None


def placed(where: Path | TableDirectory, check_leads: Callable[[], None] = unshared) -> TableDirectory:
    """Wrap a path into a `TableDirectory`; return a `TableDirectory` unchanged."""
    return Directory(where, check_leads) if isinstance(where, Path) else where


def check_there(place: TableDirectory, ref: TableRef) -> None:
    """Raise `TableCorrupt` unless the table `ref` exists, even if it cannot be read."""
    if not place.has(ref):
        raise TableCorrupt(
            f"{place}: the ledger knows the table {ref.uri}, but there is none; restore the directory from a copy "
            "taken together with the ledger"
        )


def table_refs(data_dir: Path) -> Iterator[TableRef]:
    """Yield every table found in a data directory, whether or not the ledger records it."""
    for kind in (CHANGES, SINK, STATE):
        folder = data_dir / TableRef(kind, "").uri
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        yield from (TableRef(kind, name) for name in names if is_table(folder / name))
    letters = TableRef(LETTERS, "")
    if is_table(data_dir / letters.uri):
        yield letters


def outside_refs(data_dir: Path) -> list[TableRef]:
    """Return what has staged rows in a data directory, and its published rows outside, in order of publication."""
    order = [one.directory for one in KINDS]
    folders = [
        (one, kind) for one in data_dir.iterdir() if (kind := kind_in(one.name)) and kind.outside and one.is_dir()
    ]
    folders.sort(key=lambda found: (order.index(found[0].name) if found[0].name in order else len(order), found[0]))
    return [TableRef(kind.name, one.name) for folder, kind in folders for one in sorted(folder.iterdir())]
