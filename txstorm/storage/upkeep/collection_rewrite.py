"""Rewriting of the table of a collection state: new rows become further files, files of evicted rows are dropped.

A collection may be larger than memory, and most of its rows never change. So unlike `storage.tables.rewrite`, which
rewrites whole ranges of key groups, this rewrites only those files of ``state/<name>`` that contain rows which were
evicted or removed, and small files, which it merges with the new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm.clients.delta.entry import DataFile
from txstorm.clients.delta.footer_digest import check_seal, sealed
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.files import check_file
from txstorm.errors import TableCorrupt
from txstorm.storage.rows.eviction import NO_BOUND, split_changes, whole, words
from txstorm.storage.rows.schema import KEY_GROUP, OP, PLACE, REMOVED, STAMP, UPDATED, in_order
from txstorm.storage.rows.ttl import moment, ttl_of
from txstorm.storage.tables.intent import STAGED
from txstorm.storage.tables.rewrite import folded
from txstorm.storage.tables.staging import column_stats, compact_name, encoded, unique, write_new
from txstorm.typed import restored

FILE_ROWS = 250_000
"""Number of rows of a new file; a file with fewer rows than half of it is small."""
FILE_BYTES = 32 << 20
"""Arrow bytes of the rows of a new file if they are long; a file of a sixteenth of its size is not small."""

Changes = Callable[[], Iterable[pa.Table]]
"""Function that reads the later change rows, in txid order, in batches."""


@dataclass(frozen=True)
class _PlacedFile:
    """A file of the table, with the bounds of its rows; a bound that is unknown is as wide as possible."""

    path: str
    size: int
    rows: int
    orders: tuple[int, int]
    groups: tuple[int, int]
    newest: datetime | None


class _Removals:
    """Removals by later change rows: of single rows (``d``), of rows below tombstones or the bound, of expired rows.

    Args:
        changes: the change rows that are removals or tombstones.
        order: the order column.
        over: rows with this stamp or an earlier one have expired; None: none have.
    """

    def __init__(self, changes: pa.Table, order: str, over: datetime | None) -> None:
        self.changes, self.over, self.bound = changes, over, split_changes(changes).bound
        self._orders, self._groups = words(changes[order]), words(changes[KEY_GROUP.name])
        self._exact = np.asarray(whole(pc.equal(changes[OP.name], REMOVED)).to_numpy(zero_copy_only=False))

    def cover(self, file: _PlacedFile) -> bool:
        """Whether all rows of `file` are below the bound, or expired."""
        expired = self.over is not None and file.newest is not None and file.newest <= self.over
        return expired or file.orders[1] < self.bound

    def touch(self, file: _PlacedFile) -> bool:
        """Whether any row of `file` may be removed, except as expired."""
        least, most = file.orders
        near = (self._groups >= file.groups[0]) & (self._groups <= file.groups[1]) & (self._orders >= least)
        return least < self.bound or bool((near & (~self._exact | (self._orders <= most))).any())

    def left(self, rows: pa.Table, keys: list[str]) -> pa.Table:
        """Return those of `rows` that are not removed."""
        rows = folded(rows, self.changes, keys, threads=False) if self.changes.num_rows else rows
        if self.over is None:
            return rows
        return rows.filter(pc.greater(rows[STAMP.name], pa.scalar(self.over, STAMP.type)))


class CollectionRewriting:
    """One pass over the table of a collection state; the interface is that of `storage.tables.rewrite.Rewriting`.

    Args:
        table: the state table, at the version to rewrite.
        keys: the key columns.
        epoch: the coordinator's epoch.
        now: the current time, in milliseconds since 1970.

    Attributes:
        written: paths, relative to the table, of the files written or about to be written.
        adds: the new files.
        removes: paths of the files that are dropped or replaced.
        later: number of change rows, once `steps` has ended.
        bound: the bound of all collections among the change rows; None if there is none.
    """

    def __init__(self, table: DeltaHandle, keys: Sequence[str], epoch: int, now: int) -> None:
        self.written: set[str] = set()
        self.adds: list[DataFile] = []
        self.removes: set[str] = set()
        self.later = 0
        self.bound: int | None = None
        self._table, self._keys, self._epoch, self._now = table, list(keys), epoch, now
        self._ttl = ttl_of(table.properties)

    def give_up(self) -> None:
        """Delete the files written so far; call if they will not be committed."""
        for path in self.written:
            (self._table.path / path).unlink(missing_ok=True)

    def steps(self, changes: Changes) -> Iterator[None]:
        """Write the new files, one per step; `changes` is called twice.

        Raises:
            TableCorrupt: a file is missing or damaged.
            OSError: the disk is full.
        """
        removals = yield from self._removals(changes)
        if removals is None:
            return
        merged = []
        for file in self._files():
            if removals.cover(file):
                self.removes.add(file.path)
            elif removals.touch(file):
                self._replace(file, removals)
                yield
            elif file.rows <= min(self.later, FILE_ROWS // 2) and file.size < FILE_BYTES // 16:
                merged.append(file.path)
        self.removes.update(merged)
        yield from self._append(merged, changes, removals)

    def _removals(self, changes: Changes) -> Generator[None, None, _Removals | None]:
        """Read which rows are removed; None if there are no change rows."""
        parts: list[pa.Table] = []
        newest: Any = None
        for batch in changes():
            self.later += batch.num_rows
            parts.append(batch.filter(pc.not_equal(batch[OP.name], UPDATED)))
            if self._ttl is not None:
                newest = max(filter(None, (newest, pc.max(batch[STAMP.name]).as_py())), default=None)
            yield
        if not parts:
            return None
        over = None if newest is None or self._ttl is None else newest - self._ttl
        found = _Removals(pa.concat_tables(parts), self._keys[-PLACE], over)
        self.bound = found.bound if found.bound > NO_BOUND else None
        return found

    def _replace(self, file: _PlacedFile, removals: _Removals) -> None:
        """Rewrite `file`, unless all of its rows are left."""
        rows = self._table.read(paths=[file.path], threads=False)
        left = removals.left(rows, self._keys)
        if left.num_rows < rows.num_rows:
            self.removes.add(file.path)
            self._write(left)

    def _append(self, merged: Sequence[str], changes: Changes, removals: _Removals) -> Iterator[None]:
        """Write the new rows, and those of the `merged` files, to new files."""
        waiting: list[pa.Table] = []
        for part in self._new(merged, changes, removals):
            waiting.append(part)
            if sum(one.num_rows for one in waiting) >= FILE_ROWS or sum(one.nbytes for one in waiting) >= FILE_BYTES:
                rows, waiting = pa.concat_tables(waiting), []
                self._write(removals.left(rows, self._keys))
                del rows
                yield
        if waiting:
            self._write(removals.left(pa.concat_tables(waiting), self._keys))
            yield

    def _new(self, merged: Sequence[str], changes: Changes, removals: _Removals) -> Iterator[pa.Table]:
        """Read the rows of the `merged` files, then the new ones, in parts."""
        for path in merged:
            yield self._table.read(paths=[path], threads=False)
        schema = self._table.schema
        for batch in changes():
            added = batch.filter(pc.equal(batch[OP.name], UPDATED)).select(schema.names)
            if removals.bound > NO_BOUND:  # most rows of a state that keeps little: not held until a file is full
                added = added.filter(pa.array(words(added[self._keys[-PLACE]]) >= removals.bound))
            yield restored(added, schema)

    def _write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        rows = in_order(rows, [KEY_GROUP.name, *self._keys])
        data = encoded(rows)
        path = f"{STAGED}/{compact_name(self._epoch, sealed(unique(), data))}"
        self.written.add(path)
        write_new(self._table.path / path, data)
        self.adds.append(DataFile(path, len(data), self._now, column_stats(rows, KEY_GROUP.name)))

    def _files(self) -> list[_PlacedFile]:
        try:
            return [self._file(file) for file in self._table.files()]
        except (OSError, pa.ArrowException) as error:
            raise TableCorrupt(f"table {self._table.path}: a file of it cannot be read: {error}") from error

    def _file(self, file: DataFile) -> _PlacedFile:
        path = self._table.path / file.path
        check_file(path, file.size)
        check_seal(path)
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        stamps = [] if self._ttl is None else [column_bounds(group, STAMP.name) for group in groups]
        newest = [stamp[1] for stamp in stamps if stamp is not None]
        return _PlacedFile(
            file.path,
            file.size,
            metadata.num_rows,
            _united([column_bounds(group, self._keys[-PLACE]) for group in groups]),
            _united([column_bounds(group, KEY_GROUP.name) for group in groups]),
            moment(max(newest)) if newest and len(newest) == len(groups) else None,
        )


def column_bounds(group: pq.RowGroupMetaData, name: str) -> tuple[Any, Any] | None:
    """Return the lowest and the highest value, as stored, of a column in a row group; None if they are unknown."""
    columns = (group.column(number) for number in range(group.num_columns))
    found = next((column.statistics for column in columns if column.path_in_schema == name), None)
    if found is None or not found.has_min_max or found.null_count:
        return None
    return found.min_raw, found.max_raw


def _united(bounds: Sequence[tuple[int, int] | None]) -> tuple[int, int]:
    known = [one for one in bounds if one is not None]
    if len(known) < len(bounds) or not known:
        return -(1 << 63), (1 << 63) - 1
    return min(least for least, _ in known), max(most for _, most in known)
