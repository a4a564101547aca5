"""Late tuples of a transaction: logged, emitted to the stream for them, and shown to the test driver."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from txstorm.api.context import TaskContext
from txstorm.api.names import counted
from txstorm.api.output import Collector
from txstorm.tagged import text_of
from txstorm.windows.intake import Chunk
from txstorm.windows.plan import WindowPlan
from txstorm.windows.rules.event_time import Times, instant

log = logging.getLogger(__name__)
LATE = "late tuples"
"""Topic under which late tuples are shown to the test driver: component, stream, time, watermark, values as text."""
AGGREGATED = "aggregated tuples"
"""Topic for tuples that are aggregated in the tasks of their source: aggregate, component, stream, key, time, values.

The commit, which knows what is late, does not get these tuples; so the test driver finds the late ones among them.
"""
LATE_PARTIALS = "late partial aggregates"
"""Topic for late partial aggregates: component, stream, key, first and last time of their tuples, watermark."""
SHOWN = 3
"""Number of late tuples in the log line of a transaction."""


@dataclass(frozen=True)
class LateTuples:
    """Late tuples of a chunk: their indices, and the watermark after the previous transaction."""

    chunk: Chunk
    rows: Times
    watermark: int

    def listed(self) -> list[tuple[int, tuple[Any, ...]]]:
        """Return timestamp and values of each."""
        values, times = self.chunk.rows(), self.chunk.times
        assert times is not None
        return [(int(times[row]), values[row]) for row in self.rows.tolist()]


def report_late(plan: WindowPlan, context: TaskContext, collector: Collector, lates: Sequence[LateTuples]) -> None:
    """Log the late tuples of a task in a transaction, and emit them if the component has a stream for them."""
    number = sum(len(one.rows) for one in lates)
    shown = []
    for one in lates:
        source, found = plan.inputs[one.chunk.number], one.listed()
        shown += [f"{values} of {source.component!r} at {instant(time)}" for time, values in found[:SHOWN]]
        collector.note(LATE, partial(_note, plan, one, found))
        if plan.late_stream is not None:
            for _, values in found:
                given = dict(zip(source.fields, values, strict=True))
                collector.emit(*(given.get(name) for name in plan.union), stream=plan.late_stream)
    log.info(
        "%s[%d], txid %d: %s behind the watermark %s, in no window: %s%s",
        plan.id,
        context.task,
        context.attempt.txid if context.attempt is not None else 0,
        counted(number, "late tuple"),
        instant(lates[0].watermark),
        ", ".join(shown[:SHOWN]),
        ", …" if number > SHOWN else "",
    )


def _note(plan: WindowPlan, late: LateTuples, found: Sequence[tuple[int, tuple[Any, ...]]]) -> pa.RecordBatch:
    source = plan.inputs[late.chunk.number]
    return pa.RecordBatch.from_pylist(
        [
            {
                "component": source.component,
                "stream": source.stream,
                "time": time,
                "watermark": late.watermark,
                "values": text_of(list(values), "of a late tuple"),
            }
            for time, values in found
        ]
    )
