"""bytewax: the left join by a stateful operator of its own, in one worker. Runs in a separate environment."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import bytewax.operators as op
import numpy as np
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

from benchmarks.joins.results import NONE, counted, leave_digest
from benchmarks.joins.rows import BEFORE_MS, LAG_MS, LEFT, RIGHT, SIDES, part, read
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import serve

SLICE = 20_000
"""Rows of either side that the source emits at once."""
Row = tuple[int, int]
"""Time and id."""
Item = tuple[str, tuple[bool, Row]]


class Clock:
    """Positions of both sides. bytewax has none for an operator of one's own: the source sets them, in its process."""

    def __init__(self) -> None:
        self.newest = dict.fromkeys(SIDES, 0)

    @property
    def release(self) -> int:
        """Left rows older than this can be joined."""
        return self.newest[RIGHT] - LAG_MS

    @property
    def expiry(self) -> int:
        """Right rows older than this match no left row that is still to come."""
        return self.newest[LEFT] - LAG_MS - BEFORE_MS


class Rows(FixedPartitionedSource[Item, None]):
    """One partition that emits the rows of both sides in turn."""

    def __init__(self, job: Job, meter: Meter, clock: Clock) -> None:
        self.job, self.meter, self.clock = job, meter, clock

    def list_parts(self) -> list[str]:
        return ["0"]

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> Part:
        return Part(self.job, self.meter, self.clock)


class Part(StatefulSourcePartition[Item, None]):
    """The source's partition; a transaction ends when the next one is requested."""

    def __init__(self, job: Job, meter: Meter, clock: Clock) -> None:
        self._job, self._meter, self._clock, self._done = job, meter, clock, 0
        self._rest = range(0)
        meter.begin()

    def next_batch(self) -> list[Item]:
        if not self._rest:
            if self._done:
                self._meter.committed(self._done, 0.0, [])
            if self._done == self._job.last:
                raise StopIteration
            self._done += 1
            self._rest = part(self._job.tuples, self._done)
        share, self._rest = self._rest[:SLICE], self._rest[SLICE:]
        items: list[Item] = []
        for side in (RIGHT, LEFT):
            keys, times = read(self._job.source, side, share)
            self._clock.newest[side] = max(self._clock.newest[side], int(times.max()))
            rows = zip(times.tolist(), share, strict=True)
            items += [(str(key), (side == LEFT, row)) for key, row in zip(keys.tolist(), rows, strict=True)]
        return items

    def snapshot(self) -> None:
        return None


class Join(StatefulBatchLogic[Any, Row, None]):
    """Join of one key. Left rows are released when the key has rows again, or at the end of the input."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: list[Row] = []
        self._right: list[Row] = []

    def on_batch(self, values: list[tuple[bool, Row]]) -> tuple[Iterable[Row], bool]:
        for is_left, row in values:
            rows = self._pending if is_left else self._right
            if rows and row < rows[-1]:
                insort(rows, row)
            else:
                rows.append(row)
        return self._released(self._clock.release), False

    def on_eof(self) -> tuple[Iterable[Row], bool]:
        return self._released(self._clock.newest[LEFT] + 1), True

    def on_notify(self) -> tuple[Iterable[Row], bool]:
        return (), False

    def notify_at(self) -> datetime | None:
        return None

    def snapshot(self) -> None:
        return None

    def _released(self, limit: int) -> list[Row]:
        pending, right, found = self._pending, self._right, list[Row]()
        released = 0
        for at, id in pending:
            if at >= limit:
                break
            released += 1
            before = len(found)
            for time, other in right:
                if time > at:
                    break
                if time >= at - BEFORE_MS:
                    found.append((id, other))
            if len(found) == before:
                found.append((id, NONE))
        del pending[:released]
        oldest = min(self._clock.expiry, pending[0][0] - BEFORE_MS) if pending else self._clock.expiry
        expired = 0
        for time, _ in right:
            if time >= oldest:
                break
            expired += 1
        del right[:expired]
        return found


class Keep(DynamicSink[Any]):
    """Sink that keeps the pairs of ids."""

    def __init__(self, into: list[Row]) -> None:
        self.into = into

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Kept:
        return Kept(self.into)


class Kept(StatelessSinkPartition[Any]):
    def __init__(self, into: list[Row]) -> None:
        self.into = into

    def write_batch(self, items: list[Any]) -> None:
        self.into += [pair for _, pair in items]


def work(job: Job) -> Outcome:
    """Run a join."""
    meter, clock, found = Meter(job), Clock(), list[Row]()
    flow = Dataflow("join")
    rows = op.input("rows", flow, Rows(job, meter, clock))
    joined = op.stateful_batch("join", rows, lambda _: Join(clock))
    op.output("keep", joined, Keep(found))
    cluster_main(flow, [], 0)
    outcome = meter.outcome()
    left, right = np.array(found, np.int64).T
    leave_digest(job.directory, counted(job.source, job.last * job.tuples, left, right))
    return outcome


if __name__ == "__main__":
    serve(work)
