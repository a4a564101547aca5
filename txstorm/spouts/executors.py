"""The three spout interfaces reduced to one kind: a planner in the driver and a task in the workers.

The *spout document* of a txid is JSON. Driver-planned spouts: ``{"meta": <the coordinator's metadata>}``.
Partitioned ones: ``{"count": n, "parts": parts}``, opaque partitioned ones: ``{"parts": parts}``, where `parts` is
null until the tasks have reported and then maps every partition to ``{"batch": metadata}`` when it emitted in this
txid, or ``{"kept": position}`` when it did not: the position is that of an earlier txid then, so a document alone
tells where the next txid begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector
from txstorm.api.spout import (
    NOT_READY,
    Emitter,
    OpaquePartitionedCoordinator,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    Spout,
    SpoutCoordinator,
    TransactionalSpout,
)
from txstorm.errors import MetadataError, SpoutError, TopologyFailed, TxstormError

Parts = dict[str, Any]


class SpoutPlanner:
    """Plans transactions in the driver, whatever the kind of the spout; made by `planner`.

    Attributes:
        opaque: an undecided txid may be planned anew after a failure or restart.
        task_planned: the extents of a txid are known only when its tasks have run.
    """

    opaque: bool = False
    task_planned: bool = False

    def plan(self, txid: int, previous: Any, *, replay: bool = False) -> Any:
        """The spout document of `txid`, or `NOT_READY`.

        Called before `txid` is emitted, in txid order. A stored document of a spout that is not opaque is used
        again instead of asking.

        Args:
            txid: the transaction.
            previous: the document of ``txid - 1``; None for the first.
            replay: an earlier attempt existed: the spout is not asked whether it is ready.
        """
        raise NotImplementedError

    def payload(self, document: Any) -> Any:
        """What is shipped with the batch (`TaskContext.payload`) and never stored."""
        return None

    def latest(self) -> Any:
        """A mark of what the source holds now; None when it cannot tell."""
        return None

    def reached(self, document: Any, mark: Any) -> bool:
        """Whether the txids up to that of `document` (None: none yet) cover all of `mark`."""
        return False

    def finish(self, document: Any, parts: Parts) -> Any:
        """`document` with the real extents: `parts` is the union of what the tasks' `SpoutTask.run` returned."""
        return document

    def close(self) -> None:
        """Called once, when the topology stops."""
        raise NotImplementedError


class SpoutTask:
    """Emits one task's share of a batch, in a worker; made by `spout_task`, once per task and job."""

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        """Emit this task's share of the batch of `attempt`, and tell what was read.

        Called in txid order within a pack; `TaskContext.payload` holds the payload of this txid.

        Args:
            attempt: the attempt to emit for.
            document: the txid's spout document.
            carried: where each partition stands: a copy of the `parts` of the txid before the pack ({} when it
                has none); updated here, so the txids of a pack chain. Unused by driver-planned spouts.
            collector: receives the tuples.

        Returns:
            The `parts` of this task's partitions, for `SpoutPlanner.finish`; empty for driver-planned spouts.

        Raises:
            MetadataError: the emitter returned something JSON cannot hold, or tuples without metadata.
        """
        raise NotImplementedError

    def cleanup_before(self, txid: int) -> None:
        """Transactions before `txid` are committed."""

    def close(self) -> None:
        """Called once, when the task ends."""
        raise NotImplementedError


def planner(spout: Spout, context: TaskContext) -> SpoutPlanner:
    """The planner of `spout`; makes its coordinator. `context.parallelism` is that of the spout's emitters.

    Raises:
        TopologyFailed: the spout raised.
    """
    with _calling(context.component, "coordinator()"):
        return _planner(spout, context)


def _planner(spout: Spout, context: TaskContext) -> SpoutPlanner:
    if isinstance(spout, TransactionalSpout):
        return _DriverPlanner(spout.coordinator(context), context.component, spout.opaque)
    if isinstance(spout, PartitionedTransactionalSpout):
        return _PartitionedPlanner(spout.coordinator(context), context.component)
    if isinstance(spout, OpaquePartitionedTransactionalSpout):
        return _OpaquePlanner(spout.coordinator(context))
    raise _not_a_spout(spout, context)


