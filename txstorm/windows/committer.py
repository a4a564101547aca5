"""Window committer: buffers tuples, fires windows, and calls the user's windowed bolt for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from txstorm.api.assembly import PartialCommitter, Results
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.state import form_of_keys
from txstorm.api.tuples import Tuple
from txstorm.errors import StateError
from txstorm.windows.buffer import ARRIVAL, SOURCE, TIME, UNIT, TupleBuffer, buffer_state, typed_columns
from txstorm.windows.intake import Check, Chunk, Intake
from txstorm.windows.late import LateTuples, report_late
from txstorm.windows.newest import NewestTimes, Reports
from txstorm.windows.plan import WindowPlan
from txstorm.windows.records import StoredInputs, UnitRecord, progress_state, unit_of_task
from txstorm.windows.rules.event_time import END, Times, late
from txstorm.windows.rules.firing import ARRIVAL_BITS, PASSED, Moment
from txstorm.windows.turn import ComponentTurn
from txstorm.windows.units import Fired, Units, queue_state
from txstorm.windows.window import CONTENT, TupleWindow, WindowReader


class WindowCommitter(PartialCommitter):
    """Committer that takes the place of a windowed bolt.

    Args:
        plan: the plan of the component.
        bolt: the user's bolt; every task has a copy for each transaction.
        tables: the tables that the bolt declares.

    Attributes:
        processing_time: whether its windows close by time alone.
        checks: called with tuples before anything else is done with them; each raises an error for one that the bolt
            cannot take.
        by_clock: whether the time between transactions matters.
        published: stream → what is known of the results on it.
    """

    timers: ClassVar[bool] = True

    def __init__(self, plan: WindowPlan, bolt: Any, tables: tuple[Any, ...]) -> None:
        self.plan = plan
        self.bolt = bolt
        self.tables = tables
        self.external = bool(getattr(bolt, "external", False))  # type: ignore[misc]
        self.processing_time, self.by_clock = plan.closed_by_time, plan.by_clock
        self.tuples = buffer_state(plan)
        self.progress = progress_state(plan, plan.fixed())
        self.queue = None if plan.key is None else queue_state(plan)
        self.also_reads = plan.also_reads
        self.checks: tuple[Check, ...] = () if plan.columns is None else (partial(typed_columns, plan),)
        self.internal_states = {one.name for one in (self.tuples, self.progress, self.queue) if one is not None}
        self.published: dict[str, Results] = {}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of the user's bolt, and that of late tuples."""
        self.bolt.declare_output_fields(declarer)
        if self.plan.late_stream is not None and self.plan.late_stream not in declarer.streams:
            declarer.declare_stream(self.plan.late_stream, self.plan.union)

    def retention(self, state: str) -> str | None:
        """Describe for how long a state is kept; None: as it is declared."""
        if state == self.tuples.name:
            return self.plan.buffer_retention()
        if self.queue is not None and state == self.queue.name:
            return "evicted when due"
        return self.plan.record_retention() if state == self.progress.name else None

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt | None:
        """Return the stage that checks timestamps and reports the newest to all tasks; None in processing time."""
        return NewestTimes(self.plan, source, stream, self.checks) if self.plan.event_time else None

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector, self._attempt = context, collector, attempt
        self._intake = Intake(self.plan, attempt, form=form_of_keys(context.state(self.progress.name)))
        self._chunks: list[Chunk] = []
        self._reports = Reports()
        self._frontiers: dict[tuple[str, str], int] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple; called only if a value has no Arrow type."""
        number = self._intake.number(tuple.source_component, tuple.source_stream)
        assert number is not None
        self._add(self._intake.tuples(number, tuple.source_task, [tuple]))

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch."""
        assert self._context.source is not None
        component, stream, task = self._context.source
        number = self._intake.number(component, stream)
        if number is not None:
            self._add(self._intake.batch(number, task, batch))
            return
        if (component, stream) in self.also_reads:
            self._frontiers[component, stream] = batch.column(0)[-1].as_py()
            return
        self._reports.add(batch)

    def _add(self, chunk: Chunk) -> None:
        for check in () if self.plan.event_time else self.checks:  # else checked in the tasks of the source
            check(chunk)
        self._chunks.append(chunk)

    def finish_batch(self) -> None:
        """Add the tuples, fire the windows, and keep what the next transaction needs."""
        plan, context = self.plan, self._context
        records = context.state(self.progress.name)
        turn = ComponentTurn(plan, plan.declared(), records, context, self._reports, self._frontiers)
        before, ends, passed = turn.before, turn.ends, turn.before.progress.watermark
        moment = Moment(
            self._attempt.txid,
            before.ends.fired,
            ends.fired,
            plan.key is not None,
            not plan.event_time,
            before.ends.closing(turn.progress.watermark),
            passed,
        )
        buffer = TupleBuffer(plan, context.collection(self.tuples.name), turn.inputs)
        rows, gaps, lates = self._rows(buffer, passed)
        queue = None if self.queue is None else context.collection(self.queue.name)
        units = Units(plan, context.task, moment, context.stamp, buffer, records, queue)
        if before.tasks not in (None, plan.parallelism):
            units.adopt(before.tasks)
        fired = units.evaluate(rows, gaps)
        early_stamp, early_txid = context.stamp if before.early_stamp is None else before.early_stamp, before.early_txid
        early_due = plan.early is not None and not ends.waiting and context.stamp - early_stamp >= plan.early
        if early_due:
            fired += units.early(early_txid)
            early_stamp, early_txid = context.stamp, self._attempt.txid
        if lates:
            self._count_late(lates, units, turn.inputs)
        if fired:
            self._call(buffer, fired)
        units.save()
        number, late_number = sum(one.window.final for one in fired), sum(len(one.rows) for one in lates)
        turn.end(number, late_number, units.next_end, early_stamp=early_stamp, early_txid=early_txid)
        changed = bool(rows.num_rows or before.ends.waiting) and not early_due
        if plan.early is not None and changed and turn.progress.watermark != END:
            context.wake_at(early_stamp + plan.early)

    def _rows(self, buffer: TupleBuffer, passed: int | None) -> tuple[pa.Table, Times, list[LateTuples]]:
        """Return the rows to buffer, sorted by unit and place, the gap after each, and each chunk's late tuples.

        `passed`: the watermark after the previous transaction.
        """
        plan = self.plan
        tables, gaps, lates, number = [], [], [], self._attempt.txid << ARRIVAL_BITS
        task = unit_of_task(self._context.task)
        for chunk in self._chunks:
            size = len(chunk)
            stamp = plan.stamped(passed, self._context.stamp)
            times = np.full(size, stamp, np.int64) if chunk.times is None else plan.form.held(chunk.times)
            arrivals = np.arange(number, number + size, dtype=np.int64)
            number += size
            if plan.event_time and plan.form.step is not None and passed is not None:
                arrivals[times == passed] |= PASSED
            units = pa.repeat(task, size) if chunk.units is None else chunk.units
            made = buffer.columns(chunk, units, times, arrivals)
            behind = np.zeros(size, bool) if chunk.times is None else late(chunk.times, passed, plan.form)
            if behind.any():
                assert passed is not None
                lates.append(LateTuples(chunk, np.flatnonzero(behind), passed))
                made = made.filter(pa.array(~behind))
            tables.append(made)
            gaps.append(np.zeros(size, np.int64)[~behind] if chunk.gaps is None else chunk.gaps[~behind])
        if not tables:
            return pa.table({UNIT: [], TIME: [], ARRIVAL: [], SOURCE: []}), np.zeros(0, np.int64), lates
        whole = pa.concat_tables(tables)
        names = whole.column(UNIT).combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        order = np.lexsort((whole.column(ARRIVAL).to_numpy(), whole.column(TIME).to_numpy(), names))
        return whole.take(pa.array(order)).combine_chunks(), np.concatenate(gaps)[order], lates

    def _count_late(self, lates: Sequence[LateTuples], units: Units, inputs: StoredInputs) -> None:
        """Count the late tuples, and report them."""
        numbers: dict[int, int] = {}
        for one in lates:
            number = inputs.numbers[one.chunk.number]
            numbers[number] = numbers.get(number, 0) + len(one.rows)
        task = self._context.task
        # Per key, a name that no key has: those of keys are JSON lists, as are those of tasks.
        name = unit_of_task(task) if self.plan.key is None else f"task {task}"
        record = units.records.get(name)
        if record is None:
            text = self._context.state(self.progress.name).get(name)
            record = UnitRecord() if text is None else UnitRecord.read(text)
        units.records[name] = record.with_late(numbers)
        report_late(self.plan, self._context, self._collector, lates)

    # -- the user's bolt -----------------------------------------------------------------------------------------------

    def _call(self, buffer: TupleBuffer, fired: Sequence[Fired]) -> None:
        """Call the user's bolt for each window that fires."""
        plan, bolt = self.plan, self.bolt
        reader = WindowReader(buffer, fired, plan.in_memory)
        self._open()
        before = dict(vars(bolt))
        for number, (unit, window) in enumerate(fired):
            if str(number) in self.skipped:
                continue
            made = TupleWindow(reader, unit, window, keyed=plan.key is not None, evictor=plan.evictor)
            try:
                self._evaluate(made)
                self._check_kept(before, made)
            except BaseException:
                found, low, high = reader.read(unit, CONTENT, window)
                record = {"key": unit, "end": made.end.isoformat(), "tuples": found.count(low, high)}
                self.failed = str(number), record
                raise
        bolt.cleanup()

    def _open(self) -> None:
        """Prepare the user's bolt for the windows of this transaction."""
        self.bolt.prepare(self._context, self._collector)

    def _evaluate(self, window: TupleWindow) -> None:
        """Have the user's bolt evaluate a window."""
        self.bolt.execute(window)

    def _check_kept(self, before: dict[str, Any], window: TupleWindow) -> None:
        """Raise `StateError` if `execute` has rebound an attribute: the next transaction has a new object."""
        after = vars(self.bolt)
        rebound = [name for name, value in after.items() if name not in before or before[name] is not value]
        rebound = [name for name in rebound if name not in self.plan.transient]
        if rebound:
            names = ", ".join(f"self.{name}" for name in rebound)
            raise StateError(
                f"{self.plan.id}: execute has set {names} at {window!r}, but each transaction has a new object, so "
                "that would be lost: keep it in a state of the bolt (KeyedState), or list attributes that need not "
                f"outlive the transaction in its class: transient = {tuple(rebound)!r}"
            )
