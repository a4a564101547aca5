"""Rows of a state in memory, as many as a bound of bytes allows: in the form in which they are used.

They are in two generations: what is written or read from elsewhere goes into the young one; when that has reached half
of the bound it becomes the old one, and the one that was old is forgotten. Until the first time that happens all rows
are here, and what is not here is not there at all. Many rows are packed instead: see
`txstorm.state.index.packed_cache`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from txstorm.storage.rows.forms import Key
from txstorm.storage.rows.semantics import Stored

_ENTRY_BYTES = 104
"""Of an entry of a dictionary, with its share of free places."""
_SAMPLE = 200
_FIRST_LOOK = 1_000


class Cache(Protocol):
    """Rows in memory, as `RowCache`; its `complete` is to be asked after reading.

    Attributes:
        complete: whether all rows that were ever put are still here, but for the removed ones.
    """

    complete: bool

    def __len__(self) -> int:
        """How many rows are here; some may count twice."""

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """The row of each of `keys`, None for those that are not here."""

    def put(self, rows: Iterable[tuple[Key, Stored]] | Mapping[Key, Stored]) -> None:
        """Take rows in, over older ones of their keys."""

    def remove(self, keys: Iterable[Key]) -> None:
        """These keys are gone."""

    def forget(self) -> None:
        """Forget all rows: they are elsewhere."""


class WholeCache(Cache, Protocol):
    """The one at the beginning, while there is no other place for rows."""

    def rows(self) -> Mapping[Key, Stored]:
        """All rows that are here."""

    def let_go(self) -> Cache:
        """From now on there is another place that rows can be read from; returns what goes on with them."""


class RowCache:
    """The rows of one state. Many may read while one thread at a time writes.

    Args:
        limit: bytes of all rows, about.
        packed: makes the cache that goes on with many rows; None: this one does.

    Attributes:
        complete: whether all rows that were ever put are still here, but for the removed ones.
        may_forget: whether there is another place that rows can be read from.
    """

    def __init__(self, limit: int, packed: Callable[[], Cache] | None = None) -> None:
        self._packed = packed
        self.complete = True
        self.may_forget = False
        self._limit = limit
        self._young: dict[Key, Stored] = {}
        self._old: dict[Key, Stored] = {}
        self._look_at = max(2, min(_FIRST_LOOK, limit // _FIRST_LOOK))

    def __len__(self) -> int:
        """How many rows are here; some may count twice."""
        return len(self._young) + len(self._old)

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """The row of each of `keys`, None for those that are not here; `complete` is to be asked after this."""
        found: list[Stored | None] = list(map(self._young.get, keys))
        old = self._old  # after the young ones: a generation is old before it is not young any more
        if old and None in found:
            return [old.get(key) if row is None else row for key, row in zip(keys, found, strict=True)]
        return found

    def put(self, rows: Iterable[tuple[Key, Stored]] | Mapping[Key, Stored]) -> None:
        """Take rows in, over older ones of their keys."""
        self._young.update(rows)
        if len(self._young) >= self._look_at:
            self._keep_bound()

    def remove(self, keys: Iterable[Key]) -> None:
        """These keys are gone."""
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)

    def rows(self) -> dict[Key, Stored]:
        """All rows that are here."""
        return {**self._old, **self._young}

    def let_go(self) -> Cache:
        """From now on there is another place that rows can be read from: keep to the bound, or hand them over."""
        if self._packed is not None:
            packed = self._packed()
            packed.put(self.rows())
            return packed
        self.may_forget = True
        if self._young:
            self._keep_bound()
        return self

    def forget(self) -> None:
        """Forget all rows: they are elsewhere."""
        self.complete = False
        self._old = {}
        self._young = {}

    def _keep_bound(self) -> None:
        most = max(2, self._limit // row_bytes(self._young))
        if self.complete and (len(self._young) <= most or not self.may_forget):
            now = len(self._young)
            self._look_at = min(2 * now, most + 1) if now <= most else 2 * now
            return
        self.complete = False
        self._old = self._young
        self._young = {}
        self._look_at = most // 2


def row_bytes(rows: Mapping[Key, Stored]) -> int:
    """What one of `rows` takes in memory with its key, about; from some of them."""
    some = list(islice(rows.items(), _SAMPLE))
    return sum(_size(key) + _size(row) + _ENTRY_BYTES for key, row in some) // max(1, len(some))


def _size(value: object) -> int:
    inside = value if isinstance(value, tuple | list) else value.values() if isinstance(value, Mapping) else ()
    return sys.getsizeof(value) + sum(map(_size, inside))
