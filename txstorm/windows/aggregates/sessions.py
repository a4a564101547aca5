"""Sessions: partial aggregates whose intervals of time overlap, combined per key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from txstorm.row_order import order_of
from txstorm.windows.aggregates.cells import Cells
from txstorm.windows.aggregates.groups import Groups, Mask, Numbers, integers
from txstorm.windows.aggregates.panes import WINDOW_END, WINDOW_START


@dataclass(frozen=True)
class Sessions:
    """Sessions of a table of partial aggregates.

    Attributes:
        rows: the partial aggregates, in order of arrival.
        groups: the session of each row.
        starts, ends: start and end of each session.
    """

    rows: pa.Table
    groups: Groups
    starts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, cells: Cells, rows: pa.Table) -> Sessions:
        """Find the sessions of partial aggregates, each of which has a start and an end."""
        starts, ends = integers(rows.column(WINDOW_START)), integers(rows.column(WINDOW_END))
        codes, _ = cells.numbered(rows)
        of_row = _overlapping(codes, starts, ends)
        groups = Groups.numbered(of_row, int(of_row.max(initial=-1)) + 1)
        lows, highs = np.full(len(groups), np.iinfo(np.int64).max), np.full(len(groups), np.iinfo(np.int64).min)
        np.minimum.at(lows, groups.of_row, starts)
        np.maximum.at(highs, groups.of_row, ends)
        return cls(rows, groups, lows, highs)

    def having(self, rows: Mask) -> Mask:
        """Return which sessions have one of the chosen rows."""
        there = np.zeros(len(self.groups), bool)
        there[self.groups.of_row[rows]] = True
        return there

    def table(self, cells: Cells) -> tuple[pa.Table, Numbers]:
        """Return the partial aggregates of the sessions, and the session of each row: see `Cells.combined`."""
        made, of_row = cells.combined(self.rows, self.groups)
        bounds = {WINDOW_START: pa.array(self.starts[of_row]), WINDOW_END: pa.array(self.ends[of_row])}
        return pa.table({**bounds, **cells.keys_of(self.rows, self.groups.first[of_row]), **made}), of_row


def live(codes: Numbers, starts: Numbers, ends: Numbers) -> Mask:
    """Return which stored sessions are live: the others have become part of one that was stored later.

    Args:
        codes: numbers for the keys; rows of a key are neighbours, in the order of their ends, then of arrival.
        starts: their starts.
        ends: their ends. A later session of the same key covers those that have become part of it, and no others.
    """
    if not len(codes):
        return np.zeros(0, bool)
    key = np.cumsum(np.r_[False, codes[1:] != codes[:-1]])
    # From behind, with a high part that decreases with each key: the least start of all later rows of the same key.
    least = int(starts.min())
    width = int(ends.max()) - least + 1
    if width > np.iinfo(np.int64).max // (int(key[-1]) + 2):
        _, ranks = np.unique(np.r_[starts, ends], return_inverse=True)
        return live(codes, ranks[: len(starts)], ranks[len(starts) :])
    first = np.minimum.accumulate((key * width + starts - least)[::-1])[::-1]
    alive = np.ones(len(codes), bool)
    alive[:-1] = (key[1:] != key[:-1]) | (first[1:] >= key[:-1] * width + ends[:-1] - least)
    return alive


def _overlapping(codes: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
    """Number the sessions of intervals [start, end) per key; return the session of each interval."""
    if not len(codes):
        return codes
    order = order_of(codes, starts)
    codes, starts, ends = codes[order], starts[order], ends[order]
    least = int(ends.min())
    width = int(ends.max()) - least + 1
    # The key is the high part of what is accumulated, so that each key starts with its own latest end.
    if width <= np.iinfo(np.int64).max // (int(codes[-1]) + 1):
        latest = np.maximum.accumulate(codes * width + (ends - least)) - codes * width + least
    else:
        known, ranks = np.unique(ends, return_inverse=True)
        latest = known[np.maximum.accumulate(codes * len(known) + ranks) % len(known)]
    begins = np.ones(len(codes), bool)
    begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] >= latest[:-1])
    of_row = np.empty(len(codes), np.int64)
    of_row[order] = np.cumsum(begins) - 1
    return of_row
