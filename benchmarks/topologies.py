"""What is measured: topologies in the form a user would write them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.source import Words
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import KeyedState
from txstorm.api.tuples import Tuple
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

    state = KeyedState("counts", key={"word": str}, value={"n": int})

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.counts = context.state("counts")
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

    state = KeyedState("counts", key={"word": str}, value={"n": int})

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.counts = context.state("counts")
        self.batches: list[pa.RecordBatch] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def finish_batch(self) -> None:
        if self.batches:
            self.counts.merge(pa.Table.from_batches(self.batches), {"n": "sum"})


def global_count(tuples: int, last: int) -> Topology:
    """Storm's global count: one Python stage, a state of one row."""
    builder = TransactionalTopologyBuilder("global-count", "words", Words(tuples, last), 2)
    builder.set_bolt("partial", CountTuples(), 2).local_or_shuffle_grouping("words")
    builder.set_committer_bolt("total", KeepTotal()).global_grouping("partial")
    return builder.build_topology()


def word_count(tuples: int, last: int) -> Topology:
    """The README's word count: every word goes through an exchange, then counts by word; tuples one by one."""
    builder = TransactionalTopologyBuilder("word-count", "words", Words(tuples, last), 2)
    builder.set_bolt("partial", CountWords(), 2).shuffle_grouping("words")
    builder.set_committer_bolt("counts", KeepCounts(), 2).fields_grouping("partial", ["word"])
    return builder.build_topology()


def word_count_columns(tuples: int, last: int) -> Topology:
    """The word count on record batches, without the exchange: the least work a job can have beside its commit."""
    builder = TransactionalTopologyBuilder("word-count-columns", "words", Words(tuples, last), 2)
    builder.set_bolt("partial", CountColumns(), 2).local_or_shuffle_grouping("words")
    builder.set_committer_bolt("counts", MergeCounts(), 2).fields_grouping("partial", ["word"])
    return builder.build_topology()


class Changes(TransactionalSpout):
    """All of `keys` keys in the first transaction, `changed` of them in every later one."""

    fields = ("word", "n")

    def __init__(self, keys: int, changed: int, last: int) -> None:
        self.keys, self.changed, self.last = keys, changed, last

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return Words(self.keys, self.last).coordinator(context)

    def emitter(self, context: TaskContext) -> Emitter:
        return _ChangesEmitter(self.keys, self.changed)


class _ChangesEmitter(Emitter):
    def __init__(self, keys: int, changed: int) -> None:
        self._keys, self._changed = keys, changed

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        txid = int(metadata)
        drawn = np.random.default_rng(txid).choice(self._keys, self._changed, replace=False)
        keys = np.arange(self._keys) if txid == 1 else drawn
        words = pa.array([f"key-{key:08d}" for key in keys])
        collector.emit_batch(pa.record_batch({"word": words, "n": pa.array(np.full(len(keys), txid))}))


def keyed_changes(keys: int, changed: int, last: int) -> Topology:
    """One table of `keys` keys, of which every transaction changes `changed`; tuples one by one."""
    builder = TransactionalTopologyBuilder("keyed-changes", "changes", Changes(keys, changed, last))
    builder.set_committer_bolt("counts", KeepCounts()).fields_grouping("changes", ["word"])
    return builder.build_topology()
