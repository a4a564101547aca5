"""Rows of a collection state in the Parquet files of its tables: one block per row group, read on demand and cached.

Opening reads the footers, and the rows of the few row groups that have removals or tombstones. Small row groups are
read together, as one block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm.clients.delta.footer_digest import check_seal
from txstorm.clients.files import check_file
from txstorm.errors import TableCorrupt
from txstorm.state.index.collection_index import PublishedLayers, RowForm
from txstorm.state.index.layers import Layers, Source, Sources
from txstorm.state.index.sorted_rows import HIGHEST, LOWEST, Owners, SortedRows
from txstorm.storage.rows.eviction import limit_of, words
from txstorm.storage.rows.schema import KEY_GROUP, OP, PLACE, REMOVED, SEQUENCE, TXID, UPDATED
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.upkeep.read_guard import reading
from txstorm.typed import restored

SMALL = 1 << 12
"""Number of rows below which row groups are read together with others."""
TOGETHER = 1 << 15
"""Approximate number of rows of small row groups that are read together."""

_OPTIONS: dict[str, Any] = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
"""Options for reading files; Spark may write times with 96 bits."""


@dataclass(frozen=True)
class RowGroup:
    """One row group of a file, with the bounds from the file's footer.

    Attributes:
        file: the file.
        number: its number in the file.
        rows: the number of rows.
        orders, groups: the lowest and the highest value of the order column, and of the key group.
        plain: whether it has appended rows only.
        barren: whether it has no appended rows.
        footer: the file's footer, which is not read again.
    """

    file: Path
    number: int
    rows: int
    orders: tuple[int, int]
    groups: tuple[int, int]
    plain: bool
    barren: bool = False
    footer: pq.FileMetaData | None = field(default=None, repr=False, compare=False)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Read the given columns; raise `TableCorrupt` if the file is missing or damaged."""
        # Not by its name, for which Arrow would look for a file system every time.
        with (
            _readable(self.file),
            pa.OSFile(str(self.file)) as source,
            pq.ParquetFile(source, metadata=self.footer, **_OPTIONS) as file,
        ):
            return file.read_row_group(self.number, columns=list(columns))


class BlockCache:
    """Blocks that were read from files, most recently used last; thread-safe.

    Args:
        most: maximum size, in bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._blocks: OrderedDict[Any, SortedRows] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Any) -> SortedRows | None:
        """Return a block; None if it is not here."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: Any, block: SortedRows) -> None:
        """Add a block, and evict those that were not used for longest."""
        with self._lock:
            if key not in self._blocks:
                self._blocks[key] = block
                self._bytes += block.nbytes
            while self._bytes > self._most and len(self._blocks) > 1:
                _, evicted = self._blocks.popitem(last=False)
                self._bytes -= evicted.nbytes


class Opened(NamedTuple):
    """The tables of a state at one moment: the state table, read first, and the changes table."""

    kept: DeltaTableState
    changes: DeltaTableState


