"""Rows of collections in memory, found by key or in the order of their places."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from txstorm.state.schema import PLACE

R = TypeVar("R")
S = TypeVar("S")
Owner = tuple[Any, ...]
"""The key of a collection, as a tuple of its columns."""
Place = tuple[Any, int]
"""Where in its collection a row is: its order, and its number among the rows with that order."""
LAST = (1 << 63) - 1
"""No row has a higher number; the lowest is 0."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of places.

    Attributes:
        start, end: values of the order column, both included.
    """

    start: Any
    end: Any

    @property
    def first(self) -> Place:
        """The lowest place in it."""
        return self.start, 0

    @property
    def last(self) -> Place:
        """The highest one."""
        return self.end, LAST


class OrderedRows(dict[tuple[Any, ...], R], Generic[R]):
    """Keys of rows → rows, and per collection the order of its rows. One thread changes it, others may read.

    The order is kept up when it is asked for: rows that nobody scans cost no more than in a plain dictionary. Rows that
    come about in order are put in their place at once; any other moves the places behind it, eight bytes for each.
    """

    def __init__(self, rows: Mapping[Any, R] | Iterable[tuple[Any, R]] = ()) -> None:
        super().__init__()
        self._places: dict[Owner, list[Place]] = {}
        self._new: list[tuple[Any, ...]] = []
        self._gone: list[tuple[Any, ...]] = []
        self._lock = Lock()
        self.update(rows)

    def update(self, rows: Any = (), /, **_: R) -> None:
        """Take rows in, over older ones of their keys."""
        given = rows if isinstance(rows, Mapping) else dict(rows)
        with self._lock:
            self._new += [key for key in given if key not in self]
            super().update(given)

    def discard(self, keys: Iterable[tuple[Any, ...]]) -> None:
        """Forget these keys, those of them that are there."""
        with self._lock:
            there = [key for key in keys if key in self]
            for key in there:
                del self[key]
            self._gone += there

    def scan(self, owner: Owner, span: Span) -> list[tuple[Place, R]]:
        """Places and rows of `owner` in `span`, in order."""
        with self._lock:
            self._arrange()
            places = self._places.get(owner)
            if not places:
                return []
            start = bisect_left(places, span.first)
            found = places[start : bisect_right(places, span.last, lo=start)]
            return [(place, self[(*owner, *place)]) for place in found]

    def _arrange(self) -> None:
        gone, self._gone = self._gone, []
        if gone:
            self._take_out(gone)
        new, self._new = self._new, []
        for key in new:
            if key in self:
                self._insert(key[:-PLACE], cast("Place", key[-PLACE:]))

    def _take_out(self, keys: list[tuple[Any, ...]]) -> None:
        ranges: dict[Owner, list[Place]] = {}
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

    def _insert(self, owner: Owner, place: Place) -> None:
        places = self._places.setdefault(owner, [])
        if not places or places[-1] < place:
            places.append(place)
        elif (at := bisect_left(places, place)) == len(places) or places[at] != place:
            insort(places, place, lo=at)


def over(rows: list[tuple[Place, S]], later: Iterable[tuple[Place, S]]) -> list[tuple[Place, S]]:
    """`rows` with the `later` ones over them, all in order."""
    newer = dict(later)
    if not newer:
        return rows
    merged = {**dict(rows), **newer}
    return [(place, merged[place]) for place in sorted(merged)]
