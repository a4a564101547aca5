"""Rows of an interval join as columns: pending left rows sorted by time, and blocks of right rows sorted by key."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm.row_order import order_of

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

KEY, ARRIVAL = "key", "arrival"
"""Columns of stored rows with the key, and with a number that is higher for later rows."""
LARGEST = 1 << 20
"""Number of rows from which on a block is not merged with others."""
_PER_BUCKET = 2
"""Number of hashes in a bucket of a block's index, on average."""
_CHUNKS = 8
"""Number of chunks of similar size that are merged at once."""


@dataclass(frozen=True)
class Rows:
    """Rows of one side as columns of equal length, in order of arrival unless said otherwise.

    Attributes:
        hashes: the hash of each row's key.
        times: their times.
        stored: the rows as they are stored.
        keyed: which rows have a key that can match; None: all.
    """

    hashes: Hashes
    times: Numbers
    stored: pa.Table
    keyed: Mask | None = None

    def __len__(self) -> int:
        return len(self.times)

    def taken(self, which: Any) -> Rows:
        """Select rows by position or mask."""
        picked = np.flatnonzero(which) if np.asarray(which).dtype == bool else which
        keyed = None if self.keyed is None else self.keyed[picked]
        return Rows(self.hashes[picked], self.times[picked], self.stored.take(pa.array(picked)), keyed)

    def with_columns(self, names: Sequence[str]) -> Rows:
        """Select stored columns."""
        return replace(self, stored=self.stored.select(names))

    def sliced(self, first: int, last: int) -> Rows:
        """Select the rows from position `first` to before `last`."""
        keyed = None if self.keyed is None else self.keyed[first:last]
        return Rows(self.hashes[first:last], self.times[first:last], self.stored.slice(first, last - first), keyed)