class TableFiles:
    """The rows of a collection state in the files of its tables; implements `TableRows`. Thread-safe.

    Args:
        form: the converter for the rows.
        data_dir: the data directory.
        tables: the tables, at the versions to begin with.
        memory: maximum size of the cached blocks, in bytes.
    """

    def __init__(self, form: RowForm, data_dir: Path, tables: Opened, memory: int) -> None:
        self._form, self._data_dir = form, data_dir
        self._first: Opened | None = tables
        self._kept, self._changes = tables.kept, tables.changes
        self._cache = BlockCache(memory)
        self._groups: dict[Path, list[RowGroup]] = {}
        self._special: dict[tuple[Path, int], pa.Table] = {}
        self._lock = Lock()

    def read(self) -> tuple[PublishedLayers, int]:
        """Read the newest versions of the tables; return their rows, and the last txid of them."""
        with self._lock, reading(self._data_dir):
            opened, self._first = self._first or self._opened(), None
            as_of, last = opened.kept.last_txid(), opened.changes.last_txid()
            bound = opened.kept.handle.app_version(opened.kept.owner.bound_app)
            base = [one for path, size in _files(opened.kept, None) for one in self._groups_of(path, size)]
            later = [one for path, size in _files(opened.changes, as_of) for one in self._groups_of(path, size)]
            known = {one.file for one in (*base, *later)}
            self._groups = {path: groups for path, groups in self._groups.items() if path in known}
            special = self._specials(later, as_of)
        changes = self._form.changes(special)
        layers = Layers(
            [Sources([*self._sources(base, None), *self._sources(later, as_of)])],
            [] if changes.removed is None else [changes.removed],
            [] if changes.tombstones is None else [changes.tombstones],
            max(LOWEST if bound is None else bound, changes.bound),
        )
        return PublishedLayers(layers), last

    def _opened(self) -> Opened:
        # The state table first: groups that are published in between are then in the changes.
        kept = DeltaTableState.open(self._data_dir, self._kept.owner, self._kept.ref)
        return Opened(kept, DeltaTableState.open(self._data_dir, self._changes.owner, self._changes.ref))

    def _groups_of(self, path: Path, size: int) -> list[RowGroup]:
        if path not in self._groups:
            order = self._form.keys.names[-PLACE]
            with _readable(path):
                check_file(path, size)
                check_seal(path)
                self._groups[path] = list(_row_groups(path, pq.read_metadata(path), order))
        return self._groups[path]

    def _specials(self, groups: Sequence[RowGroup], as_of: int) -> pa.Table:
        """Read the removals and tombstones of txids after `as_of`."""
        mixed = {(one.file, one.number): one for one in groups if not one.plain}
        names = [*self._form.keys.names, TXID.name, OP.name]
        for at, one in mixed.items():
            if at not in self._special:
                rows = one.read(names)
                self._special[at] = rows.filter(pc.not_equal(rows[OP.name], UPDATED))
        self._special = {at: rows for at, rows in self._special.items() if at in mixed}
        schema = pa.schema([self._changes.handle.schema.field(name) for name in names])
        parts = [restored(rows.filter(pc.greater(rows[TXID.name], as_of)), schema) for rows in self._special.values()]
        return pa.concat_tables([schema.empty_table(), *parts])

    def _sources(self, groups: Sequence[RowGroup], as_of: int | None) -> Iterator[Source]:
        together: list[RowGroup] = []
        for one in groups:
            if one.barren:
                continue
            if one.rows >= SMALL:
                yield self._source((one,), as_of)
                continue
            together.append(one)
            if sum(other.rows for other in together) >= TOGETHER:
                yield self._source(tuple(together), as_of)
                together = []
        if together:
            yield self._source(tuple(together), as_of)

    def _source(self, groups: tuple[RowGroup, ...], as_of: int | None) -> Source:
        least, most = min(one.orders[0] for one in groups), max(one.orders[1] for one in groups)
        first, last = min(one.groups[0] for one in groups), max(one.groups[1] for one in groups)

        def may_have(owners: Owners) -> bool:
            return bool(np.searchsorted(owners.groups, first) < np.searchsorted(owners.groups, last, side="right"))

        return Source(least, most, partial(self._block, groups, as_of), may_have, partial(self._table, groups, as_of))

    def _table(self, groups: tuple[RowGroup, ...], as_of: int | None) -> pa.Table:
        with reading(self._data_dir):
            return pa.concat_tables([self._form.cast(self._rows(one, as_of)) for one in groups])

    def _block(self, groups: tuple[RowGroup, ...], as_of: int | None) -> SortedRows:
        key = groups[0].file, groups[0].number, len(groups), as_of
        block = self._cache.get(key)
        if block is None:
            with reading(self._data_dir):
                block = SortedRows.joined([self._form.block(self._rows(one, as_of)) for one in groups])
            self._cache.put(key, block)
        return block

    def _rows(self, group: RowGroup, as_of: int | None) -> pa.Table:
        """Read the rows of `group` that were appended after txid `as_of` (None: at any time)."""
        names = [*self._form.keys.names, *(column.name for column in self._form.values.stored)]
        rows = group.read(names if group.plain else [*names, OP.name])
        if not group.plain:
            rows = rows.filter(pc.equal(rows[OP.name], UPDATED))
        if as_of is not None:
            new = words(rows[SEQUENCE.name]) >= limit_of(as_of)
            rows = rows if new.all() else rows.filter(pa.array(new))
        return rows


def _files(table: DeltaTableState, after: int | None) -> Iterator[tuple[Path, int]]:
    """Yield path and size of the files of `table`, in txid order, that may have rows of txids after `after`."""
    actions, most = table.handle.actions(TXID.name), f"max.{TXID.name}"
    lasts = actions[most].to_pylist() if most in actions.column_names else [None] * actions.num_rows
    files = zip([HIGHEST if last is None else last for last in lasts], table.handle.files(), strict=True)
    for last, file in sorted(files, key=lambda one: one[0]):
        if after is None or last > after:
            yield table.path / file.path, file.size


def _row_groups(path: Path, metadata: pq.FileMetaData, order: str) -> Iterator[RowGroup]:
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        ends = {name: _ends(group.column(names.index(name)).statistics)
                for name in (order, KEY_GROUP.name, OP.name) if name in names}  # fmt: skip
        everything = LOWEST, HIGHEST
        first, last = (one if isinstance(one, str) else one.decode() for one in ends.get(OP.name) or (REMOVED, UPDATED))
        plain = OP.name not in ends or first == last == UPDATED
        yield RowGroup(
            path,
            number,
            group.num_rows,
            ends[order] or everything,
            ends[KEY_GROUP.name] or everything,
            plain,
            barren=last < UPDATED,
            footer=metadata,
        )


def _ends(statistics: pq.Statistics | None) -> tuple[Any, Any] | None:
    """Return the lowest and the highest value of a column as stored; None if they are unknown."""
    if statistics is None or not statistics.has_min_max or statistics.null_count:
        return None
    return statistics.min_raw, statistics.max_raw


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Context manager that turns errors of reading `file` into a `TableCorrupt` that names it."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise TableCorrupt(f"file {file}: cannot be read: {error}; restore the data directory from a copy") from error
