"""Layers of rows of collections: rows from several sources, and the removals and bounds that apply to them.

The rows of files, those in memory, those of unpublished txids and those of a task are layers, one over the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from txstorm.state.index.sorted_rows import ALL, LOWEST, Arrays, Found, Owners, SortedRows, Span
from txstorm.storage.rows.eviction import Tombstones

_FIRST_ROWS = 16
"""Number of rows per collection that a scan with a row limit reads at least."""
_MOST_AT_ONCE = 16
"""Number of sources that a scan with a row limit reads at most before it checks whether it has enough rows."""


@dataclass(frozen=True)
class Source:
    """Block of rows that is read when it is needed.

    Attributes:
        least, most: the lowest and the highest order of its rows.
        read: returns the block.
        may_have: returns whether any of some collections may be in it.
        table: returns the key and value columns of the rows, unsorted; None: they are in memory.
    """

    least: int
    most: int
    read: Callable[[], SortedRows]
    may_have: Callable[[Owners], bool] = lambda owners: True
    table: Callable[[], pa.Table] | None = None


class Sources:
    """Sources of rows, of which those that a scan needs are found quickly even if they are many."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._all = list(sources)
        self._least = np.array([source.least for source in self._all], np.int64)
        self._most = np.array([source.most for source in self._all], np.int64)

    @classmethod
    def of(cls, blocks: Iterable[SortedRows]) -> Sources:
        """Return blocks in memory as sources."""
        return cls(Source(block.least, block.most, partial(_same, block)) for block in blocks)

    def reaching(self, span: Span) -> list[Source]:
        """Return the sources that may have rows in the range of `span`."""
        near = np.flatnonzero((self._least <= span.last) & (self._most >= span.first))
        return [self._all[i] for i in near.tolist()]


def _same(block: SortedRows) -> SortedRows:
    return block


@dataclass(frozen=True)
class Layers:
    """Rows of collections from several sources, and the removals that apply to them.

    Attributes:
        sources: the rows.
        removed: blocks of removed rows.
        tombstones: blocks of range tombstones: the order is the place, the number the limit; see `Tombstones`.
        bound: rows of all collections with a lower order are removed.
    """

    sources: Sequence[Sources] = ()
    removed: Sequence[SortedRows] = ()
    tombstones: Sequence[SortedRows] = ()
    bound: int = LOWEST

    def over(self, later: Layers) -> Layers:
        """Return these layers with `later` ones over them."""
        return Layers(
            [*self.sources, *later.sources],
            [*self.removed, *later.removed],
            [*self.tombstones, *later.tombstones],
            max(self.bound, later.bound),
        )

    def owners(self, span: Span, names: Sequence[str], none: Arrays) -> Owners:
        """Return all collections that may have rows in `span`, sorted by key; `none`: empty key columns."""
        span = self._bounded(span)
        parts = [source.read().there(span) for source in self._reaching(span)]
        return Owners.united(parts, names, none)

    def find(self, owners: Owners, span: Span, living: Callable[[Found], Found], none: Arrays) -> Found:
        """Return the rows of `owners` in `span` that are not removed, sorted by collection, order and sequence number.

        Args:
            owners: the wanted collections.
            span: the range to scan.
            living: drops further rows, such as expired ones.
            none: empty value columns.
        """
        span = self._bounded(span)
        empty = np.empty(0, np.int64)
        nothing = Found(empty, empty, empty, none)
        if span.first > span.last or not len(owners):
            return nothing
        wanted = span.most
        step = None if wanted is None else max(wanted, _FIRST_ROWS)
        while True:
            part = replace(span, most=step)
            read = Found.merged([nothing, *self._read(owners, part)]).limited(part)
            rows = living(self._there(read, owners, span))
            if wanted is None or step is None:
                return rows
            short = (rows.counts(len(owners)) < wanted) & (read.counts(len(owners)) >= step)
            if not short.any():
                return rows.limited(span)
            step *= 4

    def reaching(self, span: Span) -> tuple[Span, list[list[Source]]]:
        """Return `span` without what is below the bound and, by layer, the sources that may have rows in it."""
        span = self._bounded(span)
        return span, [sources.reaching(span) for sources in self.sources]

    def _reaching(self, span: Span) -> list[Source]:
        return [source for sources in self.sources for source in sources.reaching(span)]

    def _bounded(self, span: Span) -> Span:
        return replace(span, first=max(span.first, self.bound)) if self.bound > span.first else span

    def _read(self, owners: Owners, span: Span) -> list[Found]:
        """Read the rows of `owners` in `span`, nearest sources first if there is a row limit, until it is reached."""
        there = [source for source in self._reaching(span) if source.may_have(owners)]
        if span.most is None:
            return [source.read().find(owners, span) for source in there]
        there.sort(key=lambda one: -one.most if span.backwards else one.least)
        found: list[Found] = []
        begin, size = 0, 1
        while begin < len(there) and not (found and _is_beyond(there[begin], found[0], len(owners), span)):
            parts = [source.read().find(owners, span) for source in there[begin : begin + size]]
            found = [Found.merged([*found, *parts]).limited(span)]
            begin, size = begin + size, min(2 * size, _MOST_AT_ONCE)  # not one by one, which would merge too often
        return found

    def _there(self, rows: Found, owners: Owners, span: Span) -> Found:
        if self.tombstones and len(rows):
            cuts = Found.merged([one.find(owners, ALL) for one in self.tombstones])
            hidden = Tombstones(cuts.owners, cuts.orders, cuts.numbers).hide(*rows.places)
            rows = rows.taken(~hidden) if hidden.any() else rows
        if self.removed and len(rows):
            wide = replace(span, most=None)
            gone = [Found(*found.places, ()) for found in (one.find(owners, wide) for one in self.removed)]
            rows = rows.without(Found.merged(gone))
        return rows


def _is_beyond(source: Source, found: Found, owners: int, span: Span) -> bool:
    """Whether every collection has as many rows as `span` allows nearer than any row of `source`."""
    if not (found.counts(owners) == span.most).all():
        return False
    if span.backwards:
        return bool(source.most < found.orders.min())
    return bool(source.least > found.orders.max())
