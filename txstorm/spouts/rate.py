"""Rate spout: numbered rows, evenly spaced in time, for trying things out.

Metadata of a txid: ``{"anchor", "base", "rate", "from", "to"}``: row `base` is due at `anchor`, in microseconds, the
next ones `rate` per second; the txid has the rows from `from` up to, but without, `to`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.errors import SettingError
from txstorm.lanes import THREADS

SECOND = 1_000_000
_TIME = pa.timestamp("us", "UTC")


class RateSpout(TransactionalSpout):
    """Spout of ``timestamp`` and ``value``, like Spark's source ``rate``: values count from 0, evenly spaced in time.

    Example::

        TransactionalTopologyBuilder("trial", "rows", RateSpout(rows_per_second=100), 2)

    The first row is due when the first transaction is planned. Rows that become due while no run is active are made up
    for. The rows of a transaction follow from its plan, so replays emit the same.

    Args:
        rows_per_second: number of rows per second.
        rows: number of rows after which the source has ended; a run with ``available_now`` waits for all of them.
        max_batch_rows: maximum number of rows in a transaction.
        clock: returns microseconds since 1970, such as ``ManualClock().now``; None: the machine's clock.

    Raises:
        SettingError: a number is no int of at least 1.
    """

    fields = ("timestamp", "value")

    def __init__(
        self,
        rows_per_second: int = 1,
        *,
        rows: int | None = None,
        max_batch_rows: int = 10_000,
        clock: Callable[[], int] | None = None,
    ) -> None:
        given = {"rows_per_second": rows_per_second, "max_batch_rows": max_batch_rows}
        for name, value in (given if rows is None else {**given, "rows": rows}).items():
            if type(value) is not int or value < 1:
                raise SettingError(f"rate spout: {name} is {value!r}, expected an int of at least 1")
        self.rows_per_second, self.rows, self.max_batch_rows = rows_per_second, rows, max_batch_rows
        self._clock = clock

    def known_types(self) -> dict[str, Any]:
        """Return the types of the fields."""
        return {"timestamp": _TIME, "value": int}

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator, which plans what is due."""
        return _RateCoordinator(self, self._clock or THREADS.now)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter of consecutive shares."""
        return _RateEmitter(context)

    def __getstate__(self) -> dict[str, Any]:
        # Only the coordinator asks for the time.
        return {**self.__dict__, "_clock": None}


def _due(metadata: Any, row: int) -> int:
    return int(metadata["anchor"] + (row - metadata["base"]) * SECOND // metadata["rate"])


class _RateCoordinator(SpoutCoordinator):
    def __init__(self, spout: RateSpout, clock: Callable[[], int]) -> None:
        self._spout, self._clock = spout, clock

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        rate, before = self._spout.rows_per_second, prev_metadata
        begin = before["to"] if before else 0
        if before is None:
            line = {"anchor": self._clock(), "base": 0, "rate": rate}
        elif before["rate"] != rate:
            line = {"anchor": _due(before, begin), "base": begin, "rate": rate}
        else:
            line = {name: before[name] for name in ("anchor", "base", "rate")}
        end = min(self._end(line), begin + self._spout.max_batch_rows)
        return NOT_READY if end <= begin else {**line, "from": begin, "to": end}

    def latest(self) -> Any:
        return self._clock() if self._spout.rows is None else -self._spout.rows

    def reached(self, metadata: Any, mark: Any) -> bool:
        if metadata is None:
            return False
        return bool(metadata["to"] >= -mark if mark < 0 else _due(metadata, metadata["to"]) > mark)

    def facts(self, metadata: Any) -> SourceFacts:
        ended = metadata is not None and metadata["to"] == self._spout.rows
        return SourceFacts(
            caught_up=ended or (metadata is not None and metadata["to"] >= self._end(metadata)), ended=ended
        )

    def _end(self, line: Any) -> int:
        """Return the number of rows due by now."""
        passed = self._clock() - line["anchor"]
        due = line["base"] - (-(passed + 1) * line["rate"] // SECOND)
        return int(due if self._spout.rows is None else min(due, self._spout.rows))


class _RateEmitter(Emitter):
    def __init__(self, context: TaskContext) -> None:
        self._task, self._tasks = context.task, context.parallelism

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        begin, number = metadata["from"], metadata["to"] - metadata["from"]
        first, last = (begin + number * task // self._tasks for task in (self._task, self._task + 1))
        rows = np.arange(first, last)
        times = metadata["anchor"] + (rows - metadata["base"]) * SECOND // metadata["rate"]
        if first < last:
            collector.emit_batch(pa.table({"timestamp": pa.array(times).cast(_TIME), "value": rows}))
