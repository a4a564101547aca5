"""Parts of a running monoid bolt: the stage that merges the tuples of a task where they are, and the committer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.assembly import AssembledCommitter
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.state import StateHandle, arrow_type
from txstorm.api.tuples import Tuple
from txstorm.errors import StateError
from txstorm.keys import any_text
from txstorm.monoids.bolt import STATE, MonoidPlan
from txstorm.monoids.ready_made import broken_law, restored, stored
from txstorm.monoids.sketches import Sketch
from txstorm.storage.rows.eviction import row_codes, whole
from txstorm.typed import column_of, stacked

MANY = 64
"""Number of states from which on they are emitted as columns."""
_PLAIN = {int, float, str, bytes, bool}
TRIED = 4
"""Number of states that the setting `check_laws` tries the laws on."""


class PartialStates(BatchBolt):
    """Map-side stage: the states of the tuples of one task, merged per key."""

    def __init__(self, plan: MonoidPlan) -> None:
        self._plan = plan

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the key and the partial state."""
        declarer.declare(*self._plan.key, STATE)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector = collector
        self._rows: dict[str, tuple[tuple[Any, ...], list[Any]]] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple."""
        self._parts_of([tuple[name] for name in self._plan.key]).append(self._plan.state_of(tuple))

    def _parts_of(self, key: Sequence[Any]) -> list[Any]:
        return self._rows.setdefault(any_text(key), (tuple(key), []))[1]

    def finish_batch(self) -> None:
        """Emit one partial state per key, in the order of their first tuples."""
        for key, parts in self._rows.values():
            self._collector.emit(*key, stored(self._plan.monoid, self._merged(parts)))

    def _merged(self, parts: Sequence[Any]) -> Any:
        return reduce(self._plan.monoid.merge, parts, self._plan.monoid.empty())


class FoldedFields(PartialStates):
    """Map-side stage of a monoid that makes its states of fields: no state is made of a single tuple."""

    def __init__(self, plan: MonoidPlan, fields: Sequence[str]) -> None:
        super().__init__(plan)
        self._reads = tuple(fields)
        self.needed_fields = (*plan.key, *fields)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        super().prepare(context, collector, attempt)
        self._batches: list[Any] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple; called only if a value has no Arrow type."""
        self._parts_of([tuple[name] for name in self._plan.key]).append([tuple[name] for name in self._reads])

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Emit one partial state per key, in the order of their first tuples."""
        tables = list(stacked(self._batches, self.needed_fields))
        if len(tables) == 1 and not self._rows and not any(map(_has_equals, tables[0].columns[: len(self._plan.key)])):
            self._emit_folded(tables[0].combine_chunks())
            return
        for table in tables:
            for key, row in zip(_rows(table, self._plan.key), _rows(table, self._reads), strict=True):
                self._parts_of(key).append(row)
        super().finish_batch()

    def _emit_folded(self, table: pa.Table) -> None:
        """Fold the rows of each key. Keys are equal if their values are, so that no text of a key need be made."""
        plan, monoid, keys = self._plan, self._plan.monoid, table.columns[: len(self._plan.key)]
        keys = [whole(one) for one in keys]
        keys = [one.dictionary_decode() if pa.types.is_dictionary(one.type) else one for one in keys]
        codes = row_codes(keys, table.num_rows)
        order = np.argsort(codes, kind="stable")
        begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
        firsts = order[begins]
        values = [one.take(pa.array(order)) for one in table.columns[len(keys) :]]
        ends = [*begins.tolist()[1:], len(order)]
        if len(values) == 1 and isinstance(monoid, Sketch):
            read = values[0].to_pylist()
            states = [monoid.fold_values(read[begin:end]) for begin, end in zip(begins.tolist(), ends, strict=True)]
        else:
            rows = _rows(pa.table(values, [*self._reads]), self._reads) if values else [()] * len(order)
            states = [monoid.fold(rows[begin:end]) for begin, end in zip(begins.tolist(), ends, strict=True)]
        turn = np.argsort(firsts)
        kind = arrow_type(str if monoid.column is None else monoid.column)
        column = column_of([stored(monoid, states[one]) for one in turn.tolist()], kind)
        found = [one.take(pa.array(firsts[turn])) for one in keys]
        self._collector.emit_batch(pa.table([*found, column], [*plan.key, STATE]))

    def _merged(self, parts: Sequence[Any]) -> Any:
        return self._plan.monoid.fold(parts)


def _has_equals(column: pa.ChunkedArray) -> bool:
    """Return whether different values of a column may be the same key: -0.0 and 0.0, or values within values."""
    return bool(pa.types.is_floating(column.type) or pa.types.is_nested(column.type))


def _rows(batch: pa.RecordBatch, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of some columns by row."""
    if not names:
        return [()] * batch.num_rows
    return list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))


