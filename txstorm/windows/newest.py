"""Newest times: the map-side stage of a windowed component, which reports newest timestamps to all of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import EVERYWHERE, BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple
from txstorm.windows.intake import Check, Chunk, Intake
from txstorm.windows.plan import WindowPlan
from txstorm.windows.rules.forms import Count, sliding

REPORTED = ("input", "partition", "newest")
"""Fields of what a map-side stage reports to all tasks."""


class NewestTimes(BatchBolt):
    """Map-side stage of one input: passes tuples on and reports their newest timestamps.

    So every task of the component computes the same watermark. A tuple without a usable timestamp is an error here, in
    the processing phase, and none of it reaches the component.

    Args:
        plan: the plan of the component.
        source: the component that the input reads from.
        stream: its stream.
        checks: called with tuples; each raises an error for one that the component cannot take.
    """

    def __init__(self, plan: WindowPlan, source: str, stream: str, checks: Sequence[Check] = ()) -> None:
        self._checks = tuple(checks)
        self._plan = replace(plan, key=None, form=sliding(Count(1)))
        self._number = next(
            number for number, one in enumerate(plan.inputs) if (one.component, one.stream) == (source, stream)
        )

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the tuples of the input, and the newest timestamps."""
        declarer.declare(self._plan.inputs[self._number].fields)
        declarer.declare_stream(EVERYWHERE, *REPORTED)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector = collector
        self._intake = Intake(self._plan, attempt)
        self._newest: dict[str, int] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Pass one tuple on; called only if a value has no Arrow type."""
        self._add(self._intake.tuples(self._number, tuple.source_task, [tuple]))
        self._collector.emit(*tuple.values)

    def execute_batch(self, batch: Any) -> None:
        """Pass a record batch on."""
        self._add(self._intake.batch(self._number, 0, batch))
        self._collector.emit_batch(batch)

    def finish_batch(self) -> None:
        """Report the newest timestamps."""
        for part, time in sorted(self._newest.items()):
            self._collector.emit(self._number, part, time, stream=EVERYWHERE)

    def _add(self, chunk: Chunk) -> None:
        for check in self._checks:
            check(chunk)
        for part, time in chunk.newest.items():
            self._newest[part] = max(time, self._newest.get(part, time))
