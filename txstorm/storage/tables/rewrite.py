"""Copy-on-write of a state table: rewrite its files with later changes applied, one range of key groups at a time.

Each file of a state table holds a range of key groups, recorded in its statistics for ``_kg``, so only ranges with
changes are rewritten. Compaction rewrites files in parallel to commits, the layout ``merge`` as part of every commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.clients.delta.data_files import Bound
from txstorm.clients.delta.entry import DataFile
from txstorm.clients.delta.footer_digest import sealed
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.keys import KEY_GROUPS
from txstorm.storage.rows.eviction import is_placed, remaining, split_changes
from txstorm.storage.rows.schema import KEY_GROUP, OP, REMOVED, STAMP, TXID
from txstorm.storage.rows.ttl import alive, ttl_of
from txstorm.storage.tables.intent import STAGED
from txstorm.storage.tables.staging import column_stats, compact_name, encoded, unique, write_new
from txstorm.typed import restored

Counts = npt.NDArray[np.int64]
"""Array with the number of rows in each key group."""

FILE_ROWS = 500_000
FILE_BYTES = 32 << 20


@dataclass(frozen=True)
class KeyGroupRange:
    """A range of key groups and the files that hold their rows.

    Attributes:
        first, last: the first and last key group, both inclusive.
        paths: the files with rows of these key groups; they have no rows of other key groups.
        later: number of change rows in these key groups.
    """

    first: int
    last: int
    paths: tuple[str, ...]
    later: int


class Rewriting:
    """One copy-on-write pass over a state table, which writes new files but does not commit them.

    Args:
        table: the state table, at the version to rewrite.
        keys: the key columns.
        epoch: the coordinator's epoch.
        now: the current time, in milliseconds since 1970.
        file_rows: maximum number of rows in a file; by default `FILE_ROWS`.
        over: for keys with a time to live, drop rows with this stamp or an older one; None: drop the rows that had
            expired when the newest change was made.
        threads: whether to use Arrow's threads for reading; otherwise the calling thread does all of the work.

    Attributes:
        written: paths, relative to the table, of the files written or about to be written.
        adds: the new files.
        removes: paths of the files that the new files replace.
    """

    def __init__(
        self,
        table: DeltaHandle,
        keys: Sequence[str],
        epoch: int,
        now: int,
        file_rows: int | None = None,
        over: datetime | None = None,
        *,
        threads: bool = True,
    ) -> None:
        self.written: set[str] = set()
        self.adds: list[DataFile] = []
        self.removes: set[str] = set()
        self._table, self._keys, self._epoch, self._now = table, list(keys), epoch, now
        self._most = file_rows or FILE_ROWS
        self._ttl, self._over, self._threads = ttl_of(table.properties), over, threads

    def spans(self, counts: Counts) -> list[KeyGroupRange]:
        """Return the ranges of key groups with changes, in order, each with about as many rows as one file.

        `counts`: the number of change rows in each key group.
        """
        files = _files(self._table)
        weights = counts if files else counts + group_counts(self._table)
        spans = (part for span in self._ranges(files, counts) for part in self._cut(span, counts, weights))
        return [span for span in spans if span.later]

    def rewrite(self, span: KeyGroupRange, later: pa.Table) -> None:
        """Rewrite the files of `span` and apply those of the change rows in `later` that fall into it."""
        within = (KEY_GROUP.name, span.first, span.last)
        base = self._table.read(paths=span.paths, within=within, threads=self._threads)
        groups = later[KEY_GROUP.name]
        inside = pc.and_(pc.greater_equal(groups, span.first), pc.less_equal(groups, span.last))
        rows = self._live_rows(base, later.filter(inside))
        rows = rows.take(pa.array(np.argsort(rows[KEY_GROUP.name].to_numpy(), kind="stable")))
        self.adds += [self._write(part) for part in self._parts(rows)]
        self.removes.update(span.paths)

    def give_up(self) -> None:
        """Delete the files written so far; call if they will not be committed."""
        for path in self.written:
            (self._table.path / path).unlink(missing_ok=True)

    def _live_rows(self, base: pa.Table, later: pa.Table) -> pa.Table:
        """Apply the `later` changes to `base` and drop expired rows.

        A row that had expired when a change was made does not exist for any later transaction.
        """
        rows = folded(base, later, self._keys, threads=self._threads)
        if self._over is not None:
            return rows.filter(pc.greater(rows[STAMP.name], pa.scalar(self._over, STAMP.type)))
        return alive(rows, self._ttl, pc.max(later[STAMP.name]).as_py()) if self._ttl is not None else rows

    def _write(self, rows: pa.Table) -> DataFile:
        data = encoded(rows)
        path = f"{STAGED}/{compact_name(self._epoch, sealed(unique(), data))}"
        self.written.add(path)
        write_new(self._table.path / path, data)
        return DataFile(path, len(data), self._now, column_stats(rows, KEY_GROUP.name))

    def _ranges(self, files: Sequence[tuple[int, str, int]], counts: Counts) -> Iterator[KeyGroupRange]:
        """Yield ranges that cover all key groups, split at file boundaries; small adjacent files share a range.

        If `files` is empty, there is only one range, with all files of the table.
        """
        first, size = 0, 0
        paths = [] if files else [file.path for file in self._table.files()]
        for begins, path, rows in files:
            if paths and size + rows > self._most // 2:
                yield KeyGroupRange(first, begins - 1, tuple(paths), int(counts[first:begins].sum()))
                first, paths, size = begins, [], 0
            paths.append(path)
            size += rows
        yield KeyGroupRange(first, KEY_GROUPS - 1, tuple(paths), int(counts[first:].sum()))

    def _cut(self, span: KeyGroupRange, counts: Counts, weights: Counts) -> Iterator[KeyGroupRange]:
        """Split a changed `span` whose rows do not fit into one file into parts of about one file each.

        Every part refers to all files of `span`, so all parts are rewritten, whether or not they have changes.
        """
        total = int(weights[span.first : span.last + 1].sum())
        parts = -(-total // self._most)
        if parts <= 1 or not span.later:
            yield span
            return
        reached = np.cumsum(weights[span.first : span.last + 1])
        ends = {span.first + int(np.searchsorted(reached, total * i // parts)) for i in range(1, parts)}
        first = span.first
        for last in sorted({*ends, span.last}):
            yield KeyGroupRange(first, last, span.paths, max(1, int(counts[first : last + 1].sum())))
            first = last + 1

    def _parts(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Split `rows`, sorted by key group, into the contents of files of about equal size; no key group is split."""
        if not rows.num_rows:
            return
        most = max(1, min(self._most, FILE_BYTES * rows.num_rows // max(1, rows.nbytes)))
        groups = rows[KEY_GROUP.name].to_numpy()
        files = -(-rows.num_rows // most)
        wanted = [rows.num_rows * i // files for i in range(1, files)]
        cuts = sorted({0, rows.num_rows, *(int(np.searchsorted(groups, groups[cut])) for cut in wanted)})
        for start, end in pairwise(cuts):
            yield rows.slice(start, end - start)


def group_counts(table: DeltaHandle, low: Bound | None = None, high: Bound | None = None) -> Counts:
    """Count the rows of `table` in each key group; only rows within the bounds `low` and `high`, if given."""
    counts = np.zeros(KEY_GROUPS, np.int64)
    for part in table.batches(low, high, [KEY_GROUP.name]):
        counts += counted(part)
    return counts


def counted(rows: pa.Table) -> Counts:
    """Count `rows` in each key group."""
    return np.bincount(rows[KEY_GROUP.name].to_numpy(), minlength=KEY_GROUPS)


def folded(base: pa.Table, later: pa.Table, keys: list[str], *, threads: bool = True) -> pa.Table:
    """Apply the `later` changes to `base`, the rows of a state, and drop removed keys; the result is unordered."""
    if is_placed(keys):
        later, tombstones, bound = split_changes(later)
        rows = _folded(base, later, keys, threads=threads) if later.num_rows else base
        return remaining(rows, tombstones, bound, keys)
    return _folded(base, later, keys, threads=threads)


def _folded(base: pa.Table, later: pa.Table, keys: list[str], *, threads: bool) -> pa.Table:
    later = later.take(pc.sort_indices(later[TXID.name]))
    ops = pa.concat_arrays([pa.repeat(False, base.num_rows), *pc.equal(later[OP.name], REMOVED).chunks])
    rows = pa.concat_tables([base, restored(later.select(base.schema.names), base.schema)])
    # Not from NumPy: a thread of Arrow may free the column as late as when the interpreter exits, and freeing memory of
    # Python aborts the process then.
    numbers = pc.cumulative_sum(pa.repeat(1, rows.num_rows), start=-1)
    if keys and rows.num_rows:
        grouped = rows.select(keys).append_column("_row", numbers).group_by(keys, use_threads=threads)
        groups = grouped.aggregate([("_row", "max")])
        numbers = groups["_row_max"].combine_chunks()
    else:
        numbers = numbers[-1:]
    return rows.take(numbers.filter(pc.invert(ops.take(numbers))))


def _files(table: DeltaHandle) -> list[tuple[int, str, int]]:
    """Return the first key group, path and row count of every file; empty if files overlap or lack statistics."""
    actions = table.actions(KEY_GROUP.name)
    least, most = f"min.{KEY_GROUP.name}", f"max.{KEY_GROUP.name}"
    if not {least, most, "num_records"} <= set(actions.column_names) or actions[least].null_count:
        return []
    paths = [file.path for file in table.files()]
    rows = actions["num_records"].fill_null(0).to_pylist()
    files = sorted(zip(actions[least].to_pylist(), actions[most].to_pylist(), paths, rows, strict=True))
    if any(following[0] <= file[1] for file, following in pairwise(files)):
        return []
    return [(begins, path, size) for begins, _, path, size in files]
