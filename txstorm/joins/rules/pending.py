"""Pending left rows of an interval join, held in chunks that are sorted by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from txstorm.joins.rules.blocks import Rows
from txstorm.row_order import order_of

_MERGED = 8
"""Number of chunks of similar size that are merged at once."""


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
        if len(chunks) >= _MERGED:
            count, most = 0, _MERGED * len(chunks[-1])
            while count < len(chunks) and len(chunks[-1 - count]) < most:
                count += 1
            if count >= _MERGED:
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