@dataclass(frozen=True)
class Pending:
    """Pending left rows, as of one transaction; a value, of which later ones share what has not changed.

    Attributes:
        chunks: the rows, each chunk sorted by time.
    """

    chunks: tuple[Rows, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def oldest(self) -> int | None:
        """The time of the oldest row; None if there is none."""
        return min((int(one.times[0]) for one in self.chunks), default=None)

    def released(self, limit: int | None) -> tuple[Pending, list[Rows]]:
        """Take out the rows of times before `limit` (None: no row); return the others and these."""
        kept, due = [], []
        for one in self.chunks:
            count = 0 if limit is None else int(np.searchsorted(one.times, limit))
            if count:
                due.append(one.sliced(0, count))
            if count < len(one):
                kept.append(one.sliced(count, len(one)) if count else one)
        return Pending(tuple(kept)), due

    def with_rows(self, rows: Rows) -> Pending:
        """Return the pending rows with further ones."""
        if not len(rows):
            return self
        chunks = [*self.chunks, rows.taken(order_of(rows.times))]
        if len(chunks) >= _CHUNKS:
            count, most = 0, _CHUNKS * len(chunks[-1])
            while count < len(chunks) and len(chunks[-1 - count]) < most:
                count += 1
            if count >= _CHUNKS:
                joined = united(chunks[-count:])
                chunks[-count:] = [joined.taken(order_of(joined.times))]
        return Pending(tuple(chunks))


def united(parts: Sequence[Rows]) -> Rows:
    """Return the rows of `parts`, at least one, one after the other."""
    if len(parts) == 1:
        return parts[0]
    keyed = None
    if any(one.keyed is not None for one in parts):
        keyed = np.concatenate([np.ones(len(one), bool) if one.keyed is None else one.keyed for one in parts])
    hashes, times = (np.concatenate([getattr(one, name) for one in parts]) for name in ("hashes", "times"))
    return Rows(hashes, times, pa.concat_tables([one.stored for one in parts]).combine_chunks(), keyed)


@dataclass(frozen=True)
class Block:
    """Right rows: those that arrived one after the other or, if they were read from the state, any.

    Attributes:
        hashes: the distinct hashes of their keys, sorted.
        starts: where the rows of each hash begin, followed by the number of rows.
        buckets: where the hashes with the same high bits begin, followed by the number of hashes.
        times: the time of each row; those of a hash ascend, ties in the order of arrival.
        at: the position of each row in `stored`.
        matched: whether each row has matched.
        stored: the rows as they are stored; in order of arrival, unless they were read from the state.
        least, most: the lowest and the highest time.
        expired: number of rows that have expired.
        loaded: whether the rows were read from the state: then other such blocks may have earlier and later rows.
    """

    hashes: Hashes
    starts: npt.NDArray[np.int32]
    buckets: npt.NDArray[np.int32]
    times: Numbers
    at: npt.NDArray[np.int32]
    matched: Mask
    stored: pa.Table
    least: int
    most: int
    expired: int = 0
    loaded: bool = False

    def __len__(self) -> int:
        return len(self.times)

    @classmethod
    def of(
        cls, hashes: Hashes, times: Numbers, stored: pa.Table, matched: Mask | None = None, *, loaded: bool = False
    ) -> Block:
        """Sort rows, at least one, into a block; they are given in order of arrival, or in any if they are `loaded`."""
        turn = by_hash(hashes)
        flags = np.zeros(len(times), bool) if matched is None else matched[turn]
        at = turn.astype(np.int32)
        made = cls._of_sorted(hashes[turn], times[turn], at, flags, stored.combine_chunks(), in_order=not loaded)
        return replace(made, loaded=loaded)

    @classmethod
    def _of_sorted(
        cls,
        hashes: Hashes,
        times: Numbers,
        at: npt.NDArray[np.int32],
        matched: Mask,
        stored: pa.Table,
        *,
        in_order: bool,
    ) -> Block:
        """Make a block of rows that are sorted by hash, but not by time; `in_order`: those of a hash are by arrival."""
        other = hashes[1:] != hashes[:-1]
        starts = _starts(other)
        _sort_runs(starts, np.flatnonzero(~other & (times[1:] < times[:-1])), times, (times, at, matched))
        if not in_order:
            tied = np.flatnonzero(~other & (times[1:] == times[:-1]))
            if len(tied):
                arrivals = np.asarray(stored.column(ARRIVAL).chunk(0))[at]
                wrong = tied[arrivals[tied + 1] < arrivals[tied]]
                _sort_runs(_starts(other | (times[1:] != times[:-1])), wrong, arrivals, (at, matched))
        distinct = hashes[starts[:-1]]
        bits = max(len(distinct) // _PER_BUCKET, 1).bit_length()
        sizes = np.bincount((distinct >> np.uint64(64 - bits)).astype(np.int64), minlength=1 << bits)
        buckets = np.r_[0, np.cumsum(sizes)].astype(np.int32)
        held = stored if len(times) < LARGEST else _mapped(stored)
        return cls(distinct, starts, buckets, times, at, matched, held, int(times.min()), int(times.max()))

    @classmethod
    def merged(cls, blocks: Sequence[Block], bound: int) -> Block | None:
        """Merge neighbouring blocks, without the rows of times before `bound`; None if no row is left."""
        parts, tables, size = [], [], 0
        for one in blocks:
            hashes, at, live = np.repeat(one.hashes, np.diff(one.starts)), one.at, one.times >= bound
            table = one.stored
            if not live.all():
                kept = np.zeros(len(one), bool)
                kept[at[live]] = True
                hashes, at = hashes[live], (np.cumsum(kept) - 1)[at[live]]
                table = table.filter(pa.array(kept))
            parts.append((hashes, one.times[live], at + size, one.matched[live]))
            tables.append(table)
            size += table.num_rows
        if not size:
            return None
        stored = pa.concat_tables(tables).combine_chunks()
        columns = list(zip(*parts, strict=True))
        del parts, tables
        loaded = [one for one in blocks if one.loaded]
        turn = np.argsort(np.concatenate(columns[0]), kind="stable").astype(np.int32)  # fast: there are few sorted runs
        # One column after the other: large blocks take most of a join's memory while they are made.
        hashes, times, at, matched = (np.concatenate(columns.pop(0))[turn] for _ in range(4))
        at = at.astype(np.int32, copy=False)
        made = cls._of_sorted(hashes, times, at, matched, stored, in_order=len(loaded) < 2)
        return replace(made, loaded=bool(loaded))

    def ranges(self, hashes: Hashes, low: Numbers, high: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Find the rows of each hash with times from `low` to `high`; `hashes` ascend.

        Returns:
            The positions of the given hashes that have such rows, where these rows begin, and their number.
        """
        none = np.empty(0, np.int64)
        if not len(hashes) or int(low.min()) > self.most or int(high.max()) < self.least:
            return none, none, none
        at = self._located(hashes)
        found = np.flatnonzero(self.hashes[at] == hashes)
        first, last = self.starts[at[found]].astype(np.int64), self.starts[at[found] + 1].astype(np.int64)
        if int(low.max()) > self.least:
            first = _bisected(self.times, first, last, low[found])
        if int(high.min()) < self.most:
            last = _bisected(self.times, first, last, high[found] + 1)
        there = np.flatnonzero(last > first)
        return found[there], first[there], (last - first)[there]

    def _located(self, hashes: Hashes) -> Numbers:
        """Return the position of the first hash that is not below each of `hashes`; any position if there is none."""
        bits = (len(self.buckets) - 1).bit_length() - 1
        at = self.buckets[(hashes >> np.uint64(64 - bits)).astype(np.int64)].astype(np.int64)
        last = len(self.hashes) - 1
        np.minimum(at, last, out=at)
        rest = np.flatnonzero(self.hashes[at] < hashes)
        while len(rest):  # hashes are evenly distributed, so buckets are short
            at[rest] += 1
            rest = rest[at[rest] <= last]
            rest = rest[self.hashes[at[rest]] < hashes[rest]]
        return np.minimum(at, last, out=at)

    def expiring(self, low: int, high: int) -> Numbers:
        """Return the positions of the rows with times from `low` to before `high`."""
        if self.least >= high:
            return np.empty(0, np.int64)
        return np.flatnonzero((self.times >= low) & (self.times < high))


def by_hash(hashes: Hashes) -> npt.NDArray[Any]:
    """Return the order of rows by hash, then their present order.

    The high bits of each hash and its index become one number: sorting numbers is several times faster than sorting
    indices. The few hashes whose high bits are equal, but not the others, are sorted again.
    """
    rows = len(hashes)
    if rows < 2:
        return np.arange(rows)
    bits = rows.bit_length()
    packed = ((hashes >> np.uint64(bits)) << np.uint64(bits)) | np.arange(rows, dtype=np.uint64)
    packed.sort()
    turn = (packed & np.uint64((1 << bits) - 1)).astype(np.int64)
    made = hashes[turn]
    wrong = made[1:] < made[:-1]
    if wrong.any():
        high = packed >> np.uint64(bits)
        some = np.flatnonzero(np.isin(high, high[1:][wrong]))
        turn[some] = turn[some[np.argsort(made[some], kind="stable")]]
    return turn


def spread(first: Numbers, sizes: Numbers) -> Numbers:
    """Return the numbers of ranges: for each range, `sizes` numbers from `first` on."""
    starts = np.cumsum(sizes) - sizes
    return np.repeat(first - starts, sizes) + np.arange(int(sizes.sum()))


def _starts(other: Mask) -> npt.NDArray[np.int32]:
    """Return where runs of rows begin, followed by the number of rows; `other`: whether each row but the first does."""
    starts = np.empty(np.count_nonzero(other) + 2, np.int32)
    starts[0], starts[-1] = 0, len(other) + 1
    np.add(np.flatnonzero(other), 1, out=starts[1:-1], casting="unsafe")
    return starts


def _sort_runs(
    starts: npt.NDArray[np.int32], wrong: Numbers, values: Numbers, columns: Sequence[npt.NDArray[Any]]
) -> None:
    """Sort rows of `columns` in place by their `values`, within those runs that have a row at `wrong`."""
    if not len(wrong):
        return
    runs = np.unique(np.searchsorted(starts, wrong, "right")) - 1
    sizes = starts[runs + 1] - starts[runs]
    some = spread(starts[runs].astype(np.int64), sizes)
    turn = some[order_of(np.repeat(runs, sizes), values[some])]
    for column in columns:
        column[some] = column[turn]


def _bisected(values: npt.NDArray[Any], low: Any, high: Any, wanted: npt.NDArray[Any]) -> Numbers:
    """Return the first position of each range from `low` to before `high` whose value is not below `wanted`."""
    result: Numbers = low.astype(np.int64)
    high = high.astype(np.int64)
    open_ = np.flatnonzero(result < high)
    while len(open_):
        low_, high_ = result[open_], high[open_]
        middle = (low_ + high_) >> 1
        below = values[middle] < wanted[open_]
        result[open_] = low_ = np.where(below, middle + 1, low_)
        high[open_] = high_ = np.where(below, high_, middle)
        open_ = open_[low_ < high_]
    return result


def _mapped(table: pa.Table) -> pa.Table:
    """Write a table to a file that has no name, and map it into memory: its pages can be dropped and read again."""
    with tempfile.NamedTemporaryFile(prefix="txstorm-join-") as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        file.flush()
        return pa.ipc.open_file(pa.memory_map(file.name)).read_all()
