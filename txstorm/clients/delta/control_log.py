"""Control table: a Delta table used for its log, every version of which carries a JSON document.

It stores a ledger, on a local disk or in any object store that delta-rs supports; versions are written by
compare-and-set. Unlike the tables of a topology (`txstorm.clients.delta.handle`), it is read entry by entry: an entry
is one file, so checking for a newer entry is a single read, and delta-rs is needed only to open the table and to
commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction, Transaction
from pyarrow.fs import FileSelector, PyFileSystem

from txstorm import faults
from txstorm.clients.delta.features import first_line
from txstorm.clients.delta.log import INFO, LOG, check_log
from txstorm.clients.files import make_directories, read_whole, rewrite, sync_file, sync_names, write_synced
from txstorm.errors import ConflictError, DataDirectoryError, TableCorrupt, TxstormError

APP = "txstorm/ledger"
BUFFER = 64 * 1024
_ENTRY = re.compile(r"(\d{20})\.(?:json|checkpoint\..*)")
_PATIENCE = {"connect_timeout": "3s", "timeout": "10s", "retry_timeout": "8s"}
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
# Only this module may shorten the log: the documents since the last snapshot are not in any data file.
_PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
}


class LocalFiles:
    """A table's files on a local file system, by paths relative to the table; methods raise `OSError` on failure."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        """Read a file; None if it does not exist."""
        try:
            return read_whole(self._root / path)
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a new file; it is durable when this returns."""
        file = self._root / path
        make_directories(file.parent)
        write_synced(file, data)
        sync_file(file.parent)

    def remove(self, path: str) -> None:
        """Delete a file; ignore a missing file."""
        (self._root / path).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """List the names of the files in a folder."""
        return [file.name for file in (self._root / folder).glob("*")]

    def secure(self, paths: Sequence[str]) -> None:
        """Make files written by delta-rs durable: rewrite and sync them and their directories; skip missing files."""
        for path in paths:
            rewrite(self._root / path)
        for parent in {(self._root / path).parent for path in paths}:
            sync_file(parent)

    def secure_directories(self) -> None:
        """Make the names of the table's directories durable."""
        for directory in (self._root, self._root.parent):
            sync_file(directory)


