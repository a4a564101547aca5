"""Newest times: the observer that reports the newest timestamps of each batch to all tasks of a windowed component."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.tuples import Tuple
from txstorm.windows.forms import Count, sliding
from txstorm.windows.intake import Chunk, Intake
from txstorm.windows.plan import WindowPlan


class NewestTimes(BatchBolt):
    """Observer of the inputs of a windowed component; every task of it then computes the same watermark.

    A tuple without a usable timestamp is ignored here: the task that buffers it reports it.

    Args:
        plan: the plan of the component.
    """

    fields: ClassVar[tuple[str, ...]] = ("input", "partition", "newest")

    def __init__(self, plan: WindowPlan) -> None:
        self.plan = replace(plan, key=None, form=sliding(Count(1)))

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector = context, collector
        self._intake = Intake(self.plan, attempt)
        self._newest: dict[tuple[int, str], int] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Look at one tuple; called only if a value has no Arrow type."""
        number = self._intake.number(tuple.source_component, tuple.source_stream)
        assert number is not None
        try:
            self._add(self._intake.tuples(number, tuple.source_task, [tuple]))
        except Exception:  # noqa: BLE001 - the committer's task raises it again
            return

    def execute_batch(self, batch: Any) -> None:
        """Look at a record batch."""
        assert self._context.source is not None
        component, stream, task = self._context.source
        number = self._intake.number(component, stream)
        assert number is not None
        try:
            self._add(self._intake.batch(number, task, batch))
        except Exception:  # noqa: BLE001 - the committer's task raises it again
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                self.execute_batch(batch.slice(0, half))
                self.execute_batch(batch.slice(half))

    def finish_batch(self) -> None:
        """Report the newest timestamps."""
        for (number, part), time in sorted(self._newest.items()):
            self._collector.emit(number, part, time)

    def _add(self, chunk: Chunk) -> None:
        for part, time in chunk.newest.items():
            self._newest[chunk.number, part] = max(time, self._newest.get((chunk.number, part), time))
