"""The layout ``merge``: every commit of a state's table has one current row per key, and there is no table of changes.

A group's change rows are staged like those of any table. What publishing them puts into the table is a function of
these rows and of the table's newest version: the files with the key groups they touch are written again, with them
over their rows, and take the place of the old ones in the one commit that carries the group's last txid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm import faults
from txstorm.clients.delta.handle import DataFile, DeltaHandle
from txstorm.errors import StateError
from txstorm.storage.rows.schema import STAMP
from txstorm.storage.rows.ttl import over_at, ttl_of
from txstorm.storage.tables.identity import key_names_of
from txstorm.storage.tables.rewrite import Rewriting, counted, group_counts
from txstorm.storage.tables.staging import Staged, checked_bytes

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
