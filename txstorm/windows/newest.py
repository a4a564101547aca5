"""Newest times: the map-side stage of a windowed component, which reports newest timestamps to all of its tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import EVERYWHERE, BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.names import counted
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple
from txstorm.keys import SPELLED, Name
from txstorm.windows.intake import Check, Chunk, Intake
from txstorm.windows.plan import WindowPlan
from txstorm.windows.rules.backlog import Run, merged, time_runs
from txstorm.windows.rules.event_time import MICROSECOND, WHOLE, instant
from txstorm.windows.rules.forms import Count, WindowForm, sliding

log = logging.getLogger(__name__)
REPORTED = ("input", "partition", "newest", "other")
"""Fields of what a map-side stage reports to all tasks: the newest time of a partition of an input, or other times.

Beside a newest time, `other` is 0 or, if the partition is a `Name`, the number of its type in `SPELLED`, from 1 on.
"""
RUN = -2
"""The input in a report of a run of held times that tuples have: from `other` to `newest`."""
AHEAD = -3
"""The input in a report of `other` tuples that are too far ahead, the furthest at `newest`; the partition names it."""


class Reports:
    """Reports of map-side stages in a transaction.

    Attributes:
        newest: (input, partition) → newest timestamp, over all tasks.
        runs: runs of held times that tuples have; for windows that slide by time.
        ahead: input → number of tuples too far ahead of the stamp, and the time of the furthest.
    """

    def __init__(self) -> None:
        self.newest: dict[tuple[int, str], int] = {}
        self.runs: list[Run] = []
        self.ahead: dict[int, tuple[int, int]] = {}

    def add(self, batch: Any) -> None:
        """Add a record batch of reports."""
        for number, part, time, other in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if number == RUN:
                self.runs.append((other, time))
            elif number == AHEAD:
                count, furthest = self.ahead.get(int(part), (0, time))
                self.ahead[int(part)] = (count + other, max(furthest, time))
            else:
                name = Name.of(part, SPELLED[other - 1]) if other else part
                self.newest[number, name] = max(time, self.newest.get((number, name), time))

    def number_ahead(self, context: TaskContext) -> int:
        """Return the number of tuples too far ahead, for the first task; 0 for the others, which have all reports."""
        return sum(count for count, _ in self.ahead.values()) if context.task == 0 else 0

    def count_ahead(self, plan: WindowPlan, before: Mapping[str, int], context: TaskContext) -> dict[str, int]:
        """Return input → number of tuples too far ahead so far, with these; log the first ones of an input.

        `before`: those numbers before the transaction.
        """
        after = dict(before)
        for number, (count, furthest) in sorted(self.ahead.items()):
            one = plan.inputs[number]
            name = f"{one.component}/{one.stream}"
            if name not in after and context.task == 0:
                log.warning(
                    "%s: %s of %s, in a transaction with the stamp %s, the furthest at %s: they stay in windows and "
                    "joins, but move the watermark to at most %s after the stamp; correct the clock of the source, or "
                    "say with_max_ahead (max_ahead): a duration refuses such tuples, None lets them move it",
                    *(plan.id, counted(count, "tuple"), name, instant(context.stamp), instant(furthest)),
                    (plan.clock.ahead or 0) * MICROSECOND,
                )
            after[name] = after.get(name, 0) + count
        return after


class TimesSeen:
    """The times of the tuples of one input in a batch, as a map-side stage reports them.

    Args:
        form: the form of the windows.
        number: the index of the input.
    """

    def __init__(self, form: WindowForm, number: int) -> None:
        self._form = form
        self._number = number
        self._newest: dict[str, int] = {}
        self._runs: list[Run] = []
        self._ahead, self._furthest = 0, 0

    def add(self, chunk: Chunk) -> None:
        """Add the tuples of a chunk."""
        for part, time in chunk.newest.items():
            self._newest[part] = max(time, self._newest.get(part, time))
        if chunk.times is not None:
            self._runs += time_runs(self._form, self._form.held(chunk.times))
        if chunk.ahead and chunk.times is not None:
            self._ahead, self._furthest = self._ahead + chunk.ahead, max(self._furthest, int(chunk.times.max()))

    def report(self, collector: Collector) -> None:
        """Report them to all tasks of the component."""
        for part, time in sorted(self._newest.items()):
            kind = SPELLED.index(part.kind) + 1 if isinstance(part, Name) else 0
            collector.emit(self._number, str.__str__(part), time, kind, stream=EVERYWHERE)
        for low, high in merged(self._runs):
            collector.emit(RUN, WHOLE, high, low, stream=EVERYWHERE)
        if self._ahead:
            collector.emit(AHEAD, str(self._number), self._furthest, self._ahead, stream=EVERYWHERE)


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
        self._form = plan.form
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
        self._intake = Intake(self._plan, attempt, context.stamp)
        self._times = TimesSeen(self._form, self._number)

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
        self._times.report(self._collector)

    def _add(self, chunk: Chunk) -> None:
        for check in self._checks:
            check(chunk)
        self._times.add(chunk)
