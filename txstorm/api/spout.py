"""Spouts: what a user implements at the source, in Storm's three kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import Component
from txstorm.api.context import TaskContext
from txstorm.api.names import StormNames
from txstorm.api.output import Collector


class _NotReady:
    """The type of `NOT_READY`."""

    def __repr__(self) -> str:
        return "NOT_READY"

    def __reduce__(self) -> str:
        # It is known by its identity, which must survive the journey to a worker and back.
        return "NOT_READY"


NOT_READY: Final = _NotReady()
"""Returned by `initialize_transaction` when the source has nothing for another transaction yet."""


class SpoutCoordinator(StormNames):
    """Plans transactions; runs once, in the driver, on one thread.

    Metadata and marks are copied on the way in and out: a coordinator may change what it is given and has returned.
    """

    storm_names: ClassVar[Mapping[str, str]] = {
        "isReady": "is_ready",
        "initializeTransaction": "initialize_transaction",
    }

    def is_ready(self) -> bool:
        """Whether another transaction may be started now; never asked for a transaction that is replayed."""
        return True

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        """The metadata (JSON) of transaction `txid`, which must determine its batch; or `NOT_READY`.

        Called once over the life of a txid, restarts included; `prev_metadata` is that of ``txid - 1``,
        None for the first.
        """
        return None

    def payload(self, metadata: Any) -> Any:
        """Rows to ship with the batch, not stored; for sources that live in the driver's memory.

        They are not copied for every task: neither the coordinator nor an emitter may change them afterwards.
        """
        return None

    def latest(self) -> Any:
        """A mark of what the source holds now, for `reached`; None when the source cannot tell."""
        return None

    def reached(self, metadata: Any, mark: Any) -> bool:
        """Whether transactions up to the one with `metadata` (None: none yet) cover all of `mark`."""
        return False

    def notices(self) -> list[str]:
        """What is worth showing of the source, in the progress, since the last call."""
        return []

    def committed(self, metadata: Any) -> None:
        """Transactions up to the one with `metadata` are committed.

        Called some time afterwards, and of several groups perhaps only for the last; not called for what was
        committed when the process died. What it raises is logged.
        """

    def close(self) -> None:
        """Called when the topology stops."""


class Emitter(StormNames):
    """Turns metadata into tuples; runs in every task of the spout, in the workers."""

    storm_names: ClassVar[Mapping[str, str]] = {"emitBatch": "emit_batch", "cleanupBefore": "cleanup_before"}

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        """Emit this task's share of the batch; all tasks together always emit the same batch for the same metadata."""
        raise NotImplementedError

    def cleanup_before(self, txid: int) -> None:
        """Transactions before `txid` are committed."""

    def close(self) -> None:
        """Called when the task ends; emitting here fails the last batch that was emitted."""


class TransactionalSpout(Component):
    """Storm's ``ITransactionalSpout``: planned in the driver, replayed exactly.

    Attributes:
        opaque: True when a batch that is not decided yet may be planned anew after a failure or restart.
    """

    opaque: ClassVar[bool] = False
    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "getCoordinator": "coordinator",
        "getEmitter": "emitter",
    }

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Called once per run, in the driver."""
        raise NotImplementedError

    def emitter(self, context: TaskContext) -> Emitter:
        """Called once per task and job, in a worker."""
        raise NotImplementedError


class CommitterEmitter(Emitter):
    """Emitter of a `CommitterTransactionalSpout`: emits in the workers, hears of the commit in the driver."""

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> Any:
        """As of `Emitter`; returns what `commit` is to know of this task's share (JSON), or None."""
        raise NotImplementedError

    def commit(self, attempt: TransactionAttempt, emitted: Any) -> None:
        """It is the turn of `attempt`: called for every task of the spout, in strong txid order, in the driver.

        Called before the committers' `finish_batch`, on an object of the driver's own that lives as long as the run;
        `emitted` is what `emit_batch` of this task returned for this very attempt. The transaction may still fail and
        be replayed after it, so an effect outside must be tied to the txid. Raise `FailedException` to replay.
        """
        raise NotImplementedError


