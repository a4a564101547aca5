"""Executor for a single batch bolt, with batch ids of any type; the counterpart of Storm's ``BatchBoltExecutor``."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import cloudpickle

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import CommitResources, TaskContext
from txstorm.api.names import DEFAULT_STREAM, counted
from txstorm.api.output import OutputFieldsDeclarer
from txstorm.engine.arrow import batch_of_rows, rows_of_batch
from txstorm.engine.task.bolt_run import Arrival, BoltRun
from txstorm.engine.task.collector import OutputCollector
from txstorm.errors import InputError


class EmittedTuple(NamedTuple):
    """One emitted tuple; `task` is the receiving task on a direct stream."""

    stream: str
    values: tuple[Any, ...]
    task: int | None = None


class BatchBoltExecutor:
    """Executor of a batch bolt without a topology: one copy per id, from its first tuple to `finish` or `timeout_id`.

    The id replaces the attempt: it is a `TransactionAttempt`, or any other identifier of a batch (such as that of a
    DRPC request). The bolt must be picklable, since it is copied as for workers.

    Example::

        executor = BatchBoltExecutor(Count(), fields=["word"])
        executor.execute("request 7", ["cat"])
        assert executor.finish("request 7") == [("default", (1,), None)]

    Args:
        bolt: the bolt.
        fields: names of the fields of its input tuples.
        component: its component id, for messages.
        task: the index of its task.
        parallelism: the number of its tasks.
        resources: the tables of a committer, if it uses any.

    Raises:
        InputError: `bolt` is not a batch bolt.
    """

    def __init__(
        self,
        bolt: BatchBolt,
        fields: Sequence[str],
        *,
        component: str = "bolt",
        task: int = 0,
        parallelism: int = 1,
        resources: CommitResources | None = None,
    ) -> None:
        if not isinstance(bolt, BatchBolt):
            raise InputError(f"batch bolt executor: {type(bolt).__name__} is no BatchBolt; give it an object of one")
        self._blob = cloudpickle.dumps(bolt)
        self._fields = tuple(fields)
        self._declared = OutputFieldsDeclarer()
        bolt.declare_output_fields(self._declared)
        self._context = TaskContext("test", component, task, parallelism, resources=resources)
        self._runs: dict[Hashable, BoltRun] = {}

    @property
    def ids(self) -> list[Hashable]:
        """The ids of unfinished batches, in the order of their first tuples."""
        return list(self._runs)

    def execute(
        self,
        id: Hashable,
        values: Sequence[Any] | Mapping[str, Any],
        *,
        source: str = "source",
        stream: str = DEFAULT_STREAM,
        source_task: int = 0,
    ) -> None:
        """Pass a tuple to the bolt of batch `id`, its values in the order of the fields or keyed by field name."""
        row = tuple(values[name] for name in self._fields) if isinstance(values, Mapping) else tuple(values)
        if len(row) != len(self._fields):
            number = counted(len(row), "value")
            raise InputError(f"batch bolt executor: {row!r} has {number}, expected one for each of {self._fields}")
        self._run(id).execute([Arrival(source, stream, source_task, batch_of_rows([row], self._fields))])

    def finish(self, id: Hashable) -> list[EmittedTuple]:
        """Finish and remove batch `id`; return all tuples it emitted, including those emitted in `execute`.

        An id that has received no tuples gets a fresh bolt, which is finished at once.
        """
        run = self._run(id)
        del self._runs[id]
        run.finish()
        return [
            EmittedTuple(one.stream, tuple(row), one.direct)
            for one in run.collector.take()
            for row in rows_of_batch(one.batch)
        ]

    def timeout_id(self, id: Hashable) -> None:
        """Drop the bolt of batch `id` without finishing it, as after a timeout."""
        self._runs.pop(id, None)

    timeoutId = timeout_id  # noqa: N815 - Storm's name

    def _run(self, id: Hashable) -> BoltRun:
        if id not in self._runs:
            context = self._context
            collector = OutputCollector(context.component, self._declared.streams)
            fresh = TaskContext(
                context.topology,
                context.component,
                context.task,
                context.parallelism,
                attempt=cast("TransactionAttempt", id),
                resources=context.resources,
            )
            self._runs[id] = BoltRun(cloudpickle.loads(self._blob), fresh, collector)
        return self._runs[id]
