"""The small topology that ``txstorm doctor`` runs on both engines.

It is separate from `doctor`, which every command imports, because this module imports everything that a run needs.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import KeyedState
from txstorm.api.tuples import Tuple
from txstorm.errors import TxstormError
from txstorm.runtime.run import run
from txstorm.spouts.memory import MemoryTransactionalSpout
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

WORDS = [["storm", "spark", "storm"], ["delta", "storm"]]
SECONDS = 180.0


class Count(BatchBolt, Committer):
    """Committer that counts words in a keyed state."""

    state = KeyedState("counts", key={"word": str}, value={"n": int})

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._counts: Any = context.state("counts")
        self._batch: Counter[str] = Counter()

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Count one word."""
        self._batch[tuple["word"]] += 1

    def finish_batch(self) -> None:
        """Add the counts of the batch to the state."""
        self._counts.update_many(self._batch, lambda old, n: (old or 0) + n)


def topology() -> Topology:
    """Build the test topology: a spout and a committer."""
    spout = MemoryTransactionalSpout(WORDS, "word", take=2)
    builder = TransactionalTopologyBuilder("doctor", "words", spout)
    builder.set_committer_bolt("count", Count()).fields_grouping("words", ["word"])
    return builder.build_topology()


def try_engine(engine: str, directory: Path) -> None:
    """Run the test topology on `engine` in `directory`, and compare its counts.

    Raises:
        TxstormError: the run failed, took too long, or produced wrong counts.
    """
    handle = run(topology(), engine=engine, data_dir=directory / "data", available_now=True)
    try:
        if not handle.awaitTermination(SECONDS):
            raise TxstormError(f"no result within {SECONDS:.0f} s")
    finally:
        handle.stop()
    counted = {row["word"]: row["n"] for row in handle.state("counts").to_pylist()}
    expected = Counter(word for words in WORDS for word in words)
    if counted != expected:
        raise TxstormError(f"expected the counts {dict(expected)}, got {counted}")
