"""Ready-made aggregates: partial ones, which keep the commit phase small, and committers that count or sum per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.state import CHANGES, DELTALAKE, KeyedState, StateHandle
from txstorm.api.tuples import Tuple
from txstorm.errors import StateError
from txstorm.keys import any_text
from txstorm.typed import stacked


class _ByValues(BatchBolt):
    """Base class of the bolts that group the tuples of a task by the values of some fields, compared as keys are."""

    def __init__(self, *keys: str) -> None:
        self.keys = self.needed_fields = keys

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector = collector
        self._batches: list[Any] = []
        self._tuples: list[tuple[Any, ...]] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Buffer one tuple; called only if a value has no Arrow type."""
        self._tuples.append((*(tuple[name] for name in self.keys),))

    def execute_batch(self, batch: Any) -> None:
        """Buffer a record batch until `finish_batch`."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Emit one tuple per combination of values, in order of their first appearance."""
        tables = list(stacked(self._batches, self.keys))
        if len(tables) == 1 and not self._tuples and not any(map(_is_loose, tables[0].schema.types)):
            self._emit(_grouped(tables[0]))
            return
        counts: dict[str, tuple[tuple[Any, ...], list[int]]] = {}
        for table in tables:
            nested = any(map(pa.types.is_nested, table.schema.types))
            columns = [one.to_pylist() for one in (table if nested else _grouped(table)).columns]
            for row in zip(*columns, *([[1] * table.num_rows] if nested else []), strict=True):
                counts.setdefault(any_text(row[:-1]), (row[:-1], []))[1].append(row[-1])
        for values in self._tuples:
            counts.setdefault(any_text(values), (values, []))[1].append(1)
        for values, numbers in counts.values():
            self._emit_one(values, sum(numbers))

    def _emit(self, groups: pa.Table) -> None:
        """Emit groups: the values, and their number in the last column."""
        raise NotImplementedError

    def _emit_one(self, values: tuple[Any, ...], count: int) -> None:
        """Emit one group."""
        raise NotImplementedError


def _is_loose(kind: pa.DataType) -> bool:
    """Return whether Arrow cannot group values of a type, or takes equal ones for different: -0.0 and 0.0, two NaN."""
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _grouped(table: pa.Table) -> pa.Table:
    """Return the distinct rows of a table in order of their first appearance, with a column of their numbers."""
    names = [f"k{i}" for i in range(table.num_columns)]
    # A single thread makes the order deterministic.
    groups = table.rename_columns(names).group_by(names, use_threads=False).aggregate([([], "count_all")])
    return groups.select([*names, "count_all"])


class CountBy(_ByValues):
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
        super().__init__(field, *fields)
        self.count = count

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the grouping fields and the count as output."""
        declarer.declare(*self.keys, self.count)

    def known_types(self) -> Mapping[str, Any]:
        """Return the type of the count."""
        return {self.count: int}

    def _emit(self, groups: pa.Table) -> None:
        self._collector.emit_batch(groups.rename_columns([*self.keys, self.count]))

    def _emit_one(self, values: tuple[Any, ...], count: int) -> None:
        self._collector.emit(*values, count)


class Distinct(_ByValues):
    """Distinct combinations of values of some fields: emits each one in the task's share of the batch once.

    Example::

        builder.set_bolt("once", Distinct("url", "user"), 2).fields_grouping("visits", ["url", "user"])

    Args:
        field, fields: the fields to compare and to emit.
    """

    def __init__(self, field: str, *fields: str) -> None:
        super().__init__(field, *fields)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the compared fields as output."""
        declarer.declare(self.keys)

    def _emit(self, groups: pa.Table) -> None:
        self._collector.emit_batch(groups.drop_columns(["count_all"]).rename_columns(list(self.keys)))

    def _emit_one(self, values: tuple[Any, ...], count: int) -> None:
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


Columns = str | Sequence[str] | Mapping[str, Any]


class _Folded(BatchBolt, Committer):
    """Base class of committers that fold the columns of their input into a keyed state."""

    def __init__(self, state: KeyedState, how: str) -> None:
        self.state = state
        self._how = dict.fromkeys(state.value, how)
        self.needed_types = {**state.key, **({} if how == "count" else state.value)}
        self.needed_fields = tuple(self.needed_types)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._handle: StateHandle = context.state(self.state.name)
        self._batches: list[Any] = []

    def execute_batch(self, batch: Any) -> None:
        """Buffer a record batch until the txid's turn to commit."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Fold the buffered record batches into the state."""
        tables = list(stacked(self._batches, self.needed_fields))
        for table in tables:
            try:
                self._handle.merge(table, self._how)
            except StateError as error:
                error.rows = error.rows if len(tables) == 1 else ()  # else they are no rows of the input
                raise


class CountByKey(_Folded):
    """Committer that counts tuples per key, exactly once, in the state `table`.

    Example::

        builder.set_bolt("counts", CountByKey("word", table="counts"), 2).fields_grouping("split", ["word"])

    Args:
        key: the field or fields that make up the key: strings, or a mapping field → type.
        table: name of the state.
        count: name of the state's value column, an int.
        ttl, layout, writer: options of the state, as for `txstorm.api.state.KeyedState`. With a `ttl`, the count of
            a key that does not occur for that long restarts at 0.
    """

    def __init__(
        self,
        key: Columns,
        table: str,
        *,
        count: str = "n",
        ttl: timedelta | None = None,
        layout: str = CHANGES,
        writer: str = DELTALAKE,
    ) -> None:
        super().__init__(KeyedState(table, _typed(key, str), {count: int}, ttl, layout, writer), "count")


class SumByKey(_Folded):
    """Committer that sums fields per key, exactly once, in the state `table`; values of None are ignored.

    Example::

        builder.set_bolt("sales", SumByKey("shop", {"amount": Decimal}, "sales")).fields_grouping("orders", ["shop"])

    Args:
        key: as for `CountByKey`.
        value: the field or fields to sum: names of fields of type int, or a mapping field → type.
        table: name of the state; its value columns have the names of the fields.
        ttl, layout, writer: as for `CountByKey`.
    """

    def __init__(
        self,
        key: Columns,
        value: Columns,
        table: str,
        *,
        ttl: timedelta | None = None,
        layout: str = CHANGES,
        writer: str = DELTALAKE,
    ) -> None:
        super().__init__(KeyedState(table, _typed(key, str), _typed(value, int), ttl, layout, writer), "sum")


def _typed(columns: Columns, kind: type) -> Mapping[str, Any]:
    if isinstance(columns, Mapping):
        return columns
    return dict.fromkeys([columns] if isinstance(columns, str) else columns, kind)
