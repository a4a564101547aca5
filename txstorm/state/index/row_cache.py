"""Row cache: rows of a state in memory, as Python objects, up to a limit in bytes.

It has two generations: rows that are written, or read from disk, are added to the young generation; when that reaches
half of the limit, it becomes the old generation, and the previous old generation is evicted. Until the first eviction,
the cache is complete: a key that misses does not exist. For many rows, see `txstorm.state.index.packed_cache`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from txstorm.storage.rows.forms import Key
from txstorm.storage.rows.update_rules import Stored

_ENTRY_BYTES = 104
"""Size in bytes of a dictionary entry, including its share of free slots."""
_SAMPLE = 200
_FIRST_LOOK = 1_000


class Cache(Protocol):
    """Port: rows in memory, implemented by `RowCache` and others; check `complete` after reading.

    Attributes:
        complete: whether no row has been evicted, so that a key that misses does not exist.
    """

    complete: bool

    def __len__(self) -> int:
        """Return the number of rows; rows in both generations count twice."""

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """Read the row of each of `keys`; None if it is not in the cache."""

    def put(self, rows: Iterable[tuple[Key, Stored]] | Mapping[Key, Stored]) -> None:
        """Add rows, replacing older rows of the same keys."""

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove the rows of `keys`."""

    def forget(self) -> None:
        """Evict all rows, which are also on disk."""


class WholeCache(Cache, Protocol):
    """Port: the initial cache of a state, which contains all rows until they are also on disk."""

    def rows(self) -> Mapping[Key, Stored]:
        """Return all rows in the cache, by key."""

    def let_go(self) -> Cache:
        """Allow eviction, since rows can now be read from disk; return the cache to use from now on."""


class RowCache:
    """Cache of the rows of one state. Many threads may read while one writes.

    Args:
        limit: approximate bytes of all rows.
        packed: creates the packed cache that replaces this cache once rows are on disk; None: keep this cache.

    Attributes:
        complete: whether no row has been evicted, so that a key that misses does not exist.
        may_forget: whether rows may be evicted, since they can be read from disk.
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
        """Return the number of rows; rows in both generations count twice."""
        return len(self._young) + len(self._old)

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """Read the row of each of `keys`; None if it is not in the cache. Check `complete` afterwards."""
        found: list[Stored | None] = list(map(self._young.get, keys))
        old = self._old  # read last: a generation becomes old before it stops being young
        if old and None in found:
            return [old.get(key) if row is None else row for key, row in zip(keys, found, strict=True)]
        return found

    def put(self, rows: Iterable[tuple[Key, Stored]] | Mapping[Key, Stored]) -> None:
        """Add rows, replacing older rows of the same keys."""
        self._young.update(rows)
        if len(self._young) >= self._look_at:
            self._keep_bound()

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove the rows of `keys`."""
        for key in keys:
            self._young.pop(key, None)
            self._old.pop(key, None)

    def rows(self) -> dict[Key, Stored]:
        """Return all rows in the cache, by key."""
        return {**self._old, **self._young}

    def let_go(self) -> Cache:
        """Allow eviction, since rows can now be read from disk; return the cache to use: this or the packed cache."""
        if self._packed is not None:
            packed = self._packed()
            packed.put(self.rows())
            return packed
        self.may_forget = True
        if self._young:
            self._keep_bound()
        return self

    def forget(self) -> None:
        """Evict all rows, which are also on disk."""
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
    """Estimate the average size of a row with its key, in bytes, from a sample of `rows`."""
    some = list(islice(rows.items(), _SAMPLE))
    return sum(_size(key) + _size(row) + _ENTRY_BYTES for key, row in some) // max(1, len(some))


def _size(value: object) -> int:
    inside = value if isinstance(value, tuple | list) else value.values() if isinstance(value, Mapping) else ()
    return sys.getsizeof(value) + sum(map(_size, inside))
