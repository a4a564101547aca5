"""Index for collections: a key index that also returns the rows of a collection in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from txstorm.api.state import CollectionState, KeyedState
from txstorm.state.index.index import DiskRows, StateIndex
from txstorm.state.index.ordered_rows import CollectionKey, Columns, OrderedRows, Place, ScanRange, filled, over
from txstorm.state.index.row_cache import Cache, WholeCache
from txstorm.storage.rows.forms import Key, Value
from txstorm.storage.rows.update_rules import Gone, Stored


class OrderedDiskRows(DiskRows, Protocol):
    """Port: the rows of collections on disk, implemented by `txstorm.state.index.disk.RowStore`."""

    def scan(self, owners: Sequence[CollectionKey], span: ScanRange) -> list[list[tuple[Place, Stored]]]:
        """Read the positions and rows in `span` of each of the collections `owners`, in the direction of `span`."""

    def columns(self, owners: Sequence[CollectionKey], span: ScanRange) -> Columns:
        """Like `scan`, but return the rows as columns."""


class OrderedCache:
    """`txstorm.state.index.row_cache.Cache` for collections: caches all rows until they are on disk, then none."""

    def __init__(self) -> None:
        self.complete = True
        self._rows = OrderedRows[Stored]()

    def __len__(self) -> int:
        """Return the number of rows in the cache."""
        return len(self._rows)

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """Read the row of each of `keys`; None if it is not in the cache."""
        return list(map(self._rows.get, keys))

    def scan(self, owner: CollectionKey, span: ScanRange) -> list[tuple[Place, Stored]]:
        """Read positions and rows of `owner` in `span`, in the direction of `span`; check `complete` afterwards."""
        return self._rows.scan(owner, span)

    def put(self, rows: Iterable[tuple[Key, Stored]] | Mapping[Key, Stored]) -> None:
        """Add rows; does nothing if the cache is no longer complete."""
        if self.complete:
            self._rows.update(rows)

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove the rows of `keys`."""
        self._rows.discard(keys)

    def rows(self) -> Mapping[Key, Stored]:
        """Return all rows in the cache, by key."""
        return self._rows

    def let_go(self) -> Cache:
        """Evict all rows and cache no more, since they can be read from disk; return the cache to use from now on."""
        self.forget()
        return self

    def forget(self) -> None:
        """Evict all rows, which are also on disk."""
        self.complete = False
        self._rows = OrderedRows()


class CollectionIndex(StateIndex):
    """Index of one collection state: its published rows, by key and in order.

    Up to a small number, all rows are kept in memory. Beyond it, all rows except pending writes are on disk only, where
    a range is read with one seek.
    """

    def _new_cache(self, state: KeyedState) -> WholeCache:
        return OrderedCache()

    def _pending(self, rows: Mapping[Key, Stored | Gone]) -> dict[Key, Stored | Gone]:
        return OrderedRows(rows)

    def scan(self, owners: Sequence[CollectionKey], span: ScanRange) -> list[list[tuple[Place, Stored]]]:
        """Read the positions and rows in `span` of each of the collections `owners`, in the direction of `span`.

        Raises:
            TxstormError: the store on disk can neither be read nor be rebuilt from the tables.
        """
        cache = cast("OrderedCache", self._cache)
        found = [cache.scan(owner, span) for owner in owners]
        if cache.complete:
            return found
        pending, writing = self._waiting  # read before the disk: rows that are no longer here are there

        def read(some: Sequence[CollectionKey], part: ScanRange) -> list[list[tuple[Place, Stored]]]:
            return self._read(lambda disk: cast("OrderedDiskRows", disk).scan(some, part))

        def settle(
            owner: CollectionKey, rows: list[tuple[Place, Stored]], part: ScanRange
        ) -> list[tuple[Place, Stored]]:
            return _there(rows, writing.scan(owner, part), pending.scan(owner, part), backwards=part.backwards)

        return filled(read, settle, owners, span)

    def columns(self, owners: Sequence[CollectionKey], span: ScanRange) -> Columns | None:
        """Read all rows in `span` of each of `owners` as columns; None if all rows are in memory: use `scan` instead.

        Raises:
            TxstormError: the store on disk can neither be read nor be rebuilt from the tables.
        """
        if self._cache.complete:
            return None
        pending, writing = self._waiting
        found = self._read(lambda disk: cast("OrderedDiskRows", disk).columns(owners, span))
        for later in (writing, pending):
            found = found.over([_values(later.scan(owner, span)) for owner in owners], self._values)
        return found

    @property
    def _waiting(self) -> tuple[OrderedRows[Stored | Gone], OrderedRows[Stored | Gone]]:
        return cast("tuple[OrderedRows[Stored | Gone], OrderedRows[Stored | Gone]]", self._behind)


def state_index(state: KeyedState, *arguments: Any) -> StateIndex:
    """Create the index of `state`: a `CollectionIndex` or a `StateIndex`; `arguments` are those of `StateIndex`."""
    return (CollectionIndex if isinstance(state, CollectionState) else StateIndex)(state, *arguments)


def _there(
    rows: Sequence[Any], writing: Sequence[Any], pending: Sequence[Any], *, backwards: bool
) -> list[tuple[Place, Stored]]:
    """Overlay rows from disk with pending writes, and drop removed rows."""
    if not writing and not pending:
        return list(rows)
    merged = over(list(rows), [*writing, *pending], backwards=backwards)
    return [(place, row) for place, row in merged if row[0] is not None]


def _values(rows: Sequence[tuple[Place, Stored | Gone]]) -> list[tuple[Place, Value | None]]:
    return [(place, row[0]) for place, row in rows]
