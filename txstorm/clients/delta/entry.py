"""Log entries of a Delta table as files: how one is made without delta-rs, and how they become durable.

The compare-and-set of a plain table is that the name of its next entry must be new.

delta-rs lists and reads the log before and after every commit, most of what a small commit costs. A coordinator
that has made the last version itself knows all that stands there: the name of the next one is taken, or it is not.

What is told to a Delta table and what it tells: files, commits, entries of its log.
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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from txstorm.clients.delta.log import LOG, own_info, paths_of
from txstorm.clients.delta.writer_lock import is_shared, locked
from txstorm.clients.files import checked_path, read_whole, rewrite, sync_file, write_synced
from txstorm.errors import TableCorrupt

if TYPE_CHECKING:
    import pyarrow as pa


LOG_RETENTION = "delta.logRetentionDuration"
"""The table property that says for how long an entry stays in the log."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table.

    Attributes:
        path: relative to the table.
        size: bytes.
        modified: milliseconds since 1970.
        stats: Delta's statistics of the file, as JSON.
    """

    path: str
    size: int
    modified: int = 0
    stats: str = "{}"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one version of a table says about itself.

    Attributes:
        version: the version it made.
        info: what txstorm wrote into its commit info; empty for a commit of somebody else.
    """

    version: int
    info: Mapping[str, Any]


class Commit(NamedTuple):
    """One commit to make.

    Attributes:
        transactions: app id → version, all written with the commit.
        info: goes into the commit info under ``txstorm``.
        adds: files that become part of the table.
        removes: files that leave it.
        removed_at: milliseconds since 1970 that removed files are marked with.
        label: one line for ``DESCRIBE HISTORY`` (its ``userMetadata``).
        data_change: False when the rows stay what they are, in other files.
        properties: table properties that it sets; such a commit has no files.
        columns: (schema, properties) that the table gets instead of its own; of an empty table only.
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
"""Reader and writer version of a table that needs no more than this; others are left to delta-rs."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class NoLinksError(Exception):
    """The file system cannot give a file a second name; nothing was written."""