class StoredFiles:
    """The same in an object store, where every completed write is durable."""

    def __init__(self, table: DeltaTable) -> None:
        self._files = PyFileSystem(DeltaStorageHandler.from_table(table._table))  # noqa: SLF001 - its documented use

    def read(self, path: str) -> bytes | None:
        """Read an object; None if it does not exist."""
        try:
            with self._files.open_input_stream(path) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write an object; it is durable when this returns."""
        # Without this buffer, pyarrow passes buffers of a type that delta-rs does not accept.
        with self._files.open_output_stream(path, buffer_size=BUFFER) as stream:
            stream.write(data)

    def remove(self, path: str) -> None:
        """Delete an object; ignore a missing object."""
        try:
            self._files.delete_file(path)
        except FileNotFoundError:
            return

    def names(self, folder: str) -> list[str]:
        """List the names below a prefix."""
        found = self._files.get_file_info(FileSelector(folder, allow_not_found=True))
        return [info.base_name for info in found]

    def secure(self, paths: Sequence[str]) -> None:
        """Do nothing: completed writes are durable."""

    def secure_directories(self) -> None:
        """Do nothing: object stores have no directories."""


Files = LocalFiles | StoredFiles


class ControlTable:
    """Handle on a control table, at the version to which it last moved. Not thread-safe."""

    def __init__(self, uri: str, table: DeltaTable, files: Files) -> None:
        self.uri = uri
        self.files = files
        self._table = table
        self._unsynced: list[str] = []

    @classmethod
    def open(cls, uri: str) -> ControlTable | None:
        """Open the table at its newest version; None if it does not exist.

        The URI is an absolute path, or one that delta-rs supports; credentials come from the environment.

        Raises:
            DataDirectoryError: the table's log cannot be read, or the store cannot be reached.
        """
        try:
            if (path := local_path(uri)) is not None:
                check_log(path)
            table = DeltaTable(uri, storage_options=_options(uri))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as cause:
            raise _unreadable(uri, cause, DataDirectoryError) from cause
        return cls(uri, table, _files(uri, table))

    @classmethod
    def create(cls, uri: str, schema: pa.Schema, properties: Mapping[str, str], info: Mapping[str, Any]) -> None:
        """Create an empty table with the document `info`; do nothing if another process has just created it."""
        try:
            DeltaTable.create(
                uri,
                schema=Schema.from_arrow(schema),
                configuration={**_PROPERTIES, **properties},
                commit_properties=_commit_properties(info, 0),
                storage_options=_options(uri),
                raise_if_key_not_exists=False,
            )
            if (path := local_path(uri)) is not None:
                sync_names(path, [path / LOG])
        except (DeltaError, OSError, ValueError) as cause:
            if not _exists(uri):
                raise _unreadable(uri, cause, DataDirectoryError) from cause

    @property
    def version(self) -> int:
        """The version that this handle is at."""
        return int(self._table.version())

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return dict(self._table.metadata().configuration)

    def paths(self) -> list[str]:
        """Return the paths of the data files of this version."""
        return [str(path) for path in self._call(lambda: self._table.get_add_actions(flatten=True))["path"].to_pylist()]

    def entry(self, version: int) -> Mapping[str, Any] | None:
        """Return the document of a version; None if there is no such version, empty if a foreign writer wrote it.

        Raises:
            TableCorrupt: the entry is not a log entry.
            TxstormError: the store cannot be reached.
        """
        try:
            data = self.files.read(_entry_path(version))
            return None if data is None else _document(data)
        except ValueError as cause:
            raise TableCorrupt(f"{self.uri}: entry {version} of the log is damaged: {cause}") from cause
        except OSError as cause:
            raise _unreadable(self.uri, cause) from cause

    def exists(self, version: int) -> bool:
        """Return whether the log still contains the entry of `version`."""
        return self.entry(version) is not None

    def append(
        self, info: Mapping[str, Any], adds: Sequence[tuple[str, int]] = (), removes: Sequence[str] = ()
    ) -> None:
        """Write the next version, with the document `info`, if this handle is at the newest version.

        Passes the fault points ``ledger.before`` and ``ledger.written`` (between write and response). `adds`: path and
        size of data files.

        Raises:
            ConflictError: that version already exists.
            TxstormError: the write failed for another reason; the version may exist nevertheless, so try to read it.
        """
        faults.point("ledger.before")
        actions: list[AddAction | RemoveAction] = [AddAction(path, size, {}, 0, True, "{}") for path, size in adds]
        actions += [RemoveAction(path, True, 0, 0, {}) for path in removes]
        self._unsynced.append(_entry_path(self.version + 1))
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                commit_properties=_commit_properties(info, self.version + 1),
                post_commithook_properties=_NO_HOOKS,
            )
        except CommitFailedError as lost:
            raise ConflictError(f"{self.uri}: version {self.version} is not the newest: {first_line(lost)}") from lost
        except (DeltaError, OSError) as cause:
            raise _unreadable(self.uri, cause) from cause
        faults.point("ledger.written")

    def advance(self) -> None:
        """Move to the newest version; also needed after `append`, which does not move the handle."""
        self._call(self._table.update_incremental)

    def sync(self) -> None:
        """Make durable all entries that this handle has appended or distrusts; after a failure, call it again.

        delta-rs gives an entry its name before the content is durable, so the entry is replaced with a synced copy.
        """
        if self._unsynced:
            self._call(lambda: self.files.secure(self._unsynced))
            self._unsynced.clear()

    def distrust(self, versions: range) -> None:
        """Make the next `sync` rewrite `versions`, since the process that wrote them may not have synced them."""
        self._unsynced = [_entry_path(version) for version in versions]
        self._call(self.files.secure_directories)

    def owe(self, other: ControlTable) -> None:
        """Take over the entries that are not durable yet from `other`, a handle that is no longer used."""
        self._unsynced += other._unsynced

    def checkpoint(self) -> None:
        """Write a checkpoint, which speeds up opening the table; call right after a version with a full snapshot."""
        self._call(self._table.create_checkpoint)
        checkpoint = [name for name in self.files.names(LOG) if name.startswith(f"{self.version:020d}.checkpoint")]
        self.files.secure([f"{LOG}/{name}" for name in [*checkpoint, "_last_checkpoint"]])
        self._table = self._call(lambda: DeltaTable(self.uri, storage_options=_options(self.uri)))

    def forget(self, before: int) -> None:
        """Delete the log entries and checkpoints of versions before `before`, oldest first."""
        old = sorted(
            name for name in self.files.names(LOG) if (found := _ENTRY.fullmatch(name)) and int(found[1]) < before
        )
        for name in old:
            self.files.remove(f"{LOG}/{name}")

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except (DeltaError, OSError) as cause:
            raise _unreadable(self.uri, cause) from cause


def local_path(uri: str) -> Path | None:
    """Return the local directory that `uri` names; None for an object store."""
    return None if "://" in uri else Path(uri)


def _options(uri: str) -> dict[str, str] | None:
    """Return storage options with short timeouts for an object store, since delta-rs retries for minutes by default."""
    return None if local_path(uri) is not None else dict(_PATIENCE)


def _files(uri: str, table: DeltaTable) -> Files:
    path = local_path(uri)
    return StoredFiles(table) if path is None else LocalFiles(path)


def _exists(uri: str) -> bool:
    try:
        return bool(DeltaTable.is_deltatable(uri, _options(uri)))
    except (DeltaError, OSError, ValueError):
        return False


def _entry_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _commit_properties(info: Mapping[str, Any], version: int) -> CommitProperties:
    return CommitProperties(
        custom_metadata={INFO: dict(info)},
        max_commit_retries=0,
        app_transactions=[Transaction(APP, version)],
    )


def _document(data: bytes) -> Mapping[str, Any]:
    for line in data.splitlines():
        action = json.loads(line)
        if "commitInfo" in action:
            own = action["commitInfo"].get(INFO)
            return own if isinstance(own, dict) else {}
    return {}


def _unreadable(uri: str, cause: BaseException, kind: type[TxstormError] = TxstormError) -> TxstormError:
    return kind(
        f"ledger {uri}: expected a Delta table that can be read and written, got: {first_line(cause)}; check the URI, "
        "the network and the credentials in the environment"
    )
