"""Ordered rows: rows of collections in memory, accessible by key or in the order of their positions.

`Columns`, the result of a columnar scan, holds such rows without a Python object per row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from threading import Lock
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm.keys import canonical_value
from txstorm.storage.rows.forms import Value, ValueForm
from txstorm.storage.rows.schema import PLACE

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
CollectionKey = tuple[Any, ...]
"""Key of a collection, as a tuple of its column values."""
Place = tuple[Any, int]
"""Position of a row in its collection: the value of the order column, and the sequence number."""
LAST = (1 << 63) - 1
"""Sequence number greater than that of any row; the lowest sequence number is 0."""


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Range, row limit and direction of a scan.

    Attributes:
        first, last: the lowest and the highest position, inclusive.
        most: maximum number of rows, at least 1; None: no limit.
        backwards: whether the scan starts at the highest position.
    """

    first: Place
    last: Place
    most: int | None = None
    backwards: bool = False

    @classmethod
    def of(cls, start: Any, end: Any, most: int | None = None, *, backwards: bool = False) -> ScanRange:
        """Create a scan of all positions with order-column values from `start` to `end`, both inclusive."""
        return cls((start, 0), (end, LAST), most, backwards)

    def upto(self, place: Place) -> ScanRange:
        """Return the part of the scan up to and including `place`, without a row limit."""
        if self.backwards:
            return replace(self, first=place, most=None)
        return replace(self, last=place, most=None)

    def after(self, place: Place, most: int) -> ScanRange:
        """Return the rest of the scan after `place`, limited to `most` rows."""
        at, number = place
        if self.backwards:
            return replace(self, last=(at, number - 1), most=most)
        return replace(self, first=(at, number + 1), most=most)


class OrderedRows(dict[tuple[Any, ...], R], Generic[R]):
    """Dictionary of rows by key that can also be scanned in order. One thread may change it while others read.

    The order is maintained lazily: rows that are never scanned cost no more than in a plain dictionary. Rows added in
    order are appended; inserting any other row moves the positions after it, eight bytes each.
    """

    def __init__(self, rows: Mapping[Any, R] | Iterable[tuple[Any, R]] = ()) -> None:
        super().__init__()
        self._places: dict[CollectionKey, list[Place]] = {}
        self._new: list[tuple[Any, ...]] = []
        self._gone: list[tuple[Any, ...]] = []
        self._lock = Lock()
        self.update(rows)

    def update(self, rows: Any = (), /, **_: R) -> None:
        """Add rows, replacing older rows of the same keys."""
        given = rows if isinstance(rows, Mapping) else dict(rows)
        with self._lock:
            self._new += [key for key in given if key not in self]
            super().update(given)

    def discard(self, keys: Iterable[tuple[Any, ...]]) -> None:
        """Remove the rows of `keys`; absent keys are ignored."""
        with self._lock:
            there = [key for key in keys if key in self]
            for key in there:
                del self[key]
            self._gone += there

    def scan(self, owner: CollectionKey, span: ScanRange) -> list[tuple[Place, R]]:
        """Return the positions and rows of the collection `owner` in `span`, in the direction of `span`."""
        with self._lock:
            self._arrange()
            places = self._places.get(owner)
            if not places:
                return []
            return [(place, self[(*owner, *place)]) for place in _within(places, span)]

    def _arrange(self) -> None:
        gone, self._gone = self._gone, []
        if gone:
            self._take_out(gone)
        new, self._new = self._new, []
        for key in new:
            if key in self:
                self._insert(key[:-PLACE], cast("Place", key[-PLACE:]))

    def _take_out(self, keys: list[tuple[Any, ...]]) -> None:
        ranges: dict[CollectionKey, list[Place]] = {}
        for key in keys:
            ranges.setdefault(key[:-PLACE], []).append(cast("Place", key[-PLACE:]))
        for owner, gone in ranges.items():
            places = self._places.get(owner)
            if places is None:
                continue
            start, end = bisect_left(places, min(gone)), bisect_right(places, max(gone))
            places[start:end] = [place for place in places[start:end] if (*owner, *place) in self]
            if not places:
                del self._places[owner]

    def _insert(self, owner: CollectionKey, place: Place) -> None:
        places = self._places.setdefault(owner, [])
        if not places or places[-1] < place:
            places.append(place)
        elif (at := bisect_left(places, place)) == len(places) or places[at] != place:
            insort(places, place, lo=at)


def _within(places: list[Place], span: ScanRange) -> list[Place]:
    start = bisect_left(places, span.first)
    end = bisect_right(places, span.last, lo=start)
    if span.backwards:
        found = places[start if span.most is None else max(start, end - span.most) : end]
        found.reverse()
        return found
    return places[start : end if span.most is None else min(end, start + span.most)]


