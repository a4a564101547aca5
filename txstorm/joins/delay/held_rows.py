"""Held rows: left tuples that wait until the right side has been consumed past them, in a state `<component>-left`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import CollectionState
from txstorm.joins.columns import Column, columns_of, emit, united
from txstorm.joins.rules.blocks import ARRIVAL
from txstorm.joins.side_plan import SidePlan
from txstorm.joins.side_rows import GROUP, TIME, arrivals_of, taken
from txstorm.windows.aggregates.groups import integers, own_groups
from txstorm.windows.intake import Chunk
from txstorm.windows.rules.event_time import END, Times


def held_state(side: SidePlan) -> CollectionState:
    """Declare the state of the rows that a component holds."""
    state = side.form.state(f"{side.windows.id}-left")
    return replace(state, tasks=None if side.by_fields else side.windows.parallelism, fixed=side.fixed())


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
