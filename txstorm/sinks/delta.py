"""A committer that appends every tuple it receives to a Delta table, with its txid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import DELTALAKE, SinkTable


class DeltaSink(BatchBolt, Committer):
    """Appends each tuple to ``sinks/<name>``, exactly once and in txid order: one row per tuple, with ``_txid``.

    Use it with `set_bolt` or `set_committer_bolt`. The fields of its inputs are taken by name, in any order; fields
    that are not columns are left out, and a missing one fails the batch with a `StateError`.

    Args:
        name: name of the table.
        columns: column → type, as for `txstorm.api.state.KeyedState`.
        writer: the writer that publishes, as for `txstorm.api.state.KeyedState`.
    """

    def __init__(self, name: str, columns: Mapping[str, Any], *, writer: str = DELTALAKE) -> None:
        self.table = SinkTable(name, columns, writer)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Start a batch."""
        self._sink = context.sink(self.table.name)
        self._batches: list[Any] = []

    def execute_batch(self, batch: Any) -> None:
        """Keep the record batch until this txid's turn to commit."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Append the received rows."""
        for batch in self._batches:
            self._sink.append_batch(batch)