def over(
    rows: list[tuple[Place, S]], later: Iterable[tuple[Place, S]], *, backwards: bool = False
) -> list[tuple[Place, S]]:
    """Merge `rows` with `later` rows, which replace rows at the same position; both must be in order."""
    newer = dict(later)
    if not newer:
        return rows
    merged = {**dict(rows), **newer}
    return [(place, merged[place]) for place in sorted(merged, reverse=backwards)]


def filled(
    read: Callable[[Sequence[CollectionKey], ScanRange], list[list[tuple[Place, S]]]],
    settle: Callable[[CollectionKey, list[tuple[Place, S]], ScanRange], list[tuple[Place, T]]],
    owners: Sequence[CollectionKey],
    span: ScanRange,
) -> list[list[tuple[Place, T]]]:
    """Read rows of each of `owners` until the limit of `span` is reached, counting only rows that `settle` returns.

    Args:
        read: returns the rows of some collections in a range, up to its row limit.
        settle: given a collection, all rows read in a range, and the range, filters these rows and merges in others.
        owners: the collections.
        span: the range to scan.
    """
    pages = zip(owners, read(owners, span), strict=True)
    return [_filled(read, settle, owner, rows, span) for owner, rows in pages]


def _filled(
    read: Callable[[Sequence[CollectionKey], ScanRange], list[list[tuple[Place, S]]]],
    settle: Callable[[CollectionKey, list[tuple[Place, S]], ScanRange], list[tuple[Place, T]]],
    owner: CollectionKey,
    rows: list[tuple[Place, S]],
    span: ScanRange,
) -> list[tuple[Place, T]]:
    if span.most is None:
        return settle(owner, rows, span)
    found: list[tuple[Place, T]] = []
    rest, most = span, span.most
    while len(rows) >= most:
        reached = rows[-1][0]
        found += settle(owner, rows, rest.upto(reached))
        if len(found) >= span.most:
            return found[: span.most]
        most *= 2  # so that many filtered rows are skipped in a few steps
        rest = rest.after(reached, most)
        (rows,) = read([owner], rest)
    found += settle(owner, rows, replace(rest, most=None))
    return found[: span.most]


Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Rows of several collections as columns of equal length, sorted by collection and position.

    Attributes:
        owners: the index of each row's collection among the requested collections.
        orders: the values of the order column, as 64-bit integers.
        numbers: the sequence numbers.
        values: the stored value columns.
    """

    owners: Numbers
    orders: Numbers
    numbers: Numbers
    values: Sequence[pa.Array]

    def over(self, later: Sequence[Sequence[tuple[Place, Value | None]]], form: ValueForm) -> Columns:
        """Return these rows overlaid with the `later` rows of each collection; a value of None removes the row."""
        if not any(later):
            return self
        newer = placed_columns(later, form)
        there = [value is not None for _, value in chain.from_iterable(later)]
        owners, orders, numbers = map(np.concatenate, zip(self.places, newer.places, strict=True))
        values = [pa.concat_arrays(pair) for pair in zip(self.values, newer.values, strict=True)]
        both = Columns(owners, orders, numbers, values)
        last = np.lexsort((numbers, orders, owners))  # stable: of two rows with the same place, the later one is last
        keep = np.ones(len(last), bool)
        keep[:-1] = np.any([one[last][1:] != one[last][:-1] for one in both.places], axis=0)
        return both.taken(last[keep & np.concatenate([np.ones(len(self.owners), bool), there])[last]])

    @property
    def places(self) -> tuple[Numbers, Numbers, Numbers]:
        """The columns by which the rows are sorted, most significant first: owner, order and number."""
        return self.owners, self.orders, self.numbers

    def taken(self, rows: Any) -> Columns:
        """Select rows by index or by a Boolean mask."""
        picked = np.arange(len(self.owners))[rows]
        values = [one.take(pa.array(picked)) for one in self.values]
        return Columns(self.owners[picked], self.orders[picked], self.numbers[picked], values)


def placed_columns(rows: Sequence[Sequence[tuple[Place, Value | None]]], form: ValueForm) -> Columns:
    """Convert ordered rows of several collections to columns, with nulls where a row has no value."""
    flat = list(chain.from_iterable(rows))
    owners = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    orders = np.fromiter((_bits(place[0]) for place, _ in flat), np.int64, len(flat))
    numbers = np.fromiter((place[1] for place, _ in flat), np.int64, len(flat))
    return Columns(owners, orders, numbers, form.arrays([value for _, value in flat]))


def _bits(order: Any) -> int:
    return int.from_bytes(canonical_value(order)[1], "little", signed=True)
