"""Data delay sync: holds the left rows of a join until the right side has been consumed past them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.errors import InputError
from txstorm.joins.columns import Column, columns_of, emit, united
from txstorm.joins.delay.feed import POSITION
from txstorm.joins.delay.lone_side import ProgressCommitter
from txstorm.joins.rules.blocks import ARRIVAL
from txstorm.joins.side import Side
from txstorm.joins.side_plan import SidePlan, checked_side, side_faults
from txstorm.joins.side_rows import GROUP, TIME, arrivals_of, taken
from txstorm.user_code import InDriver
from txstorm.windows.aggregates.groups import integers, own_groups
from txstorm.windows.intake import Chunk
from txstorm.windows.records import COMPONENT, ComponentRecord, unit_of_task
from txstorm.windows.rules.event_time import END, Times, instant, microseconds
from txstorm.windows.rules.forms import Duration, duration, signed_duration

log = logging.getLogger(__name__)
AT_ONCE, EVERY_SECOND = Duration(0), Duration.seconds(1)
Report = Callable[[], Any]
"""Function that returns the time up to which the right side has been consumed, as the time field has it, or None."""


class DataDelaySync(AssembledBolt):
    """Bolt that passes left rows on once the right side has been consumed past them, ordered by time and arrival.

    A row passes when its time + `after` is below the *consumed time*: the position of the `StoreFeed` whose stream
    ``position`` it reads with an all-grouping, or what `report` returns. The consumed time never decreases; at the end
    of input all rows pass. Rows that wait are the state ``<component>-left``, for as long as it takes.

    Args:
        left: the rows.
        after: how much later than a left row the right rows that it matches may be.
        report: returns the consumed time of a feed in another topology, as the time field has it, or None, with which
            nothing passes. It is called in the driver, when a transaction is planned; its answer is kept for replays.
        refresh: how long an answer of `report` is used, by stamps of transactions.

    Raises:
        InputError: an argument is wrong.
    """

    def __init__(
        self,
        left: Side,
        *,
        after: Duration | timedelta = AT_ONCE,
        report: Report | None = None,
        refresh: Duration | timedelta = EVERY_SECOND,
    ) -> None:
        self.left = checked_side("DataDelaySync", "left", left)
        self.after = signed_duration(after, "DataDelaySync: after")
        if report is not None and not callable(report):
            raise InputError(f"DataDelaySync: report: expected a function that returns a time or None, got {report!r}")
        self.report = report
        self.refresh = duration(refresh, "DataDelaySync: refresh", zero=True).microseconds

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that holds rows and passes them on."""
        positions = [(one.component, one.stream) for one in site.inputs if one.fields == (POSITION,)]
        faults = side_faults("DataDelaySync", "left", self.left, site, positions)
        if self.report is None and not positions:
            faults.append(
                "DataDelaySync: nothing tells how far the right side has been consumed; subscribe to the stream of a "
                "StoreFeed, all_grouping(feed, 'position'), or give report=…"
            )
        elif self.report is not None and positions:
            faults.append(
                f"DataDelaySync: it has a report and reads the position of {positions[0][0]!r}; give one of the two"
            )
        if len(positions) > 1:
            names = " and ".join(repr(component) for component, _ in positions)
            faults.append(f"DataDelaySync: it reads the positions of {names}; one right side is possible")
        faults += [
            f"DataDelaySync: the position of {one.component!r} comes by {one.grouping} grouping, so that not every "
            f"task gets it; use all_grouping({one.component!r}, {one.stream!r})"
            for one in site.inputs
            if (one.component, one.stream) in positions and one.grouping != "all" and site.parallelism > 1
        ]
        made = SyncPlan(SidePlan.of(self.left, site), self.after, positions[0] if positions else None, self.refresh)
        return Assembly(
            SyncCommitter(made) if self.report is None else ReportedSyncCommitter(made, self.report), tuple(faults)
        )


@dataclass(frozen=True)
class SyncPlan:
    """Plan of a data delay sync.

    Attributes:
        side: the left side.
        after: in microseconds.
        position: component and stream of the position; None: it is reported.
        refresh: how long a report is used, in microseconds.
    """

    side: SidePlan
    after: int
    position: tuple[str, str] | None
    refresh: int

    def released(self, consumed: int | None) -> int | None:
        """Return the time before which rows pass; None: none does."""
        return consumed if consumed is None or consumed == END else consumed - self.after