def spout_task(spout: Spout, context: TaskContext) -> SpoutTask:
    """The task `context.task` of `spout`; makes its emitter."""
    if isinstance(spout, TransactionalSpout):
        return _DriverPlannedTask(spout.emitter(context), context)
    if isinstance(spout, PartitionedTransactionalSpout):
        return _PartitionedTask(spout.emitter(context), context)
    if isinstance(spout, OpaquePartitionedTransactionalSpout):
        return _OpaqueTask(spout.emitter(context), context)
    raise _not_a_spout(spout, context)


def check_spout(spout: Spout) -> None:
    """Let `spout` look at its source before anything is written, if it has a method ``check()``.

    Raises:
        SpoutError: the source is missing, unreadable or of another format.
        TopologyFailed: the spout raised something else.
    """
    check = getattr(spout, "check", None)
    if check is not None:
        with _calling(type(spout).__name__, "check()"):
            check()


@contextmanager
def _calling(spout: str, call: str) -> Iterator[None]:
    """What user code raises in the driver ends the topology, with the name of the call that raised."""
    try:
        yield
    except TxstormError:
        raise
    except (Exception, SystemExit) as error:
        msg = f"spout {spout!r}: {call} raised {type(error).__name__}: {error}"
        raise TopologyFailed(msg) from error


def storable(value: Any, what: str) -> Any:
    """`value` as it comes back from storage (tuples become lists), so first emission and replay see the same.

    Raises:
        MetadataError: JSON cannot hold `value`; `what` names the spout, partition and txid.
    """
    try:
        stored = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{what}: metadata {value!r} cannot be stored ({error}); return what JSON holds"
        raise MetadataError(msg) from None
    if stored != value and _bent(value):
        msg = f"{what}: metadata {value!r} has a key that is no string and would come back as one; use strings"
        raise MetadataError(msg)
    return stored


