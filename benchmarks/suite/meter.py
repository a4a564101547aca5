"""Meter inside a side: measures a job from the end of its warm-up to its last commit. Usable without txstorm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.machine import cpu_seconds
from benchmarks.suite.job import Job, Outcome


class Meter:
    """Meter of one job; it is called after every commit."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.latencies: list[float] = []
        self.commits: list[float] = []
        self._begin = self._end = self._now(0)

    def _now(self, txid: int) -> tuple[int, float, float]:
        return txid, time.perf_counter(), sum(cpu_seconds())

    def begin(self) -> None:
        """Start measuring; called when the work begins if there is no warm-up."""
        self._begin = self._now(0)

    def committed(self, txid: int, commit_ms: float, latencies_ms: Sequence[float]) -> None:
        """Record that transactions up to `txid` were committed, in one commit that took `commit_ms`."""
        warm = self._begin[0] >= self.job.start
        if warm or txid > (self.job.start + self.job.last) / 2:
            self.commits.append(commit_ms)
            self.latencies += latencies_ms
        else:
            # The measurement begins with the first commit at or after the end of the warm-up, or, if its group contains
            # most of the transactions to measure, with the commit before it.
            self._begin = self._now(txid)
        if txid == self.job.last:
            self._end = self._now(txid)

    def outcome(self, **more: Any) -> Outcome:
        """Return the measurement, after the last commit."""
        if self._end[0] != self.job.last:
            msg = f"expected commits up to txid {self.job.last}, got them up to {self._end[0]}"
            raise RuntimeError(msg)
        txids = self._end[0] - self._begin[0]
        return Outcome(
            seconds=self._end[1] - self._begin[1],
            cpu=self._end[2] - self._begin[2],
            txids=txids,
            tuples=txids * self.job.tuples,
            latency_ms=statistics.median(self.latencies) if self.latencies else 0.0,
            commits_ms=[round(one, 3) for one in self.commits],
            more=more,
        )
