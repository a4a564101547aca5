"""Dead letters: processing a failed batch again without the records at fault, which are kept with the reason.

Only for transactions whose failures the policy sends to the dead-letter table; they have failed before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BasicBolt, BatchBolt
from txstorm.api.context import TaskContext
from txstorm.engine.arrow import rows_of_batch, text_of
from txstorm.engine.port import SOURCE, ErrorRow
from txstorm.engine.program import ComponentSpec
from txstorm.engine.task.bolt_run import Arrival, BoltRun
from txstorm.engine.task.collector import OutputCollector
from txstorm.engine.task.error_rows import RAISED, At, error_row, kind_of
from txstorm.errors import EmitError
from txstorm.storage.rows.schema import METADATA, RECORD, SCHEMA, TABLE_SCHEMA, TUPLE


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
        """Add a letter for a batch, or one emitter's part of it (`task`), described by `metadata` (JSON values)."""
        self._add(error, (spout, task, None), METADATA, json.dumps(metadata))

    def add_record(self, error: ErrorRow, record: Any) -> None:
        """Add a record of the source that the spout could not emit; `record` (JSON values) describes it."""
        self._add(error, (error.component, error.task, None), RECORD, json.dumps(record))

    def _add(self, error: ErrorRow, origin: tuple[str, int | None, str | None], what: str, record: str) -> None:
        cause = (error.kind, error.type, error.message, error.frame)
        self._rows.append((error.component, error.task, *origin, what, record, *cause))

    def cut(self, length: int) -> None:
        """Drop all letters after the first `length`."""
        del self._rows[length:]

    def take(self) -> pa.RecordBatch:
        """Take all letters, in the order in which they were added."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def letters_table(batches: Iterable[pa.RecordBatch], attempt: TransactionAttempt, stamp: int) -> pa.Table:
    """Rows of the dead-letter table for one txid, in an order that does not depend on which task reported first."""
    found = pa.Table.from_batches(list(batches), SCHEMA)
    order = sorted(range(found.num_rows), key=_order(found))
    found = found.take(pa.array(order, pa.int64()))
    more = (
        pa.repeat(pa.scalar(value, TABLE_SCHEMA.field(name).type), found.num_rows)
        for name, value in (("attempt", attempt.attempt_id), ("stamp", stamp))
    )
    return pa.table([*found.columns, *more], schema=TABLE_SCHEMA)


def _order(found: pa.Table) -> Any:
    """Sort key of a letter; the stable sort keeps the order within a task."""
    component, task = found["component"].to_pylist(), found["task"].to_pylist()
    return lambda row: (component[row], task[row])


def _texts(batch: pa.RecordBatch) -> Iterable[str]:
    """Convert the rows of `batch` to JSON objects; values that JSON lacks are tagged as between tasks."""
    names = batch.schema.names
    for values in rows_of_batch(batch):
        fields = (f"{json.dumps(name)}:{text_of(value, name)}" for name, value in zip(names, values, strict=True))
        yield "{" + ",".join(fields) + "}"


R = TypeVar("R")
Bad = dict[int, ErrorRow]
Divert = Callable[[pa.RecordBatch, int, BaseException], bool]


@dataclass(frozen=True)
class Work(Generic[R]):
    """Work of one component on one attempt in one task; can be restarted any number of times.

    Attributes:
        context: makes the context of a fresh object.
        finish: called when all input has arrived: finishes the batch and returns the output of the task.
        undo: undoes the writes of `finish` to tables.
        collector: the class of its collector.
        repeatable: whether a failed run may be repeated at once, to find the line at fault.
    """

    spec: ComponentSpec
    task: int
    level: int
    context: Callable[[], TaskContext]
    at: At
    finish: Callable[[BoltRun], R]
    undo: Callable[[], None] = lambda: None
    collector: type[OutputCollector] = OutputCollector
    repeatable: bool = False

    def begin(self, bolt: BasicBolt | BatchBolt, *, eager: bool = False) -> BoltRun:
        """Prepare `bolt`, a new object; `eager`: `emit` checks values."""
        id, streams = self.spec.id, self.spec.streams
        collector = OutputCollector(id, streams, eager=True) if eager else self.collector(id, streams)
        return BoltRun(bolt, self.context(), collector, self.at)

    def run(self, arrivals: Sequence[Arrival], begun: BoltRun | None = None) -> R:
        """Run the work, or the rest of it after `begun`; exceptions of user code propagate."""
        run = begun or self.begin(self.spec.fresh())
        try:
            run.execute(arrivals)
            return self.finish(run)
        except EmitError as error:
            if not (error.late and self.repeatable):
                raise
            # Eager, so that it fails where it emits, with the tuple it handles.
            again = self.begin(self.spec.fresh(), eager=True)
            again.execute(arrivals)
            self.finish(again)
            raise


class DeadLetterRun:
    """Processing of one attempt in one task that diverts failures to dead letters.

    Args:
        kinds: the kinds of errors that divert; see `TxidInput.divert`.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.letters = Letters()
        self.whole = SOURCE in kinds
        self._kinds = kinds

    def takes(self, error: BaseException) -> bool:
        """Whether a failure with `error` is diverted; otherwise the attempt fails."""
        kind = "failed" if kind_of(error) == "reported" else kind_of(error)
        return self.whole or kind in self._kinds

    def run(self, work: Work[R], arrivals: Sequence[Arrival]) -> R | None:
        """Run `work` on those of `arrivals` that can be handled.

        A tuple whose `execute` raises is left out and the work restarted without it, so that nothing of that call
        remains: neither its emissions nor its effects on the bolt. A task whose `prepare`, `finish_batch` or emissions
        raise contributes nothing: all its input is left out, and None is returned.
        """
        before = len(self.letters)
        while True:
            bolt = work.spec.fresh()
            try:
                run = work.begin(bolt)
                bad = [self._execute(work, run, arrival) for arrival in arrivals]
                if not any(bad):
                    before = len(self.letters)
                    return work.finish(run)
            except RAISED as error:
                work.undo()
                self.letters.cut(before)
                row = self._row(work, error)
                for arrival in arrivals:
                    self.letters.add_rows(row, arrival)
                return None
            kept = [self._without(arrival, rows) for arrival, rows in zip(arrivals, bad, strict=True)]
            arrivals = [arrival for arrival in kept if arrival.batch.num_rows]
            before = len(self.letters)

    def spout(self, component: str, task: int, level: int) -> Callable[[BaseException, Any], bool]:
        """Leave out a record that the collector of a spout refuses."""

        def divert(error: BaseException, record: Any) -> bool:
            if not self.takes(error):
                return False
            self.letters.add_record(error_row(component, task, level, error, trace=False), record)
            return True

        return divert

    def grouping(self, component: str, task: int, level: int, stream: str) -> Divert:
        """Leave out a tuple for which a custom grouping raises; for `Router`."""

        def divert(batch: pa.RecordBatch, row: int, error: BaseException) -> bool:
            if not self.takes(error):
                return False
            found = error_row(component, task, level, error, trace=False)
            self.letters.add_rows(found, Arrival(component, stream, task, batch), [row])
            return True

        return divert

    def _execute(self, work: Work[R], run: BoltRun, arrival: Arrival) -> Bad:
        """Find the rows of `arrival` that `run` cannot handle; if there is one, the run itself must be discarded."""
        if not run.by_tuple(arrival):
            return self._rows(work, run, arrival, 0, arrival.batch.num_rows)
        bad: Bad = {}
        for row, one in enumerate(run.tuples(arrival)):
            try:
                run.execute_tuple(one)
            except RAISED as error:
                bad[row] = self._row(work, error)
        return bad

    def _rows(self, work: Work[R], run: BoltRun, arrival: Arrival, first: int, count: int) -> Bad:
        """Find them among `count` rows passed as one record batch, by halving it."""
        try:
            run.execute_rows(arrival.part(first, count))
        except RAISED as error:
            row = self._row(work, error)
        else:
            return {}
        if count < 2:
            return {first: row}
        half = count // 2
        bad = {
            **self._rows(work, run, arrival, first, half),
            **self._rows(work, run, arrival, first + half, count - half),
        }
        return bad or dict.fromkeys(range(first, first + count), row)

    def _without(self, arrival: Arrival, bad: Bad) -> Arrival:
        """Remove the `bad` rows from `arrival`; they become dead letters."""
        if not bad:
            return arrival
        for row, error in bad.items():
            self.letters.add_rows(error, arrival, [row])
        return arrival.taken([row for row in range(arrival.batch.num_rows) if row not in bad])

    def _row(self, work: Work[R], error: BaseException) -> ErrorRow:
        """Make the error row; reraises `error` if it is not diverted."""
        if not self.takes(error):
            raise error
        return error_row(work.spec.id, work.task, work.level, error, trace=False)
