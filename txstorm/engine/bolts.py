"""Running one component for one task and attempt, the same in workers and in the driver."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm.api.bolt import BasicBolt, BatchBolt, takes_batches
from txstorm.api.context import TaskContext
from txstorm.api.tuples import Origin, Tuple
from txstorm.engine.arrow import as_columns, is_tagged, rows_of_batch
from txstorm.engine.collector import OutputCollector
from txstorm.engine.port import ErrorRow
from txstorm.errors import FailedException, ReportedFailedException

_PACKAGE = str(Path(__file__).parent.parent)


class Arrival:
    """Rows that reached a task: a record batch and where it comes from."""

    __slots__ = ("batch", "component", "stream", "task")

    def __init__(self, component: str, stream: str, task: int, batch: pa.RecordBatch) -> None:
        self.component = component
        self.stream = stream
        self.task = task
        self.batch = batch


class BoltRun:
    """One bolt object at work on one batch: prepared at once, then `execute`, then `finish`."""

    def __init__(self, bolt: BasicBolt | BatchBolt, context: TaskContext, collector: OutputCollector) -> None:
        self.bolt = bolt
        self.context = context
        self.collector = collector
        self._batches = takes_batches(bolt)
        base = BasicBolt if isinstance(bolt, BasicBolt) else BatchBolt
        self._tuples = not self._batches or type(bolt).execute is not base.execute
        if isinstance(bolt, BasicBolt):
            bolt.prepare(context)
        else:
            assert context.attempt is not None
            bolt.prepare(context, collector, context.attempt)

    def execute(self, arrivals: Iterable[Arrival]) -> None:
        """Hand the rows to the bolt, in order.

        A bolt that has both forms gets record batches, and tuples where columns would change the values.
        """
        for arrival in arrivals:
            self.context.source = (arrival.component, arrival.stream, arrival.task)
            tagged = self._batches and is_tagged(arrival.batch)
            if not self._batches or (tagged and self._tuples):
                self._execute_tuples(arrival)
            elif tagged:
                where = f"{self.context.component}, stream {arrival.stream!r} of {arrival.component!r}"
                self._execute_batch(as_columns(arrival.batch, where))
            else:
                self._execute_batch(arrival.batch)

    def _execute_batch(self, batch: pa.RecordBatch) -> None:
        if isinstance(self.bolt, BasicBolt):
            self.bolt.execute_batch(batch, self.collector)
        else:
            self.bolt.execute_batch(batch)

    def _execute_tuples(self, arrival: Arrival) -> None:
        assert self.context.attempt is not None
        origin = Origin(
            self.context.attempt, arrival.component, arrival.stream, arrival.task, tuple(arrival.batch.schema.names)
        )
        if isinstance(self.bolt, BasicBolt):
            basic, collector = self.bolt.execute, self.collector
            for one in map(Tuple, rows_of_batch(arrival.batch), repeat(origin)):
                basic(one, collector)
        else:
            execute = self.bolt.execute
            for one in map(Tuple, rows_of_batch(arrival.batch), repeat(origin)):
                execute(one)

    def finish(self) -> None:
        """All input is in."""
        if isinstance(self.bolt, BatchBolt):
            self.bolt.finish_batch()


def error_row(component: str, task: int, level: int, error: BaseException) -> ErrorRow:
    """What is reported of an exception raised in user code."""
    kind = "reported" if isinstance(error, ReportedFailedException) else "other"
    if kind == "other" and isinstance(error, FailedException):
        kind = "failed"
    return ErrorRow(
        component=component,
        task=task,
        kind=kind,
        type=type(error).__name__,
        message=str(error),
        frame=_user_frame(error),
        traceback="".join(traceback.format_exception(error)),
        level=level,
    )


def _user_frame(error: BaseException) -> str:
    frames: Sequence[Any] = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    if not mine:
        return ""
    return f"{mine[-1].filename}:{mine[-1].lineno} in {mine[-1].name}"
