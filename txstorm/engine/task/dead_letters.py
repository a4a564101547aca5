"""Dead letters: records omitted from a batch because their processing failed, each with the reason.

It is one module, as to find a record, to leave it out and to keep it are steps of one procedure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from txstorm.api.assembly import PartialCommitter
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BasicBolt, BatchBolt
from txstorm.api.output import Refusals
from txstorm.engine.arrow import column_values, is_tagged_column, rows_of_batch
from txstorm.engine.port import SOURCE, ErrorRow
from txstorm.engine.task.bolt_run import Arrival, BoltRun, takes_only_batches
from txstorm.engine.task.error_rows import RAISED, kind_of, storable
from txstorm.errors import StateError, without_advice
from txstorm.masks import masked_text
from txstorm.misfits import Misfits
from txstorm.storage.rows.dead_letters import METADATA, RECORD, SCHEMA, SENT_SCHEMA, TABLE_SCHEMA, TUPLE
from txstorm.tagged import text_of
from txstorm.typed import misfit_behind, misfits

if TYPE_CHECKING:
    from txstorm.engine.task.component_run import ComponentRun, Sent

Bad = dict[int, ErrorRow]
Refuse = Callable[[BaseException, Any], bool]
Divert = Callable[[pa.RecordBatch, int, BaseException], bool]

MOST_RUNS = 5000
"""Runs of a bolt on parts of its input after which records that fail only together are no longer told apart."""


_CAUSE = ("component", "task", "source", "source_task", "stream", "what", "kind", "type", "frame")
"""Columns that are equal in the dead letters of a block."""
_COLUMNS = list(zip(SENT_SCHEMA.names, SENT_SCHEMA.types, strict=True))
_NONE_YET = pa.RecordBatch.from_pylist([], SENT_SCHEMA)
_scalar = lru_cache(1000)(pa.scalar)


class _Block(NamedTuple):
    """Consecutive dead letters that differ only in their records, messages and columns."""

    cause: tuple[str | int | None, ...]
    records: list[str]
    messages: list[str]
    columns: list[str | None]

    def batch(self) -> pa.RecordBatch:
        """Return the dead letters as they are sent."""
        given = dict(zip(_CAUSE, self.cause, strict=True))
        lists = {"record": self.records, "message": self.messages, "column": self.columns}
        arrays = [
            pa.array(lists[name], kind) if name in lists else pa.repeat(_scalar(given[name], kind), len(self.records))
            for name, kind in _COLUMNS
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SENT_SCHEMA)


class Letters:
    """Collector of the dead letters of one attempt."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return sum(len(block.records) for block in self._blocks)

    def add_rows(self, error: ErrorRow, arrival: Arrival, rows: Sequence[int] | None = None) -> None:
        """Add rows of `arrival` (all of them by default) that could not be handled because of `error`."""
        batch = arrival.batch if rows is None else arrival.batch.take(pa.array(rows, pa.int64()))
        self._add(error, (arrival.component, arrival.task, arrival.stream), TUPLE, list(_texts(batch)))

    def add_metadata(self, error: ErrorRow, spout: str, task: int | None, metadata: Any) -> None:
        """Add a dead letter for a batch, or one emitter's part of it (`task`); `metadata` holds JSON values."""
        self._add(error, (spout, task, None), METADATA, [json.dumps(metadata)])

    def refuse(self, component: ComponentRun) -> tuple[Refuse, Callable[[Refusals], bool]]:
        """Return the callbacks by which a spout refuses a record, or several, which become dead letters."""

        def divert(error: BaseException, record: Any) -> bool:
            self.add_record(component.failure(error, trace=False), record)
            return True

        def divert_all(refusals: Refusals) -> bool:
            first = component.failure(refusals.error(0), trace=False)
            messages = [masked_text(storable(message)) for message in refusals.messages]  # as `failure` does
            self._add(first, _origin(first), RECORD, refusals.records, messages, refusals.columns)
            return True

        return divert, divert_all

    def add_record(self, error: ErrorRow, record: Any) -> None:
        """Add a dead letter for a source record that the spout could not emit; `record` (JSON values) describes it."""
        self._add(error, _origin(error), RECORD, [json.dumps(record)])

    def _add(
        self,
        error: ErrorRow,
        origin: tuple[str, int | None, str | None],
        what: str,
        records: Sequence[str],
        messages: Sequence[str] | None = None,
        columns: Sequence[str | None] | None = None,
    ) -> None:
        """Add dead letters of one cause; without `messages` and `columns`, those of `error` are for all of them."""
        cause = error.component, error.task, *origin, what, error.kind, error.type, error.frame
        if not self._blocks or self._blocks[-1].cause != cause:
            self._blocks.append(_Block(cause, [], [], []))
        block = self._blocks[-1]
        block.records.extend(records)
        block.messages.extend([without_advice(error.message)] * len(records) if messages is None else messages)
        block.columns.extend([error.column] * len(records) if columns is None else columns)

    def cut(self, length: int) -> None:
        """Keep only the first `length` dead letters."""
        for block in self._blocks:
            for values in block[1:]:
                del values[length:]
            length = max(0, length - len(block.records))
        self._blocks = [block for block in self._blocks if block.records]

    def take(self) -> pa.RecordBatch:
        """Return all dead letters, in the order in which they were added, and clear the collector."""
        batches, self._blocks = [block.batch() for block in self._blocks], []
        if len(batches) > 1:
            batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return batches[0] if batches else _NONE_YET


