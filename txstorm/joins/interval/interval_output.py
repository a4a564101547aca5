"""Output of an interval join: the result of its type on the default stream, and the rows that have not matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.joins.columns import emit, picked
from txstorm.joins.interval.interval_plan import LEFT, RIGHT, SIDES, UNMATCHED, IntervalPlan
from txstorm.joins.rules.blocks import ARRIVAL, Block, Mask, Numbers, Rows
from txstorm.joins.rules.matching import Pairs, RightWindow
from txstorm.joins.selection import ANTI, FULL, LEFT_OUTER, RIGHT_OUTER, SEMI
from txstorm.joins.side_rows import TIME
from txstorm.row_order import order_of
from txstorm.windows.aggregates.groups import integers


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
