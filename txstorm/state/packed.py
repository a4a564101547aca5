"""Rows as bytes in memory, in front of those on disk: a seventh of what they take as Python objects.

They lie one behind the other in a piece of memory without any objects, and are found by an open hash table in NumPy
arrays, a thousand keys at a time. Nothing is there that is not in the store behind; what is not there is asked for.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]

_ROW_BYTES = 20
"""Of a row, besides its content: its hash, where its content is and how long, and two places of the table."""
_MOST = 1 << 31
"""Bytes and rows that one piece can have: its arrays count in 32 bits."""
_GONE = b""
"""The row of a key that has none; no row is as short as that."""


class Bytes(Protocol):
    """A store of bytes by key, as `txstorm.clients.rocks.KeyStore`."""

    @property
    def path(self) -> Path:
        """Its directory."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each of `keys`, None where there is none."""

    def scan(self, first: bytes, before: bytes, most: int | None = None) -> list[tuple[bytes, bytes]]:
        """Keys and values from key `first` up to `before`, in order; `most` of them at most."""

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Set and delete keys: all of that, or nothing."""

    def sync(self) -> None:
        """Make durable what was written so far."""

    def close(self) -> None:
        """Let go of it."""


class PackedStore:
    """A store of bytes with the rows last read or written in memory too. One thread may write while others read.

    No key may be the beginning of another one. Rows are in two pieces, as in `txstorm.state.cache.RowCache`: when the
    young one is full it becomes the old one, and what was the old one is forgotten.

    Args:
        store: holds all rows; errors are its own.
        limit: bytes in memory, about; half as much again while the first rows that were forgotten still are.
        complete: whether the store is empty: as long as nothing was forgotten, it then need not be asked at all.
    """

    def __init__(self, store: Bytes, limit: int, *, complete: bool = False) -> None:
        self._store = store
        self._limit = limit
        self._complete = complete
        self._young: Piece | None = None
        self._old: Piece | None = None
        # What is read from the store must not be kept over what is written meanwhile.
        self._lock = Lock()

    @property
    def path(self) -> Path:
        """Its directory."""
        return self._store.path

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each of `keys`, None where there is none."""
        with self._lock:
            found: list[bytes | None] = [None] * len(keys)
            for piece in (self._young, self._old):
                if piece is not None and None in found:
                    found = _filled(keys, found, piece.get)
            if None in found and not self._complete:
                found = _filled(keys, found, self._read)
        return [row or None for row in found]

    def scan(self, first: bytes, before: bytes, most: int | None = None) -> list[tuple[bytes, bytes]]:
        """Keys and values from key `first` up to `before`, in order; `most` of them at most."""
        return self._store.scan(first, before, most)

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Set and delete keys: all of that, or nothing."""
        rows, gone = dict(puts), list(deletes)
        with self._lock:
            self._store.write(rows.items(), gone)
            self._keep({**rows, **dict.fromkeys(gone, _GONE)} if gone else rows)

    def sync(self) -> None:
        """Make durable what was written so far."""
        self._store.sync()

    def close(self) -> None:
        """Let go of the store; what is in memory is still found."""
        self._store.close()

    def _read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._store.get(keys)
        self._keep({key: row for key, row in zip(keys, rows, strict=True) if row is not None})
        return rows

    def _keep(self, rows: Mapping[bytes, bytes]) -> None:
        if rows and (self._young is None or not self._young.put(rows)):
            piece = Piece.of(rows, self._limit if self._young is None else self._limit // 2)
            self._old, self._young = self._young, piece
            # What does not fit into a piece of its own either must not be found as it was.
            fits = piece.put(rows)
            self._old = self._old if fits else None
            self._complete = self._complete and self._old is None and fits


class Piece:
    """Rows in one piece of memory that has its size from the beginning, though not all of it is used at once.

    Args:
        rows: how many there can be.
        size: bytes that all keys and rows can have.
    """

    def __init__(self, rows: int, size: int) -> None:
        self._content = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._table = np.zeros(2 * rows, np.int32)
        self._hashes = np.empty(rows, np.uint32)
        self._starts, self._sizes = np.empty(rows, np.uint32), np.empty(rows, np.uint32)
        self._hidden: dict[bytes, bytes] = {}  # behind another key with the same hash
        self._rows = self._used = 0

    @classmethod
    def of(cls, rows: Mapping[bytes, bytes], limit: int) -> Piece:
        """A piece of `limit` bytes in all for rows like `rows`, of which there are some."""
        mean = (sum(map(len, rows)) + sum(map(len, rows.values()))) // len(rows) + 1
        most = max(1, min(limit, _MOST) // (mean + _ROW_BYTES))
        return cls(most, most * mean)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The row of each of `keys`, None where there is none here."""
        rows = self._read(keys, self._found(_hashed(keys)))
        if self._hidden:
            return [self._hidden.get(key) if row is None else row for key, row in zip(keys, rows, strict=True)]
        return rows

    def put(self, rows: Mapping[bytes, bytes]) -> bool:
        """Take rows in, over older ones; False, and nothing, when there is no room."""
        keys, hashes = list(rows), _hashed(rows)
        at = self._found(hashes)
        before = self._read(keys, at)
        at[[row is None for row in before]] = -1
        fits = [old is not None and len(old) == len(row) for old, row in zip(before, rows.values(), strict=True)]
        contents = [key + row for key, row in rows.items()]
        moving = np.flatnonzero(~np.array(fits))
        if not self._append([contents[i] for i in moving.tolist()], hashes[moving], at[moving]):
            return False
        for content, start, stays in zip(contents, self._starts[at].tolist(), fits, strict=True):
            if stays:
                self._content[start : start + len(content)] = content
        self._hide({keys[i]: rows[keys[i]] for i in np.flatnonzero(at < 0).tolist()})
        return True

    def _append(self, contents: Sequence[bytes], hashes: Hashes, at: Positions) -> bool:
        """Put `contents` behind the others, of rows that are at `at`, new ones where that is -1; False: no room."""
        sizes = np.fromiter(map(len, contents), np.int64, len(contents))
        new, end = at < 0, self._used + int(sizes.sum())
        rows = self._rows + int(new.sum())
        if end > len(self._content) or rows > len(self._hashes):
            return False
        at = at.copy()
        at[new] = np.arange(self._rows, rows)
        self._content[self._used : end] = b"".join(contents)
        self._starts[at] = self._used + np.cumsum(sizes) - sizes
        self._sizes[at], self._hashes[at] = sizes, hashes
        self._place(hashes[new], at[new])
        self._rows, self._used = rows, end
        return True

    def _hide(self, rows: Mapping[bytes, bytes]) -> None:
        """Keep those of the new `rows` aside that are not found, since another key has the same hash."""
        found = self._read(list(rows), self._found(_hashed(rows)))
        self._hidden.update(pair for pair, row in zip(rows.items(), found, strict=True) if row is None)

    def _read(self, keys: Sequence[bytes], at: Positions) -> list[bytes | None]:
        """The rows at `at`, where they are those of `keys`."""
        starts, sizes = self._starts[at], np.where(at < 0, 0, self._sizes[at])
        entries = map(self._content.__getitem__, map(slice, starts.tolist(), (starts + sizes).tolist()))
        return [entry[len(key) :] if entry.startswith(key) else None for key, entry in zip(keys, entries, strict=True)]

    def _found(self, hashes: Hashes) -> Positions:
        """The first row with each of `hashes`, -1 where there is none."""
        found, left, places = np.full(len(hashes), -1), np.arange(len(hashes)), self._homes(hashes)
        while len(left):
            rows = self._table[places] - 1
            there = rows >= 0
            left, places, rows = left[there], places[there], rows[there]
            same = self._hashes[rows] == hashes[left]
            found[left[same]] = rows[same]
            left, places = left[~same], (places[~same] + 1) % len(self._table)
        return found

    def _place(self, hashes: Hashes, rows: Positions) -> None:
        """Enter new `rows` in the table, each in the first free place from its home on."""
        places = self._homes(hashes)
        while len(rows):
            free = self._table[places] == 0
            self._table[places[free]] = rows[free] + 1  # where several want one place, one of them gets it
            lost = self._table[places] != rows + 1
            rows, places = rows[lost], (places[lost] + 1) % len(self._table)

    def _homes(self, hashes: Hashes) -> Positions:
        return ((hashes.astype(np.uint64) * np.uint64(len(self._table))) >> np.uint64(32)).astype(np.int64)


def _hashed(keys: Collection[bytes]) -> Hashes:
    return np.fromiter(map(hash, keys), np.int64, len(keys)).astype(np.uint32)


def _filled(
    keys: Sequence[bytes], found: Sequence[bytes | None], get: Callable[[Sequence[bytes]], list[bytes | None]]
) -> list[bytes | None]:
    """`found` with what `get` gives for the keys that it lacks."""
    rows = iter(get([key for key, row in zip(keys, found, strict=True) if row is None]))
    return [next(rows) if row is None else row for row in found]
