"""Sorted rows of collections as columns: blocks of rows, look-ups of many collections in them, and merged results.

There is no Python object per row: rows are found with binary searches over all wanted collections at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.keys import groups_of, hash_rows
from txstorm.row_order import order_of
from txstorm.storage.rows.eviction import Mask, Numbers, bisected, row_codes, words
from txstorm.storage.rows.schema import in_order

Arrays = Sequence[pa.Array]
_TURN = "_turn"
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class Owners:
    """Distinct collections, by key.

    Attributes:
        keys: the key columns.
        hashes: the hash of each key.
    """

    keys: Arrays
    hashes: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.hashes)

    @cached_property
    def groups(self) -> Numbers:
        """The key groups of the collections, sorted."""
        return np.sort(groups_of(self.hashes))

    @classmethod
    def of(cls, keys: Arrays, rows: int) -> Owners:
        """Create the collections with the given keys, which must be distinct."""
        return cls(keys, hash_rows(keys, rows))

    @classmethod
    def distinct(cls, keys: Arrays, rows: int) -> tuple[Owners, Numbers]:
        """Return the distinct collections of rows, by first appearance, and the number of each row's collection."""
        if len(keys) == 1:
            encoded = keys[0].dictionary_encode(null_encoding="encode")
            codes = np.asarray(encoded.indices).astype(np.int64)
            return cls.of([encoded.dictionary], len(encoded.dictionary)), codes
        encoded = pa.array(row_codes(keys, rows)).dictionary_encode()
        codes = np.asarray(encoded.indices).astype(np.int64)
        first = np.empty(len(encoded.dictionary), np.int64)
        first[codes[::-1]] = np.arange(rows)[::-1]
        picked = pa.array(first)
        return cls.of([column.take(picked) for column in keys], len(first)), codes

    @classmethod
    def united(cls, parts: Sequence[Owners], names: Sequence[str], none: Arrays) -> Owners:
        """Return the collections that occur in any of `parts`, sorted by key, None first; `none`: empty key columns."""
        columns = [pa.concat_arrays([part.keys[i] for part in parts] or [one]) for i, one in enumerate(none)]
        owners, _ = cls.distinct(columns, sum(map(len, parts)))
        return owners.taken(owners.by_key(names))

    def by_key(self, names: Sequence[str]) -> Numbers:
        """Return the order of the collections by key, None first; `names`: the key columns."""
        if not names or len(self) < 2:
            return np.arange(len(self))
        first = self.keys[0]
        if len(names) == 1 and pa.types.is_int64(first.type) and not first.null_count:
            return np.argsort(np.asarray(first))
        table = pa.table([*self.keys, pa.array(np.arange(len(self)))], names=[*names, _TURN])
        return words(in_order(table, names)[_TURN])

    def sorted(self, names: Sequence[str]) -> Numbers:
        """Return the order of the collections by key group, so that few row groups have a key, then by key."""
        turn = self.by_key(names)
        groups = groups_of(self.hashes).astype(np.uint16)
        return turn[np.argsort(groups[turn], kind="stable")]

    def numbers_of(self, others: Owners) -> Numbers:
        """Return the number of each of `others`, all of which must be among these collections."""
        turn = np.argsort(self.hashes)
        return turn[located(self.taken(turn), others)]

    def taken(self, which: Any) -> Owners:
        """Select collections by number."""
        picked = pa.array(which)
        return Owners([column.take(picked) for column in self.keys], self.hashes[which])


@dataclass(frozen=True)
class Span:
    """Range, row limit and direction of a scan; orders are 64-bit integers.

    Attributes:
        first, last: the lowest and the highest order, inclusive.
        most: maximum number of rows per collection, at least 1; None: no limit.
        backwards: whether the scan starts at the highest order.
    """

    first: int = LOWEST
    last: int = HIGHEST
    most: int | None = None
    backwards: bool = False


ALL = Span()


