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
from txstorm.joins.lone_side import LoneSide
from txstorm.joins.rules.blocks import ARRIVAL
from txstorm.joins.side_rows import GROUP, TIME, arrivals_of
from txstorm.keys import KEY_GROUPS, tasks_of
from txstorm.windows.aggregates.groups import integers, whole
from txstorm.windows.intake import Chunk
from txstorm.windows.rules.event_time import END, Times


def held_state(side: LoneSide) -> CollectionState:
    """Declare the state of the rows that a component holds."""
    state = side.plan.form.state(f"{side.windows.id}-left")
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


@dataclass(frozen=True)
class _Passing:
    """Rows that pass: the values of each field, as an array or a list, their times and arrivals."""

    values: Sequence[Any]
    times: Times
    arrivals: Times


class HeldRows:
    """The rows that a task holds, in one transaction."""

    def __init__(self, side: LoneSide, context: TaskContext, collector: Collector) -> None:
        self._side = side
        self._form = side.plan.form
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
        passing, oldest, held, first = [], None, 0, 0
        for chunk in chunks:
            assert chunk.times is not None
            due = np.full(len(chunk), released == END) if released in (None, END) else chunk.times < released
            # Positions of different tasks differ, so that an arrival is that of one row, whatever the task.
            positions = np.arange(first, first + len(chunk)) * self._side.windows.parallelism + self._task
            if due.any():
                arrivals = arrivals_of(self._txid, positions[due])
                passing.append(_Passing(_values(chunk, due), chunk.times[due], arrivals))
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
                passing.append(_Passing(values, integers(stored.column(TIME)), integers(stored.column(ARRIVAL))))
            self._stored.evict_before(released)
        if passing:
            self._emit(passing)
        return Passage(held, oldest, passed)

    def _scanned(self, before: int | None) -> pa.Table:
        """Return the stored rows of this task before a time; None: all."""
        return self._stored.scan_table(self._own(), None, None if before in (None, END) else before - 1)

    def _own(self) -> pa.Table | None:
        """Return the collections of this task; None for all."""
        tasks = self._side.windows.parallelism
        if tasks == 1:
            return None
        if not self._side.by_fields:
            return pa.table({GROUP: pa.array([self._task], pa.int64())})
        every = np.arange(KEY_GROUPS)
        return pa.table({GROUP: every[tasks_of(every, tasks) == self._task]})

    def _hold(self, chunk: Chunk, chosen: Any, positions: Times) -> None:
        rows = self._form.rows_of(chunk, self._txid, positions).filter(pa.array(chosen))
        if not self._side.by_fields:
            task = pa.array(np.full(rows.num_rows, self._task, np.int64))
            rows = rows.set_column(rows.column_names.index(GROUP), GROUP, task)
        self._stored.append_batch(rows)

    def _emit(self, passing: Sequence[_Passing]) -> None:
        """Emit rows by time and arrival: as columns where all values of a field have one Arrow type."""
        times, arrivals = (np.concatenate([getattr(one, name) for one in passing]) for name in ("times", "arrivals"))
        order = np.lexsort((arrivals, times))
        columns = [[one.values[at] for one in passing] for at in range(len(self._form.fields))]
        if all(map(_of_one_type, columns)):
            merged = [pa.concat_arrays(parts).take(pa.array(order)) for parts in columns]
            self._collector.emit_batch(pa.RecordBatch.from_arrays(merged, names=list(self._form.fields)))
            return
        lists = [[value for part in parts for value in _listed(part)] for parts in columns]
        for row in order.tolist():
            self._collector.emit(*(values[row] for values in lists))


def _values(chunk: Chunk, chosen: Any) -> list[Any]:
    """Return the values of each field of the chosen rows."""
    if isinstance(chunk.values, list):
        rows = [row for row, wanted in zip(chunk.values, chosen.tolist(), strict=True) if wanted]
        return [list(column) for column in zip(*rows, strict=True)]
    mask = pa.array(chosen)
    return [whole(column).filter(mask) for column in chunk.values.columns]


def _of_one_type(parts: Sequence[Any]) -> bool:
    """Whether parts of a column are arrays of one type."""
    return all(isinstance(one, pa.Array) and one.type == parts[0].type for one in parts)


def _listed(part: Any) -> list[Any]:
    values: list[Any] = part if isinstance(part, list) else part.to_pylist()
    return values
