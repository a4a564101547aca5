"""The layout ``merge``: every commit of a state's table has one current row per key, and there is no table of changes.

A group's change rows are staged like those of any table. What publishing them puts into the table is a function of
these rows and of the table's newest version: the files with the key groups they touch are written again, with them
over their rows, and take the place of the old ones in the one commit that carries the group's last txid.

When rows of a state of the layout ``merge`` are over though nobody writes: then a group touches the table for that.

The table is to have no key that is gone, at any version. A group's last stamp says which are; the staged rows of the
group and the table as it is say what publishing makes of them (`txstorm.storage.tables.merge_layout`).
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
"""Of a file at most: a commit writes every file again that has a changed key."""


def merged_files(
    table: DeltaHandle, staged: Sequence[Staged], epoch: int, stamp: int
) -> tuple[list[DataFile], list[DataFile]]:
    """The files that come into `table`, and those that leave it, when the `staged` change rows are published.

    Called in P7, again after every failure: what an earlier call wrote is then referred to by nothing, and swept.
    `stamp`: of the group's last txid, UTC microseconds. Passes the fault point ``merge.staged``.

    Raises:
        TableCorrupt: the staged rows, or a file of the table, are missing or damaged.
        OSError: the disk is full.
    """
    later = pa.concat_tables(pq.read_table(pa.BufferReader(checked_bytes(table.path, one))) for one in staged)
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
    """Raise `StateError` where txid `wanted` is inside the group of a `commit`: its txids are not told apart here.

    Txids of other groups, which changed nothing in the table, are addressable: the table was the same all the time.
    """
    first, last = commit["txids"][0]["txid"], commit["last"]
    if first <= wanted < last:
        msg = (
            f"state {name!r}: txids {first} to {last} were committed as one group, and the layout merge keeps a state "
            f"at the ends of groups only; expected txid {first - 1} or {last}, got {wanted}"
        )
        raise StateError(msg)


def no_changes(name: str) -> StateError:
    """What to raise when somebody asks for the change rows of a state of this layout."""
    return StateError(
        f"state {name!r}: the layout merge keeps no change rows that could be shown or compared; compare the state as "
        'of the ends of two groups, or declare it with layout="changes" in a new data directory'
    )


class Expiring:
    """The rows of one table, whose keys have a time to live, by the oldest of each of its files.

    A file is read for that once, when the first group after it is staged.
    """

    def __init__(self, handle: DeltaHandle) -> None:
        self._handle = handle
        self._oldest: dict[str, datetime] = {}

    def is_due(self, stamp: int) -> bool:
        """Whether a row is over at `stamp`, UTC microseconds.

        Asked before a group that ends with it is staged, and after the one before that is published.

        Raises:
            TableCorrupt: a file is missing or damaged.
        """
        handle = self._handle
        ttl = ttl_of(handle.properties)
        assert ttl is not None
        paths = (file.path for file in handle.files())
        self._oldest = {path: self._oldest.get(path) or self._read(path) for path in paths}
        return any(oldest <= over_at(stamp, ttl) for oldest in self._oldest.values())

    def _read(self, path: str) -> datetime:
        stamps: Any = self._handle.read([STAMP.name], paths=[path])[STAMP.name]
        oldest: datetime = pc.min(stamps).as_py()
        return oldest
