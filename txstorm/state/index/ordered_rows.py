"""Rows of collections in memory, found by key or in the order of their places."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Generic, TypeVar, cast

from txstorm.storage.rows.schema import PLACE

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
Owner = tuple[Any, ...]
"""The key of a collection, as a tuple of its columns."""
Place = tuple[Any, int]
"""Where in its collection a row is: its order, and its number among the rows with that order."""
LAST = (1 << 63) - 1
"""No row has that number; the lowest is 0."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of places, and how many rows of it are wanted.

    Attributes:
        first, last: the lowest and the highest place, both included.
        most: so many rows, at least 1, those that come first; None: all.
        backwards: whether the highest places come first.
    """

    first: Place
    last: Place
    most: int | None = None
    backwards: bool = False

    @classmethod
    def of(cls, start: Any, end: Any, most: int | None = None, *, backwards: bool = False) -> Span:
        """All places with values of the order column from `start` to `end`."""
        return cls((start, 0), (end, LAST), most, backwards)

    def upto(self, place: Place) -> Span:
        """What comes before `place`, and that; all rows of it."""
        if self.backwards:
            return replace(self, first=place, most=None)
        return replace(self, last=place, most=None)

    def after(self, place: Place, most: int) -> Span:
        """What comes after `place`; `most` rows of it."""
        at, number = place
        if self.backwards:
            return replace(self, last=(at, number - 1), most=most)
        return replace(self, first=(at, number + 1), most=most)


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
        """Places and rows of `owner` in `span`, in its order."""
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


def _within(places: list[Place], span: Span) -> list[Place]:
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
    """`rows` with the `later` ones over them, all in order."""
    newer = dict(later)
    if not newer:
        return rows
    merged = {**dict(rows), **newer}
    return [(place, merged[place]) for place in sorted(merged, reverse=backwards)]


def filled(
    read: Callable[[Sequence[Owner], Span], list[list[tuple[Place, S]]]],
    settle: Callable[[Owner, list[tuple[Place, S]], Span], list[tuple[Place, T]]],
    owners: Sequence[Owner],
    span: Span,
) -> list[list[tuple[Place, T]]]:
    """As many rows of each of `owners` as `span` wants, where some of those that are read do not count.

    `read` gives the rows of collections in a span, as many as that wants. `settle` gives what is left of them, with
    others that belong between them; they are all that there are to read in the span that it gets with them.
    """
    pages = zip(owners, read(owners, span), strict=True)
    return [_filled(read, settle, owner, rows, span) for owner, rows in pages]


def _filled(
    read: Callable[[Sequence[Owner], Span], list[list[tuple[Place, S]]]],
    settle: Callable[[Owner, list[tuple[Place, S]], Span], list[tuple[Place, T]]],
    owner: Owner,
    rows: list[tuple[Place, S]],
    span: Span,
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
        most *= 2  # so that many rows that do not count are passed by in few steps
        rest = rest.after(reached, most)
        (rows,) = read([owner], rest)
    found += settle(owner, rows, replace(rest, most=None))
    return found[: span.most]
