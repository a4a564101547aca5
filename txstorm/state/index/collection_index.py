"""Index of a collection state: its published rows as blocks of columns, in memory or in the files of its tables.

New rows are blocks in memory, which are merged as they grow in number. Beyond a budget they are dropped, since the
files of the tables hold them. Nothing is loaded at the start: row groups of files are read when a scan needs them, and
cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import takewhile
from threading import Lock
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from txstorm.api.state import CollectionState
from txstorm.errors import TableCorrupt
from txstorm.state.index.index import Bounds
from txstorm.state.index.layers import Layers, Sources
from txstorm.state.index.sorted_rows import Arrays, SortedRows, few
from txstorm.storage.rows.eviction import NO_BOUND, Numbers, limit_of, split_changes, whole, words
from txstorm.storage.rows.forms import KeyForm, ValueForm
from txstorm.storage.rows.schema import OP, PLACE, REMOVED, TXID
from txstorm.typed import restored

A = TypeVar("A")
MEMORY = 256 << 20
"""Maximum memory for the rows of one collection state, in bytes: half of it for rows read from files, a quarter for
rows not read from files."""


@dataclass(frozen=True)
class PublishedRows:
    """Changes of a range of txids to a collection state.

    Attributes:
        rows: the rows appended; None if there are none.
        removed: the rows removed, with their previous values; None if there are none.
        tombstones: the range tombstones of single collections, see `Layers`; None if there are none.
        bound: the bound of all collections.
    """

    rows: SortedRows | None = None
    removed: SortedRows | None = None
    tombstones: SortedRows | None = None
    bound: int = NO_BOUND


class RowForm:
    """Converter from the tables of a collection state to blocks.

    Attributes:
        keys, values: the converters of keys and values.
        owners: number of key columns of a collection, without the position of a row.
    """

    def __init__(self, state: CollectionState) -> None:
        self.keys, self.values = KeyForm(state), ValueForm(state)
        self.owners = len(self.keys.columns) - PLACE

    @property
    def names(self) -> list[str]:
        """The key columns of a collection."""
        return self.keys.names[: self.owners]

    @property
    def no_keys(self) -> Arrays:
        """Empty key columns."""
        return [pa.array([], column.field.type) for column in self.keys.columns[: self.owners]]

    @property
    def no_values(self) -> Arrays:
        """Empty value columns."""
        return [pa.array([], column.field.type) for column in self.values.stored]

    def block(self, table: pa.Table) -> SortedRows:
        """Convert the rows of a table with key and value columns to a block."""
        keys, orders, numbers = self._keys(table)
        values = [restored(whole(table[column.name]), column.field.type) for column in self.values.stored]
        return SortedRows.of(keys, orders, numbers, values)

    def cast(self, table: pa.Table) -> pa.Table:
        """Convert the key and value columns of a table to the types of the state."""
        fields = [column.field for column in (*self.keys.columns, *self.values.stored)]
        return pa.table([restored(table[one.name], one.type) for one in fields], names=[one.name for one in fields])

    def changes(self, table: pa.Table) -> PublishedRows:
        """Convert change rows, or rows of a state table, to blocks."""
        if OP.name not in table.column_names:
            return PublishedRows(self.block(table) if table.num_rows else None)
        rows, tombstones, bound = split_changes(table)
        gone = np.asarray(whole(rows[OP.name]).to_numpy(zero_copy_only=False) == REMOVED)
        appended = rows.filter(pa.array(~gone)) if gone.any() else rows
        return PublishedRows(
            self.block(appended) if appended.num_rows else None,
            self._without_values(rows.filter(pa.array(gone))) if gone.any() else None,
            self._tombstones(tombstones) if tombstones.num_rows else None,
            bound,
        )

    def _keys(self, table: pa.Table) -> tuple[Arrays, Numbers, Numbers]:
        columns = [restored(whole(table[column.name]), column.field.type) for column in self.keys.columns]
        return columns[: self.owners], words(columns[-PLACE]), words(columns[-1])

    def _without_values(self, table: pa.Table) -> SortedRows:
        return SortedRows.of(*self._keys(table), ())

    def _tombstones(self, table: pa.Table) -> SortedRows:
        keys, places, _ = self._keys(table)
        return SortedRows.of(keys, places, limit_of(words(table[TXID.name])), ())


class TableRows(Protocol):
    """Port: the rows of a collection state in the files of its tables (`txstorm.state.index.row_groups`)."""

    def read(self) -> tuple[PublishedLayers, int]:
        """Read the newest versions of the tables; return their rows, and the last txid of them."""


@dataclass(frozen=True)
class PublishedLayers:
    """Published rows of a collection state: those in files, and those in memory, which are later.

    Attributes:
        files: the rows in files, with all removals and bounds among them.
        blocks: the rows in memory; none may be in the files, too.
        removed, tombstones: the removals and tombstones that are not among those of `files`.
        bound: the bound of all collections.
    """

    files: Layers = field(default_factory=Layers)
    blocks: tuple[SortedRows, ...] = ()
    removed: tuple[SortedRows, ...] = ()
    tombstones: tuple[SortedRows, ...] = ()
    bound: int = NO_BOUND

    @cached_property
    def layers(self) -> Layers:
        """All rows, as layers of a scan."""
        return self.files.over(Layers([Sources.of(self.blocks)], self.removed, self.tombstones, self.bound))

    @classmethod
    def of(cls, changes: Iterable[PublishedRows]) -> PublishedLayers:
        """Return the rows of `changes`, in txid order, in memory."""
        return reduce(cls.added, changes, cls())

    def added(self, later: PublishedRows) -> PublishedLayers:
        """Return these rows with `later` changes."""
        bound = max(self.bound, later.bound)
        blocks = [one for one in self.blocks if one.most >= bound]
        if later.rows is not None:
            blocks.append(later.rows)
        while (count := _similar(blocks)) >= _AT_ONCE:
            blocks[-count:] = [SortedRows.joined(blocks[-count:])]
        removed = [*self.removed, *([] if later.removed is None else [replace(later.removed, values=())])]
        tombstones = [*self.tombstones, *([] if later.tombstones is None else [later.tombstones])]
        return replace(
            self, blocks=tuple(blocks), removed=tuple(few(removed)), tombstones=tuple(few(tombstones)), bound=bound
        )

    @property
    def nbytes(self) -> int:
        """The approximate size of the rows in memory."""
        return sum(one.nbytes for one in (*self.blocks, *self.removed, *self.tombstones))


_MERGED_ROWS = 1 << 16
"""Number of rows from which on a block in memory is not merged with others."""


def _united(changes: Sequence[PublishedRows]) -> Iterator[PublishedRows]:
    """Yield the changes of consecutive txids, of which small ones are united."""
    waiting: list[PublishedRows] = []
    for one in changes:
        waiting.append(one)
        if sum(len(each.rows) for each in waiting if each.rows is not None) >= _MERGED_ROWS:
            yield _as_one(waiting)
            waiting = []
    if waiting:
        yield _as_one(waiting)


def _as_one(changes: Sequence[PublishedRows]) -> PublishedRows:
    if len(changes) == 1:
        return changes[0]
    bound = max(one.bound for one in changes)
    rows, removed, tombstones = (
        [one for one in (getattr(change, name) for change in changes) if one is not None and one.most >= bound]
        for name in ("rows", "removed", "tombstones")
    )
    return PublishedRows(
        SortedRows.joined(rows) if rows else None,
        SortedRows.joined(removed) if removed else None,
        SortedRows.joined(tombstones) if tombstones else None,
        bound,
    )


_AT_ONCE = 8
"""Number of blocks in memory that are merged at once; merging two whenever there are two costs several times more."""


def _similar(blocks: Sequence[SortedRows]) -> int:
    """Return how many of the newest blocks are to be merged together once they are enough."""
    if not blocks or len(blocks[-1]) >= _MERGED_ROWS:
        return 0
    most = min(_AT_ONCE * len(blocks[-1]), _MERGED_ROWS)
    return len(list(takewhile(lambda one: len(one) <= most, reversed(blocks))))


def memory_share(bounds: Bounds) -> int:
    """Return the maximum memory, in bytes, for the rows read from files; rows not read from files get half of it."""
    return min(MEMORY, bounds.memory) // 2


class CollectionIndex:
    """Published rows of one collection state.

    One thread may add rows while another one scans; a scan sees rows that are added meanwhile or not.

    Args:
        state: the state.
        tables: the tables; None: all rows stay in memory.
        bounds: limits; None: the defaults.

    Attributes:
        form: the converter for the rows.
        last_txid: the highest txid loaded or applied so far; initially 0.
    """

    def __init__(self, state: CollectionState, tables: TableRows | None = None, bounds: Bounds | None = None) -> None:
        self.form = RowForm(state)
        self.last_txid = 0
        self._tables = tables
        self._most = memory_share(bounds or Bounds()) // 2
        self._published = PublishedLayers()
        self._lock = Lock()
        if tables is not None:
            self._published, self.last_txid = tables.read()

    @property
    def bound(self) -> int:
        """The bound of all collections."""
        return max(self._published.files.bound, self._published.bound)

    def set_bound(self, bound: int) -> None:
        """Set the bound of all collections, if it is higher than the present one."""
        self._add(PublishedRows(bound=bound), self.last_txid)

    def load(self, table: pa.Table) -> None:
        """Add rows of the state table or later change rows, in txid order."""
        txids = table[TXID.name]
        self._add(self.form.changes(table), int(words(txids).max()) if len(txids) else self.last_txid)

    def loaded(self, last: int) -> None:
        """Finish loading; call after all rows up to txid `last` have been loaded."""
        self.last_txid = max(self.last_txid, last)

    def apply(self, published: Sequence[PublishedRows], last: int) -> None:
        """Add published rows; `last` is their highest txid."""
        for one in _united(published):
            self._add(one, last)
        if self._tables is not None and self._published.nbytes > self._most:
            self.refresh()

    def refresh(self) -> None:
        """Read the tables again, and drop the rows in memory that are in their files."""
        assert self._tables is not None
        with self._lock:
            self._published, last = self._tables.read()
            self.last_txid = max(self.last_txid, last)

    def ask(self, later: Layers, question: Callable[[Layers], A]) -> A:
        """Ask `question` about the published rows with `later` ones over them.

        Raises:
            TableCorrupt: a table is damaged.
        """
        try:
            return question(self._published.layers.over(later))
        except TableCorrupt:  # files may have been replaced, and removed, by upkeep
            if self._tables is None:
                raise
        self.refresh()
        return question(self._published.layers.over(later))

    def flush(self) -> None:
        """Do nothing: published rows are in the tables."""

    def close(self) -> None:
        """Drop all rows."""
        self._published = PublishedLayers()

    def _add(self, later: PublishedRows, last: int) -> None:
        with self._lock:
            self._published = self._published.added(later)
            self.last_txid = max(self.last_txid, last)
