"""Partial aggregates, computed per task and in parallel in the processing phase, to keep the commit phase small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple


class CountBy(BatchBolt):
    """Partial count: the number of tuples in this task for each combination of values of some fields.

    Emits those fields and the count. Upstream of a `SumByKey`, it reduces the committer's input to one tuple per
    distinct key and task::

        builder.set_bolt("partial", CountBy("word"), 2).local_or_shuffle_grouping("split")
        builder.set_committer_bolt("counts", SumByKey("word", "n", "counts"), 2).fields_grouping("partial", ["word"])

    Args:
        field, fields: the fields to group by.
        count: name of the field with the count, emitted after them.
    """

    def __init__(self, field: str, *fields: str, count: str = "n") -> None:
        self.keys, self.count = (field, *fields), count
        self.needed_fields = self.keys

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the grouping fields and the count as output."""
        declarer.declare(*self.keys, self.count)

    def known_types(self) -> Mapping[str, Any]:
        """Return the type of the count."""
        return {self.count: int}

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector = collector
        self._batches: list[Any] = []
        self._counts: dict[tuple[Any, ...], int] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Count one tuple; called only if a value has no Arrow type."""
        key = (*(tuple[name] for name in self.keys),)
        self._counts[key] = self._counts.get(key, 0) + 1

    def execute_batch(self, batch: Any) -> None:
        """Buffer a record batch until `finish_batch`."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Emit one tuple per combination of values, in order of their first appearance."""
        names = [f"k{i}" for i in range(len(self.keys))]
        for table in stacked(self._batches, self.keys):
            # A single thread makes the order deterministic.
            groups = table.rename_columns(names).group_by(names, use_threads=False).aggregate([([], "count_all")])
            self._collector.emit_batch(groups.select([*names, "count_all"]).rename_columns([*self.keys, self.count]))
        for key, count in self._counts.items():
            self._collector.emit(*key, count)


class Distinct(BatchBolt):
    """Distinct combinations of values of some fields: emits each one in the task's share of the batch once.

    Example::

        builder.set_bolt("once", Distinct("url", "user"), 2).fields_grouping("visits", ["url", "user"])

    Args:
        field, fields: the fields to compare and to emit.
    """

    def __init__(self, field: str, *fields: str) -> None:
        self.keys = self.needed_fields = (field, *fields)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the compared fields as output."""
        declarer.declare(self.keys)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector = collector
        self._batches: list[Any] = []
        self._seen: dict[tuple[Any, ...], None] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Buffer one tuple; called only if a value has no Arrow type."""
        self._seen[(*(tuple[name] for name in self.keys),)] = None

    def execute_batch(self, batch: Any) -> None:
        """Buffer a record batch until `finish_batch`."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Emit the combinations, in order of their first appearance."""
        for table in stacked(self._batches, self.keys):
            self._collector.emit_batch(table.group_by(list(self.keys), use_threads=False).aggregate([]))
        for values in self._seen:
            self._collector.emit(*values)


class BatchCount(BatchBolt):
    """Count of the tuples in the task's share of the batch, emitted as one tuple, even if it is 0.

    It is the counterpart of ``BatchCount`` in Storm's TransactionalGlobalCount example.

    Args:
        count: name of the field emitted.
    """

    def __init__(self, count: str = "count") -> None:
        self.count = count

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the count as output."""
        declarer.declare(self.count)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector, self._count = collector, 0

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Count one tuple; called only if a value has no Arrow type."""
        self._count += 1

    def execute_batch(self, batch: Any) -> None:
        """Count the rows of a record batch."""
        self._count += batch.num_rows

    def finish_batch(self) -> None:
        """Emit the number of tuples counted."""
        self._collector.emit(self._count)


def stacked(batches: Iterable[Any], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Concatenate the `columns` of record batches; yield one table per distinct schema."""
    by_schema: dict[bytes, list[pa.RecordBatch]] = {}
    for batch in batches:
        chosen = batch.select(columns)
        by_schema.setdefault(chosen.schema.serialize().to_pybytes(), []).append(chosen)
    return (pa.Table.from_batches(group).unify_dictionaries() for group in by_schema.values())
