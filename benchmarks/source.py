"""A source that costs next to nothing: words that depend on the txid alone, drawn as Zipf's law has it."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout

VOCABULARY = 10_000
EXPONENT = 1.1
POOL = 1 << 20
SEED = 20120117
STEP = 7919  # a prime, so that no two of the first million txids begin at the same place of the pool


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
    start = (txid * STEP * 131 + share.start) % POOL
    picked = np.take(pool(), np.arange(start, start + len(share)), mode="wrap")
    return pa.RecordBatch.from_arrays([vocabulary().take(pa.array(picked))], names=["word"])


@cache
def vocabulary() -> pa.Array:
    """The words, by rank: made up, all different, of two to eleven letters."""
    generator = random.Random(SEED)
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        size = generator.randint(2, 5) if len(words) < 200 else generator.randint(4, 11)
        words["".join(generator.choices("etaoinshrdlucmfwypvbgk", k=size))] = None
    return pa.array(words, pa.string())


@cache
def pool() -> npt.NDArray[np.int32]:
    """Ranks of words in the order they come; every process draws the same ones, once."""
    weights = np.arange(1, VOCABULARY + 1, dtype=np.float64) ** -EXPONENT
    bounds = np.cumsum(weights / weights.sum())
    drawn = np.random.default_rng(SEED).random(POOL)
    return np.minimum(np.searchsorted(bounds, drawn), VOCABULARY - 1).astype(np.int32)
