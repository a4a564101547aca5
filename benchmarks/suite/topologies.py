"""What txstorm runs for a job: the topologies a user would write."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.suite.exact import leave
from benchmarks.suite.job import Job
from benchmarks.suite.opaque import OpaqueSpout
from benchmarks.topologies import CountColumns, CountTuples, CountWords, KeepCounts, KeepTotal, MergeCounts
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import KeyedState
from txstorm.state.read import read_state
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology


class JobSpout(TransactionalSpout):
    """Emits the words of a job as record batches."""

    fields = ("word",)

    def __init__(self, job: Job) -> None:
        self.job = job

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return _Coordinator(self.job.last)

    def emitter(self, context: TaskContext) -> Emitter:
        return _Emitter(self.job, context.task, context.parallelism)


class _Coordinator(SpoutCoordinator):
    def __init__(self, last: int) -> None:
        self._last = last
        self._planned = 0

    def is_ready(self) -> bool:
        return self._planned < self._last

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        self._planned = txid
        return txid


class _Emitter(Emitter):
    def __init__(self, job: Job, task: int, tasks: int) -> None:
        self._job, self._task, self._tasks = job, task, tasks

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        size = self._job.size(int(metadata))
        share = range(size * self._task // self._tasks, size * (self._task + 1) // self._tasks)
        if share:
            found = self._job.words(int(metadata), share)
            collector.emit_batch(pa.RecordBatch.from_arrays([found], names=["word"]))


def topology_of(job: Job) -> Topology:
    """Counts in one bolt beside the spout, and one committer per table."""
    builder = TransactionalTopologyBuilder(
        "bench", "words", OpaqueSpout(job) if job.kind == "opaque" else JobSpout(job), 2
    )
    counts = CountTuples() if job.kind == "total" else CountColumns() if job.columns else CountWords()
    builder.set_bolt("partial", counts, 2).local_or_shuffle_grouping("words")
    for number in range(job.tables):
        _set_committer(builder, job, state_name(job, number))
    return builder.build_topology()


def leave_counts(job: Job, directory: Path) -> None:
    """Leave what the states in a data directory hold for the exactness check."""
    for number in range(job.tables):
        found = read_state(directory, state_name(job, number))
        leave(job, found.select(["n"] if job.kind == "total" else ["word", "n"]), number)


def state_name(job: Job, number: int) -> str:
    """The state that keeps the counts of table `number`."""
    return "total" if job.kind == "total" else f"counts_{number}"


def _set_committer(builder: TransactionalTopologyBuilder, job: Job, name: str) -> None:
    if job.kind == "total":
        builder.set_committer_bolt(name, KeepTotal()).global_grouping("partial")
        return
    kept = (KeepColumnsIn if job.columns else KeepIn)(name)
    builder.set_committer_bolt(name, kept, 2).fields_grouping("partial", ["word"])


def _counts(name: str) -> KeyedState:
    return KeyedState(name, key={"word": str}, value={"n": int})


class KeepIn(KeepCounts):
    """`KeepCounts` in a state of any name."""

    def __init__(self, name: str) -> None:
        self.state, self.name = _counts(name), name

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.counts, self.partial = context.state(self.name), Counter()


class KeepColumnsIn(MergeCounts):
    """`MergeCounts` in a state of any name."""

    def __init__(self, name: str) -> None:
        self.state, self.name = _counts(name), name

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.counts, self.batches = context.state(self.name), []
