"""Interval join committer: adds the rows of both sides, releases and joins left rows, and expires right rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from txstorm.api.assembly import AssembledCommitter, Results
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import EVERYWHERE, BatchBolt
from txstorm.api.context import HeldBack, TaskContext
from txstorm.api.names import DEFAULT_STREAM, map_side_id
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple
from txstorm.display import duration_text
from txstorm.joins.columns import emit, picked
from txstorm.joins.interval.interval_plan import LEFT, RIGHT, SIDES, UNMATCHED, IntervalPlan
from txstorm.joins.interval.interval_rows import JoinRows
from txstorm.joins.interval.join_records import COMPONENT, SHOWN, JoinRecord, unit_of_task
from txstorm.joins.rules.blocks import ARRIVAL, Block, Mask, Numbers, Rows
from txstorm.joins.rules.matching import LOWEST, Pairs, RightWindow
from txstorm.joins.rules.positions import Arrivals
from txstorm.joins.selection import ANTI, FULL, LEFT_OUTER, RIGHT_OUTER, SEMI
from txstorm.joins.side_rows import TIME, taken
from txstorm.row_order import order_of
from txstorm.windows.aggregates.groups import integers
from txstorm.windows.intake import Chunk, Intake
from txstorm.windows.newest import REPORTED, NewestTimes, Reports
from txstorm.windows.rules.event_time import END, MICROSECOND, Progress

ALL_TIMES = -1
"""What a map-side stage names in place of an input when it reports all times of left rows."""
FRONTIER = "frontier"
"""Stream of the time that the left times of all later results exceed."""


class RowTimes(NewestTimes):
    """Map-side stage of one side of an interval join, which may also report all times.

    The oldest pending row of all tasks decides which right rows expire, so each task gets the times of all left rows.

    Args:
        plan: the plan of the join.
        side: which side it is.
    """

    def __init__(self, plan: IntervalPlan, side: int) -> None:
        one = plan.sides[side]
        super().__init__(one.windows, *one.side.reads, (one.check,))
        self._reports_all = side == LEFT and plan.parallelism > 1

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        super().prepare(context, collector, attempt)
        self._all_times: list[Numbers] = []

    def finish_batch(self) -> None:
        """Report the newest times, and all times of left rows if there are several tasks."""
        super().finish_batch()
        if self._all_times:
            times = np.unique(np.concatenate(self._all_times))
            columns = [
                *(pa.repeat(one, len(times)) for one in (ALL_TIMES, "")),
                pa.array(times),
                pa.repeat(0, len(times)),
            ]
            self._collector.emit_batch(pa.table(columns, list(REPORTED)), stream=EVERYWHERE)

    def _add(self, chunk: Chunk) -> None:
        super()._add(chunk)
        if self._reports_all and chunk.times is not None:
            self._all_times.append(chunk.times)


class JoinOutput:
    """Emits what a task of an interval join has found in a transaction.

    Args:
        plan: the plan of the join.
        collector: the output.
        context: the task; what nothing reads is not emitted, but for the default stream.

    Attributes:
        results: number of tuples emitted to the default stream.
        shows_expired: whether right rows that have never matched are emitted to any stream.
    """

    def __init__(self, plan: IntervalPlan, collector: Collector, context: TaskContext) -> None:
        self._plan = plan
        self._collector = collector
        self._read = [context.is_read(stream) for stream in UNMATCHED]
        self.shows_expired = plan.shows_expired(context)
        self.results = 0

    def released(self, left: Rows, window: RightWindow, pairs: Pairs) -> int:
        """Emit the results of released left rows, sorted by time and arrival; return the number of unmatched ones."""
        how, counts = self._plan.how, np.bincount(pairs.left, minlength=len(left))
        alone = np.flatnonzero(counts == 0)
        if how in (SEMI, ANTI):
            chosen = np.flatnonzero(counts) if how == SEMI else alone
            self._emit({LEFT: self._left(left, chosen)}, len(chosen))
        else:
            rows, there = pairs.left, None
            if how in (LEFT_OUTER, FULL) and len(alone):
                rows = np.repeat(np.arange(len(left)), np.maximum(counts, 1))
                there = counts[rows] > 0
            self._emit({LEFT: self._left(left, rows), RIGHT: self._right(window, pairs, there)}, len(rows))
        if self._read[LEFT]:
            self._unmatched(LEFT, left.stored.take(pa.array(alone)))
        return len(alone)

    def expired(self, parts: Sequence[tuple[Block, Numbers]]) -> int:
        """Emit expired right rows that have never matched, by time and arrival; return their number."""
        count = sum(len(at) for _, at in parts)
        if not count or not self.shows_expired:
            return count
        rows = pa.concat_tables([block.stored.take(pa.array(block.at[at])) for block, at in parts]).combine_chunks()
        rows = rows.take(pa.array(order_of(*(integers(rows.column(name)) for name in (TIME, ARRIVAL)))))
        if self._plan.how in (RIGHT_OUTER, FULL):
            form = self._plan.sides[RIGHT].form
            self._emit({RIGHT: {field: form.values(rows, field) for field in self._plan.fields_of(RIGHT)}}, len(rows))
        if self._read[RIGHT]:
            self._unmatched(RIGHT, rows)
        return count

    def _left(self, left: Rows, chosen: Numbers) -> dict[str, Any]:
        form, fields = self._plan.sides[LEFT].form, self._plan.fields_of(LEFT)
        return {field: picked(form.values(left.stored, field), chosen) for field in fields}

    def _right(self, window: RightWindow, pairs: Pairs, there: Mask | None) -> dict[str, Any]:
        """Return the fields of the right rows of pairs; `there`: which results are pairs, None: all."""
        form, fields = self._plan.sides[RIGHT].form, self._plan.fields_of(RIGHT)
        columns = form.columns_for(fields)
        if len(pairs):
            rows = window.stored(pairs, columns, there)
        else:
            kinds = [form.schema.field(name).type for name in columns]
            rows = pa.table([pa.nulls(0 if there is None else len(there), kind) for kind in kinds], columns)
        return {field: form.values(rows, field) for field in fields}

    def _emit(self, sides: Mapping[int, Mapping[str, Any]], size: int) -> None:
        """Emit results to the default stream; a missing side is None throughout."""
        if not size:
            return
        self.results += size
        of_side = {SIDES[side]: fields for side, fields in sides.items()}
        columns = [of_side[one.side][one.field] if one.side in of_side else pa.nulls(size) for one in self._plan.output]
        emit(self._collector, [one.name for one in self._plan.output], columns)

    def _unmatched(self, side: int, rows: pa.Table) -> None:
        if rows.num_rows:
            form = self._plan.sides[side].form
            columns = [form.values(rows, field) for field in form.fields]
            emit(self._collector, form.fields, columns, UNMATCHED[side])


class IntervalJoinCommitter(AssembledCommitter):
    """Committer that takes the place of an `IntervalJoin`.

    Args:
        plan: the plan of the join.
    """

    timers: ClassVar[bool] = True

    def __init__(self, plan: IntervalPlan) -> None:
        self.plan = plan
        self.by_clock = any(side.rule.by_clock for side in plan.sides)
        self.progress = plan.progress
        self.left, self.right, self.matched, self.passing = plan.states
        self.internal_states = {self.progress.name, *(one.name for one in plan.states)}
        self.also_reads = tuple(dict.fromkeys(one for side in plan.sides for one in side.windows.also_reads))
        time, read = plan.sides[LEFT].form.side.time, plan.sides[LEFT].windows.inputs[0]
        results = Results(time, FRONTIER, (), final=True, retractions=None, columns={}, ends_of=read.ends_of)
        self.published = {UNMATCHED[LEFT]: results}
        name = next((one.name for one in plan.output if (one.side, one.field) == (SIDES[LEFT], time)), None)
        if name is not None:
            frontier = None if plan.how in (RIGHT_OUTER, FULL) else FRONTIER
            self.published[DEFAULT_STREAM] = replace(results, time=name, frontier=frontier)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the results, the rows that have not matched, and the frontier."""
        declarer.declare([one.name for one in self.plan.output])
        for stream, side in zip(UNMATCHED, self.plan.sides, strict=True):
            declarer.declare_stream(stream, side.form.fields)
        declarer.declare_stream(FRONTIER, ("frontier",))

    def retention(self, state: str) -> str | None:
        """Describe for how long a state is kept."""
        if state == self.progress.name:
            return "one row per task"
        if state == self.passing.name:
            return "evicted by the next transaction"
        if state == self.left.name:
            return "evicted when the right position has passed their bounds"
        reach = duration_text(self.plan.bounds.before * MICROSECOND)
        return f"evicted when {reach} (before) behind the left position and the oldest pending row"

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt | None:
        """Return the stage that checks times and partitions, and reports newest times to all tasks."""
        return RowTimes(self.plan, [one.side.reads for one in self.plan.sides].index((source, stream)))

    def warm_up(self, context: TaskContext) -> None:
        """Load the window and the pending rows of a task, unless the number of tasks has changed."""
        records = context.state(self.progress.name)
        component = JoinRecord.read(records.get(COMPONENT))
        if component.tasks == self.plan.parallelism:
            JoinRows(self.plan, context, records, component).warm_up()

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector, self._attempt = context, collector, attempt
        self._intakes = [Intake(one.windows, attempt) for one in self.plan.sides]
        self._stages = {map_side_id(self.plan.id, *one.side.reads): side for side, one in enumerate(self.plan.sides)}
        self._chunks: dict[int, list[tuple[Chunk, Numbers, Numbers]]] = {LEFT: [], RIGHT: []}
        self._count = 0
        self._reports = Reports(), Reports()
        self._frontiers: dict[tuple[str, str], int] = {}
        self._left_times: list[Numbers] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple; called only if a value has no Arrow type."""
        side = self._stages[tuple.source_component]
        self._add(side, self._intakes[side].tuples(0, tuple.source_task, [tuple]))

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch: tuples of a side, its newest times, or the frontier of its component."""
        assert self._context.source is not None
        component, stream, task = self._context.source
        side = self._stages.get(component)
        if side is None:
            self._frontiers[component, stream] = batch.column(0)[-1].as_py()
        elif stream == DEFAULT_STREAM:
            self._add(side, self._intakes[side].batch(0, task, batch))
        else:
            self._add_times(side, batch)

    def _add_times(self, side: int, batch: Any) -> None:
        """Take what a map-side stage reports: newest times by partition, and the times of all left rows."""
        every = integers(batch.column(0)) == ALL_TIMES
        if every.any():
            self._left_times.append(integers(batch.column(2))[every])
            batch = batch.filter(pa.array(~every))
        self._reports[side].add(batch)

    def _add(self, side: int, chunk: Chunk) -> None:
        # Positions of different tasks differ, so that an arrival is that of one row, whatever the task.
        positions = np.arange(self._count, self._count + len(chunk)) * self.plan.parallelism + self._context.task
        assert chunk.times is not None
        self._chunks[side].append((chunk, chunk.times, positions))
        self._count += len(chunk)

    def finish_batch(self) -> None:
        """Add the rows, release and join left rows, expire right rows, and keep what the next transaction needs."""
        plan, context = self.plan, self._context
        records = context.state(self.progress.name)
        component = JoinRecord.read(records.get(COMPONENT))
        rows = JoinRows(plan, context, records, component)
        arrivals = [
            side.arrivals(context, reports.newest, self._frontiers)
            for side, reports in zip(plan.sides, self._reports, strict=True)
        ]
        left_progress, right_progress = (
            side.rule.after(before, arrived, context.stamp)
            for side, before, arrived in zip(plan.sides, (component.left, component.right), arrivals, strict=True)
        )
        released = plan.bounds.released(right_progress.watermark)
        left_reached = plan.sides[LEFT].rule.reached(left_progress, arrivals[LEFT], context.stamp)
        after = replace(
            component,
            left=left_progress,
            right=right_progress,
            tasks=plan.parallelism,
            released=released,
            about=plan.about(),
        )
        after, late = self._joined(rows, left_reached, component, after)
        records.put(unit_of_task(context.task), rows.record.text())
        if context.task == 0:
            ahead = component.ahead
            for side, reports in zip(plan.sides, self._reports, strict=True):
                ahead = reports.count_ahead(side.windows, ahead, context)
            records.put(COMPONENT, replace(after, ahead=ahead).text())
            frontier = plan.bounds.frontier(right_progress.watermark, left_reached)
            if frontier is not None:
                shift = 0 if frontier == END else plan.sides[LEFT].form.shift
                self._collector.emit(frontier - shift, stream=FRONTIER)
        self._report(after, arrivals, late)
        self._wake(after, arrivals)

    def _joined(
        self, rows: JoinRows, left_reached: int | None, before: JoinRecord, after: JoinRecord
    ) -> tuple[JoinRecord, int]:
        """Release and join left rows, and expire right rows.

        Returns:
            The record `after` with pending rows and bound, and the number of left rows that came late.
        """
        bounds, record, output = self.plan.bounds, rows.record, JoinOutput(self.plan, self._collector, self._context)
        left, _ = self._rows(LEFT)
        late = int((left.times - bounds.before < before.bound).sum()) if before.bound > LOWEST else 0
        passed = before.right.watermark
        of_right = (times for _, times, _ in self._chunks[RIGHT])
        stragglers = 0 if passed is None else sum(int(np.count_nonzero(times < passed)) for times in of_right)
        freed = rows.released(after.released, left)
        arrived = np.concatenate(self._left_times) if self._left_times else left.times
        oldest, newest = rows.oldest(after.released, arrived)
        bound = bounds.expired(left_reached, oldest)
        # Right rows of earlier times match nothing, whether they have come before or now.
        least = before.bound if bound is None else max(bound, before.bound)
        if len(freed):
            least = min(least, int(freed.times[0]) - bounds.before)
        right, skipped = self._rows(RIGHT, LOWEST if output.shows_expired else least)
        rows.passed(RIGHT, skipped)
        known = rows.window()
        new = len(known.blocks)
        window = known.with_rows(right)
        pairs = window.pairs(freed, freed.times - bounds.before, freed.times + bounds.after, new)
        alone = output.released(freed, window, pairs)
        window, matched = window.marked(pairs)
        window, never = window.expire(bound, new)
        unmatched = output.expired(never) + int(skipped.num_rows)
        rows.keep(window, right, matched, window.bound)
        self._results = output.results
        rows.record = replace(
            rows.record,
            stragglers=record.stragglers + stragglers,
            late=record.late + late,
            released=record.released + len(freed),
            joined=record.joined + len(pairs),
            unmatched_left=record.unmatched_left + alone,
            unmatched_right=record.unmatched_right + unmatched,
        )
        return replace(after, bound=window.bound, oldest_pending=oldest, newest_pending=newest), late

    def _rows(self, side: int, least: int = LOWEST) -> tuple[Rows, pa.Table]:
        """Return the rows of a side that have come: those of times from `least` on, and what is `SHOWN` of others."""
        form, txid = self.plan.sides[side].form, self._attempt.txid
        there, earlier = list[pa.Table](), list[pa.Table]()
        for chunk, times, positions in self._chunks[side]:
            for which, parts, names in ((times >= least, there, None), (times < least, earlier, SHOWN)):
                if which.any():
                    parts.append(form.rows_of(taken(chunk, which), txid, positions[which], names))
        return form.rows(_united(there, form.schema)), _united(earlier, pa.schema(map(form.schema.field, SHOWN)))

    def _report(self, after: JoinRecord, arrivals: list[Arrivals], late: int) -> None:
        context, windows = self._context, self.plan.sides[RIGHT].windows
        more: dict[str, Any] = {"ahead": sum(one.number_ahead(context) for one in self._reports)}
        more["held_back_by"] = self._held_back(after, arrivals) if context.task == 0 else None
        windows.report(context, after.right.watermark, self._results, late, kind="join", **more)

    def _held_back(self, after: JoinRecord, arrivals: list[Arrivals]) -> HeldBack | None:
        """Return the partition of the right side with the oldest newest time."""
        found = self.plan.sides[RIGHT].rule.held_back_by(after.right, arrivals[RIGHT], self._context.stamp)
        if found is None:
            return None
        one = self.plan.sides[RIGHT].windows.inputs[0]
        partition, since = found
        return HeldBack(one.component, one.stream, partition, (self._context.stamp - since) * MICROSECOND)

    def _wake(self, after: JoinRecord, arrivals: list[Arrivals]) -> None:
        """Ask for a transaction when a side may advance without data."""
        plan, context = self.plan, self._context
        waits_for = None if after.oldest_pending is None else after.oldest_pending + plan.bounds.after + 1
        progress: tuple[Progress, Progress] = after.left, after.right
        for side, one in enumerate(plan.sides):
            due = one.rule.wake(progress[side], arrivals[side], context.stamp, waits_for if side == RIGHT else None)
            if due is not None:
                context.wake_at(due)


def _united(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of `parts` in one chunk; each of them is."""
    if len(parts) < 2:
        return parts[0] if parts else schema.empty_table()
    return pa.concat_tables(parts).combine_chunks()
