"""Many small files of a table made into few: every commit leaves one, and each costs a reader and the log something.

The rows stay what they are, in the order of their txids, so that nobody has to read anything again: the log entry says
that no data changed. The old files lie there for as long as a kept version of the log refers to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from txstorm import faults
from txstorm.clients.delta.entry import DataFile
from txstorm.clients.delta.footer_digest import sealed
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.intent import STAGED
from txstorm.storage.tables.staging import compact_name, encoded, txid_stats, unique, write_new
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import RewriteFiles

LEAST_FILES = 64
"""Small files, one behind the other, from which on they are worth it."""
NEWEST = 8
"""Files that are left alone: those of groups that may still be looked at."""
SMALL = 1 << 20
"""Bytes; what has become larger is not gathered again."""
MOST_BYTES = 16 << 20
MOST_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class _File:
    first: int
    last: int
    path: str
    size: int
    rows: int


class SmallFileCompaction:
    """The small files of one table on their way into few larger ones; used like a `Compaction`.

    Args:
        table: on a handle of its own.
        epoch: of the coordinator.
        now: milliseconds since 1970.

    Attributes:
        uri: the table.
        written: paths of files that this has written, or is about to write, relative to the table.
    """

    def __init__(self, table: DeltaTableState, epoch: int, now: int) -> None:
        self.uri = table.ref.uri
        self.written: set[str] = set()
        self._table = table
        self._epoch, self._now = epoch, now
        self._adds: list[DataFile] = []
        self._removes: list[str] = []

    def steps(self) -> Iterator[None]:
        """Write the new files, one after each step; raises `TableCorrupt` and `OSError`.

        Passes the fault points ``gather.before`` and ``gather.staged``.
        """
        faults.point("gather.before")
        for run in _runs(_files(self._table)):
            yield
            self._rewrite([file.path for file in run])
        faults.point("gather.staged")

    def finish(self, table: DeltaTableState, now: int) -> bool:
        """Put the new files in the place of the old ones, in the committer's turn; False when there is nothing to.

        Passes the fault point ``gather.after``.

        Raises:
            FencedError: a newer coordinator leads this table.
        """
        done = bool(self._adds) and table.exchange(RewriteFiles(self._adds, self._removes, self._now), self._epoch)
        faults.point("gather.after")
        return done

    def give_up(self) -> None:
        """Remove what was written: there is no use for it."""
        for path in self.written:
            (self._table.path / path).unlink(missing_ok=True)

    def _rewrite(self, paths: list[str]) -> None:
        rows = self._table.handle.read(paths=paths)
        # The rows of a txid are in one file, and keep their order in it.
        rows = rows.take(pa.array(np.argsort(rows[TXID.name].to_numpy(), kind="stable")))
        data = encoded(rows)
        path = f"{STAGED}/{compact_name(self._epoch, sealed(unique(), data))}"
        self.written.add(path)
        write_new(self._table.path / path, data)
        self._adds.append(DataFile(path, len(data), self._now, txid_stats(rows)))
        self._removes += paths


def small_files(table: DeltaTableState) -> int:
    """How many of its files are small."""
    return sum(file.size < SMALL for file in table.handle.files())


def are_many(files: int) -> bool:
    """Whether so many small files are worth gathering."""
    return files >= LEAST_FILES


def _files(table: DeltaTableState) -> list[_File]:
    """The files in the order of their txids; none where they overlap or do not say, which only others write."""
    actions, least, most = table.handle.actions(TXID.name), f"min.{TXID.name}", f"max.{TXID.name}"
    if not {least, most, "num_records"} <= set(actions.column_names):
        return []
    columns = (actions[name].to_pylist() for name in (least, most, "size_bytes", "num_records"))
    paths = [file.path for file in table.handle.files()]
    rows = zip(*columns, paths, strict=True)
    found = [_File(first, last, path, size, count) for first, last, size, count, path in rows if first is not None]
    found.sort(key=lambda file: file.first)
    overlap = any(later.first <= file.last for file, later in pairwise(found))
    return [] if overlap or len(found) < len(paths) else found


def _runs(files: list[_File]) -> Iterator[list[_File]]:
    """Small files that follow each other, at most as many as make one of the wanted size."""
    run: list[_File] = []
    for file in files[:-NEWEST]:
        full = sum(one.size for one in run) > MOST_BYTES or sum(one.rows or 0 for one in run) > MOST_ROWS
        if file.size >= SMALL or full:
            if len(run) >= LEAST_FILES:
                yield run
            run = []
        if file.size < SMALL:
            run.append(file)
    if len(run) >= LEAST_FILES:
        yield run
