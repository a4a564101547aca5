"""Partial aggregates: what a task can add up in the processing phase, so that committers get little to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple


class CountBy(BatchBolt):
    """Counts the tuples of its task that are equal in some fields; emits those fields and the count.

    In front of a `SumByKey` it leaves the committer one tuple per distinct key and task::

        builder.set_bolt("partial", CountBy("word"), 2).local_or_shuffle_grouping("split")
        builder.set_committer_bolt("counts", SumByKey("word", "n", "counts"), 2).fields_grouping("partial", ["word"])

    Args:
        field, fields: the fields that tell tuples apart.
        count: the field of the count, after them.
    """

    def __init__(self, field: str, *fields: str, count: str = "n") -> None:
        self.keys, self.count = (field, *fields), count

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields and the count."""
        declarer.declare(*self.keys, self.count)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Start a batch."""
        self._collector = collector
        self._batches: list[Any] = []
        self._counts: dict[tuple[Any, ...], int] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Count one tuple; only for values that have no column of their own type."""
        key = (*(tuple[name] for name in self.keys),)
        self._counts[key] = self._counts.get(key, 0) + 1

    def execute_batch(self, batch: Any) -> None:
        """Keep a record batch."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Emit one tuple per combination of values, in order of their first appearance."""
        names = [f"k{i}" for i in range(len(self.keys))]
        for table in stacked(self._batches, self.keys):
            # On one thread, so that the order is fixed.
            groups = table.rename_columns(names).group_by(names, use_threads=False).aggregate([([], "count_all")])
            self._collector.emit_batch(groups.select([*names, "count_all"]).rename_columns([*self.keys, self.count]))
        for key, count in self._counts.items():
            self._collector.emit(*key, count)


class Distinct(BatchBolt):
    """Emits every combination of values of some fields that its task got in the batch once.

    Example::

        builder.set_bolt("once", Distinct("url", "user"), 2).fields_grouping("visits", ["url", "user"])

    Args:
        field, fields: the fields that tell tuples apart; they are what is emitted.
    """

    def __init__(self, field: str, *fields: str) -> None:
        self.keys = (field, *fields)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields."""
        declarer.declare(self.keys)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Start a batch."""
        self._collector = collector
        self._batches: list[Any] = []
        self._seen: dict[tuple[Any, ...], None] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Keep one tuple; only for values that have no column of their own type."""
        self._seen[(*(tuple[name] for name in self.keys),)] = None

    def execute_batch(self, batch: Any) -> None:
        """Keep a record batch."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Emit the combinations, in order of their first appearance."""
        for table in stacked(self._batches, self.keys):
            self._collector.emit_batch(table.group_by(list(self.keys), use_threads=False).aggregate([]))
        for values in self._seen:
            self._collector.emit(*values)


class BatchCount(BatchBolt):
    """Emits how many tuples its task got in the batch, as one tuple; also when there were none.

    Storm's ``BatchCount`` of TransactionalGlobalCount.

    Args:
        count: the field emitted.
    """

    def __init__(self, count: str = "count") -> None:
        self.count = count

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the count."""
        declarer.declare(self.count)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Start a batch."""
        self._collector, self._count = collector, 0

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Count one tuple; only for values that have no column of their own type."""
        self._count += 1

    def execute_batch(self, batch: Any) -> None:
        """Count the rows of a record batch."""
        self._count += batch.num_rows

    def finish_batch(self) -> None:
        """Emit the count."""
        self._collector.emit(self._count)


def stacked(batches: Iterable[Any], columns: Sequence[str]) -> Iterator[pa.Table]:
    """The `columns` of record batches, one on top of the other; a table for every combination of types among them."""
    alike: dict[bytes, list[pa.RecordBatch]] = {}
    for batch in batches:
        chosen = batch.select(columns)
        alike.setdefault(chosen.schema.serialize().to_pybytes(), []).append(chosen)
    return (pa.Table.from_batches(same).unify_dictionaries() for same in alike.values())