class MonoidCommitter(AssembledCommitter):
    """Base class of committers that take the place of a `MonoidBolt`, and merge what a transaction brings."""

    def __init__(self, plan: MonoidPlan) -> None:
        self.plan = plan
        self.state = plan.state()
        # Each task has a row of its own, so that no two change the same one.
        self.internal_states = () if plan.key else (self.state.name,)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields that are emitted."""
        bolt = self.plan.bolt
        if bolt.emit is not None:
            declarer.declare(bolt.emitted if bolt.transforms is not None else (*self._columns, STATE))

    def known_types(self) -> Mapping[str, Any]:
        """Return the types of the key and the state, unless a function makes what is emitted."""
        return {} if self.plan.bolt.transforms is not None else {**self.state.key, **self.state.value}

    @property
    def _columns(self) -> tuple[str, ...]:
        return tuple(self.state.key)

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt | None:
        """Return the stage that merges the tuples of a task of the source; None where their order matters."""
        if self.plan.way != "merged":
            return None
        if self.plan.reads is None or self.plan.monoid.how is not None:
            return PartialStates(self.plan)
        return FoldedFields(self.plan, self.plan.reads)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector, self._context = collector, context
        self._handle: StateHandle = context.state(self.state.name)

    def finish_batch(self) -> None:
        """Merge into the states, and emit those that have changed."""
        raise NotImplementedError

    def _key_of(self, tuple: Tuple) -> Any:  # noqa: A002 - Storm's word
        return self.plan.key_of(tuple) if self.plan.key else self._context.task

    def _old(self, keys: Iterable[Any]) -> dict[Any, Any]:
        found = self._handle.get_many(keys)
        return {key: restored(self.plan.monoid, value) for key, value in found.items()}

    def _put(self, new: Mapping[Any, Any]) -> dict[Any, Any]:
        values = {key: stored(self.plan.monoid, state) for key, state in new.items()}
        self._handle.put_many(values)
        return values

    def _emit_states(self, values: Mapping[Any, Any]) -> None:
        if self.plan.bolt.emit is None:
            return
        several = len(self._columns) > 1
        types = (*self.state.key.values(), *self.state.value.values())
        if len(values) >= MANY and set(types) <= _PLAIN:
            keys = zip(*values, strict=True) if several else (list(values),)
            columns = [[*one] for one in (*keys, values.values())]
            arrays = [column_of(one, arrow_type(declared)) for one, declared in zip(columns, types, strict=True)]
            self._collector.emit_batch(pa.table(arrays, [*self._columns, STATE]))
            return
        for key, value in values.items():
            self._collector.emit(*(key if several else (key,)), value)

    def _take_over(self) -> None:
        """Let this task have a state, and merge into it those of tasks that no longer exist.

        Every task has a state from the first transaction on, so that the states of former tasks are found one after the
        other.
        """
        if self.plan.key:
            return
        monoid, task, tasks = self.plan.monoid, self._context.task, self.plan.tasks
        gone: dict[int, Any] = {}
        while old := self._old([task + (len(gone) + 1) * tasks]):
            gone.update(old)
        if gone or not self._handle.get_many([task]):
            own = self._old([task]).get(task, monoid.empty())
            self._put({task: reduce(monoid.merge, gone.values(), own)})
            self._handle.remove_many(gone)

    def _check_laws(self, states: Sequence[Any]) -> None:
        every, attempt = self._context.settings.get("check_laws"), self._context.attempt
        if not every or not states or attempt is None or attempt.txid % every:
            return
        fault = broken_law(self.plan.monoid, states[:TRIED])
        if fault is not None:
            raise StateError(f"component {self.plan.id!r}: {fault}")


class PartialsCommitter(MonoidCommitter):
    """Committer of partial states, which the tasks of the sources have merged."""

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        super().prepare(context, collector, attempt)
        self._parts: dict[Any, list[Any]] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take a partial state of a key; called only if a value has no Arrow type."""
        self._parts.setdefault(self._key_of(tuple), []).append(restored(self.plan.monoid, tuple[STATE]))

    def execute_batch(self, batch: Any) -> None:
        """Take partial states."""
        plan = self.plan
        kinds = [arrow_type(declared) for declared in plan.bolt.keys.values()]
        if [batch.schema.field(name).type for name in plan.key] != kinds:  # each key is checked
            for row in batch.to_pylist():
                self._parts.setdefault(plan.key_of(row), []).append(restored(plan.monoid, row[STATE]))
            return
        states = batch.column(STATE).to_pylist()
        keys: list[Any] = [self._context.task] * len(states)
        if plan.key:
            keys = batch.column(plan.key[0]).to_pylist() if len(plan.key) == 1 else _rows(batch, plan.key)
        for key, state in zip(keys, states, strict=True):
            self._parts.setdefault(key, []).append(restored(plan.monoid, state))

    def finish_batch(self) -> None:
        """Merge into the states, and emit those that have changed."""
        monoid = self.plan.monoid
        self._take_over()
        self._check_laws([one for parts in self._parts.values() for one in parts])
        old = self._old(self._parts)
        found = {key: [old[key], *parts] if key in old else parts for key, parts in self._parts.items()}
        new = {key: reduce(monoid.merge, parts) for key, parts in found.items()}
        self._emit_states(self._put(new))


