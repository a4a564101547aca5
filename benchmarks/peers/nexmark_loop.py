"""Limit for one core: a query by hand, a loop over events with a dict of counts per pane; in memory only."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pyarrow as pa

from benchmarks.nexmark.events import LAG_MS, WINDOW_MS, campaigns, read
from benchmarks.nexmark.queries import QUERIES, Query, leave_rows
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import serve

Row = tuple[int, int, int, int]


def work(job: Job) -> Outcome:
    """Run a query, transaction by transaction."""
    meter, windows = Meter(job), Windows(QUERIES[job.kind])
    ads = campaigns(job.source).tolist()
    meter.begin()
    for txid in range(1, job.last + 1):
        begun = time.perf_counter()
        found = read(job.source, range((txid - 1) * job.tuples, txid * job.tuples), *windows.query.columns)
        windows.add(*(column.tolist() for column in found.values()), ads=ads)
        windows.fire()
        meter.committed(txid, 0.0, [(time.perf_counter() - begun) * 1e3])
    outcome = meter.outcome()
    columns = zip(*windows.rows, strict=True)
    names = ("key", "end", "n", "value")
    leave_rows(job.directory, pa.table(dict(zip(names, map(pa.array, columns), strict=True))))
    return outcome


class Windows:
    """Windows of a query that slide by time: counts per pane and key."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.rows: list[Row] = []
        self._panes: dict[int, dict[int, int]] = {}
        self._newest = 0
        self._end = 0

    def add(self, kinds: list[int], times: list[int], keys: list[int], *, ads: list[int]) -> None:
        """Count events."""
        chosen, slide, panes, joined = self.query.chosen, self.query.slide, self._panes, self.query.key == "campaign"
        newest = self._newest
        for kind, at, key in zip(kinds, times, keys, strict=True):
            if kind == chosen:
                pane = at // slide
                counts = panes.get(pane)
                if counts is None:
                    counts = panes[pane] = {}
                if joined:
                    key = ads[key]
                counts[key] = counts.get(key, 0) + 1
                if at > newest:
                    newest = at
        self._newest = newest

    def fire(self) -> None:
        """Emit the windows that the watermark has passed."""
        slide, panes = self.query.slide, self._panes
        size = WINDOW_MS // slide
        last = (self._newest - LAG_MS) // slide
        for end in range(self._end or min(panes) + 1, last + 1):
            counts: Any = panes.get(end - 1, {})
            if size > 1:
                counts = Counter(panes.get(end - size, {}))
                for pane in range(end - size + 1, end):
                    for key, n in panes.get(pane, {}).items():
                        counts[key] += n
            if self.query.top:
                most = max(counts.values())
                self.rows.append((min(key for key, n in counts.items() if n == most), end * slide, most, 0))
            else:
                self.rows += [(key, end * slide, n, 0) for key, n in counts.items()]
            panes.pop(end - size, None)
        self._end = last + 1


if __name__ == "__main__":
    serve(work)
