"""Topologies of txstorm for the jobs, as a user would write them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.suite.exact import leave
from benchmarks.suite.job import Job
from benchmarks.suite.opaque import OpaqueSpout
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import KeyedState
from txstorm.api.tuples import Tuple
from txstorm.results.read import read_state
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology


class CountTuples(BatchBolt):
    """Counts the tuples of its task, one by one."""

    fields = ("n",)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.collector, self.n = collector, 0

    def execute(self, tuple: Tuple) -> None:
        self.n += 1

    def finish_batch(self) -> None:
        self.collector.emit(self.n)


class KeepTotal(BatchBolt, Committer):
    """Adds the partial counts to a state of one row."""

    state = KeyedState("total", key={}, value={"n": int})

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.total, self.n = context.state("total"), 0

    def execute(self, tuple: Tuple) -> None:
        self.n += tuple["n"]

    def finish_batch(self) -> None:
        self.total.update((), lambda old: (old or 0) + self.n)


class CountWords(BatchBolt):
    """Counts the words of its task, one by one."""

    fields = ("word", "n")

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.collector = collector
        self.counts: Counter[str] = Counter()

    def execute(self, tuple: Tuple) -> None:
        self.counts[tuple["word"]] += 1

    def finish_batch(self) -> None:
        for word, n in self.counts.items():
            self.collector.emit(word, n)


class KeepCounts(BatchBolt, Committer):
    """Adds the partial counts to the counts of the words."""

    def __init__(self, name: str) -> None:
        self.state, self.name = KeyedState(name, key={"word": str}, value={"n": int}), name

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.counts = context.state(self.name)
        self.partial: Counter[str] = Counter()

    def execute(self, tuple: Tuple) -> None:
        self.partial[tuple["word"]] += tuple["n"]

    def finish_batch(self) -> None:
        self.counts.update_many(self.partial, lambda old, n: (old or 0) + n)


class CountColumns(BatchBolt):
    """Counts the words of its task a record batch at a time."""

    fields = ("word", "n")

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.collector = collector
        self.batches: list[pa.RecordBatch] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def finish_batch(self) -> None:
        if self.batches:
            counted = (
                pa.Table.from_batches(self.batches).group_by("word", use_threads=False).aggregate([([], "count_all")])
            )
            self.collector.emit_batch(counted.rename_columns(["word", "n"]))


class MergeCounts(BatchBolt, Committer):
    """Folds the partial counts into the counts of the words, column by column."""

    def __init__(self, name: str) -> None:
        self.state, self.name = KeyedState(name, key={"word": str}, value={"n": int}), name

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.counts = context.state(self.name)
        self.batches: list[pa.RecordBatch] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def finish_batch(self) -> None:
        if self.batches:
            self.counts.merge(pa.Table.from_batches(self.batches), {"n": "sum"})


class JobSpout(TransactionalSpout):
    """Emits the words of a job as record batches; with `notes`, appends the number of words to that file every time."""

    fields = ("word",)

    def __init__(self, job: Job, notes: Path | None = None) -> None:
        self.job, self.notes = job, notes

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return NumberedTransactions(self.job.last)

    def emitter(self, context: TaskContext) -> Emitter:
        return _Emitter(self.job, self.notes, context.task, context.parallelism)


class NumberedTransactions(SpoutCoordinator):
    """Coordinator of `last` transactions; the metadata of each is its txid."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._planned = 0

    def is_ready(self) -> bool:
        return self._planned < self._last

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        self._planned = txid
        return txid


class _Emitter(Emitter):
    def __init__(self, job: Job, notes: Path | None, task: int, tasks: int) -> None:
        self._job, self._notes, self._task, self._tasks = job, notes, task, tasks

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        size = self._job.size(int(metadata))
        share = range(size * self._task // self._tasks, size * (self._task + 1) // self._tasks)
        if share:
            found = self._job.words(int(metadata), share)
            collector.emit_batch(pa.RecordBatch.from_arrays([found], names=["word"]))
            if self._notes is not None:
                with self._notes.open("a") as notes:
                    notes.write(f"{len(share)}\n")


def topology_of(job: Job, notes: Path | None = None) -> Topology:
    """Build the topology of a job: a counting bolt after the spout, and one committer per table."""
    spout = OpaqueSpout(job) if job.kind == "opaque" else JobSpout(job, notes)
    builder = TransactionalTopologyBuilder("bench", "words", spout, 2)
    counts = CountTuples() if job.kind == "total" else CountColumns() if job.columns else CountWords()
    partial = builder.set_bolt("partial", counts, 2)
    if job.exchange:
        partial.shuffle_grouping("words")
    else:
        partial.local_or_shuffle_grouping("words")
    for number in range(job.tables):
        _set_committer(builder, job, state_name(job, number))
    return builder.build_topology()


def leave_counts(job: Job, directory: Path) -> None:
    """Write the content of the states in a data directory for the exactness check."""
    for number in range(job.tables):
        found = read_state(directory, state_name(job, number))
        leave(job, found.select(["n"] if job.kind == "total" else ["word", "n"]), number)


def state_name(job: Job, number: int) -> str:
    """Return the name of the state with the counts of table `number`."""
    return "total" if job.kind == "total" else f"counts_{number}"


def _set_committer(builder: TransactionalTopologyBuilder, job: Job, name: str) -> None:
    if job.kind == "total":
        builder.set_committer_bolt(name, KeepTotal()).global_grouping("partial")
        return
    kept = (MergeCounts if job.columns else KeepCounts)(name)
    builder.set_committer_bolt(name, kept, 2).fields_grouping("partial", ["word"])
