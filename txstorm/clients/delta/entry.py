"""Log entries of a Delta table as files: commit without delta-rs, and make entries durable.

To commit to a plain table without delta-rs, write the entry to a temporary file and hard-link it as version N+1. The
link fails if that version exists (put-if-absent), which makes the commit a compare-and-set. delta-rs lists and reads
the log before and after every commit, which is most of the cost of a small commit; a coordinator that has written the
last version itself need not do so.

This module also defines the value types of commits: data files, commits and log entries. It does not import deltalake.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from txstorm.clients.delta.log import CHECK, INFO, LOG, checksum, entry_name, is_table, own_info, paths_of
from txstorm.clients.delta.writer_lock import is_shared, locked
from txstorm.clients.files import checked_path, read_whole, rewrite, sync_file, write_synced
from txstorm.errors import TableCorrupt

if TYPE_CHECKING:
    import pyarrow as pa


LOG_RETENTION = "delta.logRetentionDuration"
"""Table property: the time that entries are kept in the log."""
LOG_BOUND = "txstorm.logBound"
"""Table property: the most entries of its log, and for how long; counts if the promise is lowered."""
LOWERED = "interval 1 second"
"""Value of `LOG_RETENTION` of a table whose log is bounded by the number of its entries."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table, as described in its log.

    Attributes:
        path: path relative to the table.
        size: size in bytes.
        modified: modification time, milliseconds since 1970.
        stats: Delta's statistics of the file, as JSON.
    """

    path: str
    size: int
    modified: int = 0
    stats: str = "{}"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One version of a table, as described by its log entry.

    Attributes:
        version: the version that the entry has created.
        info: the fields that txstorm has written to its commit info; empty for a commit by a foreign writer.
    """

    version: int
    info: Mapping[str, Any]


class Commit(NamedTuple):
    """Content of a commit to be made.

    Attributes:
        transactions: app transactions (app id → number) written with the commit.
        info: fields stored in the commit info under ``txstorm``.
        adds: files to add to the table.
        removes: files to remove from the table.
        removed_at: deletion time recorded for removed files, in milliseconds since 1970.
        label: one line of text for ``DESCRIBE HISTORY`` (its ``userMetadata``).
        data_change: False if rows only move to other files.
        properties: table properties to set; such a commit has no files.
        columns: schema and properties that replace those of the table; for an empty table only.
    """

    transactions: Mapping[str, int]
    info: Mapping[str, Any]
    adds: Sequence[DataFile] = ()
    removes: Sequence[DataFile] = ()
    removed_at: int = 0
    label: str = ""
    data_change: bool = True
    properties: Mapping[str, str] = MappingProxyType({})
    columns: tuple[pa.Schema, Mapping[str, str]] | None = None


PLAIN = (1, 2)
"""Reader and writer version of a plain table, to which txstorm commits without delta-rs."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class NoLinksError(Exception):
    """The file system does not support hard links; nothing was written."""


def commit_info(commit: Commit, columns: list[Any] | None = None) -> dict[str, Any]:
    """Return txstorm's fields of the commit info; `columns`: schema and properties, if the entry sets them."""
    label = {"userMetadata": commit.label} if commit.label else {}
    adds = [(file.path, file.size, file.modified, file.stats) for file in commit.adds]
    removes = [file.path for file in commit.removes]
    check = checksum(commit.info, adds, removes, commit.transactions.items(), columns)
    return {INFO: {**commit.info, CHECK: check}, **label}


def entry_bytes(commit: Commit, info: Mapping[str, Any], now: int, columns: Mapping[str, Any] | None = None) -> bytes:
    """Encode the log entry of `commit`.

    `info`: its commit info, except the operation; `columns`: the ``metaData`` action, if it sets columns and
    properties; `now` in milliseconds.
    """
    return _encoded([*_actions(commit, info, now), *([{"metaData": columns}] if columns else [])])


