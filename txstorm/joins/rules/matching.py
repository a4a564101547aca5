"""Matching of an interval join: the right rows of the window in blocks sorted by key and time, and look-ups in them.

All steps are vectorised over rows; there is no Python object per row. A window is a value: adding rows, marking matched
ones and expiring rows return another one, and share what has not changed, so a transaction that fails leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.joins.rules.blocks import ARRIVAL, KEY, LARGEST, Block, Mask, Numbers, Rows, by_hash, spread
from txstorm.row_order import order_of

LOWEST, LAST = -(1 << 63), (1 << 63) - 1
_MERGED = 4
"""Number of neighbouring blocks of similar size that are merged at once."""


@dataclass(frozen=True)
class Part:
    """Pairs whose right rows are in one block.

    Attributes:
        block: the number of the block.
        rows: the positions of the right rows in it.
        places: the places of the pairs among all pairs.
    """

    block: int
    rows: Numbers
    places: Numbers


@dataclass(frozen=True)
class Pairs:
    """Pairs of a left and a right row, sorted by left row, then by time and arrival of the right row.

    Attributes:
        left: the left row of each pair.
        parts: the right rows, by block.
    """

    left: Numbers
    parts: Sequence[Part] = ()

    def __len__(self) -> int:
        return len(self.left)


@dataclass(frozen=True)
class RightWindow:
    """Right rows that have not expired, as of one transaction.

    Attributes:
        blocks: the rows, in order of arrival.
        bound: rows of earlier times have expired; `LOWEST`: none has.
        exact: whether different keys, but None, have different hashes.
        columns: the stored columns that are held; None: all.
    """

    blocks: tuple[Block, ...] = ()
    bound: int = LOWEST
    exact: bool = False
    columns: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return sum(len(one) - one.expired for one in self.blocks)

    @property
    def nbytes(self) -> int:
        """The approximate size in memory."""
        arrays = (
            (one.hashes, one.starts, one.buckets, one.times, one.at, one.matched, one.stored) for one in self.blocks
        )
        return sum(int(array.nbytes) for block in arrays for array in block)

    def with_rows(self, rows: Rows) -> RightWindow:
        """Return the window with further rows, whatever their time; they can match until `expire`."""
        if not len(rows):
            return self
        held = rows if self.columns is None else rows.with_columns(self.columns)
        return replace(self, blocks=(*self.blocks, Block.of(held.hashes, held.times, held.stored)))

    def pairs(self, left: Rows, low: Numbers, high: Numbers, new: int) -> Pairs:
        """Match each left row with all right rows of its key with times from `low` to `high`.

        `new`: the number of the first block whose rows may be older than the bound.
        """
        keyed = np.arange(len(left)) if left.keyed is None else np.flatnonzero(left.keyed)
        turn = keyed[by_hash(left.hashes[keyed])]
        hashes, lows, highs = left.hashes[turn], low[turn], high[turn]
        floor = np.maximum(lows, self.bound)
        counts, found = np.zeros(len(left), np.int64), []
        for number, block in enumerate(self.blocks):
            at, first, sizes = block.ranges(hashes, floor if number < new else lows, highs)
            if not len(at):
                continue
            rows, lefts = spread(first, sizes), turn[at]
            if not self.exact or block.stored.column(KEY).null_count:
                lefts, rows, sizes = self._same_keys(left.stored, lefts, sizes, block, rows)
            found.append((number, rows, lefts, sizes, counts[lefts]))
            counts[lefts] += sizes
        begins = np.cumsum(counts) - counts
        parts = [
            Part(number, rows, spread(begins[lefts] + before, sizes)) for number, rows, lefts, sizes, before in found
        ]
        return self._by_time(Pairs(np.repeat(np.arange(len(left)), counts), parts))

    def _same_keys(
        self, left: pa.Table, lefts: Numbers, sizes: Numbers, block: Block, rows: Numbers
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Leave out pairs of different keys with the same hash; return left rows, right rows, and their numbers."""
        other = block.stored.column(KEY).combine_chunks().take(pa.array(block.at[rows]))
        same = other.is_valid()
        if not self.exact:
            one = left.column(KEY).combine_chunks().take(pa.array(np.repeat(lefts, sizes)))
            same = pc.fill_null(pc.equal(one, other), False)
        if pc.all(same).as_py():
            return lefts, rows, sizes
        kept = same.to_numpy(zero_copy_only=False)
        numbers = np.bincount(np.repeat(np.arange(len(lefts)), sizes)[kept], minlength=len(lefts))
        there = numbers > 0
        return lefts[there], rows[kept], numbers[there]

    def _by_time(self, pairs: Pairs) -> Pairs:
        """Sort the pairs of each left row by time, then by arrival; they come by block."""
        if len(pairs.parts) < 2:
            return pairs
        times, arrivals = np.empty(len(pairs), np.int64), None
        if any(self.blocks[part.block].loaded for part in pairs.parts):
            arrivals = np.full(len(pairs), LAST)  # rows of other blocks are in order, and later than loaded ones
        for part in pairs.parts:
            block = self.blocks[part.block]
            times[part.places] = block.times[part.rows]
            if arrivals is not None and block.loaded:
                arrivals[part.places] = np.asarray(block.stored.column(ARRIVAL).chunk(0))[block.at[part.rows]]
        later = times[1:] < times[:-1]
        if arrivals is not None:
            later |= (times[1:] == times[:-1]) & (arrivals[1:] < arrivals[:-1])
        wrong = np.flatnonzero((pairs.left[1:] == pairs.left[:-1]) & later)
        if not len(wrong):
            return pairs
        lefts = np.zeros(int(pairs.left[-1]) + 1, bool)
        lefts[pairs.left[wrong]] = True
        some = np.flatnonzero(lefts[pairs.left])
        places = np.arange(len(pairs))
        columns = (pairs.left, times) if arrivals is None else (pairs.left, times, arrivals)
        places[some[order_of(*(column[some] for column in columns))]] = some
        return Pairs(pairs.left, [replace(part, places=places[part.places]) for part in pairs.parts])

    def stored(self, pairs: Pairs, columns: Sequence[str], there: Mask | None = None) -> pa.Table:
        """Return stored columns of the right row of each pair; `there`: which rows are pairs, the others being null."""
        taken = [self.blocks[part.block].at[part.rows] for part in pairs.parts]
        places, size, missing = [part.places for part in pairs.parts], len(pairs), None
        if there is not None:
            results = np.flatnonzero(there)
            places, size, missing = [results[one] for one in places], len(there), ~there
        made = {}
        for name in columns:
            values = [self.blocks[part.block].stored.column(name) for part in pairs.parts]
            if all(_is_plain(column) for column in values):
                whole = np.zeros(size, values[0].type.to_pandas_dtype())
                for where, at, column in zip(places, taken, values, strict=True):
                    whole[where] = np.asarray(column.chunk(0))[at]
                made[name] = pa.array(whole, values[0].type, mask=missing)
                continue
            back = np.zeros(size, np.int64)
            back[np.concatenate(places)] = np.arange(len(pairs))
            rows = [column.take(pa.array(at)) for column, at in zip(values, taken, strict=True)]
            chunks = pa.chunked_array([chunk for one in rows for chunk in one.chunks], values[0].type)
            made[name] = chunks.combine_chunks().take(pa.array(back, mask=missing))
        return pa.table(made)

    def marked(self, pairs: Pairs) -> tuple[RightWindow, list[tuple[Block, Numbers]]]:
        """Mark the right rows of pairs as matched; return the window, and blocks with the rows that had not matched."""
        blocks, news = list(self.blocks), []
        for part in pairs.parts:
            old = blocks[part.block]
            flags = old.matched.copy()
            flags[part.rows] = True
            first = np.flatnonzero(flags & ~old.matched)
            if len(first):
                blocks[part.block] = replace(old, matched=flags)
                news.append((old, first))
        return replace(self, blocks=tuple(blocks)), news

    def expire(self, bound: int | None, new: int) -> tuple[RightWindow, list[tuple[Block, Numbers]]]:
        """Expire the rows of times before `bound`, and merge blocks.

        `new`: the number of the first block whose rows may be older than the bound so far.

        Returns:
            The window, and blocks with their expired rows that have never matched.
        """
        bound = self.bound if bound is None else max(bound, self.bound)
        kept, unmatched = [], []
        for number, block in enumerate(self.blocks):
            over = block.expiring(LOWEST if number >= new else self.bound, bound)
            never = over[~block.matched[over]]
            if len(never):
                unmatched.append((block, never))
            if block.most >= bound:
                kept.append(replace(block, expired=block.expired + len(over)))
        return replace(self, blocks=tuple(_few(kept, bound)), bound=bound), unmatched


def _few(blocks: list[Block], bound: int) -> list[Block]:
    """Merge neighbouring blocks of similar size, and rewrite those of which most rows have expired."""
    made: list[Block] = []
    for one in blocks:
        share = 2 if len(one) < LARGEST else 8  # a large block soon expires as a whole
        block = Block.merged([one], bound) if share * (len(one) - one.expired) < len(one) else one
        if block is not None:
            made.append(block)
    while len(made) >= _MERGED:
        count, most = 0, _MERGED * len(made[-1])
        while count < len(made) and len(made[-1 - count]) < min(most, LARGEST):
            count += 1
        if count < _MERGED:
            break
        joined = Block.merged(made[-count:], bound)
        made[-count:] = [] if joined is None else [joined]
    return made


def _is_plain(column: pa.ChunkedArray) -> bool:
    kind = column.type
    fixed = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return bool(fixed and not column.null_count and column.num_chunks == 1)
