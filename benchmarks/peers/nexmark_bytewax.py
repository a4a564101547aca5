"""bytewax: a query on sliding windows by `fold_window`, in one worker. Runs in a separate environment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import pyarrow as pa
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators.windowing import EventClock, SlidingWindower, fold_window
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

from benchmarks.nexmark.events import LAG_MS, SLIDE_MS, START_MS, WINDOW_MS, read
from benchmarks.nexmark.queries import QUERIES, leave_rows
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import serve

SLICE = 10_000
"""Events that the source emits at once."""
START = datetime.fromtimestamp(START_MS / 1000, UTC)
Event = tuple[str, datetime]


class Events(FixedPartitionedSource[Event, None]):
    """One partition that emits the events that a query reads."""

    def __init__(self, job: Job, meter: Meter) -> None:
        self.job, self.meter = job, meter

    def list_parts(self) -> list[str]:
        return ["0"]

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> Part:
        return Part(self.job, self.meter)


class Part(StatefulSourcePartition[Event, None]):
    """The source's partition; a transaction ends when the next one is requested."""

    def __init__(self, job: Job, meter: Meter) -> None:
        self._job, self._meter, self._done = job, meter, 0
        self._rest: list[Event] = []
        meter.begin()

    def next_batch(self) -> list[Event]:
        if not self._rest:
            if self._done:
                self._meter.committed(self._done, 0.0, [])
            if self._done == self._job.last:
                raise StopIteration
            self._rest = self._read(self._done)
            self._done += 1
        part, self._rest = self._rest[:SLICE], self._rest[SLICE:]
        return part

    def _read(self, done: int) -> list[Event]:
        query = QUERIES[self._job.kind]
        share = range(done * self._job.tuples, (done + 1) * self._job.tuples)
        found = read(self._job.source, share, "kind", "time", query.key)
        chosen = found["kind"] == query.chosen
        times = found["time"][chosen].astype("M8[ms]").tolist()
        keys = found[query.key][chosen].tolist()
        return [(str(key), at.replace(tzinfo=UTC)) for key, at in zip(keys, times, strict=True)]

    def snapshot(self) -> None:
        return None


class Keep(DynamicSink[Any]):
    """Sink that keeps (key, (number of the window, count))."""

    def __init__(self, into: list[Any]) -> None:
        self.into = into

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Kept:
        return Kept(self.into)


class Kept(StatelessSinkPartition[Any]):
    def __init__(self, into: list[Any]) -> None:
        self.into = into

    def write_batch(self, items: list[Any]) -> None:
        self.into += items


def work(job: Job) -> Outcome:
    """Run a query."""
    meter, found = Meter(job), list[Any]()
    flow = Dataflow("query")
    keyed = op.input("events", flow, Events(job, meter))
    clock = EventClock(lambda event: event, timedelta(milliseconds=LAG_MS))
    windower = SlidingWindower(timedelta(milliseconds=WINDOW_MS), timedelta(milliseconds=SLIDE_MS), START)
    counts = fold_window("count", keyed, clock, windower, int, lambda n, _: n + 1, lambda n, m: n + m, ordered=False)
    op.output("keep", counts.down, Keep(found))
    cluster_main(flow, [], 0)
    ends = [START_MS + number * SLIDE_MS + WINDOW_MS for _, (number, _) in found]
    columns = {"key": [int(key) for key, _ in found], "end": ends, "n": [n for _, (_, n) in found]}
    leave_rows(job.directory, pa.table({**columns, "value": [0] * len(found)}))
    return meter.outcome()


if __name__ == "__main__":
    serve(work)