@dataclass(frozen=True)
class Found:
    """Rows of wanted collections as columns of equal length.

    Attributes:
        owners: the number of each row's collection among the wanted ones.
        orders, numbers: order and sequence number of each row.
        values: the value columns.
    """

    owners: Numbers
    orders: Numbers
    numbers: Numbers
    values: Arrays

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def places(self) -> tuple[Numbers, Numbers, Numbers]:
        """The columns by which the rows are sorted, most significant first: collection, order and sequence number."""
        return self.owners, self.orders, self.numbers

    def taken(self, which: Any) -> Found:
        """Select rows by position or by a Boolean mask."""
        picked = np.flatnonzero(which) if np.asarray(which).dtype == bool else which
        values = [column.take(pa.array(picked)) for column in self.values]
        return Found(self.owners[picked], self.orders[picked], self.numbers[picked], values)

    @classmethod
    def merged(cls, parts: Sequence[Found]) -> Found:
        """Merge `parts`, at least one, into one sorted result; a row that occurs in several parts is kept once."""
        filled = [part for part in parts if len(part)] or parts[:1]
        if len(filled) == 1:
            return filled[0]
        owners, orders, numbers = (
            np.concatenate([getattr(part, name) for part in filled]) for name in ("owners", "orders", "numbers")
        )
        values = [pa.concat_arrays(list(columns)) for columns in zip(*(part.values for part in filled), strict=True)]
        both = cls(owners, orders, numbers, values)
        if _is_sorted(owners, orders, numbers):
            return both
        turn = sorted_places(owners, orders, numbers)
        return both.taken(turn[~_repeated(owners[turn], orders[turn], numbers[turn])])

    def without(self, others: Found) -> Found:
        """Drop the rows that occur in `others`."""
        if not len(self) or not len(others):
            return self
        owners, orders, numbers = (
            np.concatenate([getattr(others, name), getattr(self, name)]) for name in ("owners", "orders", "numbers")
        )
        turn = sorted_places(owners, orders, numbers)  # stable: of two equal rows that of `others` is first
        twice = np.zeros(len(owners), bool)
        twice[turn[_repeated(owners[turn], orders[turn], numbers[turn])]] = True
        return self.taken(~twice[len(others) :])

    def limited(self, span: Span) -> Found:
        """Return only as many rows of each collection as `span` allows."""
        if span.most is None:
            return self
        after = np.searchsorted(self.owners, self.owners, side="right") - np.arange(len(self)) - 1
        before = np.arange(len(self)) - np.searchsorted(self.owners, self.owners)
        return self.taken((after if span.backwards else before) < span.most)

    def counts(self, owners: int) -> Numbers:
        """Return the number of rows of each of the collections, of which there are `owners`."""
        return np.bincount(self.owners, minlength=owners)


def sorted_places(owners: Numbers, orders: Numbers, numbers: Numbers) -> Numbers:
    """Return the order of rows by collection, order and sequence number; rows that are equal stay as they are."""
    turn = order_of(owners, orders)
    tie = (owners[turn[1:]] == owners[turn[:-1]]) & (orders[turn[1:]] == orders[turn[:-1]])
    # Nearly all rows come in the order of their sequence numbers.
    return order_of(owners, orders, numbers) if (tie & (numbers[turn[1:]] < numbers[turn[:-1]])).any() else turn


def _repeated(*columns: npt.NDArray[Any]) -> Mask:
    """Return which rows equal the row before them."""
    same = np.zeros(len(columns[0]), bool)
    same[1:] = np.all([column[1:] == column[:-1] for column in columns], axis=0)
    return same


