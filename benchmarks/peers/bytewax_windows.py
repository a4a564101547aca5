"""bytewax: sums of sliding windows in one worker. Runs in a separate environment."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators.windowing import EventClock, SlidingWindower
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

from benchmarks.machine import cpu_seconds
from benchmarks.sensor_events import LAG_MS, LENGTH_MS, SLIDE_MS, events
from benchmarks.suite.serve import serve_lines

SLICE = 1_000
KEYS = 2
WAIT = timedelta(milliseconds=2 * LAG_MS)
"""Twice the lag: bytewax lets wall time advance its clock, and drops events that are then late."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Item = tuple[str, tuple[datetime, int]]


class Source(FixedPartitionedSource[Item, int]):
    """One partition with all events; they are made before the clock starts."""

    def __init__(self, count: int) -> None:
        self.count = count

    def list_parts(self) -> list[str]:
        return ["0"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
        return Partition(self.count)


class Partition(StatefulSourcePartition[Item, int]):
    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0

    def next_batch(self) -> list[Item]:
        if self._done >= self._count:
            raise StopIteration
        ts, sensors, values = events(self._done, min(self._done + SLICE, self._count))
        self._done += len(ts)
        times = (EPOCH + one * _MILLISECOND for one in ts.tolist())
        keys = map(str, (sensors % KEYS).tolist())
        return list(zip(keys, zip(times, values.tolist(), strict=True), strict=True))

    def snapshot(self) -> int:
        return self._done


class Keep(DynamicSink[Any]):
    """Sink that adds up the sums of all keys by window."""

    def __init__(self, into: Counter[int]) -> None:
        self.into = into

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Kept:
        return Kept(self.into)


class Kept(StatelessSinkPartition[Any]):
    def __init__(self, into: Counter[int]) -> None:
        self.into = into

    def write_batch(self, items: list[Any]) -> None:
        for _, (window, total) in items:
            self.into[window] += total


def run(line: str) -> str:
    """Run the sliding sum over the events of a request; return its speed and the sums as JSON."""
    count, sums = int(json.loads(line)["count"]), Counter[int]()
    flow = Dataflow("sums")
    readings = op.input("readings", flow, Source(count))
    clock = EventClock(ts_getter=lambda one: one[0], wait_for_system_duration=WAIT)
    # Windows of bytewax are [start, end), ours (start, end]: they begin a millisecond later.
    windower = SlidingWindower(
        length=LENGTH_MS * _MILLISECOND, offset=SLIDE_MS * _MILLISECOND, align_to=EPOCH + _MILLISECOND
    )
    folded = win.fold_window(
        "sum", readings, clock, windower, lambda: 0, lambda total, one: total + one[1], lambda one, other: one + other
    )
    op.output("keep", folded.down, Keep(sums))
    began, spent = time.perf_counter(), sum(cpu_seconds())
    cluster_main(flow, [], 0)
    seconds, spent = time.perf_counter() - began, sum(cpu_seconds()) - spent
    found = sorted(_by_end(sums))
    return json.dumps({"tuples/s": count / seconds, "tuples/CPU s": count / spent, "sums": found})


def _by_end(sums: Counter[int]) -> Iterator[tuple[int, int]]:
    for number, total in sums.items():
        yield number * SLIDE_MS + LENGTH_MS, total


if __name__ == "__main__":
    serve_lines(run)
