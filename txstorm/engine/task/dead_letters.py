"""Dead letters: records that were omitted from a batch because they failed, each with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.arrow import rows_of_batch, text_of
from txstorm.engine.port import ErrorRow
from txstorm.engine.task.bolt_run import Arrival
from txstorm.storage.rows.dead_letters import METADATA, RECORD, SCHEMA, TABLE_SCHEMA, TUPLE


class Letters:
    """Collector of the dead letters of one attempt."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add_rows(self, error: ErrorRow, arrival: Arrival, rows: Sequence[int] | None = None) -> None:
        """Add rows of `arrival` (all of them by default) that could not be handled because of `error`."""
        batch = arrival.batch if rows is None else arrival.batch.take(pa.array(rows, pa.int64()))
        origin = (arrival.component, arrival.task, arrival.stream)
        for text in _texts(batch):
            self._add(error, origin, TUPLE, text)

    def add_metadata(self, error: ErrorRow, spout: str, task: int | None, metadata: Any) -> None:
        """Add a dead letter for a batch, or the part of one emitter (`task`), described by `metadata` (JSON values)."""
        self._add(error, (spout, task, None), METADATA, json.dumps(metadata))

    def add_record(self, error: ErrorRow, record: Any) -> None:
        """Add a dead letter for a source record that the spout could not emit; `record` (JSON values) describes it."""
        self._add(error, (error.component, error.task, None), RECORD, json.dumps(record))

    def _add(self, error: ErrorRow, origin: tuple[str, int | None, str | None], what: str, record: str) -> None:
        cause = (error.kind, error.type, error.message, error.frame)
        self._rows.append((error.component, error.task, *origin, what, record, *cause))

    def cut(self, length: int) -> None:
        """Drop all dead letters after the first `length`."""
        del self._rows[length:]

    def take(self) -> pa.RecordBatch:
        """Return all dead letters, in the order in which they were added, and clear the collector."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def letters_table(batches: Iterable[pa.RecordBatch], attempt: TransactionAttempt, stamp: int) -> pa.Table:
    """Build the dead-letter rows of one txid, in an order independent of which task reported first."""
    found = pa.Table.from_batches(list(batches), SCHEMA)
    order = sorted(range(found.num_rows), key=_order(found))
    found = found.take(pa.array(order, pa.int64()))
    more = (
        pa.repeat(pa.scalar(value, TABLE_SCHEMA.field(name).type), found.num_rows)
        for name, value in (("attempt", attempt.attempt_id), ("stamp", stamp))
    )
    return pa.table([*found.columns, *more], schema=TABLE_SCHEMA)


def _order(found: pa.Table) -> Any:
    """Return the sort order of dead letters; the sort is stable, so the order within a task is preserved."""
    component, task = found["component"].to_pylist(), found["task"].to_pylist()
    return lambda row: (component[row], task[row])


def _texts(batch: pa.RecordBatch) -> Iterable[str]:
    """Convert the rows of `batch` to JSON objects; types that JSON lacks are tagged, as in data sent between tasks."""
    names = batch.schema.names
    for values in rows_of_batch(batch):
        fields = (f"{json.dumps(name)}:{text_of(value, name)}" for name, value in zip(names, values, strict=True))
        yield "{" + ",".join(fields) + "}"
