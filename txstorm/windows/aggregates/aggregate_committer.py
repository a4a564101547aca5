"""Aggregate committer: adds partial aggregates to open windows, and emits and keeps the results of those that fire."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.assembly import AssembledCommitter, Results
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM, counted, map_side_id
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.display import duration_text
from txstorm.keys import row_text
from txstorm.typed import restored
from txstorm.windows.aggregates.cells import TUPLES
from txstorm.windows.aggregates.groups import Mask, integers
from txstorm.windows.aggregates.open_windows import open_windows, states_of
from txstorm.windows.aggregates.panes import PANE
from txstorm.windows.aggregates.partials import AggregatePlan, PartialAggregates
from txstorm.windows.aggregates.result_rows import FIELD, ResultRows, result_state
from txstorm.windows.intake import Chunk, Intake
from txstorm.windows.late import LATE_PARTIALS, SHOWN, LateTuples, report_late
from txstorm.windows.newest import NewestTimes, Reports
from txstorm.windows.records import UnitRecord, progress_state, unit_of_task
from txstorm.windows.rules.event_time import END, instant
from txstorm.windows.turn import ComponentTurn

log = logging.getLogger(__name__)
FRONTIER = "frontier"
"""Stream of the time that the ends of all later results exceed."""
RETRACTIONS = "retractions"
"""Stream of results that no longer hold."""


@dataclass(frozen=True)
class _Arrived:
    """Partial aggregates of one input; of single tuples if they were not aggregated before, and then with these."""

    number: int
    rows: pa.Table
    chunk: Chunk | None = None


class AggregateCommitter(AssembledCommitter):
    """Committer that takes the place of a `WindowAggregate`.

    Args:
        plan: the plan of the aggregate.
        ttl: how long results are kept; None: forever.
    """

    timers: ClassVar[bool] = True

    def __init__(self, plan: AggregatePlan, ttl: timedelta | None) -> None:
        self.plan = plan
        self.results = None if plan.table is None else result_state(plan.table, plan.cells, ttl)
        self.progress = progress_state(replace(plan.windows, key=None), plan.fixed())
        states = states_of(plan)
        self.partials, self.due = states[0], states[1] if len(states) > 1 else None
        self.internal_states = {self.progress.name, *(one.name for one in states)}
        self.processing_time, self.by_clock = plan.windows.closed_by_time, plan.windows.by_clock
        self.also_reads = plan.windows.also_reads
        columns = {one.name: one.kind for one in plan.cells.keys}
        columns.update((one.name, one.kind) for one in plan.cells.aggregates)
        self.published = {
            DEFAULT_STREAM: Results(
                plan.cells.bounds.end,
                FRONTIER,
                tuple(plan.cells.key_names),
                final=not plan.lateness,
                retractions=RETRACTIONS if plan.retractions else None,
                columns=columns,
                ends_of=plan.windows.form.closed,
                start=plan.cells.bounds.start,
            )
        }

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the results, the results that no longer hold, and late tuples."""
        plan = self.plan
        declarer.declare(plan.cells.outputs)
        declarer.declare_stream(FRONTIER, ("frontier",))
        if plan.retractions:
            declarer.declare_stream(RETRACTIONS, plan.cells.outputs)
        if plan.windows.late_stream is not None:
            declarer.declare_stream(plan.windows.late_stream, plan.windows.union)

    def retention(self, state: str) -> str | None:
        """Describe for how long a state is kept; None: as it is declared."""
        if state == self.progress.name:
            return "one row per task"
        if state not in self.internal_states:
            return "kept forever (no ttl)" if self.results is not None and self.results.ttl is None else None
        form, lateness = self.plan.windows.form, self.plan.lateness
        of = "length and allowed lateness" if lateness else "length"
        if form.is_session:
            return f"evicted when their session has {'no allowed lateness left' if lateness else 'fired'}"
        length = duration_text(timedelta(microseconds=(form.span or 0) + lateness))
        return f"evicted when {length} ({of}) behind the watermark"

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt:
        """Return the stage that aggregates tuples or, if late ones are emitted, the one that reports newest times."""
        plan = self.plan
        if plan.before_shuffle:
            names = [(one.component, one.stream) for one in plan.windows.inputs]
            return PartialAggregates(plan, names.index((source, stream)))
        return NewestTimes(plan.windows, source, stream, (plan.check,))

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        windows = self.plan.windows
        self._context, self._collector, self._attempt = context, collector, attempt
        self._intake = Intake(replace(windows, key=None), attempt)
        stages = [(map_side_id(windows.id, one.component, one.stream), DEFAULT_STREAM) for one in windows.inputs]
        self._stages = {stage: number for number, stage in enumerate(stages)}
        self._arrived: list[_Arrived] = []
        self._reports = Reports()
        self._frontiers: dict[tuple[str, str], int] = {}

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch: partial aggregates, tuples, or newest timestamps."""
        assert self._context.source is not None
        component, stream, task = self._context.source
        plan = self.plan
        if plan.before_shuffle and (component, stream) in self._stages:
            rows = restored(pa.Table.from_batches([batch]).select(plan.schema.names), plan.schema)
            self._arrived.append(_Arrived(self._stages[component, stream], rows))
            return
        number = None if plan.before_shuffle else self._intake.number(component, stream)
        if (component, stream) in self.also_reads:
            self._frontiers[component, stream] = batch.column(0)[-1].as_py()
            return
        if number is None:
            self._reports.add(batch)
            return
        chunk = self._intake.batch(number, task, batch)
        self._arrived.append(_Arrived(number, plan.rows_of(chunk, self._context.stamp), chunk))

    def finish_batch(self) -> None:
        """Add what has arrived to the open windows, fire those that the watermark has passed, and emit the results."""
        plan, context = self.plan, self._context
        records = context.state(self.progress.name)
        turn = ComponentTurn(plan.windows, plan.declared(), records, context, self._reports, self._frontiers)
        passed, progress, ends = turn.before.progress.watermark, turn.progress, turn.ends
        text = records.get(name := unit_of_task(context.task))
        record = UnitRecord() if text is None else UnitRecord.read(text)
        rows = self._rows(passed)
        results = ResultRows(plan.cells, None if plan.table is None else context.collection(plan.table))
        windows = open_windows(plan, context, results, (turn.before.ends, ends))
        outcome = windows.add(rows, passed, progress.watermark)
        self._leave_out(outcome.without)
        old, new = results.replace(outcome.old, outcome.new)
        if plan.retractions and old.num_rows:
            self._collector.emit_batch(old, stream=RETRACTIONS)
        if new.num_rows:
            self._collector.emit_batch(new)
        after, late = record, dict[int, int]()
        if outcome.late.any():
            assert passed is not None
            late = self._report(rows, outcome.late, passed)
            after = after.with_late({turn.inputs.numbers[number]: count for number, count in late.items()})
        if rows.num_rows and plan.panes is not None:
            newest = int(pc.max(rows.column(PANE)).as_py())
            newest = newest if after.state.newest is None else max(newest, after.state.newest)
            after = replace(after, state=replace(after.state, newest=newest))
        if after != record:
            records.put(name, after.text())
        if context.task == 0 and progress.watermark is not None and ends.fired is not None:
            reached = progress.watermark if progress.watermark == END else progress.watermark - plan.lateness
            self._collector.emit(min(reached, ends.fired), stream=FRONTIER)

        def next_end() -> int | None:
            return None if progress.watermark is None else windows.next_end(progress.watermark, after.state.newest)

        turn.end(new.num_rows, sum(late.values()), next_end)

    def _leave_out(self, without: pa.Table) -> None:
        """Report the windows that have fired without a result."""
        kinds = {one.name: one.kind for one in self.plan.cells.aggregates}
        for row in without.to_pylist():
            key = {name: row[name] for name in self.plan.cells.key_names}
            start, end = (str(row[name]) for name in self.plan.cells.bounds)
            msg = (
                f"{self.plan.windows.id}: {row[FIELD]!r} of the key {key}, window {start} to {end}: "
                f"the sum exceeds {kinds[row[FIELD]]}; declare the field with a type that holds it"
            )
            self._context.leave_out(ValueError(msg), {"start": start, "end": end, "key": row_text(key.values())})

    def _rows(self, passed: int | None) -> pa.Table:
        """Return the partial aggregates that have arrived, in order of arrival."""
        plan = self.plan
        if not self._arrived:
            return plan.schema.empty_table()
        rows = pa.concat_tables([one.rows for one in self._arrived])
        if plan.windows.event_time or plan.panes is None:
            return rows
        time = plan.windows.stamped(passed, self._context.stamp)
        pane = plan.panes.of(np.full(rows.num_rows, time, np.int64))
        return rows.set_column(rows.column_names.index(PANE), PANE, pa.array(pane))

    # -- late tuples ---------------------------------------------------------------------------------------------------

    def _report(self, rows: pa.Table, late: Mask, watermark: int) -> dict[int, int]:
        """Log the late tuples, and emit them if there is a stream for them; return input → their number."""
        plan, first, numbers, found = self.plan, 0, dict[int, int](), []
        for one in self._arrived:
            here = late[first : first + one.rows.num_rows]
            first += one.rows.num_rows
            if here.any():
                tuples = int(integers(one.rows.column(TUPLES))[here].sum())
                numbers[one.number] = numbers.get(one.number, 0) + tuples
                if one.chunk is None:
                    at = one.rows.filter(pa.array(here))
                    self._collector.note(LATE_PARTIALS, partial(plan.late_partials, one.number, at, watermark))
                else:
                    found.append(LateTuples(one.chunk, np.flatnonzero(here[: len(one.chunk)]), watermark))
        if found:
            report_late(plan.windows, self._context, self._collector, found)
            return numbers
        log.info(
            "%s[%d], txid %d: %s behind the watermark %s, in no window: of the keys %s",
            plan.windows.id,
            self._context.task,
            self._attempt.txid,
            counted(sum(numbers.values()), "late tuple"),
            instant(watermark),
            rows.filter(pa.array(late)).select(plan.cells.key_names).slice(0, SHOWN).to_pylist(),
        )
        return numbers
