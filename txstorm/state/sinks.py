"""Sinks: the handles with which committers append rows, and the rows of unpublished txids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import pyarrow as pa

from txstorm.api.state import SinkTable
from txstorm.errors import StateError
from txstorm.state.target import Target
from txstorm.storage.rows.columns import Column
from txstorm.storage.rows.schema import TXID, sink_fields, sink_schema
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import SINK


class TaskSink:
    """Implementation of `txstorm.api.state.SinkHandle`, for one task in one txid.

    Attributes:
        active: whether `finish_batch` of this task is running; set by the commit runner.
    """

    def __init__(self, sink: SinkTable, columns: Sequence[Column], component: str, task: int, txid: int) -> None:
        self.active = False
        self._sink = sink
        self._columns = columns
        self._nested = any(column.exact in (list, dict) for column in columns)
        self._where = f"{component}[{task}], txid {txid}"
        self._rows: list[tuple[Any, ...]] = []
        self._tables: list[pa.Table] = []

    def append(self, *values: Any) -> None:
        """Append one row, with `values` in column order; their types are checked when the txid ends."""
        self._check_active()
        if len(values) != len(self._columns):
            names = [column.name for column in self._columns]
            raise StateError(
                f"sink {self._sink.name!r} ({self._where}): expected {len(names)} values {names}, "
                f"got {len(values)}; append one value per column"
            )
        self._rows.append(deepcopy(values) if self._nested else values)

    def append_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append the rows of `batch`; columns are matched by name, and undeclared columns are ignored.

        Raises:
            StateError: a column is missing, or its type is incompatible with the declared type.
        """
        self._check_active()
        self._flush()
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        names = table.column_names
        columns = [column.conformed(self._named(table, names, column.name), self._where) for column in self._columns]
        self._tables.append(pa.table(columns, schema=self._schema()))

    def append_own(self, rows: pa.Table) -> None:
        """Append rows of txstorm, which have the columns of the sink."""
        self._tables.append(rows)

    def collected(self) -> list[pa.Table]:
        """Return all rows appended so far, in order; raise `StateError` for a row that does not fit the columns."""
        self._flush()
        return self._tables

    def _check_active(self) -> None:
        if not self.active:
            raise StateError(
                f"sink {self._sink.name!r} of {self._where} used outside finish_batch; collect rows in execute and "
                "append them in finish_batch"
            )

    def _named(self, table: pa.Table, names: list[str], name: str) -> pa.ChunkedArray:
        if names.count(name) != 1:
            raise StateError(f"sink {self._sink.name!r} ({self._where}): expected one column {name!r}, got {names}")
        return table.column(names.index(name))

    def _flush(self) -> None:
        if self._rows:
            columns = zip(self._columns, zip(*self._rows, strict=True), strict=True)
            label = f"row {{}} of the rows appended in a row ({self._where})".format
            arrays = [column.array(column.canonical(values, label)) for column, values in columns]
            self._tables.append(pa.table(arrays, schema=self._schema()))
            self._rows = []

    def _schema(self) -> pa.Schema:
        return pa.schema([column.field for column in self._columns])


class SinkGroup(Target[TaskSink, pa.Table]):
    """Unpublished rows of one sink or outlet, by txid."""

    accessor = "sink"
    holds = "appended rows"

    def __init__(self, sink: SinkTable, ref: TableRef | None = None) -> None:
        super().__init__(ref or TableRef(SINK, sink.name), sink_schema(sink))
        self.sink = sink
        self._columns = [Column(f"sink {sink.name!r}", "column", field) for field in sink_fields(sink)]

    def _new_handle(self, component: str, task: int, txid: int) -> TaskSink:
        return TaskSink(self.sink, self._columns, component, task, txid)

    def settle(self, component: str, task: int, txid: int) -> None:
        """Check the rows that the task has appended in `txid`; raise `StateError` if one does not fit the columns."""
        with self._lock:
            handle = self._open.get(txid, {}).get((component, task))
            if handle is not None:
                handle.collected()

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], TaskSink]) -> pa.Table | None:
        # Sorted by task, then in the order appended.
        tables = [table for _, handle in sorted(tasks.items()) for table in handle.collected()]
        if not (rows := sum(table.num_rows for table in tables)):
            return None
        txids = pa.chunked_array([pa.repeat(pa.scalar(txid, TXID.type), rows)])
        columns = [
            pa.chunked_array([chunk for table in tables for chunk in table[i].chunks])
            for i in range(len(self._columns))
        ]
        return pa.table([*columns, txids], schema=self.schema)

    def _rows_of(self, ended: Mapping[int, pa.Table]) -> pa.Table:
        return pa.concat_tables(ended.values())
