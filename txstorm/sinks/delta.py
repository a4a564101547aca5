"""A committer that appends every tuple it receives, with its txid, to a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import DELTALAKE, SinkTable


class DeltaSink(BatchBolt, Committer):
    """Committer that appends one row per tuple to ``sinks/<name>``, exactly once and in txid order, with its ``_txid``.

    Use it with `set_bolt` or `set_committer_bolt`. Fields of the input are matched to columns by name, in any order;
    fields that are not columns are ignored, and a missing field is a fault of the topology.

    Args:
        name: name of the table.
        columns: column → type, as for `txstorm.api.state.KeyedState`.
        writer: the library that commits to the table, as for `txstorm.api.state.KeyedState`.
    """

    def __init__(self, name: str, columns: Mapping[str, Any], *, writer: str = DELTALAKE) -> None:
        self.table = SinkTable(name, columns, writer)
        self.needed_fields = tuple(columns) if isinstance(columns, Mapping) else ()

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._sink = context.sink(self.table.name)
        self._batches: list[Any] = []

    def execute_batch(self, batch: Any) -> None:
        """Buffer the record batch until this txid commits."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Append the buffered rows to the table."""
        for batch in self._batches:
            self._sink.append_batch(batch)
