"""Spouts: base classes of sources, in Storm's three kinds (transactional, partitioned, opaque partitioned)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import Component
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.names import StormNames
from txstorm.api.output import Collector


class _NotReady:
    """Type of the sentinel `NOT_READY`."""

    def __repr__(self) -> str:
        return "NOT_READY"

    def __reduce__(self) -> str:
        # Compared by identity, which must survive pickling to a worker and back.
        return "NOT_READY"


NOT_READY: Final = _NotReady()
"""Return value of `initialize_transaction` if the source has no data for another transaction yet."""


class SpoutCoordinator(StormNames):
    """Plans the transactions of a spout; one object per run, in the driver, on one thread.

    Metadata and marks are copied when passed in or returned, so a coordinator may modify its arguments and results.
    """

    storm_names: ClassVar[Mapping[str, str]] = {
        "isReady": "is_ready",
        "initializeTransaction": "initialize_transaction",
    }

    def is_ready(self) -> bool:
        """Return whether a new transaction may be started now; not called for replays."""
        return True

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        """Plan transaction `txid`: return its metadata (JSON), which must determine its batch, or `NOT_READY`.

        The metadata is recorded: a recorded txid is never planned again, even across restarts, unless the spout is
        opaque. `prev_metadata` is the metadata of ``txid - 1``, None for the first transaction.

        A coordinator with clocks may have a further argument, ``upto=None``, so that snapshots can be taken at a wanted
        clock. It is given that `txstorm.Clock`, and the transaction must not pass it: each partition gives its offsets
        up to ``upto[partition]`` at most; one that is not in `upto` gives nothing and, if it is new, is not in the
        clock of the transaction, unless that is the first one. If no partition can give anything, return `NOT_READY`.
        """
        return None

    def end_clock(self) -> Mapping[str, int] | None:
        """Return partition → its last offset, for the partitions that end; None if all go on, or it is not known.

        A snapshot at a clock beyond that is refused.
        """
        return None

    def payload(self, metadata: Any) -> Any:
        """Return data to ship to the emitters with this batch without storing it, for sources in the driver's memory.

        The data is shared between tasks: neither the coordinator nor an emitter may change it afterwards.
        """
        return None

    def is_at_hand(self, metadata: Any) -> bool:
        """Return whether the batch of a transaction planned by an earlier run can be read now; asked until it can.

        False is for sources that hand over their batches themselves, and do so again after a restart.
        """
        return True

    def latest(self) -> Any:
        """Return the current end of the source, as a mark for `reached`; None if the source cannot tell."""
        return None

    def reached(self, metadata: Any, mark: Any) -> bool:
        """Return whether transactions up to the one with `metadata` (None: none yet) contain all data up to `mark`."""
        return False

    def caught_up(self, metadata: Any) -> bool | None:
        """Return whether the source has nothing after `metadata`; None: `latest` and `reached` are called instead.

        Implement it where `latest` is expensive, since this is asked before each transaction of a run that admits only
        transactions with data.
        """
        return None

    def load_kept(self, rows: Any, planned: Mapping[int, Any]) -> None:
        """Take over what the spout has kept (see `Kept`), before anything else is asked.

        Args:
            rows: an Arrow table with the committed rows, one per key; None if there are none yet.
            planned: txid → metadata of the transactions planned before, the last committed one included.
        """

    def facts(self, metadata: Any) -> SourceFacts:
        """Return what is known of the source as the transaction with `metadata` is planned; recorded with it.

        Called right after `initialize_transaction`, and for transactions in which this source emits nothing.
        """
        return SourceFacts()

    def clock(self, metadata: Any) -> Mapping[str, int] | None:
        """Return partition → the last offset counted, as of the transaction with `metadata`; see `txstorm.Clock`.

        A partition of which nothing was read yet has its first offset − 1. Called right after `initialize_transaction`
        and recorded with the transaction; `metadata` is None for a source that has not been planned yet. None: the
        source has no clocks, and then never has any.
        """
        return None

    def at_clock(self, clock: Mapping[str, int]) -> Any:
        """Return the metadata as of a transaction that has exactly this clock, from which the next one is planned.

        Called when a new data directory begins at the clock of a snapshot. Partitions that the clock lacks are new.
        Raise `txstorm.errors.SpoutError` for a clock that the source cannot have had.
        """
        raise NotImplementedError

    def offsets(self, metadata: Any) -> Mapping[str, int]:
        """Return partition → the offset that follows what transactions up to the one with `metadata` have read.

        See `offsets_at`.
        """
        return {}

    def offsets_at(self, when: int) -> Mapping[str, int] | None:
        """Return partition → its first offset whose record is of time `when` (UTC microseconds) or later, else its end.

        Implement it, and `offsets`, in a coordinator whose records have times in the source itself, such as those of
        Kafka; ``txstorm rewind --to-time`` compares the two. None: they have none.
        """
        return None

    def notices(self) -> list[str]:
        """Return the messages about the source since the last call, to be shown in the log and the progress."""
        return []

    def remarks(self) -> list[str]:
        """Return what holds of the source now and users should know, to be shown in the status."""
        return []

    def committed(self, metadata: Any) -> None:
        """React to the commit of all transactions up to the one with `metadata`.

        Called some time after a commit, but not after every one: for several commit groups perhaps only after the
        last, and never for transactions committed just before the process died. Exceptions are logged.
        """

    def close(self) -> None:
        """Release resources; called when the topology stops."""


class Emitter(StormNames):
    """Emits the batch described by a transaction's metadata; one object per task of the spout, in the workers."""

    storm_names: ClassVar[Mapping[str, str]] = {"emitBatch": "emit_batch", "cleanupBefore": "cleanup_before"}

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        """Emit this task's share of the batch; for the same metadata, the tasks together must emit the same batch."""
        raise NotImplementedError

    def cleanup_before(self, txid: int) -> None:
        """Discard data kept for the transactions before `txid`, which are committed."""

    def close(self) -> None:
        """Release resources; called when the task ends. Emitting here makes the last emitted batch fail."""