@dataclass(frozen=True)
class SortedRows:
    """Block of rows, sorted by the hash of their collection, then by order and sequence number.

    Attributes:
        keys: the collections, sorted by hash.
        starts: where the rows of each collection begin, followed by the number of rows.
        orders, numbers: order and sequence number of each row.
        values: the value columns; for tombstones, none.
        least, most: the lowest and the highest order.
    """

    keys: Owners
    starts: Numbers
    orders: Numbers
    numbers: Numbers
    values: Arrays
    least: int
    most: int

    def __len__(self) -> int:
        return len(self.orders)

    @classmethod
    def of(cls, keys: Arrays, orders: Numbers, numbers: Numbers, values: Arrays) -> SortedRows:
        """Sort rows, given as columns, into a block."""
        owners, codes = Owners.distinct(keys, len(orders))
        return cls.of_owners(owners, Found(codes, orders, numbers, values))

    @classmethod
    def of_owners(cls, owners: Owners, rows: Found) -> SortedRows:
        """Sort rows whose collections are known into a block."""
        owners, places = _by_hash(owners, rows.owners)
        rows = Found(places[rows.owners], rows.orders, rows.numbers, rows.values)
        if not _is_sorted(*rows.places):
            rows = rows.taken(sorted_places(*rows.places))
        return cls._of_sorted(owners, rows)

    @classmethod
    def joined(cls, blocks: Sequence[SortedRows]) -> SortedRows:
        """Merge `blocks`, at least one, into one block; a row that occurs in several blocks is kept once."""
        if len(blocks) == 1:
            return blocks[0]
        columns = [pa.concat_arrays(list(parts)) for parts in zip(*(one.keys.keys for one in blocks), strict=True)]
        owners, codes = Owners.distinct(columns, sum(len(one.keys) for one in blocks))
        owners, places = _by_hash(owners, codes)
        parts, begin, codes = [], 0, places[codes]
        for one in blocks:
            parts.append(Found(codes[begin + one.owner_numbers], one.orders, one.numbers, one.values))
            begin += len(one.keys)
        return cls._of_sorted(owners, Found.merged(parts))

    @classmethod
    def _of_sorted(cls, owners: Owners, rows: Found) -> SortedRows:
        starts = np.searchsorted(rows.owners, np.arange(len(owners) + 1))
        ends = (int(rows.orders.min()), int(rows.orders.max())) if len(rows) else (HIGHEST, LOWEST)
        return cls(owners, starts, rows.orders, rows.numbers, rows.values, *ends)

    @property
    def owner_numbers(self) -> Numbers:
        """The number of each row's collection among `keys`."""
        return np.repeat(np.arange(len(self.keys)), self.sizes)

    @property
    def sizes(self) -> Numbers:
        """The number of rows of each of the collections in `keys`."""
        return np.diff(self.starts)

    @property
    def rows(self) -> Found:
        """All rows, with the numbers of their collections among `keys`."""
        return Found(self.owner_numbers, self.orders, self.numbers, self.values)

    def by_owner(self, turn: Numbers) -> Found:
        """Return all rows in another order of their collections, `turn`: some numbers of `keys`, each at most once."""
        sizes = self.sizes[turn]
        at = np.repeat(self.starts[turn] - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
        return self.rows.taken(at)

    @property
    def nbytes(self) -> int:
        """The approximate size in memory."""
        numbers = (self.orders, self.numbers, self.starts, self.keys.hashes)
        return int(sum(one.nbytes for one in (*numbers, *self.values, *self.keys.keys)))

    def overlaps(self, span: Span) -> bool:
        """Whether any row may be in the range of `span`."""
        return self.least <= span.last and self.most >= span.first

    def taken(self, which: Any) -> SortedRows:
        """Return a block with only the rows selected by position or mask, in the present order."""
        return SortedRows.of_owners(self.keys, self.rows.taken(which))

    def there(self, span: Span) -> Owners:
        """Return the collections that have rows in the range of `span`."""
        low, high = self._ranges(np.arange(len(self.keys)), span)
        return self.keys if (low < high).all() else self.keys.taken(np.flatnonzero(low < high))

    def find(self, owners: Owners, span: Span) -> Found:
        """Return the rows of `owners` in `span`, sorted by collection, order and sequence number."""
        at = located(self.keys, owners) if self.overlaps(span) else np.empty(0, np.int64)
        wanted = np.flatnonzero(at >= 0) if len(at) else at
        if not len(wanted):  # often, as sources are chosen by their bounds only
            return Found(wanted, wanted, wanted, [column.slice(0, 0) for column in self.values])
        low, high = self._ranges(at[wanted], span)
        if span.most is not None:
            low, high = (np.maximum(low, high - span.most), high) if span.backwards else (
                low, np.minimum(high, low + span.most))  # fmt: skip
        sizes = high - low
        total = int(sizes.sum())
        if len(wanted) == 1:  # the usual case of one collection per task: no copy
            begin, end = int(low[0]), int(high[0])
            values: Arrays = [column.slice(begin, total) for column in self.values]
            return Found(np.full(total, wanted[0]), self.orders[begin:end], self.numbers[begin:end], values)
        rows = np.repeat(low - (np.cumsum(sizes) - sizes), sizes) + np.arange(total)
        picked = pa.array(rows)
        values = [column.take(picked) for column in self.values]
        return Found(np.repeat(wanted, sizes), self.orders[rows], self.numbers[rows], values)

    def _ranges(self, at: Numbers, span: Span) -> tuple[Numbers, Numbers]:
        low, high = self.starts[at], self.starts[at + 1]
        if span.first > self.least:
            low = bisected(self.orders, low, high, span.first)
        if span.last < self.most:
            high = bisected(self.orders, low, high, span.last, after=True)
        return low, high


def few(blocks: Sequence[SortedRows]) -> list[SortedRows]:
    """Merge the last ones of `blocks`, so that each is more than twice as large as the next; call after adding one."""
    made = list(blocks)
    while len(made) > 1 and len(made[-2]) <= 2 * len(made[-1]):
        made[-2:] = [SortedRows.joined(made[-2:])]
    return made


def located(among: Owners, owners: Owners) -> Numbers:
    """Return the number of each of `owners` in `among`, which is sorted by hash; -1 if it is not there."""
    own = among.hashes
    at = np.searchsorted(own, owners.hashes)
    result = np.full(len(owners), -1, np.int64)
    rest = np.arange(len(owners))
    while True:  # more than once only if two keys have the same hash
        rest = rest[at[rest] < len(own)]
        rest = rest[own[at[rest]] == owners.hashes[rest]]
        if not len(rest):
            return result
        equal = _equal(among.keys, at[rest], owners.keys, rest)
        result[rest[equal]] = at[rest[equal]]
        rest = rest[~equal]
        at[rest] += 1


def _by_hash(owners: Owners, used: Numbers) -> tuple[Owners, Numbers]:
    """Return those of `owners` that are `used`, sorted by hash, and the new number of each."""
    there = np.zeros(len(owners), bool)
    there[used] = True
    turn = np.argsort(owners.hashes)
    turn = turn[there[turn]]
    places = np.zeros(len(owners), np.int64)
    places[turn] = np.arange(len(turn))
    return owners.taken(turn), places


def _equal(one: Arrays, at: Numbers, other: Arrays, there: Numbers) -> Mask:
    """Return which of the keys at positions `at` of `one` equal those at positions `there` of `other`."""
    if len(at) == 1:
        i, j = int(at[0]), int(there[0])
        return np.array([all(left[i].as_py() == right[j].as_py() for left, right in zip(one, other, strict=True))])
    result = np.ones(len(at), bool)
    for left, right in zip(one, other, strict=True):
        a, b = left.take(pa.array(at)), right.take(pa.array(there))
        same = pc.or_(pc.fill_null(pc.equal(a, b), False), pc.and_(a.is_null(), b.is_null()))
        result &= same.to_numpy(zero_copy_only=False)
    return result


def _is_sorted(codes: Numbers, orders: Numbers, numbers: Numbers) -> bool:
    step, rise = np.diff(codes), orders[1:] >= orders[:-1]
    tie = orders[1:] == orders[:-1]
    return bool(((step > 0) | ((step == 0) & rise & (~tie | (numbers[1:] > numbers[:-1])))).all())