def _bent(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(not isinstance(key, str) or _bent(inner) for key, inner in value.items())
    return isinstance(value, list | tuple) and any(map(_bent, value))


class _DriverPlanner(SpoutPlanner):
    def __init__(self, coordinator: SpoutCoordinator, component: str, opaque: bool) -> None:
        self.opaque = opaque
        self._coordinator = coordinator
        self._component = component

    def plan(self, txid: int, previous: Any, *, replay: bool = False) -> Any:
        if not replay and not self._coordinator.is_ready():
            return NOT_READY
        meta = self._coordinator.initialize_transaction(txid, previous and previous["meta"])
        return meta if meta is NOT_READY else {"meta": storable(meta, f"spout {self._component!r}, txid {txid}")}

    def payload(self, document: Any) -> Any:
        with _calling(self._component, "payload()"):
            return self._coordinator.payload(document["meta"])

    def latest(self) -> Any:
        with _calling(self._component, "latest()"):
            return self._coordinator.latest()

    def reached(self, document: Any, mark: Any) -> bool:
        with _calling(self._component, "reached()"):
            return self._coordinator.reached(document and document["meta"], mark)

    def close(self) -> None:
        self._coordinator.close()


class _PartitionedPlanner(SpoutPlanner):
    task_planned = True

    def __init__(self, coordinator: PartitionedCoordinator, component: str) -> None:
        self._coordinator = coordinator
        self._component = component

    def plan(self, txid: int, previous: Any, *, replay: bool = False) -> Any:
        if not replay and not self._coordinator.is_ready():
            return NOT_READY
        count = _count(self._coordinator.num_partitions(), f"spout {self._component!r}, txid {txid}")
        return {"count": count, "parts": None}

    def finish(self, document: Any, parts: Parts) -> Any:
        return {**document, "parts": _sorted(parts)}

    def close(self) -> None:
        self._coordinator.close()


class _OpaquePlanner(SpoutPlanner):
    opaque = True
    task_planned = True

    def __init__(self, coordinator: OpaquePartitionedCoordinator) -> None:
        self._coordinator = coordinator

    def plan(self, txid: int, previous: Any, *, replay: bool = False) -> Any:
        ready = replay or self._coordinator.is_ready()
        return {"parts": None} if ready else NOT_READY

    def finish(self, document: Any, parts: Parts) -> Any:
        return {**document, "parts": _sorted(parts)}

    def close(self) -> None:
        self._coordinator.close()


class _DriverPlannedTask(SpoutTask):
    def __init__(self, emitter: Emitter, context: TaskContext) -> None:
        self._emitter = emitter
        self._context = context

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        self._context.attempt = attempt
        self._emitter.emit_batch(attempt, document["meta"], collector)
        return {}

    def cleanup_before(self, txid: int) -> None:
        self._emitter.cleanup_before(txid)

    def close(self) -> None:
        self._emitter.close()


class _PartitionedTask(SpoutTask):
    def __init__(self, emitter: PartitionedEmitter, context: TaskContext) -> None:
        self._emitter = emitter
        self._context = context

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        self._context.attempt = attempt
        if document["parts"] is None:
            parts = _emit_new(self._context, carried, document["count"], collector, self._new(attempt))
        else:
            parts = self._replay(attempt, document, collector)
        carried.update(parts)
        return parts

    def _new(self, attempt: TransactionAttempt) -> Any:
        return lambda watched, partition, last: self._emitter.emit_partition_batch_new(
            attempt, watched, partition, last
        )

    def _replay(self, attempt: TransactionAttempt, document: Any, collector: Collector) -> Parts:
        # A partition without a batch in a document whose extents are known emits nothing, on every replay: what it
        # had to give went into a later txid (Storm's PartitionedTransactionalSpoutExecutor).
        mine = _mine(self._context, document["parts"])
        for partition, part in mine.items():
            if "batch" in part:
                self._emitter.emit_partition_batch(attempt, collector, int(partition), part["batch"])
        return mine

    def close(self) -> None:
        self._emitter.close()


class _OpaqueTask(SpoutTask):
    def __init__(self, emitter: OpaquePartitionedEmitter, context: TaskContext) -> None:
        self._emitter = emitter
        self._context = context

    def run(self, attempt: TransactionAttempt, document: Any, carried: Parts, collector: Collector) -> Parts:
        self._context.attempt = attempt
        count = _count(self._emitter.num_partitions(), _what(self._context))
        parts = _emit_new(self._context, carried, count, collector, self._new(attempt))
        carried.update(parts)
        return parts

    def _new(self, attempt: TransactionAttempt) -> Any:
        return lambda watched, partition, last: self._emitter.emit_partition_batch(attempt, watched, partition, last)

    def close(self) -> None:
        self._emitter.close()


def _emit_new(context: TaskContext, carried: Parts, count: int, collector: Collector, emit: Any) -> Parts:
    """Emit new batches of this task's partitions; those that are away or gave nothing keep their position."""
    parts = {partition: {"kept": _position(part)} for partition, part in _mine(context, carried).items()}
    for partition in range(context.task, count, context.parallelism):
        last = _position(carried.get(str(partition)))
        watched = _WatchedCollector(collector)
        meta = emit(watched, partition, last)
        if meta is None and watched.emitted:
            msg = f"{_what(context, partition)}: tuples were emitted but no metadata returned, so nobody could tell "
            raise MetadataError(msg + "where the next batch begins; return the metadata of what was emitted")
        parts[str(partition)] = {"kept": last} if meta is None else {"batch": storable(meta, _what(context, partition))}
    return parts


def _mine(context: TaskContext, parts: Parts) -> Parts:
    return {key: part for key, part in parts.items() if int(key) % context.parallelism == context.task}


def _position(part: Any) -> Any:
    return None if part is None else part.get("batch", part.get("kept"))


def _sorted(parts: Parts) -> Parts:
    return dict(sorted(parts.items(), key=lambda item: int(item[0])))


def _what(context: TaskContext, partition: int | None = None) -> str:
    where = "" if partition is None else f", partition {partition}"
    return f"spout {context.component!r}{where}, txid {context.attempt and context.attempt.txid}"


def _count(count: Any, what: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        msg = f"{what}: num_partitions() gave {count!r}; return an int >= 0"
        raise MetadataError(msg)
    return count


def _not_a_spout(spout: object, context: TaskContext) -> SpoutError:
    return SpoutError(
        f"spout {context.component!r} is a {type(spout).__name__}; derive it from TransactionalSpout, "
        "PartitionedTransactionalSpout or OpaquePartitionedTransactionalSpout"
    )


class _WatchedCollector:
    """Passes everything on and remembers whether anything was emitted."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner
        self.emitted = False
        self.report_error = self.reportError = inner.report_error
        self.digest = inner.digest

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        self.emitted = True
        self._inner.emit(*values, stream=stream)

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        self.emitted = True
        self._inner.emit_direct(task, *values, stream=stream)

    emitDirect = emit_direct  # noqa: N815 - Storm's name

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        self.emitted = self.emitted or len(batch) > 0
        self._inner.emit_batch(batch, stream=stream)
