"""The layout ``merge``: every version of a state's table has one current row per key, and there is no changes table.

Copy-on-write: a group's change rows are staged as for any table; publishing rewrites each data file that holds a
changed key group, as a pure function of staged rows and newest version, and replaces the old files in the single commit
that carries the group's last txid.

No version of the table may contain an expired key; the stamp of the group's last txid determines which keys have
expired. So a group may have to rewrite files of the table even if it changes no key of the state (`Expiring`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm import faults
from txstorm.clients.delta.entry import DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import StateError
from txstorm.storage.rows.schema import STAMP
from txstorm.storage.rows.ttl import over_at, ttl_of
from txstorm.storage.tables.identity import key_names_of
from txstorm.storage.tables.intent import Staged
from txstorm.storage.tables.rewrite import Rewriting, counted, group_counts
from txstorm.storage.tables.staging import checked_bytes

FILE_ROWS = 65_536
"""Maximum number of rows in a file; small, because a commit rewrites every file that holds a changed key."""


def merged_files(
    table: DeltaHandle, staged: Sequence[Staged], epoch: int, stamp: int
) -> tuple[list[DataFile], list[DataFile]]:
    """Rewrite the files of `table` affected by the `staged` change rows; return the files to add and to remove.

    Called in P7 (publish), and again after every failure: files written by an earlier call are unreferenced, and are
    swept later. `stamp` is that of the group's last txid, in UTC microseconds. Passes the fault point ``merge.staged``.

    Raises:
        TableCorrupt: a staged file, or a file of the table, is missing or damaged.
        OSError: the disk is full.
    """
    later = pa.concat_tables(pq.read_table(pa.BufferReader(checked_bytes(table.path, file))) for file in staged)
    ttl, counts = ttl_of(table.properties), counted(later)
    over = None if ttl is None else over_at(stamp, ttl)
    if over is not None:
        counts += group_counts(table, high=(STAMP.name, over))
    files = Rewriting(table, key_names_of(table.properties), epoch, stamp // 1000, FILE_ROWS, over)
    for span in files.spans(counts):
        files.rewrite(span, later)
    faults.point("merge.staged")
    return files.adds, [file for file in table.files() if file.path in files.removes]


def check_group_end(name: str, commit: Mapping[str, Any], wanted: int) -> None:
    """Raise `StateError` if txid `wanted` lies within the group of `commit`, which has only one version as a whole.

    Txids of groups that did not change the table can be read, since the table was the same throughout the group.
    """
    first, last = commit["txids"][0]["txid"], commit["last"]
    if first <= wanted < last:
        raise StateError(
            f"state {name!r}: txids {first} to {last} were committed as one group, and the layout merge keeps a state "
            f"at the ends of groups only; expected txid {first - 1} or {last}, got {wanted}"
        )


def no_changes(name: str) -> StateError:
    """Return the error for reading the change rows of a state with the layout ``merge``, which keeps none."""
    return StateError(
        f"state {name!r}: the layout merge keeps no change rows that could be shown or compared; compare the state as "
        'of the ends of two groups, or declare it with layout="changes" in a new data directory'
    )


class Expiring:
    """Expiry check for one table whose keys have a time to live, based on the oldest stamp in each of its files.

    Each file is read once, when the first group after it is staged, and its oldest stamp is cached.
    """

    def __init__(self, handle: DeltaHandle) -> None:
        self._handle = handle
        self._oldest: dict[str, datetime] = {}

    def is_due(self, stamp: int) -> bool:
        """Whether any row of the table has expired as of `stamp`, in UTC microseconds.

        Called after the previous group has been published, and before the group that ends with `stamp` is staged.

        Raises:
            TableCorrupt: a file is missing or damaged.
        """
        handle = self._handle
        ttl = ttl_of(handle.properties)
        assert ttl is not None
        paths = (file.path for file in handle.files())
        self._oldest = {path: self._oldest.get(path) or self._oldest_stamp(path) for path in paths}
        return any(oldest <= over_at(stamp, ttl) for oldest in self._oldest.values())

    def _oldest_stamp(self, path: str) -> datetime:
        stamps: Any = self._handle.read([STAMP.name], paths=[path])[STAMP.name]
        oldest: datetime = pc.min(stamps).as_py()
        return oldest