class SyncCommitter(ProgressCommitter):
    """Committer that takes the place of a `DataDelaySync` that reads positions."""

    def __init__(self, plan: SyncPlan) -> None:
        super().__init__(plan.side, {**plan.side.fixed(), "after": f"{plan.after} us"})
        self.plan = plan
        state = plan.side.form.state(f"{plan.side.windows.id}-left")
        tasks = None if plan.side.by_fields else plan.side.windows.parallelism
        self.held = replace(state, tasks=tasks, fixed=plan.side.fixed())
        self.internal_states = {self.held.name, self.progress.name}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the left rows."""
        declarer.declare(self.plan.side.fields)

    def retention(self, state: str) -> str | None:
        """Describe for how long a state is kept."""
        if state == self.held.name:
            return "evicted when the right side has been consumed past it"
        return "one row per task" if state == self.progress.name else None

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt | None:
        """Return the stage that checks the times of left rows; None for positions."""
        side = self.plan.side
        return side.stage() if (source, stream) == side.side.reads else None

    def finish_batch(self) -> None:
        """Pass on the rows that the right side has been consumed past, and hold the others."""
        plan, context = self.plan, self._context
        records = context.state(self.progress.name)
        component = ComponentRecord.read(records.get(COMPONENT))
        held, oldest = self._held(records.get(unit_of_task(context.task)), component)
        before = component.progress.watermark
        consumed = END if context.end_of_input else _later(before, self._consumed())
        rows = HeldRows(plan.side, context, self._collector)
        if held is None:
            held = rows.count()
        released = plan.released(consumed)
        passage = rows.pass_on(self.chunks, released, some_held=held > 0)
        arrived = sum(len(chunk) for chunk in self.chunks)
        held += passage.held - passage.passed
        oldest = _oldest(oldest, passage.oldest, released) if held else None
        self._show(consumed, arrived - passage.held + passage.passed, "sync")
        records.put(unit_of_task(context.task), json.dumps({"held": held, "oldest": oldest}))
        if context.task == 0:
            followed = plan.side.rule.after(component.progress, self._arrivals(), context.stamp)
            self._save(records, component, replace(followed, watermark=consumed, advanced=context.stamp))
        if held and consumed != END:
            self._wake(component, consumed, oldest)

    def _held(self, record: str | None, component: ComponentRecord) -> tuple[int | None, int | None]:
        """Return the number of rows held, None if unknown, and a time that none of them is below."""
        if component.tasks not in (None, self._context.parallelism):
            return None, None
        found = {"held": 0, "oldest": None} if record is None else json.loads(record)
        return found["held"], found["oldest"]

    def _consumed(self) -> int | None:
        """Return the consumed time that this transaction brings; None if it brings none."""
        assert self.plan.position is not None
        found: int | None = self.others.get(self.plan.position)
        return found

    def _wake(self, component: ComponentRecord, consumed: int | None, oldest: int | None) -> None:
        """Ask for a transaction when the next row may pass, if the consumed time follows the stamps."""
        before, stamp = component.progress, self._context.stamp
        if consumed is None or oldest is None:
            return
        follows = (
            before.watermark is None
            or before.advanced is None
            or (stamp - consumed <= before.advanced - before.watermark)
        )
        if follows:
            self._context.wake_at(max(oldest + self.plan.after + stamp - consumed, stamp) + 1)


class ReportedSyncCommitter(SyncCommitter):
    """Committer that takes the place of a `DataDelaySync` whose consumed time is reported.

    Args:
        plan: the plan.
        report: the user's function; it stays in the driver.
    """

    def __init__(self, plan: SyncPlan, report: Report) -> None:
        super().__init__(plan)
        self._report = InDriver(report)
        self._warned = False

    def pin(self, context: TaskContext, previous: Any) -> dict[str, int | None]:
        """Return the reported time, never below the one before, and the stamp at which it was asked for.

        An answer that is no time, or an earlier one, is logged once, and the previous time stays.
        """
        if previous is not None and context.stamp < previous["asked"] + self.plan.refresh:
            kept: dict[str, int | None] = previous
            return kept
        last = None if previous is None else previous["time"]
        answer = self._report.value()
        fault, time = None, last
        if answer is not None:
            found = microseconds(answer, self.side.side.unit)
            if isinstance(found, str):
                fault = f"returned no time: {found}"
            elif last is not None and found < last:
                fault = f"went back from {instant(last).isoformat()} to {instant(found).isoformat()}"
            else:
                time = found
        if fault is not None and not self._warned:
            stays = "nothing passes" if last is None else f"the consumed time stays {instant(last).isoformat()}"
            log.warning("%s: its report %s; %s until it returns a later time", context.component, fault, stays)
        self._warned = fault is not None
        return {"time": time, "asked": context.stamp}

    def _consumed(self) -> int | None:
        pinned = self._context.pinned
        return None if pinned is None else pinned["time"]

    def _wake(self, component: ComponentRecord, consumed: int | None, oldest: int | None) -> None:
        """Ask for a transaction when the report is to be asked again."""
        pinned, stamp = self._context.pinned, self._context.stamp
        asked = stamp if pinned is None else pinned["asked"]
        self._context.wake_at(max(asked + self.plan.refresh, stamp + 1))


def _later(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


def _oldest(before: int | None, first: int | None, released: int | None) -> int | None:
    """Return a time that no held row is below, given those of earlier transactions and of this one."""
    known = [one for one in (before, first) if one is not None]
    low = min(known, default=None)
    return released if low is None else low if released is None else max(low, released)


@dataclass(frozen=True)
class Passage:
    """Fate of rows in a transaction: passed on, or held.

    Attributes:
        held: number of its rows that are held now.
        oldest: the time of the oldest of these; None if there is none.
        passed: number of rows of earlier transactions that have passed.
    """

    held: int
    oldest: int | None
    passed: int


class HeldRows:
    """The rows that a task holds, in one transaction."""

    def __init__(self, side: SidePlan, context: TaskContext, collector: Collector) -> None:
        self._side = side
        self._form = side.form
        self._collector = collector
        self._task = context.task
        self._txid = context.attempt.txid if context.attempt is not None else 0
        self._stored = context.collection(f"{side.windows.id}-left")

    def count(self) -> int:
        """Return the number of rows held."""
        return int(self._scanned(None).num_rows)

    def pass_on(self, chunks: Sequence[Chunk], released: int | None, *, some_held: bool) -> Passage:
        """Emit the rows before the time `released`, by time and arrival, and hold the others.

        Args:
            chunks: the rows of this transaction.
            released: the time before which rows pass; None: none does.
            some_held: whether rows of earlier transactions may be held.
        """
        passing, oldest, held, first = list[tuple[list[Column], Times, Times]](), None, 0, 0
        for chunk in chunks:
            assert chunk.times is not None
            due = np.full(len(chunk), released == END) if released in (None, END) else chunk.times < released
            # Positions of different tasks differ, so that an arrival is that of one row, whatever the task.
            positions = np.arange(first, first + len(chunk)) * self._side.windows.parallelism + self._task
            if due.any():
                arrivals = arrivals_of(self._txid, positions[due])
                passing.append((columns_of(taken(chunk, due)), chunk.times[due], arrivals))
            if not due.all():
                self._hold(chunk, ~due, positions)
                held += int((~due).sum())
                lowest = int(chunk.times[~due].min())
                oldest = lowest if oldest is None else min(oldest, lowest)
            first += len(chunk)
        passed = 0
        if released is not None:
            stored = self._scanned(released) if some_held else None
            if stored is not None and stored.num_rows:
                passed = stored.num_rows
                values = [self._form.values(stored, field) for field in self._form.fields]
                passing.append((values, integers(stored.column(TIME)), integers(stored.column(ARRIVAL))))
            self._stored.evict_before(released)
        if passing:
            parts, times, arrivals = zip(*passing, strict=True)
            order = np.lexsort((np.concatenate(arrivals), np.concatenate(times)))
            columns = [united(of_field, order) for of_field in zip(*parts, strict=True)]
            emit(self._collector, self._form.fields, columns)
        return Passage(held, oldest, passed)

    def _scanned(self, before: int | None) -> pa.Table:
        """Return the stored rows of this task before a time; None: all."""
        return self._stored.scan_table(self._own(), None, None if before in (None, END) else before - 1)

    def _own(self) -> pa.Table | None:
        """Return the collections of this task; None for all."""
        tasks = self._side.windows.parallelism
        if tasks == 1 or self._side.by_fields:
            return own_groups(GROUP, self._task, tasks)
        return pa.table({GROUP: pa.array([self._task], pa.int64())})

    def _hold(self, chunk: Chunk, chosen: Any, positions: Times) -> None:
        rows = self._form.rows_of(chunk, self._txid, positions).filter(pa.array(chosen))
        if not self._side.by_fields:
            task = pa.array(np.full(rows.num_rows, self._task, np.int64))
            rows = rows.set_column(rows.column_names.index(GROUP), GROUP, task)
        self._stored.append_batch(rows)
