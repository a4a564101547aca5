"""A source that costs next to nothing: words that depend on the txid alone, drawn as Zipf's law has it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from benchmarks.words import words, zipf_ranks
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout


class Words(TransactionalSpout):
    """Emits `tuples` words per transaction, as record batches; `last` transactions, then it is not ready any more."""

    fields = ("word",)

    def __init__(self, tuples: int, last: int) -> None:
        self.tuples = tuples
        self.last = last

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return _Coordinator(self.last)

    def emitter(self, context: TaskContext) -> Emitter:
        return _Emitter(self.tuples, context.task, context.parallelism)


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
    def __init__(self, tuples: int, task: int, tasks: int) -> None:
        self._share = range(tuples * task // tasks, tuples * (task + 1) // tasks)

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        collector.emit_batch(words_of(int(metadata), self._share))


def words_of(txid: int, share: range) -> pa.RecordBatch:
    """The words at the positions `share` of transaction `txid`."""
    return pa.RecordBatch.from_arrays([words(zipf_ranks(txid, share))], names=["word"])
