"""Limit for one core: the join by hand, a loop over rows with a dict of deques of right rows; in memory only."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque

import numpy as np

from benchmarks.joins.results import NONE, counted, leave_digest
from benchmarks.joins.rows import BEFORE_MS, LAG_MS, LEFT, RIGHT, part, read
from benchmarks.machine import cpu_seconds
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.serve import serve


def work(job: Job) -> Outcome:
    """Join, transaction by transaction; only the result rows are added up outside the measurement."""
    join, made = Join(), list[tuple[list[int], list[int]]]()
    seconds = cpu = 0.0
    rows = job.last * job.tuples
    found = np.zeros(3, np.int64)
    for txid in range(1, job.last + 1):
        begun, spent = time.perf_counter(), sum(cpu_seconds())
        share = part(job.tuples, txid)
        for side in (RIGHT, LEFT):
            join.add(side, share.start, *(column.tolist() for column in read(job.source, side, share)))
        made = [join.release()]
        if txid == job.last:
            made.append(join.release(end=True))
        seconds, cpu = seconds + time.perf_counter() - begun, cpu + sum(cpu_seconds()) - spent
        for left, right in made:
            found += counted(job.source, rows, np.array(left, np.int64), np.array(right, np.int64))
    leave_digest(job.directory, found.tolist())
    return Outcome(seconds, cpu, job.last, rows)


class Join:
    """Left join: right rows per key, in the order of their times, and pending left rows, the oldest first."""

    def __init__(self) -> None:
        self._rows: dict[int, deque[tuple[int, int]]] = {}
        self._pending: list[tuple[int, int, int]] = []
        self._newest = {LEFT: 0, RIGHT: 0}

    def add(self, side: str, first: int, keys: list[int], times: list[int]) -> None:
        """Add rows whose ids begin with `first`."""
        self._newest[side] = max(self._newest[side], *times)
        if side == LEFT:
            self._pending += zip(times, range(first, first + len(keys)), keys, strict=True)
            return
        held = self._rows
        for id, (key, at) in enumerate(zip(keys, times, strict=True), first):
            rows = held.get(key)
            if rows is None:
                held[key] = deque([(at, id)])
            elif rows and at < rows[-1][0]:
                held[key] = deque(sorted([*rows, (at, id)]))
            else:
                rows.append((at, id))

    def release(self, *, end: bool = False) -> tuple[list[int], list[int]]:
        """Join the left rows that no later right row can match; drop right rows on the way. Return the ids of pairs."""
        left, right, held = list[int](), list[int](), self._rows
        pending = sorted(self._pending)
        last = len(pending) if end else bisect_left(pending, (self._newest[RIGHT] - LAG_MS,))
        oldest = self._newest[LEFT] - LAG_MS - BEFORE_MS
        self._pending = pending[last:]
        for at, id, key in pending[:last]:
            rows = held.get(key)
            before = len(left)
            if rows:
                least = at - BEFORE_MS
                while rows and rows[0][0] < oldest and rows[0][0] < least:
                    rows.popleft()
                for time_, other in rows:
                    if time_ > at:
                        break
                    if time_ >= least:
                        left.append(id)
                        right.append(other)
            if len(left) == before:
                left.append(id)
                right.append(NONE)
        return left, right


if __name__ == "__main__":
    serve(work)
