"""One run of a component for one task and attempt; the same code runs in workers and in the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import length_hint
from typing import Any

import pyarrow as pa

from txstorm.api.bolt import BasicBolt, BatchBolt, takes_batches
from txstorm.api.context import TaskContext
from txstorm.api.tuples import Origin, Tuple
from txstorm.engine.arrow import as_columns, columns_of_batch, is_tagged
from txstorm.engine.task.collector import OutputCollector
from txstorm.engine.task.error_rows import At, shortened


class Arrival:
    """Rows received by a task: a record batch with its origin.

    Attributes:
        edge: index of the edge; a task receives its input in the order of edges, that is, of its subscriptions.
        partition: position of their partition in the order of the source; 0 behind an exchange.
    """

    __slots__ = ("batch", "component", "edge", "partition", "stream", "task")

    def __init__(
        self, component: str, stream: str, task: int, batch: pa.RecordBatch, edge: int = 0, partition: int = 0
    ) -> None:
        self.component = component
        self.stream = stream
        self.task = task
        self.batch = batch
        self.edge = edge
        self.partition = partition

    @property
    def order(self) -> tuple[int, int]:
        """Sort key for the order in which a task receives rows."""
        return (self.edge, self.partition)

    def part(self, first: int, count: int) -> Arrival:
        """Return a slice of `count` rows, starting at row `first`, without copying."""
        return self._with(self.batch.slice(first, count))

    def taken(self, rows: Sequence[int]) -> Arrival:
        """Return a copy with only the rows at these indices."""
        return self._with(self.batch.take(pa.array(rows, pa.int64())))

    def _with(self, batch: pa.RecordBatch) -> Arrival:
        return Arrival(self.component, self.stream, self.task, batch, self.edge, self.partition)


def takes_only_batches(bolt: BasicBolt | BatchBolt) -> bool:
    """Return whether `bolt` gets record batches even if conversion to Arrow columns changes values of its input."""
    base = BasicBolt if isinstance(bolt, BasicBolt) else BatchBolt
    return takes_batches(bolt) and type(bolt).execute is base.execute


class BoltRun:
    """Run of one bolt object on one batch: the constructor calls `prepare`; then call `execute` and `finish`."""

    def __init__(
        self, bolt: BasicBolt | BatchBolt, context: TaskContext, collector: OutputCollector, at: At | None = None
    ) -> None:
        self.bolt = bolt
        self.context = context
        self.collector = collector
        self._at = at or At()
        self._seen = 0
        self._now: tuple[int, Iterator[Any]] | None = None
        self._at.begin(context.component, context.task, self)
        self._batches = takes_batches(bolt)
        self._tuples = not takes_only_batches(bolt)
        if isinstance(bolt, BasicBolt):
            bolt.prepare(context)
        else:
            assert context.attempt is not None
            bolt.prepare(context, collector, context.attempt)

    @property
    def taken(self) -> int:
        """The number of rows that the bolt has taken; may be read on any thread."""
        now = self._now
        return self._seen if now is None else self._seen + now[0] - length_hint(now[1])

    def execute(self, arrivals: Iterable[Arrival]) -> None:
        """Pass the rows to the bolt, in order.

        A bolt that overrides both `execute` and `execute_batch` receives record batches, but single tuples if
        conversion to Arrow columns would change their values.
        """
        for arrival in arrivals:
            if self.by_tuple(arrival):
                self._execute_tuples(arrival)
            else:
                self.execute_rows(arrival)
            self._now = None
            self._seen += arrival.batch.num_rows

    def by_tuple(self, arrival: Arrival) -> bool:
        """Return whether the bolt receives the rows of `arrival` one by one; call before passing them to it."""
        self.context.source = (arrival.component, arrival.stream, arrival.task)
        self.collector.partition(arrival.partition)
        return not self._batches or (self._tuples and is_tagged(arrival.batch))

    def tuples(self, arrival: Arrival) -> Iterator[Tuple]:
        """Yield the rows of `arrival` as tuples."""
        assert self.context.attempt is not None
        origin = Origin(
            self.context.attempt, arrival.component, arrival.stream, arrival.task, tuple(arrival.batch.schema.names)
        )
        columns = [iter(one) for one in columns_of_batch(arrival.batch)]
        self._now = arrival.batch.num_rows, columns[0]
        return map(Tuple, zip(*columns, strict=True) if arrival.batch.num_columns else columns[0], repeat(origin))

    def execute_rows(self, arrival: Arrival) -> None:
        """Pass the rows of `arrival` to the bolt as one record batch.

        Columns of several types are converted to Arrow's, unless the bolt `takes_tagged`: texts marked as such.
        """
        try:
            batch = arrival.batch
            if is_tagged(batch) and not getattr(self.bolt, "takes_tagged", False):
                batch = as_columns(
                    batch, f"{self.context.component}, stream {arrival.stream!r} of {arrival.component!r}"
                )
            if isinstance(self.bolt, BasicBolt):
                self.bolt.execute_batch(batch, self.collector)
            else:
                self.bolt.execute_batch(batch)
        except BaseException:
            last = self._seen + arrival.batch.num_rows
            self._at.input = f"rows {self._seen + 1} to {last} of its input, stream {arrival.stream!r} of "
            self._at.input += f"{arrival.component}[{arrival.task}]"
            raise

    def execute_tuple(self, one: Tuple) -> None:
        """Pass one tuple to the bolt."""
        if isinstance(self.bolt, BasicBolt):
            self.bolt.execute(one, self.collector)
        else:
            self.bolt.execute(one)

    def _execute_tuples(self, arrival: Arrival) -> None:
        one = None
        try:
            if isinstance(self.bolt, BasicBolt):
                basic, collector = self.bolt.execute, self.collector
                for one in self.tuples(arrival):
                    basic(one, collector)
            else:
                execute = self.bolt.execute
                for one in self.tuples(arrival):
                    execute(one)
        except BaseException:
            self._at.input = shortened(one)
            raise

    def finish(self) -> None:
        """Finish the batch after all of its input has been executed."""
        self.collector.partition(OutputCollector.AFTER_ALL)
        if isinstance(self.bolt, BatchBolt):
            try:
                self.bolt.finish_batch()
            except BaseException:
                if (one := getattr(self.bolt, "current", None)) is not None:  # a managed bolt executes here
                    self._at.input = shortened(one)
                raise
