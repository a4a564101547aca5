"""Rows of an interval join that a task keeps: pending left rows, and the right rows of the window.

The window is derived from the state and held in memory from one transaction to the next; whenever it is not there, as
after a start or a failure, it is read from the state again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa

from txstorm.allocator import return_free_memory
from txstorm.api.context import TaskContext
from txstorm.api.state import StateHandle
from txstorm.joins.interval.interval_plan import ARRIVALS, LEFT, RIGHT, SIDES, TASK, IntervalPlan
from txstorm.joins.interval.join_records import JoinRecord, TaskRecord, packed, unit_of_task
from txstorm.joins.rules.blocks import ARRIVAL, LARGEST, Block, Mask, Numbers, Pending, Rows, united
from txstorm.joins.rules.matching import LOWEST, RightWindow
from txstorm.joins.side_rows import GROUP, POSITION_BITS, TIME
from txstorm.keys import KEY_GROUPS
from txstorm.row_order import order_of
from txstorm.windows.aggregates.groups import integers, own_groups

_HELD = 1 << 21
"""Number of pending rows up to which they are held in memory; more are read from the state when they are released."""
_DENSE = 64
"""Number of flags per row up to which matched rows are looked up in an array of flags."""
_TRIMMED_EVERY = 8
"""Number of transactions after which free memory is returned to the system, if the window is large."""
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
        self._component = component
        self._own = own_groups(GROUP, context.task, plan.parallelism, to_first=plan.to_first)
        self._left, self._right, self._matched, self._passing = (context.collection(one.name) for one in plan.states)
        tasks = component.tasks or plan.parallelism
        units = [unit_of_task(task) for task in range(tasks)]
        texts = records.get_many(units)
        self._others = [TaskRecord.read(texts.get(unit)) for unit in units]
        self.moved = tasks != plan.parallelism
        self.record = self._adopted(records, tasks) if self.moved else replace(self._others[context.task], passing=0)
        assert context.attempt is not None
        self._txid = context.attempt.txid

    def warm_up(self) -> None:
        """Load the window and the pending rows before the turn of this transaction."""
        self._right.remember(self._loaded())
        pending = self._pending()
        if pending is not None:
            self._left.remember(pending)

    # -- pending left rows ---------------------------------------------------------------------------------------------

    def released(self, limit: int | None, new: Rows) -> Rows:
        """Take left rows that have come; return those of times before `limit`, with those that were pending.

        They are sorted by time and arrival. The others stay, or become, pending.
        """
        if any(one.passing for one in self._others):
            self._passing.evict_before(self._txid)
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
        self.record = replace(self.record, pending=count)
        self._waiting = None if waiting is None else waiting.with_rows(later)
        if count <= _HELD and self._waiting is not None:
            self._left.remember(self._waiting)
        at_once = new.taken(due) if len(later) else new
        self.passed(LEFT, at_once.stored)
        needed = self._needed(LEFT)
        freed = united([one.with_columns(needed) for one in (*parts, at_once)])
        return freed.taken(order_of(freed.times, integers(freed.stored.column(ARRIVAL))))

    def oldest(self, limit: int | None, arrived: Numbers) -> tuple[int | None, int]:
        """Return the time of the oldest left row of all tasks that is pending, and that of the newest that ever was.

        Call after `released`, with the same limit. `arrived`: the times of the left rows of all tasks that have come.
        """
        later = arrived if limit is None else arrived[arrived >= limit]
        newest = max(self._component.newest_pending, int(later.max(initial=LOWEST)))
        if self._plan.parallelism == 1 and self._waiting is not None:
            return self._waiting.oldest, newest
        # The times are held beside the pending rows of this task, which are what `_left` remembers.
        known = None if self.moved else self._passing.recall()
        if known is None and sum(one.pending for one in self._others) > _HELD:
            known = np.array([one for one in [self._oldest(LOWEST if limit is None else limit)] if one is not None])
            times = np.concatenate([known, later])
        else:
            known = integers(self._left.scan_table(None).column(TIME)) if known is None else known
            times = np.concatenate([known if limit is None else known[known >= limit], later])
            if len(times) <= _HELD:
                self._passing.remember(times)
        return int(times.min()) if len(times) else None, newest

    def _needed(self, side: int) -> tuple[str, ...]:
        return self._plan.needed_columns(side, self._context)

    def passed(self, side: int, stored: pa.Table) -> None:
        """Record rows that come and go in this transaction, for the history of their keys.

        Left rows that are released at once, and right rows that expire on arrival, are not in the states of the sides.
        """
        if stored.num_rows:
            self._passing.append((SIDES[side], self._context.task), self._txid, packed(stored))
            self.record = replace(self.record, passing=self.record.passing + stored.num_rows)

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
        form, oldest = self._plan.sides[LEFT].form, self._component.oldest_pending
        if limit is None or oldest is None or oldest >= limit:
            return []
        return [form.rows(self._left.scan_table(self._own, None, limit - 1).select(form.schema.names))]

    def _oldest(self, low: int) -> int | None:
        """Return the time of the oldest stored pending row of all tasks from `low` on."""
        low, step, newest = max(low, self._component.oldest_pending or low), _STEP, self._component.newest_pending
        while low <= newest:
            found = self._left.scan_table(None, low, min(low + step, newest))
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
            self.passed(RIGHT, rows.stored.filter(pa.array(~later)))
        flags = []
        for block, at in matched:
            live = at[block.times[at] >= bound]
            if len(live):
                arrivals = np.sort(integers(block.stored.column(ARRIVAL))[block.at[live]])
                flags.append((self._context.task, int(block.times[live].max()), arrivals.tobytes()))
        if flags:
            self._matched.append_batch(pa.table(list(zip(*flags, strict=True)), names=[TASK, TIME, ARRIVALS]))
        if bound > LOWEST and any(one.buffered for one in self._others):
            self._right.evict_before(bound)
            self._matched.evict_before(bound)
        self.record = replace(self.record, buffered=len(window))
        self._right.remember(window)
        if len(window) >= LARGEST and not self._txid % _TRIMMED_EVERY:
            # Merged blocks leave the heap in fragments, which it would keep.
            pa.default_memory_pool().release_unused()
            return_free_memory()

    def _loaded(self) -> RightWindow:
        """Read the right rows of the window from the state, in parts, each of which becomes a block."""
        bound = self._component.bound
        start = bound if bound > LOWEST else None
        flags = self._matched.scan_table(None, start).column(ARRIVALS).to_pylist()
        matched = _among(np.frombuffer(b"".join(flags), np.int64))
        blocks = self._right.scan_parts(lambda parts: tuple(self._blocks(parts, matched)), start)
        return RightWindow(blocks, bound, self._plan.exact, self._needed(RIGHT))

    def _blocks(self, parts: Iterator[pa.Table], matched: Callable[[Numbers], Mask]) -> Iterator[Block]:
        form, waiting = self._plan.sides[RIGHT].form, list[pa.Table]()
        held = self._needed(RIGHT)
        read = list(dict.fromkeys([GROUP, TIME, *held]))
        for part in chain(parts, [None]):
            if part is not None:
                waiting.append(self._mine(part.select(read)))
            size = sum(one.num_rows for one in waiting)
            if size >= LARGEST or (part is None and size):
                stored, waiting = pa.concat_tables(waiting).combine_chunks(), []
                rows, flags = form.rows(stored), matched(integers(stored.column(ARRIVAL)))
                yield Block.of(rows.hashes, rows.times, stored.select(held), flags, loaded=True)

    def _mine(self, rows: pa.Table) -> pa.Table:
        """Return those of the rows of all tasks that are this one's."""
        if self._own is None:
            return rows
        own = np.zeros(KEY_GROUPS, bool)
        own[integers(self._own.column(GROUP))] = True
        return rows.filter(pa.array(own[integers(rows.column(GROUP))]))

    # -- another number of tasks ---------------------------------------------------------------------------------------

    def _adopted(self, records: StateHandle, tasks: int) -> TaskRecord:
        """Return the record of this task after the number of tasks has changed."""
        record = TaskRecord(pending=self._left.scan_table(self._own).num_rows)
        if self._context.task == 0:
            names = ("stragglers", "late", "released", "joined", "unmatched_left", "unmatched_right")
            record = replace(record, **{name: sum(getattr(one, name) for one in self._others) for name in names})
            records.remove_many([unit_of_task(task) for task in range(self._plan.parallelism, tasks)])
        return record


def _among(matched: Numbers) -> Callable[[Numbers], Mask]:
    """Return a function that tells which arrivals are among those that have `matched`; each is that of one row."""
    if not len(matched):
        return lambda arrivals: np.zeros(len(arrivals), bool)
    txids, positions = _parts(matched)
    first, last, width = int(txids.min()), int(txids.max()), int(positions.max()) + 1
    if (last - first + 1) * width > _DENSE * len(matched):
        return lambda arrivals: np.isin(arrivals, matched)
    flags = np.zeros((last - first + 1) * width, bool)  # one for each txid and position
    flags[(txids - first) * width + positions] = True

    def among(arrivals: Numbers) -> Mask:
        txids, positions = _parts(arrivals)
        inside = (txids >= first) & (txids <= last) & (positions < width)
        found: Mask = flags[np.where(inside, (txids - first) * width + positions, 0)]
        return found & inside

    return among


def _parts(arrivals: Numbers) -> tuple[Numbers, Numbers]:
    return arrivals >> POSITION_BITS, arrivals & ((1 << POSITION_BITS) - 1)