class TuplesCommitter(MonoidCommitter):
    """Committer of tuples whose order matters, since it is known of each which state it has led to."""

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        super().prepare(context, collector, attempt)
        self._tuples: list[tuple[Any, Any, Tuple]] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take a tuple."""
        self._tuples.append((self._key_of(tuple), self.plan.state_of(tuple), tuple))

    def finish_batch(self) -> None:
        """Merge tuple by tuple, in their order, and emit what the bolt makes of them."""
        bolt, monoid = self.plan.bolt, self.plan.monoid
        self._take_over()
        self._check_laws([state for _, state, _ in self._tuples])
        last = {key: row for key, _, row in self._tuples}
        states = self._old(last)
        if bolt.emit == "tuple":
            for key, state, row in self._tuples:
                states[key] = monoid.merge(states.get(key, monoid.empty()), state)
                self._emit_one(key, row, states[key])
        else:
            parts: dict[Any, list[Any]] = {key: [states[key]] if key in states else [] for key in last}
            for key, state, _ in self._tuples:
                parts[key].append(state)
            states = {key: monoid.merge_all(found) for key, found in parts.items()}
        values = self._put(states)
        if bolt.emit == "batch" and bolt.transforms is None:
            self._emit_states(values)
        elif bolt.emit == "batch":
            for key, row in last.items():
                self._emit_one(key, row, states[key])

    def _emit_one(self, key: Any, row: Tuple, state: Any) -> None:
        make = self.plan.bolt.transforms
        if make is None:
            self._emit_states({key: stored(self.plan.monoid, state)})
        elif (values := make(row, state)) is not None:
            self._collector.emit(*values)


class ColumnCommitter(MonoidCommitter):
    """Committer of a monoid of numbers with a key: folds columns, without a Python object per row."""

    def __init__(self, plan: MonoidPlan) -> None:
        super().__init__(plan)
        self._reads = tuple(plan.reads or ())
        self.needed_fields = (*plan.key, *self._reads)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        super().prepare(context, collector, attempt)
        self._batches: list[Any] = []

    def execute_batch(self, batch: Any) -> None:
        """Buffer a record batch until the txid's turn to commit."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Fold the columns into the states, and emit those that have changed."""
        tables, how = list(stacked(self._batches, self.needed_fields)), self.plan.monoid.how or ""
        values: dict[Any, Any] = {}
        for table in tables:
            try:
                names = [*self.plan.key, STATE][: table.num_columns]
                found = self._handle.merge(self._counted(table.rename_columns(names)), {STATE: how})
            except StateError as error:
                error.rows = error.rows if len(tables) == 1 else ()  # else they are no rows of the input
                raise
            values.update(found)
        self._emit_states(values)

    def _counted(self, table: pa.Table) -> pa.Table:
        """Return the table with the state of no tuples in place of nulls, of which a fold of nulls alone makes null."""
        empty = self.plan.monoid.empty()
        if empty is None or STATE not in table.column_names or not (column := table.column(STATE)).null_count:
            return table
        if pa.types.is_null(column.type):
            column = pa.chunked_array([pa.nulls(len(column), arrow_type(self.plan.monoid.column))])
        kind = column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            return table
        filled = pc.fill_null(column, pa.scalar(empty, kind))
        return table.set_column(table.column_names.index(STATE), STATE, filled)


COMMITTERS: Mapping[str, type[MonoidCommitter]] = {
    "columns": ColumnCommitter,
    "merged": PartialsCommitter,
    "tuples": TuplesCommitter,
}
"""How tuples become states → the committer that does it."""
