"""One Delta table in a topology's data directory: create it, open it, checkpoint its log and make it durable.

Also the port for writers, which publish the rows of groups, and the default writer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from txstorm.clients.delta.archive import Archiving, Shortening
from txstorm.clients.delta.data_files import STATS_COLUMNS
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.features import append_only_text
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import checkpoint_after
from txstorm.clients.files import renew, sync_file, sync_names
from txstorm.errors import TableCorrupt, TableRefused
from txstorm.storage.rows.schema import OP, schema_differences
from txstorm.storage.rows.ttl import TTL
from txstorm.storage.tables.identity import FORMAT, KEYS, LAYOUT, VALUES, TableRef, TopologyIdentity
from txstorm.storage.tables.intent import STAGED, STATE, IntentTable
from txstorm.storage.tables.merge_layout import merged_files
from txstorm.storage.tables.staging import checked_bytes, data_file
from txstorm.storage.tables.table_log import (
    CREATED,
    REDEFINED,
    TransactionalTable,
)


class Writer(Protocol):
    """Port: publishes the staged rows of groups to the tables that are declared with this writer.

    Every other commit (an epoch, a compaction, a rewind, or a group rolled forward by a new coordinator) goes through
    the table's handle, whichever writer is declared, so the writer of a table may change from run to run.
    """

    def prepare(self, table: Path) -> bool:
        """Prepare `table` in P0 (take-over), before its epoch is raised.

        Returns True if the epoch has to be committed even if it is unchanged.

        Raises:
            InputError: this writer cannot write to the table safely.
        """

    def commit(self, handle: DeltaHandle, commit: Commit, txid_app: str) -> int | None:
        """Write the next version if `handle` is at the newest one; otherwise change nothing.

        Returns the version, or None if the outcome is unknown and has to be read from the table. The caller refreshes
        the handle unless it has moved to that version. `txid_app`: the app id in `commit` that records the txid.

        Raises:
            ConflictError: the table is at another version than the handle, or another writer has committed meanwhile.
            TableCorrupt: the commit failed for another reason, but may have taken effect nevertheless.
            BlockedError: the table cannot be written to at the moment.
        """


class DirectWriter:
    """The default writer: the driver writes a log entry that refers to the staged files."""

    def prepare(self, table: Path) -> bool:
        """Return False: the default writer needs no preparation."""
        return False

    def commit(self, handle: DeltaHandle, commit: Commit, txid_app: str) -> int | None:
        """Commit through the handle; see `Writer.commit`."""
        handle.commit(commit)
        return handle.version


DIRECT = DirectWriter()


log = logging.getLogger(__name__)

_DECLARED = {KEYS, VALUES, LAYOUT, TTL}
"""Table properties that are derived from the declaration; a property that is not declared is absent from the table."""


class DeltaTableState(TransactionalTable):
    """A Delta table in a data directory, at the version last read."""

    def __init__(self, data_dir: Path, owner: TopologyIdentity, ref: TableRef, handle: DeltaHandle) -> None:
        self.data_dir, self.path = data_dir, data_dir / ref.uri
        self._handle = handle
        self._writer: Writer = DIRECT
        self._long_after = checkpoint_after(0)
        self._archiving = Archiving()
        super().__init__(owner, ref, handle, str(self.path))

    @classmethod
    def open(cls, data_dir: Path, owner: TopologyIdentity, ref: TableRef) -> DeltaTableState:
        """Open an existing table.

        Raises:
            TableCorrupt: it is missing or damaged.
            DataDirectoryError: it belongs to another topology, or has a newer format.
        """
        return cls(data_dir, owner, ref, DeltaHandle.open(data_dir / ref.uri))

    @classmethod
    def create(
        cls,
        data_dir: Path,
        owner: TopologyIdentity,
        ref: TableRef,
        schema: pa.Schema,
        txid: int,
        about: Mapping[str, str],
        since: int | None = None,
    ) -> DeltaTableState:
        """Create an empty table as of `txid`, and make it durable.

        Args:
            data_dir: the data directory.
            owner: the topology that the table belongs to.
            ref: kind and name of the table.
            schema: the columns.
            txid: the txid that the table is as of.
            about: further table properties; those that shall follow later changes of the settings come from
                `identity.recorded`.
            since: the txid after which the table begins; None: `txid`. An earlier txid is for a table that is about
                to receive a copy of older rows.
        """
        since = txid if since is None else since
        path = data_dir / ref.uri
        new = [directory for directory in (path / STAGED, *(path / STAGED).parents) if not directory.exists()]
        (path / STAGED).mkdir(parents=True, exist_ok=True)
        info = {**owner.info(), "kind": CREATED, "last": txid}
        commit = Commit({ref.txid_app(owner): txid, owner.epoch_app: 0, owner.since_app: since}, info)
        properties = {**owner.properties(), STATS_COLUMNS: ref.bounded, **about}
        handle = DeltaHandle.create(path, schema, properties, commit)
        table = cls(data_dir, owner, ref, handle)
        table.sync(range(1))
        new.append(handle.log_entry(0).parent)
        for parent in ((path / STAGED).parent, path, path.parent, data_dir):
            sync_names(parent, [directory for directory in new if directory.parent == parent])
        return table

    def renew_directories(self) -> None:
        """Make durable the directory names of a table that an earlier start created but was killed before recording."""
        staged = self.path / STAGED
        staged.mkdir(parents=True, exist_ok=True)  # a power failure may have taken it
        for directory in (staged, staged.parent, self._handle.log_entry(0).parent, self.path):
            renew(directory)
            sync_file(directory.parent)
        sync_file(self.path.parent.parent)

    def use(self, writer: Writer) -> None:
        """Use `writer` to publish groups from now on; call before the epoch is raised."""
        self._writer = writer

    def prepare(self) -> bool:
        """Have the writer prepare the table; raise `InputError` if it cannot write to the table safely."""
        return self._writer.prepare(self.path)

    def is_newest(self) -> bool:
        """Move to the newest version; return whether it is still the one last read or written through this object."""
        return is_unchanged(self._handle)

    def check_writable(self) -> None:
        """Raise `TableRefused` if the table has a feature that txstorm does not implement."""
        self._handle.check_writable()
        if self.ref.kind == STATE and self._handle.append_only:
            raise TableRefused(append_only_text(self.path))

    def due_properties(self) -> Mapping[str, str]:
        """The table property that names the column with file statistics, if it is missing or wrong; otherwise empty.

        Without it, deltalake takes missing bounds for null and finds no rows when filtering by any other column. If the
        files have bounds for other columns only, written by other writers or an older txstorm, the property must name
        no column.
        """
        found, wanted = self._handle.properties.get(STATS_COLUMNS), self.ref.bounded
        if found != wanted and self._handle.is_silent(wanted):
            wanted = ""
        return {} if found == wanted else {STATS_COLUMNS: wanted}

    def commit_group(self, commit: Commit) -> int | None:
        """Commit a group's rows through the table's writer; see `TransactionalTable.commit_group`."""
        self.check_writable()
        return self._writer.commit(self._handle, commit, self._txid_app)

    def redefine(self, schema: pa.Schema, about: Mapping[str, str], epoch: int) -> None:
        """Change the columns of a table without transactions, and the properties describing them, in one commit.

        Call from the coordinator that leads the table; `epoch`: its epoch.

        Raises:
            FencedError: a newer coordinator leads the table.
            StateError: the table has features with which txstorm cannot change columns.
            BlockedError: the commit cannot be made.
        """
        others = {key: text for key, text in self._handle.properties.items() if key not in _DECLARED}
        form = {FORMAT: self._handle.properties[FORMAT]}  # other tables of the component may have rows in this form
        properties = {**others, **self.owner.properties(), **about, **form}

        def made() -> Commit:
            label = "txstorm other columns, before any row"
            return Commit(*self._repeating(REDEFINED, epoch), columns=(schema, properties), label=label)

        def is_done() -> bool:
            return not schema_differences(schema, self._handle.schema) and self._handle.properties == properties

        self.amend(is_done, made, epoch, "give it other columns")

    @property
    def handle(self) -> DeltaHandle:
        """The handle of the underlying Delta table, for reading."""
        return self._handle

    def check_there(self) -> None:
        """Check, without reading the log, that it can be written to; called before a group is published to any table.

        Raises:
            BlockedError: the log is missing, or this process has no permission to write to it.
        """
        log = self._handle.log_entry(0).parent
        if os.access(log, os.W_OK):
            return
        try:
            self._handle.reopen()
        except TableCorrupt as unreadable:
            raise self.blocked("commit to it", unreadable) from unreadable
        raise self.blocked("commit to it", PermissionError(f"no right to write to {log}"))

    @property
    def is_long(self) -> bool:
        """Whether the log has grown so long that a checkpoint is due. Thread-safe."""
        return self._handle.version >= self._handle.checkpointed + self._long_after

    def _checkpoint_after(self) -> int:
        """Return the number of versions between two checkpoints, which are expensive.

        The number is larger if the log is read only when the table is opened.
        """
        alone = self._writer is DIRECT and self._handle.is_plain
        return checkpoint_after(self._handle.checkpointed if alone else 0)

    def opener(self) -> Callable[[], DeltaTableState]:
        """Return a function that opens a new handle at the newest version, on any thread.

        Neither this call nor the function lists the log directory.
        """
        opened, data_dir, owner, ref = self._handle.opener(newest=True), self.data_dir, self.owner, self.ref
        return lambda: DeltaTableState(data_dir, owner, ref, opened())

    def shortening(self) -> Shortening:
        """Return the task of checkpointing and shortening the log; call `shortened` after its last step.

        Call both in the committer's turn.
        """
        return Shortening(self._handle.opener(), self.ref.uri, self._long_after, self._archiving)

    def shortened(self, done: Shortening) -> None:
        """Read the log from the checkpoint that `done` has written, if any; call in the committer's turn."""
        if done.made is not None:
            self._handle.begin_with(done.made)
            self._long_after = self._checkpoint_after()

    def log_span(self) -> float | None:
        """Return for how many seconds the log keeps an entry at the present rate; None if its length is not bounded."""
        return self._archiving.span(self._handle)

    def tidy(self) -> None:
        """Shorten the log now if that is due; call when no commits have to wait for it."""
        if self.is_long:
            work = self.shortening()
            for _ in work.steps():
                pass
            self.shortened(work)
        self._long_after = self._checkpoint_after()

    def sync(self, versions: range, *, again: bool = False) -> None:
        """Make the log entries of `versions` durable; `again`: an earlier sync of these entries may have failed."""
        self._handle.make_durable(versions, again=again)

    def published_files(self, table: IntentTable, epoch: int, stamp: int) -> tuple[list[DataFile], list[DataFile]]:
        """Return the files that publishing adds and removes.

        The files added are the staged files or, with the layout ``merge``, rewritten files.
        `stamp`: processing time of the group's last txid, in UTC microseconds since 1970.

        Raises:
            TableCorrupt: a staged file is missing or has another size, or a file to be rewritten is damaged.
            OSError: the disk is full.
        """
        if table.kind != STATE:
            return [data_file(self.path, staged) for staged in table.files], []
        self.check_columns(table)
        return merged_files(self._handle, table.files, epoch, stamp)

    def check_columns(self, table: IntentTable) -> None:
        """Raise `TableCorrupt` unless the table has the columns of the staged rows."""
        self.check_schema(table.arrow_schema())

    def check_staged(self, table: IntentTable) -> None:
        """Raise `TableCorrupt` unless the staged files are unchanged and have the table's columns."""
        self.check_columns(table)
        for staged in table.files:
            checked_bytes(self.path, staged)

    def at(self, version: int) -> DeltaHandle:
        """Open the table at `version`."""
        return self._handle if version == self.version else DeltaHandle.open(self.path, version)

    def has_file(self, path: str) -> bool:
        """Whether a file exists at `path`, relative to the table."""
        return (self.path / path).exists()

    def check_schema(self, expected: pa.Schema) -> None:
        """Raise `TableCorrupt` unless the table has the columns `expected` of the rows in a decided transaction."""
        if self.ref.kind == STATE:  # the layout merge: the staged rows are changes
            expected = pa.schema([field for field in expected if field.name != OP.name])
        differences = schema_differences(expected, self._handle.schema)
        if differences:
            msg = f"table {self.ref.uri}: differs from the rows to publish: {'; '.join(differences)}; restore the table"
            raise TableCorrupt(msg)


def is_unchanged(handle: DeltaHandle) -> bool:
    """Move to the newest version; return whether it is still the one that `handle` has last read or written."""
    version = handle.version
    handle.refresh()
    return handle.version == version and handle.still_has(version)


def open_table(data_dir: Path, ref: TableRef) -> DeltaTableState:
    """Open the table `ref` for reading only, on the timeline of its newest commit."""
    handle = DeltaHandle.open(data_dir / ref.uri, once=True)
    found = handle.properties
    timelines = (entry.info["timeline"] for entry in handle.history() if "timeline" in entry.info)
    owner = TopologyIdentity(
        found.get("txstorm.topology", ""), found.get("txstorm.incarnation", ""), next(timelines, 0)
    )
    return DeltaTableState(data_dir, owner, ref, handle)
