"""Panes: the parts of time from which sliding windows are put together, and the arithmetic of their ends.

A pane is as long as the greatest common divisor of length and slide, and named by its end. It has the held times up to
that, as windows do (see `txstorm.windows.rules.forms`). All tuples of a pane are in
the same windows, so they are late together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import pyarrow as pa

from txstorm.windows.aggregates.cells import Cells
from txstorm.windows.aggregates.groups import Groups, Mask, Numbers, integers
from txstorm.windows.rules.event_time import END

PANE, WINDOW_END, WINDOW_START = "window_pane", "window_end", "window_start"
"""Columns of partial aggregates: the end of a pane; start and end of a session or window."""


@dataclass(frozen=True)
class Panes:
    """Panes of windows that slide by a duration; all in microseconds.

    Attributes:
        span: length of the windows.
        step: their slide.
        lateness: how long after its end a window still takes tuples.
    """

    span: int
    step: int
    lateness: int = 0

    @property
    def size(self) -> int:
        """Length of a pane."""
        return gcd(self.span, self.step)

    def of(self, times: Numbers) -> Numbers:
        """Return the pane of each held time."""
        return -(-times // self.size) * self.size

    def first_ends(self, panes: Numbers) -> Numbers:
        """Return the end of the first window that covers each pane; after the last one if none does."""
        return -(-panes // self.step) * self.step

    def last_ends(self, panes: Numbers) -> Numbers:
        """Return the end of the last window that covers each pane."""
        return (panes - self.size + self.span) // self.step * self.step

    def covered(self, panes: Numbers) -> Mask:
        """Return which panes are in a window: all, unless the slide is longer than the windows."""
        covered: Mask = self.first_ends(panes) <= self.last_ends(panes)
        return covered

    def next_end(self, watermark: int) -> int:
        """Return the first window end after a watermark."""
        return min((watermark // self.step + 1) * self.step, END)

    def open_end(self, watermark: int) -> int:
        """Return the first window end that still takes tuples at a watermark."""
        return self.next_end(watermark - self.lateness)

    def needed(self, watermark: int) -> int:
        """Return the first pane that a window which still takes tuples at a watermark covers."""
        return self.first_of(self.open_end(watermark))

    def first_of(self, end: int) -> int:
        """Return the first pane of the window with this end."""
        return min(end - self.span + self.size, END)

    def skipped(self, panes: Numbers, end: int) -> Numbers:
        """Return how many windows of each pane come before the one that ends at `end`."""
        before: Numbers = np.maximum(end - self.first_ends(panes), 0) // self.step
        return before

    def windows(
        self, cells: Cells, rows: pa.Table, low: int | None, high: int, skipped: Numbers | None = None
    ) -> pa.Table:
        """Return the partial aggregates of the windows that end from `low` to `high` and have content.

        Args:
            cells: the aggregates.
            rows: partial aggregates with their pane, in order of arrival.
            low: the first end; None: any.
            high: the last end.
            skipped: for each row, how many of the windows of its pane it is not in; None: all are in every one.
        """
        rows = rows.combine_chunks()  # rows are taken much faster from one chunk
        order = np.argsort(integers(rows.column(PANE)), kind="stable")
        rows = rows.take(pa.array(order)).combine_chunks()
        panes = integers(rows.column(PANE))
        first, last = self.first_ends(panes), np.minimum(self.last_ends(panes), high // self.step * self.step)
        if skipped is not None:
            first = first + skipped[order] * self.step
        if low is not None:
            first = np.maximum(first, low)
        if cells.exact:
            rows, first, last = self._condensed(cells, rows, first, last)
        sizes = np.maximum((last - first) // self.step + 1, 0)
        picked = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(picked)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        ends = first[picked] + within * self.step
        if not len(ends):
            return cells.empty(**{WINDOW_START: pa.int64(), WINDOW_END: pa.int64()})
        least = int(ends.min())
        width = (int(ends.max()) - least) // self.step + 1
        codes, limit = cells.numbered(rows)
        groups = Groups.of(codes[picked] * width + (ends - least) // self.step, limit * width)
        made, of_row = cells.combined(rows.drop_columns(cells.key_names).take(pa.array(picked)), groups)
        first = groups.first[of_row]
        found = ends[first]
        bounds = {WINDOW_START: pa.array(found - self.span), WINDOW_END: pa.array(found)}
        return pa.table({**bounds, **cells.keys_of(rows, picked[first]), **made})

    def _condensed(
        self, cells: Cells, rows: pa.Table, first: Numbers, last: Numbers
    ) -> tuple[pa.Table, Numbers, Numbers]:
        """Combine the rows per key that are in all windows: once, and not for each window; return them with their ends.

        `first`, `last`: the ends of the first and last window of each row; if it is in none, `last` is before `first`.
        """
        inside = last >= first
        if not inside.any():
            return rows, first, last
        low, high = first[inside].min(), last[inside].max()
        common = (first == low) & (last == high)
        if low == high or not common.any():
            return rows, first, last
        shared, others = rows.filter(pa.array(common)).combine_chunks(), rows.filter(pa.array(inside & ~common))
        groups = Groups.of(*cells.numbered(shared))
        combined, of_row = cells.combined(shared, groups)
        one = groups.first[of_row]
        once = {PANE: shared.column(PANE).take(pa.array(one)), **cells.keys_of(shared, one)}
        made = pa.table({**once, **combined}).select(rows.column_names)
        others_first, others_last = (of[inside & ~common] for of in (first, last))
        return (
            pa.concat_tables([made, others]).combine_chunks(),
            np.r_[np.full(made.num_rows, low), others_first],
            np.r_[np.full(made.num_rows, high), others_last],
        )

    def combined(self, cells: Cells, rows: pa.Table) -> pa.Table:
        """Return one partial aggregate per key and pane of `rows`."""
        if not rows.num_rows:
            return rows
        rows = rows.combine_chunks()
        panes = integers(rows.column(PANE))
        least = int(panes.min())
        width = (int(panes.max()) - least) // self.size + 1
        codes, limit = cells.numbered(rows)
        groups = Groups.of(codes * width + (panes - least) // self.size, limit * width)
        made, of_row = cells.combined(rows, groups)
        first = groups.first[of_row]
        return pa.table({PANE: pa.array(panes[first]), **cells.keys_of(rows, first), **made})
