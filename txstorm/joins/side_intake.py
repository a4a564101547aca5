"""Side intake: the tuples of one side that a task receives in a transaction, and the committer that takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from txstorm.api.assembly import AssembledCommitter
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import EVERYWHERE
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.tuples import Tuple
from txstorm.joins.lone_side import LoneSide
from txstorm.windows.intake import Chunk, Intake
from txstorm.windows.newest import Reports


class SideIntake:
    """Tuples of one side that a task receives in a transaction, and what its sources and stages say of them.

    Attributes:
        chunks: the tuples, in order of delivery.
        reports: newest times, over all tasks.
        frontiers: (component, stream) → the frontier that it has sent.
        others: the last value of each other stream, by (component, stream).
    """

    def __init__(self, plan: LoneSide, context: TaskContext, attempt: TransactionAttempt) -> None:
        self.chunks: list[Chunk] = []
        self.reports = Reports()
        self.frontiers: dict[tuple[str, str], int] = {}
        self.others: dict[tuple[str, str], Any] = {}
        self._context = context
        self._intake = Intake(plan.windows, attempt)
        self._also = plan.windows.also_reads
        self._side = (plan.side.component, plan.side.stream)
        self._id = plan.windows.id

    def add_tuple(self, one: Tuple) -> None:
        """Take one tuple, of the side or of another stream."""
        number = self._intake.number(one.source_component, one.source_stream)
        if number is None:
            self.others[one.source_component, one.source_stream] = one.values[0]
        else:
            self.chunks.append(self._intake.tuples(number, one.source_task, [one]))

    def add_batch(self, batch: Any) -> None:
        """Take a record batch: tuples of the side, newest times, a frontier, or tuples of another stream."""
        assert self._context.source is not None
        component, stream, task = self._context.source
        number = self._intake.number(component, stream)
        if number is not None:
            self.chunks.append(self._intake.batch(number, task, batch))
        elif (component, stream) in self._also:
            self.frontiers[component, stream] = batch.column(0)[-1].as_py()
        elif stream == EVERYWHERE:
            self.reports.add(batch)
        else:
            self.others[component, stream] = batch.column(0)[-1].as_py()


class SideCommitter(AssembledCommitter):
    """Committer of a component with one side; until `finish_batch` it collects the tuples of the side.

    Args:
        side: the side in its component.
    """

    def __init__(self, side: LoneSide) -> None:
        self._side = side
        self.by_clock = side.plan.rule.by_clock

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector = context, collector
        self._tuples = SideIntake(self._side, context, attempt)

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple; called only if a value has no Arrow type."""
        self._tuples.add_tuple(tuple)

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch."""
        self._tuples.add_batch(batch)


def keyed(chunk: Chunk, plan: LoneSide) -> npt.NDArray[np.bool_]:
    """Return which tuples have a key: none of its fields is None."""
    if isinstance(chunk.values, list):
        at = [plan.fields.index(name) for name in plan.side.key]
        return np.array([all(row[one] is not None for one in at) for row in chunk.values], bool)
    found = np.ones(len(chunk), bool)
    for name in plan.side.key:
        column = chunk.values.column(name)
        if column.null_count:
            found &= column.is_valid().to_numpy(zero_copy_only=False)
    return found