@dataclass(frozen=True)
class Kept:
    """Rows that a spout keeps in a state of its topology, written by the transactions that they belong to.

    They are committed, rewound and recovered with the transactions; the coordinator reads them in `load_kept`.

    Attributes:
        what: the noun with which the name of the state ends.
        key, value: columns, as those of a `KeyedState`.
        rows: returns key → value (None: the key is deleted) for the metadata of a transaction, and nothing else.
    """

    what: str
    key: Mapping[str, Any]
    value: Mapping[str, Any]
    rows: Callable[[Any], Mapping[Any, Any]]


class TransactionalSpout(Component):
    """Storm's ``ITransactionalSpout``: batches are planned in the driver and replayed exactly.

    Attributes:
        opaque: True if an undecided batch may be planned again, with other content, after a failure or restart.
        kept_rows: rows that the spout keeps in a state of the topology; None: it keeps none.
        live: whether its rows arrive as they come into being; False: time behind is not shown for what it feeds.
    """

    opaque: bool = False
    kept_rows: Kept | None = None
    live: bool = True
    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "getCoordinator": "coordinator",
        "getEmitter": "emitter",
    }

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Create the coordinator; called once per run, in the driver."""
        raise NotImplementedError

    def emitter(self, context: TaskContext) -> Emitter:
        """Create the emitter of one task; called once per task and job, in a worker."""
        raise NotImplementedError


class CommitterEmitter(Emitter):
    """Emitter of a `CommitterTransactionalSpout`: emits in the workers, takes part in commits in the driver."""

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> Any:
        """Emit this task's share of the batch, as `Emitter` does; return a JSON value to be passed to `commit`."""
        raise NotImplementedError

    def commit(self, attempt: TransactionAttempt, emitted: Any) -> None:
        """Take part in the commit of `attempt`; called in strict txid order for every task of the spout, in the driver.

        Called before `finish_batch` of the committers, on a separate emitter of the driver that lives as long as the
        run; `emitted` is the return value of `emit_batch` of this task and attempt. The transaction may still fail
        and be replayed afterwards, so external effects must be idempotent by txid. Raise `FailedException` to have
        the batch replayed.
        """
        raise NotImplementedError


