"""Partial aggregates: the plan of an aggregate, and its map-side stage, which sends one row per key and pane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import EVERYWHERE, BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.keys import groups_of, hash_rows, row_texts
from txstorm.tagged import text_of
from txstorm.windows.aggregates.cells import TUPLES, Cells, typed
from txstorm.windows.aggregates.groups import Numbers, integers, own_groups, whole
from txstorm.windows.aggregates.panes import PANE, WINDOW_END, WINDOW_START, Panes
from txstorm.windows.aggregates.sessions import Sessions
from txstorm.windows.intake import Chunk, Intake
from txstorm.windows.late import AGGREGATED
from txstorm.windows.newest import REPORTED, TimesSeen
from txstorm.windows.plan import WindowPlan

GROUP = "window_group"
"""Column of stored partial aggregates: the key group of the fields by which tuples are distributed."""


@dataclass(frozen=True)
class AggregatePlan:
    """Plan of an aggregate.

    Attributes:
        windows: its inputs, windows and time.
        cells: its key and aggregates.
        table: name of the state with the results; None: they are not kept.
        lateness: the allowed lateness, in microseconds.
        to_first: whether the first task gets everything.
        retractions: whether results that change are emitted again before they are replaced.
    """

    windows: WindowPlan
    cells: Cells
    table: str | None
    lateness: int = 0
    to_first: bool = False
    retractions: bool = False

    @property
    def grouped_by(self) -> tuple[str, ...]:
        """The fields of the key by which tuples are distributed."""
        return self.windows.owner_fields or ()

    @property
    def panes(self) -> Panes | None:
        """The panes of the windows; None for sessions."""
        form = self.windows.form
        return None if form.span is None or form.step is None else Panes(form.span, form.step, self.lateness)

    @property
    def places(self) -> tuple[str, ...]:
        """The columns that say where in time a partial aggregate is."""
        return (WINDOW_START, WINDOW_END) if self.windows.form.is_session else (PANE,)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of partial aggregates."""
        return pa.schema({**dict.fromkeys(self.places, pa.int64()), **self.cells.columns})

    @property
    def before_shuffle(self) -> bool:
        """Whether tuples are aggregated in the tasks of their sources; late tuples can only be emitted otherwise."""
        return self.windows.late_stream is None

    def declared(self) -> dict[str, Any]:
        """Return what must be the same at every start, as JSON."""
        columns = {name: str(kind) for name, kind in self.cells.columns.items()}
        return {**self.windows.declared(), "columns": columns, "grouped_by": list(self.grouped_by)}

    def fixed(self) -> dict[str, str]:
        """Return what must be the same at every start, in words."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.cells.columns.items())
        return {
            **self.windows.fixed(),
            "columns": columns,
            "grouped by": ", ".join(self.grouped_by),
            "aggregates": ", ".join(map(str, self.cells.aggregates)),
            "allowed lateness": f"{self.lateness} us",  # what it keeps is missing for windows that have fired
        }

    def groups(self, table: pa.Table) -> pa.Array:
        """Return the key group of each row."""
        columns = [whole(table.column(name)) for name in self.grouped_by]
        return pa.array(groups_of(hash_rows(columns, table.num_rows)))

    def own_groups(self, task: int) -> pa.Table | None:
        """Return the key groups whose tuples a task gets; None for all."""
        return own_groups(GROUP, task, self.windows.parallelism, to_first=self.to_first)

    def rows_of(self, chunk: Chunk, stamp: int) -> pa.Table:
        """Return the partial aggregates of single tuples; `stamp`: their time if they have no timestamp."""
        times = np.full(len(chunk), stamp, np.int64) if chunk.times is None else chunk.times
        one = self.windows.inputs[chunk.number]
        where = f"{self.windows.id}, stream {one.stream!r} of {one.component!r}"
        made, of_row = self.cells.of_batch(chunk.values, times, where)
        places: Mapping[str, Numbers]
        if self.panes is None:
            assert chunk.gaps is not None
            places = {WINDOW_START: times, WINDOW_END: times + chunk.gaps}
        else:
            places = {PANE: self.panes.of(self.windows.form.held(times))}
        columns = {name: pa.array(of[of_row]) for name, of in places.items()}
        columns.update(zip(made.column_names, made.columns, strict=True))
        return pa.table(columns, self.schema)

    def check(self, chunk: Chunk) -> None:
        """Raise `ValueError` for a tuple with a value that does not fit its type."""
        one, where = self.windows.inputs[chunk.number], f"{self.windows.id}, a tuple"
        for field in self.cells.fields:
            at = one.fields.index(field.name)
            if isinstance(chunk.values, list):
                typed([row[at] for row in chunk.values], field, where)
            else:
                typed(chunk.values.column(at), field, where)

    def aggregated(self, chunk: Chunk, rows: pa.Table) -> pa.RecordBatch:
        """Return tuples as the test driver finds late ones among them; `rows`: their partial aggregates."""
        one, times = self.windows.inputs[chunk.number], chunk.times
        assert times is not None
        given = zip(self.key_texts(rows.slice(0, len(chunk))), times.tolist(), chunk.rows(), strict=True)
        return pa.RecordBatch.from_pylist(
            [
                {
                    "aggregate": self.windows.id,
                    "component": one.component,
                    "stream": one.stream,
                    "key": key,
                    "time": time,
                    "values": text_of(list(values), "of an aggregated tuple"),
                }
                for key, time, values in given
            ]
        )

    def late_partials(self, number: int, rows: pa.Table, watermark: int) -> pa.RecordBatch:
        """Return late partial aggregates of one input as the test driver finds late tuples by them."""
        one = self.windows.inputs[number]
        rows = rows.filter(pc.greater(rows.column(TUPLES), 0))
        first, last = (integers(rows.column(name)) for name in (self.places[0], self.places[-1]))
        if self.panes is None:
            last = last - 1
        else:
            shift = self.windows.form.shift
            first, last = first - self.panes.size + 1 - shift, last - shift
        return pa.RecordBatch.from_pylist(
            [
                {
                    "component": one.component,
                    "stream": one.stream,
                    "key": key,
                    "first": low,
                    "last": high,
                    "watermark": watermark,
                }
                for key, low, high in zip(self.key_texts(rows), first.tolist(), last.tolist(), strict=True)
            ]
        )

    def key_texts(self, rows: pa.Table) -> list[str]:
        """Return the key of each row as text."""
        texts: list[str] = row_texts([whole(rows.column(name)) for name in self.cells.key_names]).to_pylist()
        return texts

    def combined(self, rows: pa.Table) -> pa.Table:
        """Return one partial aggregate per key and pane, or per key and session, of `rows`."""
        if not rows.num_rows:
            return rows
        if self.panes is not None:
            return self.panes.combined(self.cells, rows)
        return Sessions.of(self.cells, rows).table(self.cells)[0]


class PartialAggregates(BatchBolt):
    """Map-side stage of one input: partial aggregates per key and pane or session, and the newest timestamps.

    Args:
        plan: the plan of the aggregate.
        number: the index of the input.
    """

    def __init__(self, plan: AggregatePlan, number: int) -> None:
        self._plan = plan
        self._number = number

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the partial aggregates, and the newest timestamps."""
        declarer.declare(tuple(self._plan.schema.names))
        declarer.declare_stream(EVERYWHERE, *REPORTED)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector, self._stamp = collector, context.stamp
        self._intake = Intake(replace(self._plan.windows, key=None), attempt, context.stamp)
        self._rows: list[pa.Table] = []
        self._times = TimesSeen(self._plan.windows.form, self._number)

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch."""
        chunk = self._intake.batch(self._number, 0, batch)
        rows = self._plan.rows_of(chunk, self._stamp)
        self._rows.append(rows)
        if chunk.times is not None:
            self._collector.note(AGGREGATED, partial(self._plan.aggregated, chunk, rows))
        self._times.add(chunk)

    def finish_batch(self) -> None:
        """Emit the partial aggregates and the newest timestamps."""
        if self._rows:
            self._collector.emit_batch(
                self._plan.combined(pa.concat_tables(self._rows)).select(self._plan.schema.names)
            )
        self._times.report(self._collector)
