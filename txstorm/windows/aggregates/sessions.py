"""Sessions: partial aggregates whose intervals of time overlap, combined per key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

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
        groups = Groups.of(of_row, int(of_row.max(initial=-1)) + 1)
        lows, highs = np.full(len(groups), np.iinfo(np.int64).max), np.full(len(groups), np.iinfo(np.int64).min)
        np.minimum.at(lows, groups.of_row, starts)
        np.maximum.at(highs, groups.of_row, ends)
        return cls(rows, groups, lows, highs)

    def having(self, rows: Mask) -> Mask:
        """Return which sessions have one of the chosen rows."""
        there = np.zeros(len(self.groups), bool)
        there[self.groups.of_row[rows]] = True
        return there

    def table(self, cells: Cells, chosen: Mask) -> pa.Table:
        """Return the partial aggregates of the chosen sessions."""
        numbers = np.cumsum(chosen) - 1
        inside = np.flatnonzero(chosen[self.groups.of_row])
        rows = self.rows.take(pa.array(inside))
        groups = Groups.of(numbers[self.groups.of_row[inside]], int(chosen.sum()))
        bounds = {WINDOW_START: pa.array(self.starts[chosen]), WINDOW_END: pa.array(self.ends[chosen])}
        return pa.table({**bounds, **cells.keys_of(rows, groups.first), **cells.combined(rows, groups)})


def _overlapping(codes: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
    """Number the sessions of intervals [start, end) per key; return the session of each interval."""
    if not len(codes):
        return codes
    order = np.lexsort((starts, codes))
    codes, starts = codes[order], starts[order]
    known, ranks = np.unique(ends[order], return_inverse=True)
    # The key is the high part of what is accumulated, so that each key starts with its own latest end.
    latest = known[np.maximum.accumulate(codes * len(known) + ranks) % len(known)]
    begins = np.ones(len(codes), bool)
    begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] >= latest[:-1])
    of_row = np.empty(len(codes), np.int64)
    of_row[order] = np.cumsum(begins) - 1
    return of_row