def entry_bytes(commit: Commit, info: Mapping[str, Any], now: int, columns: Mapping[str, Any] | None = None) -> bytes:
    """The content of the entry of `commit`; `info` is its commit info but for the operation, `now` in ms since 1970.

    `columns`: the action that says of the table which columns and properties it has from here on.
    """
    actions = [*_actions(commit, info, now), *([{"metaData": columns}] if columns else [])]
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def table_action(known: Any, schema: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """What an entry says of the table with another schema (JSON) and properties; it stays the `known` one."""
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


def put_entry(entry: Path, before: Path, data: bytes) -> int | None:
    """Make the log entry `entry`, whole or not at all; returns its inode number.

    Returns None when that version, or a later one, is there already.

    Its bytes are durable when it gets its name; the name is when the directory has been synced.

    Entries move out of the log when they are old, lower versions first: as long as `before`, the entry of the version
    before, is there, a name that is free was never taken.

    Raises:
        NoLinksError: this file system does not allow it in this way.
        OSError: it could not be written.
    """
    if not before.exists():
        before.parent.stat()  # raises where the whole log is gone
        return None
    made = entry.with_name(f"_commit_{uuid.uuid4()}.json.tmp")  # as delta-rs names its own; no reader looks at them
    try:
        write_synced(made, data)
        return made.stat().st_ino if _linked(made, entry, before) else None
    finally:
        made.unlink(missing_ok=True)


def has_inode(entry: str, inode: int) -> bool:
    """Whether `entry` is still the file that `put_entry` made; True where it has moved to the archive.

    Spark's log store for local disks looks whether an entry is there and then renames over it, so it can replace one
    that was made between the two. Asked before P8, and before the next commit.
    """
    try:
        return os.stat(entry).st_ino == inode
    except FileNotFoundError:  # or the whole log is gone, which the next commit or refresh tells
        return True


def put_files(files: Mapping[Path, bytes]) -> None:
    """Write files of one log, each whole or not at all, over one of the same name, durably."""
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
    except OSError:  # given their names once more, and no sync is believed that follows the failed one
        for file in files:
            rewrite(file)
        for directory in {file.parent for file in files}:
            sync_file(directory)


def _linked(made: Path, entry: Path, before: Path) -> bool:
    try:
        os.link(made, entry)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise NoLinksError from error
        raise
    if before.exists():
        return True
    entry.unlink()  # it was taken and moved away: what stands here now is below a checkpoint, nobody has read it
    return False


def make_durable(table: Path, entries: Iterable[Path], *, again: bool = False) -> None:
    """Make log entries of `table` durable that `put_entry` has not just written, and all names in its log.

    delta-rs and Spark sync nothing. What Spark wrote is synced as it is, with the files that its entries refer to; all
    other entries are written again, so that no reader sees bytes whose sync has failed.

    Args:
        table: its directory.
        entries: those that are still in the log; others are left out.
        again: a sync of `entries` may have failed before; then those of Spark and their files are written again, too.

    Raises:
        OSError: a file cannot be written or synced; call it with `again` next time.
        TableCorrupt: what stands there is no longer what was written.
    """
    shared = is_shared(table)
    with locked(table) if again else nullcontext():  # Spark's own writers look first, and rename over what is there
        for entry in entries:
            if not entry.exists():  # it is so old that a checkpoint has taken its place
                continue
            files = [file for file in _spark_files(table, entry) if file.exists()] if shared else []
            for file in files:
                _write_again(table, file) if again else sync_file(file)
            for directory in {file.parent for file in files}:
                sync_file(directory)
            sync_file(entry) if shared and not again else _write_again(table, entry)
    sync_file(table / LOG)


def _spark_files(table: Path, entry: Path) -> Iterator[Path]:
    """The files of a log entry that Spark may have written."""
    return (table / checked_path(path) for path in paths_of(entry) if not path.startswith("_txstorm/"))


def _write_again(table: Path, file: Path) -> None:
    try:
        if file.parent.name == LOG:
            own_info(file)
        elif (sums := file.with_name(f".{file.name}.crc")).exists():
            _check_sums(read_whole(file), read_whole(sums))
    except ValueError as cause:
        msg = f"{file}: expected what was written, before its sync failed: {cause}; restore {table} from a copy"
        raise TableCorrupt(msg) from cause
    rewrite(file)


def _check_sums(data: bytes, sums: bytes) -> None:
    """Raise `ValueError` unless `data` has Hadoop's checksums: a header, bytes per checksum, a CRC-32 of each part."""
    step = int.from_bytes(sums[4:8], "big") if sums[:4] == b"crc\0" else 0
    if step and sums[8:] != b"".join(
        zlib.crc32(data[at : at + step]).to_bytes(4, "big") for at in range(0, len(data), step)
    ):
        msg = "its checksums in the .crc file beside it are others"
        raise ValueError(msg)


def _actions(commit: Commit, info: Mapping[str, Any], now: int) -> Iterator[dict[str, Any]]:
    operation = {"operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"}}
    yield {"commitInfo": {"timestamp": now, **operation, "engineInfo": "txstorm", **info}}
    change = commit.data_change
    for one in commit.adds:
        file = {"path": quote(one.path), "partitionValues": {}, "size": one.size, "modificationTime": one.modified}
        yield {"add": {**file, "dataChange": change, "stats": one.stats}}
    for one in commit.removes:
        left = {"path": quote(one.path), "dataChange": change, "deletionTimestamp": commit.removed_at}
        yield {"remove": {**left, "extendedFileMetadata": True, "partitionValues": {}, "size": one.size}}
    for app, version in commit.transactions.items():
        yield {"txn": {"appId": app, "version": version}}


def milliseconds() -> int:
    """The wall clock, for readers of the log: milliseconds since 1970."""
    return time.time_ns() // 1_000_000