def _encoded(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def table_action(known: Any, schema: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the ``metaData`` action that changes the schema (JSON) and properties of a table with metadata `known`."""
    return {
        "id": str(known.id),
        "name": known.name,
        "description": known.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": list(known.partition_columns),
        "createdTime": known.created_time,
        "configuration": dict(properties),
    }


def put_entry(entry: Path, before: Path | None, data: bytes) -> int | None:
    """Write the log entry `entry` atomically unless it already exists (put-if-absent); return its inode number.

    Returns None if that version or a later one already exists. The content is durable before the entry gets its name;
    the name is durable once the directory has been synced.

    Old entries are moved out of the log, lowest version first. So as long as `before`, the entry of the previous
    version, exists, a name that is free has never been used. The first entry of a table has none `before` it.

    Raises:
        NoLinksError: the file system does not support hard links.
        OSError: the entry could not be written.
    """
    if before is not None and not before.exists():
        before.parent.stat()  # raises if the whole log is missing
        return None
    made = entry.with_name(f"_commit_{uuid.uuid4()}.json.tmp")  # named as by delta-rs; readers ignore such files
    try:
        write_synced(made, data)
        return made.stat().st_ino if _linked(made, entry, before) else None
    finally:
        made.unlink(missing_ok=True)


def put_first_entry(table: Path, commit: Commit, schema: str, properties: Mapping[str, str]) -> int:
    """Create a plain table: write its first log entry, without files; return the inode number. See `put_entry`.

    Args:
        table: the table's directory.
        commit: the commit.
        schema: the columns, as JSON.
        properties: the table's properties.

    Raises:
        NoLinksError: the file system does not support hard links; there is an empty log.
        OSError: there is a table already, or the entry could not be written.
    """
    now, log = milliseconds(), table / LOG
    known = SimpleNamespace(id=uuid.uuid4(), name=None, description=None, partition_columns=(), created_time=now)
    columns = table_action(known, schema, properties)
    info = commit_info(commit, [json.loads(schema), columns["configuration"]])
    about, *others = _actions(commit, info, now)
    about["commitInfo"] |= {"operation": "CREATE TABLE", "operationParameters": {"mode": "ErrorIfExists"}}
    protocol = dict(zip(("minReaderVersion", "minWriterVersion"), PLAIN, strict=True))
    log.mkdir(parents=True, exist_ok=True)
    data = _encoded([about, {"protocol": protocol}, {"metaData": columns}, *others])
    inode = None if is_table(table) else put_entry(log / entry_name(0), None, data)
    if inode is None:
        raise FileExistsError(errno.EEXIST, "there is a table already", str(table))
    return inode


def has_inode(entry: str, inode: int) -> bool:
    """Return whether `entry` is still the file that `put_entry` wrote; True if it has been moved to the archive.

    Spark's log store for local disks checks whether an entry exists and then renames over it, so it may replace an
    entry that was written between the two steps. Called before P8 (complete), and before the next commit.
    """
    try:
        return os.stat(entry).st_ino == inode
    except FileNotFoundError:  # or the whole log is missing, which the next commit or refresh reports
        return True


def put_files(files: Mapping[Path, bytes]) -> None:
    """Write files of one log durably, each of them atomically, replacing files of the same name."""
    for file, data in files.items():
        made = file.with_name(f"_commit_{uuid.uuid4()}.json.tmp")
        try:
            write_synced(made, data)
            made.replace(file)
        finally:
            made.unlink(missing_ok=True)
    try:
        for directory in {file.parent for file in files}:
            sync_file(directory)
    except OSError:  # a later sync of the same files would prove nothing: write them again
        for file in files:
            rewrite(file)
        for directory in {file.parent for file in files}:
            sync_file(directory)


def _linked(made: Path, entry: Path, before: Path | None) -> bool:
    try:
        os.link(made, entry)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise NoLinksError from error
        raise
    if before is None or before.exists():
        return True
    entry.unlink()  # the version was archived before: this entry is older than a checkpoint, and no reader has seen it
    return False


def make_durable(table: Path, entries: Iterable[Path], *, again: bool = False) -> None:
    """Make the given log entries of `table`, and all file names in its log, durable.

    delta-rs and Spark do not sync what they write. Entries of tables that Spark writes to are synced as they are,
    together with the data files that they reference; other entries are rewritten, so that no reader sees content whose
    sync has failed. Entries that `put_entry` has just written are synced already and need not be passed. Missing
    entries are skipped. With `again`, as an earlier sync may have failed, even Spark's entries and files are rewritten.

    Raises:
        OSError: a file cannot be written or synced; call this with `again` next time.
        TableCorrupt: a file no longer has the content that was written.
    """
    shared = is_shared(table)
    with locked(table) if again else nullcontext():  # Spark checks for an entry first, and then renames over it
        for entry in entries:
            if not entry.exists():  # archived: a checkpoint has replaced it
                continue
            # Those that Spark may have written.
            own = (path for path in paths_of(entry) if not path.startswith("_txstorm/")) if shared else ()
            files = [file for path in own if (file := table / checked_path(path)).exists()]
            for file in files:
                _write_again(table, file) if again else sync_file(file)
            for directory in {file.parent for file in files}:
                sync_file(directory)
            sync_file(entry) if shared and not again else _write_again(table, entry)
    sync_file(table / LOG)


def _write_again(table: Path, file: Path) -> None:
    try:
        if file.parent.name == LOG:
            own_info(file)
        elif (sums := file.with_name(f".{file.name}.crc")).exists():
            _check_sums(read_whole(file), read_whole(sums))
    except ValueError as cause:
        raise TableCorrupt(
            f"{file}: content differs from what was written before a failed sync: {cause}; restore {table} from a copy"
        ) from cause
    rewrite(file)


def _check_sums(data: bytes, sums: bytes) -> None:
    """Raise `ValueError` unless `data` matches the Hadoop checksums `sums`: header, chunk size, CRC-32 per chunk."""
    step = int.from_bytes(sums[4:8], "big") if sums[:4] == b"crc\0" else 0
    if step and sums[8:] != b"".join(
        zlib.crc32(data[at : at + step]).to_bytes(4, "big") for at in range(0, len(data), step)
    ):
        raise ValueError("it does not match the checksums in the .crc file beside it")


def _actions(commit: Commit, info: Mapping[str, Any], now: int) -> Iterator[dict[str, Any]]:
    operation = {"operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"}}
    yield {"commitInfo": {"timestamp": now, **operation, "engineInfo": "txstorm", **info}}
    change = commit.data_change
    for file in commit.adds:
        added = {"path": quote(file.path), "partitionValues": {}, "size": file.size, "modificationTime": file.modified}
        yield {"add": {**added, "dataChange": change, "stats": file.stats}}
    for file in commit.removes:
        removed = {"path": quote(file.path), "dataChange": change, "deletionTimestamp": commit.removed_at}
        yield {"remove": {**removed, "extendedFileMetadata": True, "partitionValues": {}, "size": file.size}}
    for app, version in commit.transactions.items():
        yield {"txn": {"appId": app, "version": version}}


def milliseconds() -> int:
    """Return the wall-clock time in milliseconds since 1970, as recorded in log entries."""
    return time.time_ns() // 1_000_000
