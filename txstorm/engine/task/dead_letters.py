"""Dead letters: records omitted from a batch because their processing failed, each with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstorm.api.assembly import PartialCommitter
from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.arrow import rows_of_batch
from txstorm.engine.port import SOURCE, ErrorRow
from txstorm.engine.task.bolt_run import Arrival, BoltRun
from txstorm.engine.task.error_rows import RAISED, kind_of
from txstorm.storage.rows.dead_letters import METADATA, RECORD, SCHEMA, TABLE_SCHEMA, TUPLE
from txstorm.tagged import text_of

if TYPE_CHECKING:
    from txstorm.engine.task.component_run import ComponentRun, Sent

Bad = dict[int, ErrorRow]
Divert = Callable[[pa.RecordBatch, int, BaseException], bool]


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
        """Add a dead letter for a batch, or one emitter's part of it (`task`); `metadata` holds JSON values."""
        self._add(error, (spout, task, None), METADATA, json.dumps(metadata))

    def add_record(self, error: ErrorRow, record: Any) -> None:
        """Add a dead letter for a source record that the spout could not emit; `record` (JSON values) describes it."""
        self._add(error, (error.component, error.task, None), RECORD, json.dumps(record))

    def _add(self, error: ErrorRow, origin: tuple[str, int | None, str | None], what: str, record: str) -> None:
        cause = (error.kind, error.type, error.message, error.frame)
        self._rows.append((error.component, error.task, *origin, what, record, *cause))

    def cut(self, length: int) -> None:
        """Keep only the first `length` dead letters."""
        del self._rows[length:]

    def take(self) -> pa.RecordBatch:
        """Return all dead letters, in the order in which they were added, and clear the collector."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def letters_table(batches: Iterable[pa.RecordBatch], attempt: TransactionAttempt, stamp: int) -> pa.Table:
    """Build the dead-letter rows of one txid, in an order that does not depend on which task reported first."""
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
    """Convert the rows of `batch` to JSON objects; values without a JSON type are tagged, as in data between tasks."""
    names = batch.schema.names
    for values in rows_of_batch(batch):
        fields = (f"{json.dumps(name)}:{text_of(value, name)}" for name, value in zip(names, values, strict=True))
        yield "{" + ",".join(fields) + "}"


class DeadLetterRun:
    """Runs the components of one attempt in one task, diverting failures to dead letters.

    Used only for transactions that have failed before and whose failures become dead letters under the retry policy.

    Args:
        kinds: the kinds of errors that are diverted; see `TxidInput.divert`.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.letters = Letters()
        self.whole = SOURCE in kinds
        self._kinds = kinds

    def takes(self, error: BaseException) -> bool:
        """Return whether a failure with `error` is diverted; if not, the attempt fails."""
        kind = "failed" if kind_of(error) == "reported" else kind_of(error)
        return self.whole or kind in self._kinds

    def run(self, component: ComponentRun, arrivals: Sequence[Arrival]) -> Sent | None:
        """Run `component` on the rows of `arrivals` that it can handle; the others become dead letters.

        If `execute` raises for a tuple, the component is restarted without it, so that no trace of that call remains:
        neither its emissions nor its effects on the bolt. If `prepare`, `finish_batch` or the emissions of a task
        raise, all of its input is omitted, and None is returned; of a `PartialCommitter`, only the part that raises.
        """
        before = len(self.letters)
        skipped: set[str] = set()
        while True:
            bolt = component.spec.fresh()
            caught: list[tuple[int, BaseException]] = []
            if hasattr(bolt, "caught"):  # a managed bolt, which executes its input in finish_batch
                bolt.caught = caught
            if isinstance(bolt, PartialCommitter):
                bolt.skipped = frozenset(skipped)
            try:
                run = component.begin(bolt)
                bad = [self._execute(component, run, arrival) for arrival in arrivals]
                if not any(bad):
                    before = len(self.letters)
                    return component.finish(run)
            except RAISED as error:
                component.undo()
                self.letters.cut(before)
                row = self._row(component, error)
                if isinstance(bolt, PartialCommitter) and bolt.failed is not None and bolt.failed[0] not in skipped:
                    part, record = bolt.failed
                    skipped.add(part)
                    self.letters.add_record(row, record)
                    before = len(self.letters)
                    continue
                if not caught:
                    for arrival in arrivals:
                        self.letters.add_rows(row, arrival)
                    return None
                bad = self._by_arrival(component, arrivals, caught)
            kept = [self._without(arrival, rows) for arrival, rows in zip(arrivals, bad, strict=True)]
            arrivals = [arrival for arrival in kept if arrival.batch.num_rows]
            before = len(self.letters)

    def records(self, component: ComponentRun) -> Callable[[BaseException, Any], bool]:
        """Return the callback that turns a record of a spout, or a result of a committer, into a dead letter."""

        def divert(error: BaseException, record: Any) -> bool:
            if not self.takes(error):
                return False
            self.letters.add_record(component.failure(error, trace=False), record)
            return True

        return divert

    def grouping(self, component: ComponentRun, stream: str) -> Divert:
        """Return the `Router` callback that turns a tuple for which a custom grouping raises into a dead letter."""

        def divert(batch: pa.RecordBatch, row: int, error: BaseException) -> bool:
            if not self.takes(error):
                return False
            emitted = Arrival(component.spec.id, stream, component.task, batch)
            self.letters.add_rows(component.failure(error, trace=False), emitted, [row])
            return True

        return divert

    def _execute(self, component: ComponentRun, run: BoltRun, arrival: Arrival) -> Bad:
        """Find the rows of `arrival` that `run` cannot handle; if there are any, the run itself must be discarded."""
        if not run.by_tuple(arrival):
            return self._rows(component, run, arrival, 0, arrival.batch.num_rows)
        bad: Bad = {}
        for row, one in enumerate(run.tuples(arrival)):
            try:
                run.execute_tuple(one)
            except RAISED as error:
                bad[row] = self._row(component, error)
        return bad

    def _rows(self, component: ComponentRun, run: BoltRun, arrival: Arrival, first: int, count: int) -> Bad:
        """Find the rows that `run` cannot handle among `count` rows passed as one record batch, by bisection."""
        try:
            run.execute_rows(arrival.part(first, count))
        except RAISED as error:
            row = self._row(component, error)
        else:
            return {}
        if count < 2:
            return {first: row}
        half = count // 2
        bad = {
            **self._rows(component, run, arrival, first, half),
            **self._rows(component, run, arrival, first + half, count - half),
        }
        return bad or dict.fromkeys(range(first, first + count), row)

    def _by_arrival(
        self, component: ComponentRun, arrivals: Sequence[Arrival], caught: Sequence[tuple[int, BaseException]]
    ) -> list[Bad]:
        """Return the bad rows of each arrival, given the positions in the input at which a managed bolt raised."""
        errors, found, first = dict(caught), [], 0
        for arrival in arrivals:
            rows = range(arrival.batch.num_rows)
            found.append({row: self._row(component, errors[first + row]) for row in rows if first + row in errors})
            first += arrival.batch.num_rows
        return found

    def _without(self, arrival: Arrival, bad: Bad) -> Arrival:
        """Return `arrival` without the `bad` rows, which become dead letters."""
        if not bad:
            return arrival
        for row, error in bad.items():
            self.letters.add_rows(error, arrival, [row])
        return arrival.taken([row for row in range(arrival.batch.num_rows) if row not in bad])

    def _row(self, component: ComponentRun, error: BaseException) -> ErrorRow:
        """Build the error row of `error`, or re-raise `error` if it is not diverted."""
        if not self.takes(error):
            raise error
        return component.failure(error, trace=False)
