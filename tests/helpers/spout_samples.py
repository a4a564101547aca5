"""Spouts of one class, which is also that of their coordinators and emitters, and topologies that store tuples."""

import copy
from pathlib import Path
from typing import Any

from topology_samples import Silent

from txstorm import (
    BatchBolt,
    CommitterEmitter,
    CommitterTransactionalSpout,
    Emitter,
    OpaquePartitionedCoordinator,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    SpoutCoordinator,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstorm.errors import FailedException
from txstorm.sinks import DeltaSink


class OneClass:
    """Base class of a spout whose coordinators and emitters are copies of it, each with its context."""

    fields = ("n",)

    def coordinator(self, context):
        made = copy.copy(self)
        made.context = context
        return made

    emitter = coordinator


class PlainSpout(OneClass, TransactionalSpout, SpoutCoordinator, Emitter):
    """Base class of a spout whose metadata are txids."""

    def initialize_transaction(self, txid, prev_metadata):
        return txid


class CommitterSpout(OneClass, CommitterTransactionalSpout, SpoutCoordinator, CommitterEmitter):
    """Base class of a committer spout whose metadata are txids."""

    def initialize_transaction(self, txid, prev_metadata):
        return txid

    def commit(self, attempt, emitted):
        pass


class PartitionedSpout(OneClass, PartitionedTransactionalSpout, PartitionedCoordinator, PartitionedEmitter):
    """Base class of a spout with one partition."""

    def num_partitions(self):
        return 1


class OpaquePartitionedSpout(
    OneClass, OpaquePartitionedTransactionalSpout, OpaquePartitionedCoordinator, OpaquePartitionedEmitter
):
    """Base class of an opaque spout with one partition."""

    def num_partitions(self):
        return 1


class Pass(BatchBolt):
    """A batch bolt that emits its input unchanged."""

    fields = ("n",)

    def prepare(self, context, collector, attempt):
        self.collector = collector

    def execute(self, tuple):
        self.collector.emit(tuple["n"])


class FailsOnce(Silent):
    """A bolt, or a committer, whose first `finish_batch` raises an error; it creates the file `mark`."""

    def __init__(self, mark: Path, error: type[Exception] = FailedException) -> None:
        self.mark, self.error = mark, error

    def finish_batch(self):
        if not self.mark.exists():
            self.mark.touch()
            raise self.error


def storing(spout: Any, stream: str = "default", bolt: BatchBolt | None = None, **settings: Any) -> Topology:
    """Build a topology that stores the numbers of a spout's stream, passed on by `bolt` if given, in the sink "rows"."""
    builder = TransactionalTopologyBuilder("samples", "spout", spout)
    keep = builder.set_bolt("keep", DeltaSink("rows", {"n": int}))
    if bolt is None:
        keep.global_grouping("spout", stream)
    else:
        builder.set_bolt("bolt", bolt).shuffle_grouping("spout", stream)
        keep.global_grouping("bolt")
    return builder.set_settings(settings).build_topology()


def stored(handle: Any) -> list[int]:
    """Return the numbers that a run of such a topology has committed, in order."""
    return [row["n"] for row in handle.sink("rows").to_pylist()]
