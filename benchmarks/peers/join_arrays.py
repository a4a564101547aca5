"""Limit of columns: the join by hand on arrays, sorted and searched once per transaction; in memory, on one core."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.joins.results import NONE, RightRows, counted, leave_digest, pairs
from benchmarks.joins.rows import BEFORE_MS, LAG_MS, LEFT, RIGHT, Column, part, read
from benchmarks.machine import cpu_seconds
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.serve import serve

Rows = tuple[Column, Column, Column]
"""Keys, times and ids."""


def work(job: Job) -> Outcome:
    """Join, transaction by transaction; only the result rows are added up outside the measurement."""
    left, right = _none(), _none()
    newest = {LEFT: 0, RIGHT: 0}
    seconds = cpu = 0.0
    rows = job.last * job.tuples
    found = np.zeros(3, np.int64)
    for txid in range(1, job.last + 1):
        begun, spent = time.perf_counter(), sum(cpu_seconds())
        share = part(job.tuples, txid)
        left, right = _added(left, share, job, LEFT), _added(right, share, job, RIGHT)
        newest = {LEFT: max(newest[LEFT], int(left[1].max())), RIGHT: max(newest[RIGHT], int(right[1].max()))}
        limit = np.iinfo(np.int64).max if txid == job.last else newest[RIGHT] - LAG_MS
        released, left = _split(left, left[1] < limit)
        results = _joined(released, right)
        oldest = min(newest[LEFT] - LAG_MS, int(left[1].min()) if len(left[1]) else newest[LEFT]) - BEFORE_MS
        right, _ = _split(right, right[1] >= oldest)
        seconds, cpu = seconds + time.perf_counter() - begun, cpu + sum(cpu_seconds()) - spent
        found += counted(job.source, rows, *results)
    leave_digest(job.directory, found.tolist())
    return Outcome(seconds, cpu, job.last, rows)


def _none() -> Rows:
    return np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64)


def _added(rows: Rows, share: range, job: Job, side: str) -> Rows:
    keys, times = read(job.source, side, share)
    more = (keys, times, np.arange(share.start, share.stop))
    return tuple(np.concatenate(both) for both in zip(rows, more, strict=True))  # type: ignore[return-value]


def _split(rows: Rows, chosen: Column) -> tuple[Rows, Rows]:
    taken, rest = (tuple(column[where] for column in rows) for where in (chosen, ~chosen))
    return taken, rest  # type: ignore[return-value]


def _joined(left: Rows, right: Rows) -> tuple[Column, Column]:
    """Return the ids of the pairs, the left rows in the order of their times."""
    keys, times, ids = (column[np.argsort(left[1], kind="stable")] for column in left)
    held = RightRows(right[0], right[1])
    at, of = pairs(*held.matches(keys, times))
    return ids[at], np.where(of == NONE, NONE, right[2][held.order[of]])


if __name__ == "__main__":
    serve(work)
