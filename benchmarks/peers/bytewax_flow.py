"""bytewax: a stateful count in one worker. Runs in a separate environment."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import pyarrow as pa
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

from benchmarks.suite.exact import leave
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve

SLICE = 100_000
"""Words that the source emits at once: the more, the fewer calls for each key."""


class Source(FixedPartitionedSource[str, int]):
    """One partition that emits the transactions of a job, one after the other."""

    def __init__(self, job: Job, meter: Meter) -> None:
        self.job, self.meter = job, meter

    def list_parts(self) -> list[str]:
        return ["0"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
        return Partition(self.job, self.meter, resume_state or 0)


class Partition(StatefulSourcePartition[str, int]):
    """The source's partition. As bytewax has no commits, a transaction ends when the next one is requested."""

    def __init__(self, job: Job, meter: Meter, done: int) -> None:
        self._job, self._meter, self._done = job, meter, done
        self._rest: list[str] = []
        self._begun = 0.0

    def next_batch(self) -> list[str]:
        if not self._rest:
            self._next()
        part, self._rest = self._rest[:SLICE], self._rest[SLICE:]
        return part

    def _next(self) -> None:
        now = time.perf_counter()
        if self._done:
            self._meter.committed(self._done, 0.0, [(now - self._begun) * 1e3])
        if self._done == self._job.last:
            raise StopIteration
        self._done += 1
        self._begun = now
        self._rest = self._job.words(self._done).to_pylist()

    def snapshot(self) -> int:
        return self._done


class Count(StatefulBatchLogic[str, tuple[str, int], int]):
    """Count of one key; emitted at the end."""

    def __init__(self, n: int | None) -> None:
        self.n = n or 0

    def on_batch(self, values: list[Any]) -> tuple[list[Any], bool]:
        self.n += len(values)
        return [], False

    def on_eof(self) -> tuple[list[Any], bool]:
        return [self.n], False

    def snapshot(self) -> int:
        return self.n


class Keep(DynamicSink[Any]):
    """Sink that keeps the counts that the flow emits at its end."""

    def __init__(self, into: list[Any]) -> None:
        self.into = into

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Kept:
        return Kept(self.into)


class Kept(StatelessSinkPartition[Any]):
    def __init__(self, into: list[Any]) -> None:
        self.into = into

    def write_batch(self, items: list[Any]) -> None:
        self.into += items


def worker(*, recovery: bool) -> Work:
    """Return a function that runs jobs, with or without bytewax's recovery store."""

    def work(job: Job) -> Outcome:
        meter, found = Meter(job), list[tuple[str, int]]()
        flow = Dataflow("counts")
        words = op.input("words", flow, Source(job, meter))
        total = job.kind == "total"
        keyed = op.map("key", words, (lambda word: ("", word)) if total else (lambda word: (word, word)))
        counts = op.stateful_batch("count", keyed, Count)
        op.output("keep", counts, Keep(found))
        cluster_main(flow, [], 0, **_recovery(job, recovery))
        rows = pa.table({"word": [word for word, _ in found], "n": pa.array([n for _, n in found], pa.int64())})
        leave(job, rows.select(["n"]) if total else rows)
        return meter.outcome()

    return work


def _recovery(job: Job, wanted: bool) -> dict[str, Any]:
    if not wanted:
        return {}
    place = Path(job.directory) / "recovery"
    place.mkdir()
    init_db_dir(place, 1)
    return {"recovery_config": RecoveryConfig(str(place)), "epoch_interval": timedelta(seconds=1)}


if __name__ == "__main__":
    serve(worker(recovery="recovery" in sys.argv[1:]))
