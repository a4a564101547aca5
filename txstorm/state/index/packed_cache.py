"""Packed cache: many rows of a state in memory, as bytes in a few NumPy arrays; about 60 bytes per row instead of 400.

Keys and rows are stored in slots called places, in order of arrival. A hash table with open addressing maps the hash of
a key to its place. All operations work on whole batches: a thousand keys are looked up in about a dozen steps. The data
of a place is contiguous, since with millions of rows most of the time is spent waiting for memory.

`PackedCache` is the `txstorm.state.index.row_cache.Cache` for states with many keys; like `RowCache`, it has two
generations. Rows that were recently written, or read in small look-ups, are also cached as Python objects: unpacking a
single row takes a hundred microseconds, and unpacking a thousand rows takes one millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.state.index.key_codec import PackedKeys, ranges
from txstorm.state.index.row_cache import RowCache
from txstorm.state.index.row_codec import RowCodec
from txstorm.storage.rows.forms import Key
from txstorm.storage.rows.schema import OP, REMOVED
from txstorm.storage.rows.update_rules import Stored

T = TypeVar("T", bound=np.generic)
Places = npt.NDArray[np.int64]
_LEAST = 1024
_FULL = 0.6
"""Load factor of the hash table beyond which it grows."""
_GROWTH = 1.25
_NONE = -1


class PackedRows:
    """Records of one NumPy type, by packed key. Thread-safe.

    Args:
        record: the NumPy type of the records.
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
        """Use `entries` as the array of places, and create views of its fields."""
        self._entries = entries
        self._hashes, self._starts, self._sizes = entries["hash"], entries["start"], entries["size"]
        self._there, self._records = entries["there"], entries["row"]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count - self._gone

    @property
    def nbytes(self) -> int:
        """The memory used, in bytes."""
        return self._entries.nbytes + self._content.nbytes + self._table.nbytes

    def get(self, keys: PackedKeys) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.void]]:
        """Look up `keys`; return a mask of the keys found, and the rows of these keys in order."""
        with self._lock:
            places = self._places(keys)
            there = places != _NONE
            there[there] = self._there[places[there]]
            return there, self._records[places[there]]

    def put(self, keys: PackedKeys, records: npt.NDArray[np.void]) -> None:
        """Add rows of distinct keys, replacing older rows of the same keys."""
        with self._lock:
            places = self._places(keys)
            new = np.flatnonzero(places == _NONE)
            if len(new):
                places[new] = self._added(keys if len(new) == len(places) else keys.taken(new))
            self._gone -= int(np.count_nonzero(~self._there[places]))
            self._records[places] = records
            self._there[places] = True

    def remove(self, keys: PackedKeys) -> None:
        """Remove the rows of `keys`; absent keys are ignored."""
        with self._lock:
            places = self._places(keys)
            places = np.unique(places[places != _NONE])
            self._gone += int(np.count_nonzero(self._there[places]))
            self._there[places] = False
            if self._gone > max(_LEAST, self._count // 2):
                self._without_gone()

    # -- places -------------------------------------------------------------------------------------------------

    def _places(self, keys: PackedKeys) -> Places:
        """Find the place of each key, including removed keys; `_NONE` if a key has none."""
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
        """Verify places that were `found` by hash alone, and correct those of keys that merely share a hash."""
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
        """Find the place of one key, comparing every key on the probe path."""
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
        """Return the first hash slot of each key, from the high bits of its hash; the low bits determine its task."""
        return (hashes >> np.uint64(65 - len(self._table).bit_length())).astype(np.int64)

    def _next(self, at: Places, step: int) -> Places:
        """Return the next slot of the probe sequence, which visits every slot once, since the size is a power of 2."""
        return (at + step) & (len(self._table) - 1)

    # -- growth -------------------------------------------------------------------------------------------------

    def _added(self, keys: PackedKeys) -> Places:
        """Add places for new keys; they count as removed until rows are stored."""
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
        """Insert places into the hash table."""
        at = self._homes(self._hashes[places])
        for step in range(1, len(self._table) + 1):
            free = self._table[at] == _NONE
            self._table[at[free]] = places[free]
            lost = np.flatnonzero(self._table[at] != places)  # the slot went to an existing key, or to another new key
            if not len(lost):
                break
            places, at = places[lost], self._next(at[lost], step)

    def _without_gone(self) -> None:
        """Compact the arrays after removals."""
        kept = np.flatnonzero(self._there[: self._count])
        sizes = self._sizes[kept].astype(np.int64)
        content = self._content[ranges(self._starts[kept], sizes)]
        keys = PackedKeys(self._hashes[kept], np.concatenate([[0], np.cumsum(sizes)]), content)
        records = self._records[kept]
        self._empty(records.dtype)
        self._records[self._added(keys)] = records
        self._there[: len(kept)] = True
        self._gone = 0


def _longer(array: npt.NDArray[T], size: int) -> npt.NDArray[T]:
    made: npt.NDArray[T] = np.empty(size, array.dtype)
    made[: len(array)] = array
    return made


_HOT = 8
"""Divisor that gives the share of the memory limit for rows cached as Python objects (hot rows)."""
_FEW = 64
"""Maximum number of keys in a look-up whose unpacked rows are cached as Python objects."""
_MISSES, _PASSED_OVER = 0.75, 15
"""Share of misses at which large look-ups skip the hot rows, and the number of look-ups that do so."""


class PackedCache:
    """Cache of the rows of a state whose rows have a fixed width. Many threads may read while one writes.

    Args:
        codec: the codec of the state.
        limit: approximate bytes of all rows.

    Attributes:
        complete: whether no row has been evicted, so that a key that misses does not exist.
    """

    def __init__(self, codec: RowCodec, limit: int) -> None:
        self.complete = True
        self._codec = codec
        self._limit = limit - limit // _HOT
        self._hot_bytes = limit // _HOT
        self._lock, self._changes, self._pass_over = Lock(), 0, 0
        self.forget()
        self.complete = True

    def __len__(self) -> int:
        """Return the number of rows; rows in both generations count twice."""
        return len(self._young) + len(self._old)

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """Read the row of each of `keys`; None if it is not in the cache. Check `complete` afterwards."""
        if len(keys) > _FEW and self._pass_over:
            self._pass_over -= 1
            with self._lock:  # a hot row may not be among the packed rows yet
                return self._unpacked(self._codec.packed(keys))
        changes = self._changes
        found = self._hot.get(keys)
        if None not in found:
            return found
        absent = [key for key, row in zip(keys, found, strict=True) if row is None]
        if len(absent) > max(_FEW, _MISSES * len(keys)):
            self._pass_over = _PASSED_OVER
        unpacked = self._unpacked(self._codec.packed(absent))
        if len(absent) <= _FEW:
            with self._lock:
                if changes == self._changes:  # otherwise a row may be older than one put meanwhile
                    self._hot.put({key: row for key, row in zip(absent, unpacked, strict=True) if row is not None})
        rest = iter(unpacked)
        return [next(rest) if row is None else row for row in found]

    def put(self, rows: Iterable[tuple[Key, Stored]] | Mapping[Key, Stored]) -> None:
        """Add rows, replacing older rows of the same keys."""
        new = rows if isinstance(rows, Mapping) else dict(rows)
        if new:
            keys, records = self._codec.packed(list(new)), self._codec.records(*zip(*new.values(), strict=True))
            with self._lock:
                self._hot.put(new)  # first, since a reader that has seen a new row must not see an older one later
                self._put(keys, records)
                self._changes += 1

    def put_table(self, table: pa.Table) -> None:
        """Add rows of a state table, or later change rows in txid order."""
        if not table.num_rows:
            return
        keys, records = self._codec.records_of_table(table)
        last = _last_of(keys)
        if OP.name in table.column_names:
            removed = np.asarray(pc.equal(table[OP.name], REMOVED))
            self._remove(keys.taken(last[removed[last]]))
            last = last[~removed[last]]
        self._put(keys.taken(last), records[last])
        self._hot = self._new_hot()

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove the rows of `keys`."""
        gone = list(keys)
        if gone:
            with self._lock:
                self._remove(self._codec.packed(gone))
                self._hot.remove(gone)
                self._changes += 1

    def forget(self) -> None:
        """Evict all rows, which can be read from disk."""
        self.complete = False
        self._hot = self._new_hot()
        self._old = PackedRows(self._codec.record)
        self._young = PackedRows(self._codec.record)

    def _new_hot(self) -> RowCache:
        hot = RowCache(self._hot_bytes)
        hot.let_go()
        return hot

    def _unpacked(self, keys: PackedKeys) -> list[Stored | None]:
        there, records = self._young.get(keys)
        rows: list[Stored | None] = list(self._codec.of_records(records))
        if len(rows) == len(there):
            return rows
        old = self._old  # read last: a generation becomes old before it stops being young
        absent = np.flatnonzero(~there)
        older: list[Stored | None] = [None] * len(absent)
        if len(old):
            here, records = old.get(keys.taken(absent))
            found = iter(self._codec.of_records(records))
            older = [next(found) if one else None for one in here.tolist()]
        young, rest = iter(rows), iter(older)
        return [next(young) if one else next(rest) for one in there.tolist()]

    def _put(self, keys: PackedKeys, records: npt.NDArray[np.void]) -> None:
        self._young.put(keys, records)
        if self._young.nbytes > (self._limit if self.complete else self._limit // 2):
            self.complete = False
            self._old, self._young = self._young, PackedRows(self._codec.record)

    def _remove(self, keys: PackedKeys) -> None:
        self._young.remove(keys)
        self._old.remove(keys)


def _last_of(keys: PackedKeys) -> npt.NDArray[np.int64]:
    """Return the index of the last row of every distinct key."""
    count = len(keys.hashes)
    if len(np.unique(keys.hashes)) == count:
        return np.arange(count)
    content, ends = keys.content.tobytes(), keys.ends.tolist()
    last = {
        (hashed, content[begin:end]): place
        for place, (hashed, begin, end) in enumerate(zip(keys.hashes.tolist(), ends, ends[1:], strict=False))
    }
    return np.fromiter(last.values(), np.int64, len(last))