class CommitterTransactionalSpout(TransactionalSpout):
    """Storm's ``ICommitterTransactionalSpout``: its emitters take part in the commit phase.

    What they do there no transaction of txstorm can hold back: transactions are decided one by one.
    """

    external: ClassVar[bool] = True

    def emitter(self, context: TaskContext) -> CommitterEmitter:
        """Called once per task and job in a worker, and once per task and run in the driver."""
        raise NotImplementedError


class PartitionedCoordinator(StormNames):
    """Coordinator of a `PartitionedTransactionalSpout`; in the driver."""

    storm_names: ClassVar[Mapping[str, str]] = {"isReady": "is_ready", "numPartitions": "num_partitions"}

    def num_partitions(self) -> int:
        """The number of partitions now; recorded with the txid, so a replay never has more. It never shrinks."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether another transaction may be started now."""
        return True

    def close(self) -> None:
        """Called when the topology stops."""


class PartitionedEmitter(StormNames):
    """Emitter of a `PartitionedTransactionalSpout`; task i of n serves partitions i, i + n and so on."""

    storm_names: ClassVar[Mapping[str, str]] = {
        "emitPartitionBatchNew": "emit_partition_batch_new",
        "emitPartitionBatch": "emit_partition_batch",
    }

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, last_metadata: Any
    ) -> Any:
        """Emit a new batch of `partition`, from where `last_metadata` ends; returns its metadata (JSON)."""
        raise NotImplementedError

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> None:
        """Emit exactly the batch that `metadata` describes, again."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when the task ends."""


class PartitionedTransactionalSpout(Component):
    """Storm's ``IPartitionedTransactionalSpout``: bookkeeping per partition, planned in the tasks."""

    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "getCoordinator": "coordinator",
        "getEmitter": "emitter",
    }

    def coordinator(self, context: TaskContext) -> PartitionedCoordinator:
        """Called once per run, in the driver."""
        raise NotImplementedError

    def emitter(self, context: TaskContext) -> PartitionedEmitter:
        """Called once per task and job, in a worker."""
        raise NotImplementedError


class OpaquePartitionedCoordinator(StormNames):
    """Coordinator of an `OpaquePartitionedTransactionalSpout`; in the driver."""

    storm_names: ClassVar[Mapping[str, str]] = {"isReady": "is_ready"}

    def is_ready(self) -> bool:
        """Whether another transaction may be started now."""
        return True

    def close(self) -> None:
        """Called when the topology stops."""


class OpaquePartitionedEmitter(StormNames):
    """Emitter of an `OpaquePartitionedTransactionalSpout`."""

    storm_names: ClassVar[Mapping[str, str]] = {
        "emitPartitionBatch": "emit_partition_batch",
        "numPartitions": "num_partitions",
    }

    def num_partitions(self) -> int:
        """Asked at every emission, replays included."""
        raise NotImplementedError

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, last_metadata: Any
    ) -> Any:
        """Emit from where `last_metadata` ends; returns the metadata (JSON).

        None means "no position": the next call gets the last one that was not None.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Called when the task ends."""


class OpaquePartitionedTransactionalSpout(Component):
    """Storm's ``IOpaquePartitionedTransactionalSpout``: a replay may differ; every tuple succeeds in one batch."""

    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "getCoordinator": "coordinator",
        "getEmitter": "emitter",
    }

    def coordinator(self, context: TaskContext) -> OpaquePartitionedCoordinator:
        """Called once per run, in the driver."""
        return OpaquePartitionedCoordinator()

    def emitter(self, context: TaskContext) -> OpaquePartitionedEmitter:
        """Called once per task and job, in a worker."""
        raise NotImplementedError


Spout = TransactionalSpout | PartitionedTransactionalSpout | OpaquePartitionedTransactionalSpout
