"""Rows of a state in memory, packed: `txstorm.state.index.row_cache.Cache` for states of many keys.

They are in two generations, as in `RowCache`. Rows that were written last, or read one by one, are kept in the form in
which they are used, too: a single row takes a hundred microseconds to unpack, a thousand take one millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.state.index.key_codec import PackedKeys
from txstorm.state.index.packed_cache import PackedRows
from txstorm.state.index.row_cache import RowCache, Stored
from txstorm.state.index.row_codec import RowCodec
from txstorm.storage.rows.forms import Key
from txstorm.storage.rows.schema import OP, REMOVED

_HOT = 8
"""The part of the bound that is for rows in the form in which they are used is one of so many."""
_FEW = 64
"""Keys of a look-up up to which what is unpacked is kept."""
_MISSES, _PASSED_OVER = 0.75, 15
"""When so many of the keys of a large look-up are not among the hot ones, so many are not looked for there."""


class PackedCache:
    """The rows of one state whose rows are records. Many may read while one thread at a time writes.

    Args:
        codec: of the state.
        limit: bytes of all rows, about.

    Attributes:
        complete: whether all rows that were ever put are still here, but for the removed ones.
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
        """How many rows are here; some may count twice."""
        return len(self._young) + len(self._old)

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """The row of each of `keys`, None for those that are not here; `complete` is to be asked after this."""
        if len(keys) > _FEW and self._pass_over:
            self._pass_over -= 1
            with self._lock:  # a row that is hot already may not be among the others yet
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
                if changes == self._changes:  # else one may be older than what was put meanwhile
                    self._hot.put({key: row for key, row in zip(absent, unpacked, strict=True) if row is not None})
        rest = iter(unpacked)
        return [next(rest) if row is None else row for row in found]

    def put(self, rows: Iterable[tuple[Key, Stored]] | Mapping[Key, Stored]) -> None:
        """Take rows in, over older ones of their keys."""
        new = rows if isinstance(rows, Mapping) else dict(rows)
        if new:
            keys, records = self._codec.packed(list(new)), self._codec.records(*zip(*new.values(), strict=True))
            with self._lock:
                self._hot.put(new)  # first: who has seen a new row must not see an older one afterwards
                self._put(keys, records)
                self._changes += 1

    def put_table(self, table: pa.Table) -> None:
        """Take in the rows of a state table, or of later changes in txid order."""
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
        """These keys are gone."""
        gone = list(keys)
        if gone:
            with self._lock:
                self._remove(self._codec.packed(gone))
                self._hot.remove(gone)
                self._changes += 1

    def forget(self) -> None:
        """Forget all rows: they are elsewhere."""
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
        old = self._old  # after the young ones: a generation is old before it is not young any more
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
    """The places of the last row of every key."""
    count = len(keys.hashes)
    if len(np.unique(keys.hashes)) == count:
        return np.arange(count)
    content, ends = keys.content.tobytes(), keys.ends.tolist()
    last = {
        (hashed, content[begin:end]): place
        for place, (hashed, begin, end) in enumerate(zip(keys.hashes.tolist(), ends, ends[1:], strict=False))
    }
    return np.fromiter(last.values(), np.int64, len(last))
