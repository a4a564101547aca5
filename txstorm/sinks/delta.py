"""Committers that append every row they receive, with its txid, to a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import DELTALAKE, SinkTable
from txstorm.ddl import frame_columns


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
        self.needed_types = columns if isinstance(columns, Mapping) else {}
        self.needed_fields = tuple(self.needed_types)

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


class FrameSink(DeltaSink):
    """`DeltaSink` behind a frame spout or frame bolts, whose rows never become Python objects.

    Tasks of Spark write the rows of a transaction to files of the table, which the transaction takes over when it is
    decided; the driver does so itself with rows that are few. Every grouping has the same meaning, and the number of
    tasks is that of the frames. Rows have no order within a transaction.

    Args:
        name: name of the table.
        columns: column → type, as for `DeltaSink`, or the columns in Spark's DDL.
        writer: as for `DeltaSink`.

    Raises:
        SettingError: `columns` is a text that is not DDL.
    """

    reads_frames: ClassVar[bool] = True

    def __init__(self, name: str, columns: Mapping[str, Any] | str, *, writer: str = DELTALAKE) -> None:
        if isinstance(columns, str):
            columns = {column: one.arrow for column, one in frame_columns(columns).items()}
        super().__init__(name, columns, writer=writer)
