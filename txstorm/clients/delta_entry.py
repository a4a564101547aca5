"""A log entry of a plain Delta table written as a file: the compare-and-set is that its name must be new.

delta-rs lists and reads the log before and after every commit, most of what a small commit costs. A coordinator
that has made the last version itself knows all that stands there: the name of the next one is taken, or it is not.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from txstorm.clients.delta_values import Commit

PLAIN = (1, 2)
"""Reader and writer version of a table that needs no more than this; others are left to delta-rs."""
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class NoLinksError(Exception):
    """The file system cannot give a file a second name; nothing was written."""


def entry_bytes(commit: Commit, info: Mapping[str, Any], now: int) -> bytes:
    """The content of the entry of `commit`; `info` is its commit info but for the operation, `now` in ms since 1970."""
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in _actions(commit, info, now)).encode()


def put_entry(entry: Path, before: Path, data: bytes) -> bool:
    """Make the log entry `entry`, whole or not at all; False when that version, or a later one, is there already.

    Entries move out of the log when they are old, lower versions first: as long as `before`, the entry of the version
    before, is there, a name that is free was never taken.

    Raises:
        NoLinksError: this file system does not allow it in this way.
        OSError: it could not be written.
    """
    if not before.exists():
        before.parent.stat()  # raises where the whole log is gone
        return False
    made = entry.with_name(f"_commit_{uuid.uuid4()}.json.tmp")  # as delta-rs names its own; no reader looks at them
    try:
        made.write_bytes(data)
        return _linked(made, entry, before)
    finally:
        made.unlink(missing_ok=True)


def put_file(file: Path, data: bytes) -> None:
    """Write a file of a log, whole or not at all, over one of the same name."""
    made = file.with_name(f"_commit_{uuid.uuid4()}.json.tmp")
    try:
        with made.open("xb") as stream:
            stream.write(data)
            os.fsync(stream.fileno())
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)


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