class CommitterTransactionalSpout(TransactionalSpout):
    """Storm's ``ICommitterTransactionalSpout``: its emitters take part in the commit phase.

    They may have effects outside the transaction, so transactions are decided one at a time.
    """

    external: ClassVar[bool] = True

    def emitter(self, context: TaskContext) -> CommitterEmitter:
        """Create an emitter; called once per task and job in a worker, and once per task and run in the driver."""
        raise NotImplementedError


class PartitionedCoordinator(StormNames):
    """Coordinator of a `PartitionedTransactionalSpout`; runs in the driver."""

    storm_names: ClassVar[Mapping[str, str]] = {"isReady": "is_ready", "numPartitions": "num_partitions"}

    def num_partitions(self) -> int:
        """Return the current number of partitions, which must never shrink; replays use the recorded number."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Return whether a new transaction may be started now."""
        return True

    def close(self) -> None:
        """Release resources; called when the topology stops."""


class PartitionedEmitter(StormNames):
    """Emitter of a `PartitionedTransactionalSpout`; task i of n emits partitions i, i + n, i + 2n and so on."""

    storm_names: ClassVar[Mapping[str, str]] = {
        "emitPartitionBatchNew": "emit_partition_batch_new",
        "emitPartitionBatch": "emit_partition_batch",
    }

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, last_metadata: Any
    ) -> Any:
        """Emit a new batch of `partition`, the one after `last_metadata` (None: the first); return its metadata."""
        raise NotImplementedError

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> None:
        """Replay exactly the batch of `partition` that `metadata` describes."""
        raise NotImplementedError

    def close(self) -> None:
        """Release resources; called when the task ends."""


class PartitionedTransactionalSpout(Component):
    """Storm's ``IPartitionedTransactionalSpout``: tasks plan each partition's batches, which are replayed exactly.

    Attributes:
        live: as that of `TransactionalSpout`.
    """

    live: bool = True
    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "getCoordinator": "coordinator",
        "getEmitter": "emitter",
    }

    def coordinator(self, context: TaskContext) -> PartitionedCoordinator:
        """Create the coordinator; called once per run, in the driver."""
        raise NotImplementedError

    def emitter(self, context: TaskContext) -> PartitionedEmitter:
        """Create the emitter of one task; called once per task and job, in a worker."""
        raise NotImplementedError


class OpaquePartitionedCoordinator(StormNames):
    """Coordinator of an `OpaquePartitionedTransactionalSpout`; runs in the driver."""

    storm_names: ClassVar[Mapping[str, str]] = {"isReady": "is_ready"}

    def is_ready(self) -> bool:
        """Return whether a new transaction may be started now."""
        return True

    def close(self) -> None:
        """Release resources; called when the topology stops."""


class OpaquePartitionedEmitter(StormNames):
    """Emitter of an `OpaquePartitionedTransactionalSpout`; task i of n emits partitions i, i + n, i + 2n and so on."""

    storm_names: ClassVar[Mapping[str, str]] = {
        "emitPartitionBatch": "emit_partition_batch",
        "numPartitions": "num_partitions",
    }

    def num_partitions(self) -> int:
        """Return the current number of partitions; called for every emission, including replays."""
        raise NotImplementedError

    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, last_metadata: Any
    ) -> Any:
        """Emit a batch of `partition`, the one after `last_metadata` (None: the first); return its metadata (JSON).

        Return None for "no new position": the next call gets the last metadata that was not None.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release resources; called when the task ends."""


class OpaquePartitionedTransactionalSpout(Component):
    """Storm's ``IOpaquePartitionedTransactionalSpout``: replays may differ; each tuple is committed only once.

    Attributes:
        live: as that of `TransactionalSpout`.
    """

    live: bool = True
    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "getCoordinator": "coordinator",
        "getEmitter": "emitter",
    }

    def coordinator(self, context: TaskContext) -> OpaquePartitionedCoordinator:
        """Create the coordinator; called once per run, in the driver."""
        return OpaquePartitionedCoordinator()

    def emitter(self, context: TaskContext) -> OpaquePartitionedEmitter:
        """Create the emitter of one task; called once per task and job, in a worker."""
        raise NotImplementedError


Spout = TransactionalSpout | PartitionedTransactionalSpout | OpaquePartitionedTransactionalSpout
