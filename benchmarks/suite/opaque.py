"""W5: an opaque source, some of whose transactions fail once and are then replayed with a different size."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from benchmarks.suite.job import Job
from benchmarks.words import words, zipf_ranks
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.errors import FailedException

STRIDE = 37
"""Coprime to 100: the failing txids are spread evenly."""


class OpaqueSpout(TransactionalSpout):
    """An opaque spout over an endless sequence of words; transactions have about the size set by the job."""

    opaque = True
    fields = ("word",)

    def __init__(self, job: Job) -> None:
        self.job = job

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return _Coordinator(self.job)

    def emitter(self, context: TaskContext) -> Emitter:
        return _Emitter(self.job, context.task, context.parallelism)


class _Coordinator(SpoutCoordinator):
    def __init__(self, job: Job) -> None:
        self._job = job
        self._planned = 0
        self._plans = 0
        self._failed: set[int] = set()

    def is_ready(self) -> bool:
        return self._planned < self._job.last

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        if txid <= self._planned:  # it failed: planning starts again from this txid
            self._failed.add(txid)
        self._planned = txid
        self._plans += 1
        begin = prev_metadata["end"] if prev_metadata else 0
        size = self._job.tuples + self._plans % 3 * self._job.tuples // 10  # grows and shrinks with every planning
        fails = txid * STRIDE % 100 < self._job.failing and txid not in self._failed
        return {"begin": begin, "end": begin + size, "fails": fails}


class _Emitter(Emitter):
    def __init__(self, job: Job, task: int, tasks: int) -> None:
        self._job, self._task, self._tasks = job, task, tasks

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        begin, size = metadata["begin"], metadata["end"] - metadata["begin"]
        low, high = (begin + size * part // self._tasks for part in (self._task, self._task + 1))
        found = words(zipf_ranks(0, range(low, high), self._job.keys), self._job.keys)
        collector.emit_batch(pa.RecordBatch.from_arrays([found], names=["word"]))
        if metadata["fails"] and self._task == 0:
            msg = f"txid {attempt.txid} fails once"
            raise FailedException(msg)