def _origin(error: ErrorRow) -> tuple[str, int | None, str | None]:
    """Return the origin of a record: the task that could not emit it."""
    return error.component, error.task, None


def letters_in_order(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the dead letters of one txid, in an order that does not depend on which task reported first."""
    found = pa.Table.from_batches(list(batches), SENT_SCHEMA)
    tasks = [(task is None, task or 0) for task in found["task"].to_pylist()]
    places = list(zip(found["component"].to_pylist(), tasks, strict=True))
    order = sorted(range(len(places)), key=places.__getitem__)  # stable: the order within a task is preserved
    return found if order == list(range(len(places))) else found.take(pa.array(order))


def letters_table(found: pa.Table, attempt: TransactionAttempt, stamp: int) -> pa.Table:
    """Return the dead letters of one txid as they are stored."""
    more = (
        pa.repeat(pa.scalar(value, TABLE_SCHEMA.field(name).type), found.num_rows)
        for name, value in (("attempt", attempt.attempt_id), ("stamp", stamp))
    )
    return pa.table([*found.select(SCHEMA.names).columns, *more], schema=TABLE_SCHEMA)


def _texts(batch: pa.RecordBatch) -> Iterable[str]:
    """Convert the rows of `batch` to JSON objects; values without a JSON type are tagged, as in data between tasks."""
    names = batch.schema.names
    for values in rows_of_batch(batch):
        fields = (f"{json.dumps(name)}:{text_of(value, name)}" for name, value in zip(names, values, strict=True))
        yield "{" + ",".join(fields) + "}"


def _is_ready_made(bolt: BasicBolt | BatchBolt) -> bool:
    """Return whether `finish_batch` is the framework's."""
    finish = getattr(type(bolt), "finish_batch", BatchBolt.finish_batch)
    return finish is not BatchBolt.finish_batch and finish.__module__.startswith("txstorm.")


def _can_run_on_parts(bolt: BasicBolt | BatchBolt) -> bool:
    """Return whether `bolt` is ready-made and calls no user's bolt, so that it may run any number of times."""
    return _is_ready_made(bolt) and not hasattr(bolt, "bolt")


def _of_one_type(arrival: Arrival) -> list[Arrival]:
    """Return the rows in parts in each of which all values of a field have one type, so that none is converted."""
    batch = arrival.batch
    tagged = [column_values(batch, at) for at in range(batch.num_columns) if is_tagged_column(batch, at)]
    parts, first, shapes = [], 0, [_NONE] * len(tagged)
    for row, values in enumerate(zip(*tagged, strict=True)):
        found = [_shape(value) for value in values]
        if any(_NONE not in pair and pair[0] != pair[1] for pair in zip(shapes, found, strict=True)):
            parts.append(arrival.part(first, row - first))
            first, shapes = row, found
        else:
            shapes = [old if new == _NONE else new for old, new in zip(shapes, found, strict=True)]
    return [*parts, arrival.part(first, batch.num_rows - first)]


_NONE = "NoneType"


def _shape(value: Any) -> str:
    """Return the type of a value, with those of the values in it, as text."""
    if isinstance(value, list | tuple):
        return f"list of {sorted(set(map(_shape, value)))}"
    if isinstance(value, dict):
        return f"dict of {[(name, _shape(one)) for name, one in value.items()]}"
    return type(value).__name__


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
        neither its emissions nor its effects on the bolt. If the `finish_batch` of a ready-made bolt raises, the rows
        at fault are found: by the declared types, else by runs on parts of the input; without any that is left, it
        runs as a task that has received nothing. If `prepare` or `finish_batch` of a user's bolt raises, all of its
        input is omitted, and None is returned; of a `PartialCommitter`, only the part that raises.
        """
        before = len(self.letters)
        skipped: set[str] = set()
        if takes_only_batches(component.spec.fresh()):
            arrivals = [part for arrival in arrivals for part in _of_one_type(arrival)]
        while True:
            bolt = component.spec.fresh()
            caught: list[tuple[int, BaseException]] = []
            if hasattr(bolt, "caught"):  # a managed bolt, which executes its input in finish_batch
                bolt.caught = caught
            if isinstance(bolt, PartialCommitter):
                bolt.skipped = frozenset(skipped)
            try:
                run = self._begin(component, bolt)
                bad = [self._execute(component, run, arrival) for arrival in arrivals]
                if not any(bad):
                    return component.finish(run)
                self.letters.cut(before)
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
                if not _is_ready_made(bolt) or not arrivals:
                    for arrival in arrivals:
                        self.letters.add_rows(row, arrival)
                    return None
                if caught:
                    bad = self._by_arrival(component, arrivals, caught)
                else:
                    bad = self._found(component, bolt, arrivals, error) or [
                        dict.fromkeys(range(arrival.batch.num_rows), row) for arrival in arrivals
                    ]
            kept = [self._without(arrival, rows) for arrival, rows in zip(arrivals, bad, strict=True)]
            arrivals = [arrival for arrival in kept if arrival.batch.num_rows]
            before = len(self.letters)

    def _begin(self, component: ComponentRun, bolt: BasicBolt | BatchBolt) -> BoltRun:
        collector = component.collector()
        collector.divert = self.records(component)
        return component.begin(bolt, collector)

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
            if _can_run_on_parts(run.bolt):
                run.execute_rows(arrival)
                return {}
            return self._rows(component, run, arrival, 0, arrival.batch.num_rows)
        bad: Bad = {}
        for row, one in enumerate(run.tuples(arrival)):
            try:
                run.execute_tuple(one)
            except RAISED as error:
                bad[row] = self._row(component, error)
        return bad

    def _rows(self, component: ComponentRun, run: BoltRun, arrival: Arrival, first: int, count: int) -> Bad:
        """Find the rows that `run` cannot handle among `count` rows passed as one record batch.

        The error knows them, or they are found by bisection.
        """
        try:
            run.execute_rows(arrival.part(first, count))
        except RAISED as error:
            row = self._row(component, error)
            if isinstance(error, Misfits):
                return {first + n: replace(row, message=str(why), column=why.column) for n, why in error.rows.items()}
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

    def _found(
        self, component: ComponentRun, bolt: BasicBolt | BatchBolt, arrivals: Sequence[Arrival], error: BaseException
    ) -> list[Bad] | None:
        """Find the rows at fault for an `error` of a ready-made bolt; None if it is another one, or none is at fault.

        Declared types decide, record by record, or the error knows. Else the bolt runs on parts of its input: first by
        themselves, then each together with all before it that can be handled. After `MOST_RUNS` of the latter, a part
        that fails is left out as a whole.
        """
        if (found := self._misfits(component, arrivals, error)) or not _can_run_on_parts(bolt):
            return found
        if isinstance(error, StateError) and error.rows:
            return self._by_arrival(component, arrivals, [(row, error) for row in error.rows])
        everything = [(at, row) for at, arrival in enumerate(arrivals) for row in range(arrival.batch.num_rows)]
        bad: list[Bad] = [{} for _ in arrivals]
        known: list[Bad] | None = None  # the rows that do not fit a declared type
        runs = 0

        def failure(rows: Sequence[tuple[int, int]]) -> ErrorRow | None:
            nonlocal known, runs
            runs += 1
            raised = self._trial(component, arrivals, rows)
            known = None if raised is None else self._misfits(component, arrivals, raised)
            return None if raised is None else self._row(component, raised)

        def sift(rows: list[tuple[int, int]], kept: list[tuple[int, int]] | None, row: ErrorRow | None = None) -> bool:
            """Sort out the rows that cannot be handled, by themselves or together with those that are `kept`.

            `row`: why they cannot be handled all, if that is known. Return whether they can be.
            """
            if known is not None or not rows:
                return True
            row = row or failure(rows if kept is None else [*kept, *rows])
            if row is None:
                if kept is not None:
                    kept += rows
                return True
            if len(rows) > 1 and (kept is None or runs < MOST_RUNS):
                half = len(rows) // 2
                # If the first half can be handled, the second one fails as both did.
                fits = sift(rows[:half], kept) and kept is not None
                sift(rows[half:], kept, row if fits else None)
            else:
                if len(rows) > 1:
                    row = replace(row, message=f"{row.message} ({len(rows)} records, which were not told apart)")
                for at, number in rows:
                    bad[at][number] = row
            return False

        if failure([]) is not None:
            return None
        sift(everything, None)
        rest, runs = [(at, row) for at, row in everything if row not in bad[at]], 0
        sift(rest, [])
        return known or (bad if any(bad) else None)

    def _trial(
        self, component: ComponentRun, arrivals: Sequence[Arrival], rows: Sequence[tuple[int, int]]
    ) -> BaseException | None:
        """Return why the component cannot handle rows, (arrival, row); None if it can; no trace of the run remains."""
        chosen: dict[int, list[int]] = {}
        for at, row in rows:
            chosen.setdefault(at, []).append(row)
        length = len(self.letters)
        try:
            run = self._begin(component, component.spec.fresh())
            run.execute([arrivals[at].taken(some) for at, some in chosen.items()])
            component.finish(run)
        except RAISED as error:
            return error
        finally:
            component.undo()
            self.letters.cut(length)
        return None

    def _misfits(self, component: ComponentRun, arrivals: Sequence[Arrival], error: BaseException) -> list[Bad] | None:
        """Find the rows that do not fit the declared type for which `error` was raised; None if there are none.

        None too if it was raised for another reason.
        """
        fault = misfit_behind(error)
        find = None if fault is None else fault.find
        if find is None and fault is not None and fault.kind is not None:
            find = partial(misfits, kind=fault.kind)
        if fault is None or fault.column is None or find is None:
            return None
        row, found = self._row(component, error), list[Bad]()
        for arrival in arrivals:
            names = arrival.batch.schema.names
            at = names.index(fault.column) if fault.column in names else None
            tagged = at is not None and is_tagged_column(arrival.batch, at)
            values = [] if at is None else column_values(arrival.batch, at) if tagged else arrival.batch.column(at)
            why = find(values)
            found.append({n: replace(row, message=f"field {fault.column!r}: {one}") for n, one in why.items()})
        return found if any(found) else None

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
