"""Salvage: a batch that cannot be processed as it is goes on without the records that are to blame.

Only transactions whose failures the policy sends to the dead-letter table come here; they have failed before.

Dead letters: the records of one attempt that were left out of the batch, and why.
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
    """Dead letters in the making, of one attempt."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add_rows(self, error: ErrorRow, arrival: Arrival, rows: Sequence[int] | None = None) -> None:
        """Rows of `arrival` (all of them by default) could not be handled because of `error`."""
        batch = arrival.batch if rows is None else arrival.batch.take(pa.array(rows, pa.int64()))
        origin = (arrival.component, arrival.task, arrival.stream)
        for text in _texts(batch):
            self._add(error, origin, TUPLE, text)

    def add_metadata(self, error: ErrorRow, spout: str, task: int | None, metadata: Any) -> None:
        """Nothing of what `metadata` (JSON values) stands for was emitted: by one emitter, or by none if `task` is."""
        self._add(error, (spout, task, None), METADATA, json.dumps(metadata))

    def add_record(self, error: ErrorRow, record: Any) -> None:
        """The spout could not emit one record of its source, which `record` (JSON values) describes."""
        self._add(error, (error.component, error.task, None), RECORD, json.dumps(record))

    def _add(self, error: ErrorRow, origin: tuple[str, int | None, str | None], what: str, record: str) -> None:
        cause = (error.kind, error.type, error.message, error.frame)
        self._rows.append((error.component, error.task, *origin, what, record, *cause))

    def cut(self, length: int) -> None:
        """Forget those after the first `length`."""
        del self._rows[length:]

    def take(self) -> pa.RecordBatch:
        """All of them, in the order in which they were added; leaves none."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def letters_table(batches: Iterable[pa.RecordBatch], attempt: TransactionAttempt, stamp: int) -> pa.Table:
    """The dead letters of a txid as rows of the dead-letter table: one order, whichever task reported first."""
    found = pa.Table.from_batches(list(batches), SCHEMA)
    order = sorted(range(found.num_rows), key=_order(found))
    found = found.take(pa.array(order, pa.int64()))
    more = (
        pa.repeat(pa.scalar(value, TABLE_SCHEMA.field(name).type), found.num_rows)
        for name, value in (("attempt", attempt.attempt_id), ("stamp", stamp))
    )
    return pa.table([*found.columns, *more], schema=TABLE_SCHEMA)


def _order(found: pa.Table) -> Any:
    """Python's sort keeps the order within a task."""
    component, task = found["component"].to_pylist(), found["task"].to_pylist()
    return lambda row: (component[row], task[row])


def _texts(batch: pa.RecordBatch) -> Iterable[str]:
    """The rows of `batch` as JSON objects; what JSON does not have is tagged as between tasks."""
    names = batch.schema.names
    for values in rows_of_batch(batch):
        fields = (f"{json.dumps(name)}:{text_of(value, name)}" for name, value in zip(names, values, strict=True))
        yield "{" + ",".join(fields) + "}"


R = TypeVar("R")
Bad = dict[int, ErrorRow]
Divert = Callable[[pa.RecordBatch, int, BaseException], bool]


@dataclass(frozen=True)
class Work(Generic[R]):
    """One component's share of one attempt in one task; can be begun anew as often as it takes.

    Attributes:
        context: makes the context of a fresh object.
        finish: all input is in: finishes the batch and gives what the task has to send on.
        undo: takes back what `finish` wrote into tables.
        collector: the kind of its collector.
        repeatable: whether a run that fails may be repeated at once, to find the line that is to blame.
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
        """Prepare `bolt`, a fresh object; `eager`: values are looked at in `emit`."""
        id, streams = self.spec.id, self.spec.streams
        collector = OutputCollector(id, streams, eager=True) if eager else self.collector(id, streams)
        return BoltRun(bolt, self.context(), collector, self.at)

    def run(self, arrivals: Sequence[Arrival], begun: BoltRun | None = None) -> R:
        """Run it, or what is left of it after `begun`; what user code raises escapes."""
        run = begun or self.begin(self.spec.fresh())
        try:
            run.execute(arrivals)
            return self.finish(run)
        except EmitError as error:
            if not (error.late and self.repeatable):
                raise
            again = self.begin(self.spec.fresh(), eager=True)  # to fail where it emits, with the tuple it was given
            again.execute(arrivals)
            self.finish(again)
            raise


class DeadLetterRun:
    """What is diverted of one attempt in one task.

    Args:
        kinds: the kinds of errors that divert; see `TxidInput.divert`.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.letters = Letters()
        self.whole = SOURCE in kinds
        self._kinds = kinds

    def takes(self, error: BaseException) -> bool:
        """Whether what raised `error` is diverted; otherwise the attempt fails."""
        kind = "failed" if kind_of(error) == "reported" else kind_of(error)
        return self.whole or kind in self._kinds

    def run(self, work: Work[R], arrivals: Sequence[Arrival]) -> R | None:
        """Run `work` on what can be handled of `arrivals`.

        A tuple whose `execute` raises is left out and the whole begun anew without it, so that nothing of that call
        remains: what it emitted, and what it did to the bolt. A task whose `prepare`, `finish_batch` or emissions
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
        """For the collector of a spout: leaves out the records that it refuses."""

        def divert(error: BaseException, record: Any) -> bool:
            if not self.takes(error):
                return False
            self.letters.add_record(error_row(component, task, level, error, trace=False), record)
            return True

        return divert

    def grouping(self, component: str, task: int, level: int, stream: str) -> Divert:
        """For `Router`: leaves out the tuples that a custom grouping raises for."""

        def divert(batch: pa.RecordBatch, row: int, error: BaseException) -> bool:
            if not self.takes(error):
                return False
            found = error_row(component, task, level, error, trace=False)
            self.letters.add_rows(found, Arrival(component, stream, task, batch), [row])
            return True

        return divert

    def _execute(self, work: Work[R], run: BoltRun, arrival: Arrival) -> Bad:
        """The rows of `arrival` that `run` cannot handle. Where there is one, the run itself is of no more use."""
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
        """The same of `count` rows handed over as one record batch: halved down to the rows that do it."""
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
        """`arrival` without its `bad` rows, which become dead letters."""
        if not bad:
            return arrival
        for row, error in bad.items():
            self.letters.add_rows(error, arrival, [row])
        return arrival.taken([row for row in range(arrival.batch.num_rows) if row not in bad])

    def _row(self, work: Work[R], error: BaseException) -> ErrorRow:
        """The error row; raises `error` again if it does not divert."""
        if not self.takes(error):
            raise error
        return error_row(work.spec.id, work.task, work.level, error, trace=False)
