"""Eviction bounds of collections: range tombstones among change rows, and their vectorised application.

A tombstone of txid N for one collection (``_op`` = ``e``) removes its rows below a place that were appended up to N.
One for all collections (``a``) removes their rows below the place; later rows below it are never written. Its key
columns are null. The place is in the order column, and ``_seq`` is `TOMBSTONE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.storage.rows.schema import COUNT_BITS, EVICTED_ALL, OP, PLACE, REMOVED, SEQUENCE, TXID, UPDATED
from txstorm.typed import restored

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NO_BOUND = -(1 << 63)
"""Bound below which no place lies."""


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def words(column: pa.Array | pa.ChunkedArray) -> Numbers:
    """Return the values of an order column, or of another integer column, as 64-bit integers."""
    return np.asarray(whole(column).cast(pa.int64()))


def row_codes(columns: Sequence[pa.Array], rows: int) -> Numbers:
    """Number the rows by their values in `columns`: equal rows, also those with nulls, have equal numbers."""
    codes = np.zeros(rows, np.int64)
    for i, column in enumerate(columns):
        encoded = column.dictionary_encode(null_encoding="encode")
        one = np.asarray(encoded.indices).astype(np.int64)
        codes = one if not i else codes * len(encoded.dictionary) + one
        if i and i < len(columns) - 1:  # so that the product of the next step cannot overflow
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return codes


def bisected(values: Numbers, low: Numbers, high: Numbers, wanted: Numbers | int, *, after: bool = False) -> Numbers:
    """Search many sorted ranges of `values` at once: return the first position in each range for its `wanted` value.

    Args:
        values: the values, sorted within each range.
        low: where each range begins.
        high: where each range ends.
        wanted: the values to search for, one per range, or one for all.
        after: whether to return the position after equal values rather than before them.
    """
    if len(low) == 1:
        aim = wanted if isinstance(wanted, int) else wanted[0]
        at = np.searchsorted(values[low[0] : high[0]], aim, side="right" if after else "left")
        return low + at
    low, high = low.copy(), high.copy()
    aims = np.broadcast_to(np.asarray(wanted), low.shape)
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        found = values[np.where(open_, middle, 0)]
        right = open_ & ((found <= aims) if after else (found < aims))
        low = np.where(right, middle + 1, low)
        high = np.where(open_ & ~right, middle, high)
    return low


class Tombstones(NamedTuple):
    """Range tombstones of collections that are numbered.

    Attributes:
        owners: the number of each tombstone's collection.
        places: the places, as 64-bit integers; rows below are removed.
        limits: the sequence number from which on rows are not affected.
    """

    owners: Numbers
    places: Numbers
    limits: Numbers

    def hide(self, owners: Numbers, orders: Numbers, numbers: Numbers) -> Mask:
        """Return which of the rows, given by collection, order and sequence number, are removed."""
        hidden = np.zeros(len(owners), bool)
        if not len(self.owners) or not len(owners):
            return hidden
        # Nearly all rows lie above all places of their collection, so only the others are compared with each.
        top = np.full(max(int(self.owners.max()), int(owners.max())) + 1, NO_BOUND)
        np.maximum.at(top, self.owners, self.places)
        below = np.flatnonzero(orders < top[owners])
        if len(below):
            hidden[below] = self._hide(owners[below], orders[below], numbers[below])
        return hidden

    def _hide(self, owners: Numbers, orders: Numbers, numbers: Numbers) -> Mask:
        """Compare rows with all tombstones of their collection."""
        turn = np.lexsort((self.limits, self.owners))
        of, limits = self.owners[turn], self.limits[turn]
        highest = _highest_from_here(of, self.places[turn])
        low, high = np.searchsorted(of, owners), np.searchsorted(of, owners, side="right")
        at = bisected(limits, low, high, numbers, after=True)
        there = at < high
        hidden = np.zeros(len(owners), bool)
        hidden[there] = highest[at[there]] > orders[there]
        return hidden


def _highest_from_here(owners: Numbers, places: Numbers) -> Numbers:
    """Return for each tombstone the highest place among it and the later ones of its collection."""
    distinct, ranks = np.unique(places, return_inverse=True)
    last = np.cumsum(np.concatenate([[0], owners[::-1][1:] != owners[::-1][:-1]]))
    raised = np.maximum.accumulate(last * len(distinct) + ranks[::-1]) - last * len(distinct)
    result: Numbers = distinct[raised[::-1]]
    return result


def limit_of(txids: Numbers | int) -> Any:
    """Return the sequence number from which on rows were appended after `txids`."""
    return (txids + 1) << COUNT_BITS


class SplitChanges(NamedTuple):
    """Change rows of a collection state: those of rows, tombstones of single collections, and the bound of all."""

    rows: pa.Table
    tombstones: pa.Table
    bound: int


def split_changes(changes: pa.Table) -> SplitChanges:
    """Split change rows of a collection state."""
    ops, order = changes[OP.name], changes.column_names[changes.column_names.index(SEQUENCE.name) - 1]
    rows = pc.is_in(ops, pa.array([UPDATED, REMOVED]))
    if pc.all(rows).as_py() in (True, None):
        return SplitChanges(changes, changes.slice(0, 0), NO_BOUND)
    others = changes.filter(pc.invert(rows))
    general = pc.equal(others[OP.name], EVICTED_ALL)
    places = words(others.filter(general)[order])
    return SplitChanges(
        changes.filter(rows), others.filter(pc.invert(general)), int(places.max()) if len(places) else NO_BOUND
    )


def remaining(rows: pa.Table, tombstones: pa.Table, bound: int, keys: Sequence[str]) -> pa.Table:
    """Drop the evicted rows of a collection state; `keys`: its key columns, with order and sequence number."""
    *owners, order, number = keys
    if rows.num_rows and bound > NO_BOUND:
        rows = rows.filter(pa.array(words(rows[order]) >= bound))
    if not rows.num_rows or not tombstones.num_rows:
        return rows
    columns = [whole(pa.chunked_array([*rows[name].chunks, *restored(tombstones[name], rows[name].type).chunks]))
               for name in owners]  # fmt: skip
    codes = row_codes(columns, rows.num_rows + tombstones.num_rows)
    cut = Tombstones(codes[rows.num_rows :], words(tombstones[order]), limit_of(words(tombstones[TXID.name])))
    return rows.filter(pa.array(~cut.hide(codes[: rows.num_rows], words(rows[order]), words(rows[number]))))


def is_placed(keys: Sequence[str]) -> bool:
    """Whether a state with the key columns `keys` holds collections."""
    return len(keys) >= PLACE and keys[-1] == SEQUENCE.name
