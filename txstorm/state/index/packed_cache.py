"""Many rows of a state in memory, as bytes in a few NumPy arrays: some sixty bytes a row instead of 400.

Keys and rows have a place, in the order in which they came. A hash table with open addressing has the places by the
hashes of the keys. Everything is done for whole batches: a thousand keys are looked up in about a dozen steps. What is
known of a place is next to each other: with millions of rows it is waiting for memory that takes the time.
"""

from __future__ import annotations

from threading import Lock
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from txstorm.state.index.key_codec import PackedKeys, ranges

T = TypeVar("T", bound=np.generic)
Places = npt.NDArray[np.int64]
_LEAST = 1024
_FULL = 0.6
"""Of the hash table: beyond that it is made larger."""
_GROWTH = 1.25
_NONE = -1


class PackedRows:
    """Records of one type by packed keys. One thread at a time is inside.

    Args:
        record: the type of the rows.
    """

    def __init__(self, record: np.dtype[np.void]) -> None:
        self._lock = Lock()
        self._empty(record)

    def _empty(self, record: np.dtype[np.void]) -> None:
        self._count = 0
        self._gone = 0
        self._size = 0
        fields = [("hash", "<u8"), ("start", "<i8"), ("size", "<i4"), ("there", "?"), ("row", record)]
        self._use(np.empty(_LEAST, np.dtype(fields, align=True)))
        self._content = np.empty(16 * _LEAST, np.uint8)
        self._table = np.full(2 * _LEAST, _NONE, np.int32)

    def _use(self, entries: npt.NDArray[np.void]) -> None:
        """These are the places, and their parts."""
        self._entries = entries
        self._hashes, self._starts, self._sizes = entries["hash"], entries["start"], entries["size"]
        self._there, self._records = entries["there"], entries["row"]

    def __len__(self) -> int:
        """How many rows are here."""
        return self._count - self._gone

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._entries.nbytes + self._content.nbytes + self._table.nbytes

    def get(self, keys: PackedKeys) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.void]]:
        """For each of `keys` whether it is here; and the rows of those that are, in the order of `keys`."""
        with self._lock:
            places = self._places(keys)
            there = places != _NONE
            there[there] = self._there[places[there]]
            return there, self._records[places[there]]

    def put(self, keys: PackedKeys, records: npt.NDArray[np.void]) -> None:
        """Take rows in, over older ones of their keys, which are all different."""
        with self._lock:
            places = self._places(keys)
            new = np.flatnonzero(places == _NONE)
            if len(new):
                places[new] = self._added(keys if len(new) == len(places) else keys.taken(new))
            self._gone -= int(np.count_nonzero(~self._there[places]))
            self._records[places] = records
            self._there[places] = True

    def remove(self, keys: PackedKeys) -> None:
        """These keys are gone; those that were not here are not."""
        with self._lock:
            places = self._places(keys)
            places = np.unique(places[places != _NONE])
            self._gone += int(np.count_nonzero(self._there[places]))
            self._there[places] = False
            if self._gone > max(_LEAST, self._count // 2):
                self._without_gone()

    # -- places -------------------------------------------------------------------------------------------------

    def _places(self, keys: PackedKeys) -> Places:
        """The place of each key, also of those that are gone; `_NONE` where it has none."""
        found = np.full(len(keys.hashes), _NONE, np.int64)
        left, wanted = np.arange(len(found)), keys.hashes
        at = self._homes(wanted)
        for step in range(1, len(self._table) + 1):
            places = self._table[at]
            same = (self._hashes[places] == wanted) & (places != _NONE)
            found[left[same]] = places[same]
            go_on = np.flatnonzero(~same & (places != _NONE))
            if not len(go_on):
                break
            left, wanted = left[go_on], wanted[go_on]
            at = self._next(at[go_on], step)
        return self._checked(keys, found)

    def _checked(self, keys: PackedKeys, found: Places) -> Places:
        """`found` by hashes alone; another key may have the same one."""
        which = np.flatnonzero(found != _NONE)
        places = found[which]
        sizes = keys.sizes[which]
        differs = self._sizes[places] != sizes
        if differs.any():
            which, places, sizes, other = which[~differs], places[~differs], sizes[~differs], which[differs]
        else:
            other = which[:0]
        if len(which):
            unequal = (
                self._content[ranges(self._starts[places], sizes)] != keys.content[ranges(keys.ends[which], sizes)]
            )
            if unequal.any():
                of = np.repeat(np.arange(len(which)), sizes)
                other = np.concatenate([other, which[np.unique(of[unequal])]])
        for one in other.tolist():
            found[one] = self._place(keys, one)
        return found

    def _place(self, keys: PackedKeys, one: int) -> int:
        """The place of one key, every key on the way to it compared."""
        wanted = keys.content[keys.ends[one] : keys.ends[one + 1]]
        at = self._homes(keys.hashes[one : one + 1])
        for step in range(1, len(self._table) + 1):
            place = int(self._table[at[0]])
            if place == _NONE:
                break
            content = self._content[self._starts[place] : self._starts[place] + self._sizes[place]]
            if self._hashes[place] == keys.hashes[one] and np.array_equal(content, wanted):
                return place
            at = self._next(at, step)
        return _NONE

    def _homes(self, hashes: npt.NDArray[np.uint64]) -> Places:
        """Where in the table a key is looked for first. The high bits: the lower ones choose the task of a key."""
        return (hashes >> np.uint64(64 - _bits(self._table))).astype(np.int64)

    def _next(self, at: Places, step: int) -> Places:
        """Where it is looked for then: every place of a table whose size is a power of two comes up once."""
        return (at + step) & (len(self._table) - 1)

    # -- growth -------------------------------------------------------------------------------------------------

    def _added(self, keys: PackedKeys) -> Places:
        """The new places of new keys, which are gone as yet."""
        first, count = self._count, len(keys.hashes)
        end, size = first + count, self._size + len(keys.content)
        if end > len(self._entries):
            self._use(_longer(self._entries, int(_GROWTH * end)))
        if size > len(self._content):
            self._content = _longer(self._content, int(_GROWTH * size))
        self._hashes[first:end] = keys.hashes
        self._there[first:end] = False
        self._starts[first:end] = self._size + keys.ends[:-1]
        self._sizes[first:end] = keys.sizes
        self._content[self._size : size] = keys.content
        self._size = size
        self._count, self._gone = end, self._gone + count
        places = np.arange(first, end)
        if end > _FULL * len(self._table):
            self._table = np.full(1 << int(2 * end).bit_length(), _NONE, np.int32)
            self._enter(np.arange(end))
        else:
            self._enter(places)
        return places

    def _enter(self, places: Places) -> None:
        """Enter places that the table has not."""
        at = self._homes(self._hashes[places])
        for step in range(1, len(self._table) + 1):
            free = self._table[at] == _NONE
            self._table[at[free]] = places[free]
            lost = np.flatnonzero(self._table[at] != places)  # to one that was there, or that came with them
            if not len(lost):
                break
            places, at = places[lost], self._next(at[lost], step)

    def _without_gone(self) -> None:
        """Give room back."""
        kept = np.flatnonzero(self._there[: self._count])
        sizes = self._sizes[kept].astype(np.int64)
        content = self._content[ranges(self._starts[kept], sizes)]
        keys = PackedKeys(self._hashes[kept], np.concatenate([[0], np.cumsum(sizes)]), content)
        records = self._records[kept]
        self._empty(records.dtype)
        self._records[self._added(keys)] = records
        self._there[: len(kept)] = True
        self._gone = 0


def _bits(table: npt.NDArray[np.int32]) -> int:
    return len(table).bit_length() - 1


def _longer(array: npt.NDArray[T], size: int) -> npt.NDArray[T]:
    made: npt.NDArray[T] = np.empty(size, array.dtype)
    made[: len(array)] = array
    return made
