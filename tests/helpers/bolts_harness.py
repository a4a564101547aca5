"""Harness that runs one bolt on one batch as a task does: a fresh instance, tuples or record batches in, tuples out."""

from collections.abc import Sequence
from typing import Any

import cloudpickle
import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import OutputFieldsDeclarer
from txstorm.engine.arrow import batch_of_rows, rows_of_batch
from txstorm.engine.task.bolt_run import Arrival, BoltRun
from txstorm.engine.task.collector import OutputCollector


def fields_of(bolt: Any) -> tuple[str, ...]:
    declarer = OutputFieldsDeclarer()
    bolt.declare_output_fields(declarer)
    assert declarer.faults == []
    return declarer.streams["default"].fields


def outputs(bolt: Any, batches: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Run `bolt` on one batch that arrives as the record batches `batches`; return the tuples that it emits."""
    return [row for batch in emitted(bolt, batches) for row in rows_of_batch(batch)]


def emitted(bolt: Any, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Run `bolt` on one batch that arrives as the record batches `batches`; return the record batches that it emits."""
    declarer = OutputFieldsDeclarer()
    bolt.declare_output_fields(declarer)
    collector = OutputCollector("bolt", declarer.streams)
    context = TaskContext("t", "bolt", 0, 1, attempt=TransactionAttempt(1, 1))
    run = BoltRun(cloudpickle.loads(cloudpickle.dumps(bolt)), context, collector)
    run.execute([Arrival("source", "default", 0, batch) for batch in batches])
    run.finish()
    return [one.batch for one in collector.take()]


def rows(fields: str, *values: Any) -> pa.RecordBatch:
    """Build a record batch of tuples as a collector does; with a single field, its values are given without tuples."""
    names = fields.split()
    return batch_of_rows([value if len(names) > 1 else (value,) for value in values], names)
