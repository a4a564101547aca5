"""Rows of an interval join that a task keeps: pending left rows, and the right rows of the window.

The window is derived from the state and held in memory from one transaction to the next; whenever it is not there, as
after a start or a failure, it is read from the state again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa

from txstorm.api.context import TaskContext
from txstorm.api.state import StateHandle
from txstorm.joins.interval.interval_plan import LEFT, RIGHT, SIDES, IntervalPlan
from txstorm.joins.interval.join_records import JoinRecord, TaskRecord, unit_of_task
from txstorm.joins.rules.blocks import ARRIVAL, KEY, LARGEST, Block, Mask, Numbers, Rows
from txstorm.joins.rules.matching import LOWEST, RightWindow
from txstorm.joins.rules.pending import Pending, united
from txstorm.joins.side_rows import GROUP, ID, PARTITION, POSITION_BITS, TIME, texts_of
from txstorm.keys import KEY_GROUPS, tasks_of
from txstorm.row_order import order_of
from txstorm.windows.aggregates.groups import integers, whole

_NOTED = 100
"""Greatest number of rows that come and go in one transaction for which they are noted."""
_HELD = 1 << 21
"""Number of pending rows up to which they are held in memory; more are read from the state when they are released."""
_DENSE = 64
"""Number of flags per row up to which matched rows are looked up in an array of flags."""
_STEP = 1_000_000
"""Range of times, in microseconds, in which the oldest pending row is looked for first."""


class JoinRows:
    """The stored rows of one task in one transaction.

    Args:
        plan: the plan of the join.
        context: the task.
        records: the records of the component and its tasks.
        component: the component's record.
    """

    def __init__(self, plan: IntervalPlan, context: TaskContext, records: StateHandle, component: JoinRecord) -> None:
        self._plan = plan
        self._context = context
        self._own = plan.own_groups(context.task)
        self._left, self._right, self._matched = (context.collection(one.name) for one in plan.states)
        tasks = component.tasks or plan.parallelism
        units = [unit_of_task(task) for task in range(tasks)]
        texts = records.get_many(units)
        self._others = [TaskRecord.read(texts.get(unit)) for unit in units]
        self.moved = tasks != plan.parallelism
        self.record = self._adopted(records, tasks) if self.moved else replace(self._others[context.task], passing=())

    # -- pending left rows ---------------------------------------------------------------------------------------------

    def released(self, limit: int | None, new: Rows) -> Rows:
        """Take left rows that have come; return those of times before `limit`, with those that were pending.

        They are sorted by time and arrival. The others stay, or become, pending.
        """
        if limit is not None and any(one.pending for one in self._others):
            self._left.evict_before(limit)
        due = np.zeros(len(new), bool) if limit is None else new.times < limit
        later = new if not due.any() else new.taken(~due)
        known = None if self.moved else self._left.recall()
        pending = known if isinstance(known, Pending) else self._pending()
        waiting, parts = (None, self._scanned(limit)) if pending is None else pending.released(limit)
        if len(later):
            self._left.append_batch(later.stored)
        count = self.record.pending - sum(map(len, parts)) + len(later)
        newest = max(self.record.newest, int(later.times.max(initial=LOWEST)))
        self.record = replace(self.record, pending=count, newest=newest)
        if waiting is None:
            oldest = None if count == len(later) else self._oldest(LOWEST if limit is None else limit)
            times = [one for one in (oldest, int(later.times.min()) if len(later) else None) if one is not None]
            self.record = replace(self.record, oldest=min(times, default=None))
        else:
            waiting = waiting.with_rows(later)
            self.record = replace(self.record, oldest=waiting.oldest)
            if count <= _HELD:
                self._left.remember(waiting)
        at_once = new.taken(due) if len(later) else new
        self._note(LEFT, at_once)
        freed = united([*parts, at_once])
        return freed.taken(order_of(freed.times, integers(freed.stored.column(ARRIVAL))))

    def _note(self, side: int, rows: Rows) -> None:
        """Note rows that come and go in this transaction, if they are few, for the history of their keys.

        They are in no state: left rows that are released at once, and right rows that expire on arrival.
        """
        if not 0 < len(rows) <= _NOTED:
            return
        plain = self._plan.sides[side].form.plain
        held = ((name, whole(rows.stored.column(name))) for name in (KEY, ID, PARTITION))
        columns = [(texts_of(column, name) if name in plain else column).to_pylist() for name, column in held]
        numbers = [integers(rows.stored.column(name)).tolist() for name in (GROUP, TIME, ARRIVAL)]
        noted = [(SIDES[side], *row) for row in zip(*columns, *numbers, strict=True)]
        self.record = replace(self.record, passing=(*self.record.passing, *noted))

    def _pending(self) -> Pending | None:
        """Return the pending rows as they were after the previous transaction; None if they are too many to hold."""
        if self.record.pending > _HELD:
            return None
        form = self._plan.sides[LEFT].form
        if not self.record.pending:
            return Pending()
        return Pending().with_rows(form.rows(self._left.scan_table(self._own).select(form.schema.names)))

    def _scanned(self, limit: int | None) -> list[Rows]:
        """Return the pending rows of times before `limit`, read from the state."""
        form, oldest = self._plan.sides[LEFT].form, self.record.oldest
        if limit is None or oldest is None or oldest >= limit:
            return []
        return [form.rows(self._left.scan_table(self._own, None, limit - 1).select(form.schema.names))]

    def _oldest(self, low: int) -> int | None:
        """Return the time of the oldest stored pending row from `low` on."""
        low, step, newest = max(low, self.record.oldest or low), _STEP, self.record.newest
        while low <= newest:
            found = self._left.scan_table(self._own, low, min(low + step, newest))
            if found.num_rows:
                return int(integers(found.column(TIME)).min())
            low, step = low + step + 1, step * 8
        return None

    # -- right rows ----------------------------------------------------------------------------------------------------

    def window(self) -> RightWindow:
        """Return the right rows of the window as they were after the previous transaction."""
        known = None if self.moved else self._right.recall()
        return known if isinstance(known, RightWindow) else self._loaded()

    def keep(self, window: RightWindow, rows: Rows, matched: list[tuple[Block, Numbers]], bound: int) -> None:
        """Keep the window, its new rows, and which rows have matched for the first time."""
        later = rows.times >= bound
        if len(rows):
            new = rows.stored if later.all() else rows.stored.filter(pa.array(later))
            if new.num_rows:
                self._right.append_batch(new)
            self._note(RIGHT, rows.taken(~later))
        parts = []
        for block, at in matched:
            live = at[block.times[at] >= bound]
            part = block.stored.select([GROUP, ARRIVAL]).take(pa.array(block.at[live]))  # stored times are on disk
            parts.append(part.append_column(TIME, pa.array(block.times[live])))
        flags = pa.concat_tables(parts) if parts else None
        if flags is not None and flags.num_rows:
            self._matched.append_batch(flags)
        if bound > LOWEST and any(one.buffered for one in self._others):
            self._right.evict_before(bound)
            self._matched.evict_before(bound)
        self.record = replace(self.record, bound=bound, buffered=len(window))
        self._right.remember(window)

    def _loaded(self) -> RightWindow:
        """Read the right rows of the window from the state, in parts, each of which becomes a block."""
        start = self.record.bound if self.record.bound > LOWEST else None
        none = np.empty(0, np.int64)
        matched = self._matched.scan_parts(
            lambda parts: np.concatenate([none, *(integers(self._mine(one).column(ARRIVAL)) for one in parts)]), start
        )
        blocks = self._right.scan_parts(lambda parts: tuple(self._blocks(parts, matched)), start)
        return RightWindow(blocks, self.record.bound, self._plan.exact)

    def _blocks(self, parts: Iterator[pa.Table], matched: Numbers) -> Iterator[Block]:
        form, waiting = self._plan.sides[RIGHT].form, list[pa.Table]()
        for part in chain(parts, [None]):
            if part is not None:
                waiting.append(self._mine(part.select(form.schema.names)))
            size = sum(one.num_rows for one in waiting)
            if size >= LARGEST or (part is None and size):
                stored, waiting = pa.concat_tables(waiting).combine_chunks(), []
                arrivals = integers(stored.column(ARRIVAL))
                if (arrivals[1:] < arrivals[:-1]).any():
                    turn = order_of(arrivals)
                    stored, arrivals = stored.take(pa.array(turn)), arrivals[turn]
                rows = form.rows(stored)
                block = Block.of(rows.hashes, rows.times, rows.stored, _among(arrivals, matched))
                yield replace(block, loaded=True)

    def _mine(self, rows: pa.Table) -> pa.Table:
        """Return those of the rows of all tasks that are this one's, and have not expired."""
        if self._own is None and not self.moved:
            return rows
        groups, there = integers(rows.column(GROUP)), np.ones(rows.num_rows, bool)
        if self._own is not None:
            own = np.zeros(KEY_GROUPS, bool)
            own[integers(self._own.column(GROUP))] = True
            there = own[groups]
        return rows.filter(pa.array(there & self._unexpired(rows) if self.moved else there))

    # -- another number of tasks ---------------------------------------------------------------------------------------

    def _adopted(self, records: StateHandle, tasks: int) -> TaskRecord:
        """Return the record of this task after the number of tasks has changed."""
        plan, context = self._plan, self._context
        groups = np.arange(KEY_GROUPS) if self._own is None else integers(self._own.column(GROUP))
        bounds = np.array([one.bound for one in self._others])[self._former(groups)]
        least = int(bounds.min()) if len(bounds) else max(one.bound for one in self._others)
        higher = bounds > least
        if higher.any():
            cut = pa.table({GROUP: groups[higher], TIME: bounds[higher]})
            self._right.evict_batch(cut)
            self._matched.evict_batch(cut)
        waiting = self._left.scan_table(self._own)
        times = integers(waiting.column(TIME))
        record = TaskRecord(bound=least, pending=len(times))
        if len(times):
            record = replace(record, oldest=int(times.min()), newest=int(times.max()))
        if context.task == 0:
            names = ("stragglers", "late", "released", "joined", "unmatched_left", "unmatched_right")
            record = replace(record, **{name: sum(getattr(one, name) for one in self._others) for name in names})
            records.remove_many([unit_of_task(task) for task in range(plan.parallelism, tasks)])
        return record

    def _former(self, groups: Numbers) -> Numbers:
        """Return the task that had each key group before the number of tasks changed."""
        if self._plan.to_first:
            return np.zeros(len(groups), np.int64)
        return tasks_of(groups, len(self._others))

    def _unexpired(self, table: pa.Table) -> Mask:
        bounds = np.array([one.bound for one in self._others])
        live: Mask = integers(table.column(TIME)) >= bounds[self._former(integers(table.column(GROUP)))]
        return live


def _among(arrivals: Numbers, matched: Numbers) -> Mask:
    """Return which arrivals are among those that have matched; each is that of one row."""
    found = np.zeros(len(arrivals), bool)
    if not len(matched) or not len(arrivals):
        return found
    first, last = int(arrivals.min()) >> POSITION_BITS, int(arrivals.max()) >> POSITION_BITS
    width = max(int((one & ((1 << POSITION_BITS) - 1)).max()) for one in (arrivals, matched)) + 1
    if (last - first + 1) * width > _DENSE * (len(arrivals) + len(matched)):
        found = np.isin(arrivals, matched)
        return found
    flags = np.zeros((last - first + 1) * width, bool)  # one for each txid and position
    inside = matched[(matched >= first << POSITION_BITS) & (matched < (last + 1) << POSITION_BITS)]
    flags[_dense(inside, first, width)] = True
    return flags[_dense(arrivals, first, width)]


def _dense(arrivals: Numbers, first: int, width: int) -> Numbers:
    return ((arrivals >> POSITION_BITS) - first) * width + (arrivals & ((1 << POSITION_BITS) - 1))
