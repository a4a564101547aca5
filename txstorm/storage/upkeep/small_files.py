"""Small-file compaction: merge many small files of a table into a few larger files.

Every commit adds a small file, which slows down every reader. Compaction does not change the rows, which stay in txid
order, and its log entry is marked as changing no data, so streaming readers of the table do not read them again. The
old files remain on disk while a kept version of the log refers to them.
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
"""Minimum number of consecutive small files that are worth merging."""
NEWEST = 8
"""Number of newest files that are not merged, since their groups may still be checked after publishing."""
SMALL = 1 << 20
"""Size in bytes below which a file is small; files of this size or more are not merged."""
MOST_BYTES = 16 << 20
MOST_ROWS = 1_000_000
"""Approximate maximum size of a merged file, in rows; `MOST_BYTES` is the limit in bytes."""


@dataclass(frozen=True, slots=True)
class _File:
    first: int
    last: int
    path: str
    size: int
    rows: int


class SmallFileCompaction:
    """One small-file compaction of a table; has the same interface as `Compaction`.

    Args:
        table: the table, opened with a separate handle.
        epoch: the coordinator's epoch.
        now: the current time, in milliseconds since 1970.

    Attributes:
        uri: the table's uri.
        written: paths, relative to the table, of the files written or about to be written.
    """

    def __init__(self, table: DeltaTableState, epoch: int, now: int) -> None:
        self.uri = table.ref.uri
        self.written: set[str] = set()
        self._table = table
        self._epoch, self._now = epoch, now
        self._adds: list[DataFile] = []
        self._removes: list[str] = []

    def steps(self) -> Iterator[None]:
        """Write the new files, one per step; raises `TableCorrupt` and `OSError`.

        Passes the fault points ``gather.before`` and ``gather.staged``.
        """
        faults.point("gather.before")
        for run in _runs(_files(self._table)):
            yield
            self._rewrite([file.path for file in run])
        faults.point("gather.staged")

    def finish(self, table: DeltaTableState, now: int) -> bool:
        """Replace the old files with the new files; return False if there was nothing to replace, or they are outdated.

        Called in the committer's turn. Passes the fault point ``gather.after``.

        Raises:
            FencedError: a newer coordinator leads this table.
        """
        done = bool(self._adds) and table.exchange(RewriteFiles(self._adds, self._removes, self._now), self._epoch)
        faults.point("gather.after")
        return done

    def give_up(self) -> None:
        """Delete the files written so far; call if they will not be committed."""
        for path in self.written:
            (self._table.path / path).unlink(missing_ok=True)

    def _rewrite(self, paths: list[str]) -> None:
        rows = self._table.handle.read(paths=paths)
        # All rows of a txid are in one file; a stable sort keeps their order.
        rows = rows.take(pa.array(np.argsort(rows[TXID.name].to_numpy(), kind="stable")))
        data = encoded(rows)
        path = f"{STAGED}/{compact_name(self._epoch, sealed(unique(), data))}"
        self.written.add(path)
        write_new(self._table.path / path, data)
        self._adds.append(DataFile(path, len(data), self._now, txid_stats(rows)))
        self._removes += paths


def small_files(table: DeltaTableState) -> int:
    """Count the small files of a table."""
    return sum(file.size < SMALL for file in table.handle.files())


def are_many(files: int) -> bool:
    """Whether a table with `files` small files is worth compacting."""
    return files >= LEAST_FILES


def _files(table: DeltaTableState) -> list[_File]:
    """Return the files in txid order; empty if their txids overlap or lack statistics, as in files of other writers."""
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
    """Yield runs of consecutive small files, each of which is to be merged into one file."""
    run: list[_File] = []
    for file in files[:-NEWEST]:
        full = sum(other.size for other in run) > MOST_BYTES or sum(other.rows or 0 for other in run) > MOST_ROWS
        if file.size >= SMALL or full:
            if len(run) >= LEAST_FILES:
                yield run
            run = []
        if file.size < SMALL:
            run.append(file)
    if len(run) >= LEAST_FILES:
        yield run
