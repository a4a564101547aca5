"""Inexact replays of transactional spouts of every kind are detected, even if the spout declares no digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from txstorm import (
    BasicBolt,
    BatchBolt,
    Committer,
    CommitterEmitter,
    CommitterTransactionalSpout,
    Emitter,
    FailedException,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    SpoutCoordinator,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    run,
)
from txstorm.errors import SpoutError


def emissions() -> int:
    """Return the number of earlier calls in this test, counted in files so that it survives restarts."""
    before = len(list(Path.cwd().glob("emitted-*")))
    Path(f"emitted-{before}").touch()
    return before


class Numbers(SpoutCoordinator):
    def initialize_transaction(self, txid, prev_metadata):
        return txid


class Unsteady(TransactionalSpout):
    """A spout that emits the number of its earlier emissions, so that every replay differs."""

    fields = ("n",)

    def coordinator(self, context):
        return Numbers()

    def emitter(self, context):
        return Counts()


class Counts(Emitter):
    def emit_batch(self, attempt, metadata, collector):
        collector.emit(emissions())


class UnsteadyCommitter(CommitterTransactionalSpout):
    """A committer spout with the emissions of `Unsteady`."""

    fields = ("n",)

    def coordinator(self, context):
        return Numbers()

    def emitter(self, context):
        return CountsAndCommits()


class CountsAndCommits(CommitterEmitter):
    def emit_batch(self, attempt, metadata, collector):
        collector.emit(emissions())

    def commit(self, attempt, emitted):
        pass


class UnsteadyPartitions(PartitionedTransactionalSpout):
    """A partitioned spout, planned in its tasks, with the emissions of `Unsteady`."""

    fields = ("n",)

    def coordinator(self, context):
        return One()

    def emitter(self, context):
        return CountsPartition()


class One(PartitionedCoordinator):
    def num_partitions(self):
        return 1


class CountsPartition(PartitionedEmitter):
    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        self.emit_partition_batch(attempt, collector, partition, 0)
        return attempt.txid

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        collector.emit(emissions())


class Forgets(Unsteady):
    """A spout that reads partition ``p`` in its first attempt, and nothing in later ones."""

    def emitter(self, context):
        return ForgetsPartition()


class ForgetsPartition(Emitter):
    def emit_batch(self, attempt, metadata, collector):
        if emissions() == 0:
            collector.digest("p", "something")
            collector.emit(1)


class FailsOnce(BatchBolt):
    """A bolt that raises the given error in its first `finish_batch`, once per test."""

    fields = ("n",)

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def prepare(self, context, collector, attempt):
        self.collector, self.numbers = collector, []

    def execute(self, tuple):
        self.numbers.append(tuple["n"])

    def finish_batch(self):
        if not Path("failed").exists():
            Path("failed").touch()
            raise self.error
        for number in self.numbers:
            self.collector.emit(number)


class FailsOnceCommitting(FailsOnce, Committer):
    pass


class Pass(BasicBolt):
    fields = ("n",)

    def execute(self, tuple, collector):
        collector.emit(*tuple)


def start(spout, bolt):
    builder = TransactionalTopologyBuilder("unsteady", "numbers", spout)
    builder.set_bolt("pass", Pass(), 2).shuffle_grouping("numbers")  # an exchange, so the bolt is in another stage
    builder.set_bolt("fails-once", bolt).global_grouping("numbers")
    return run(builder.build_topology(), engine="local", until_txid=1)


def refuses(spout, bolt, says: str) -> None:
    handle = start(spout, bolt)
    with pytest.raises(SpoutError, match=says):
        handle.awaitTermination(60)
    handle.stop()
    assert handle.committed == 0


ANOTHER = r"txid 1: the spout emitted another batch for task 0 of 1 than the first time \(digest \w+, expected \w+\)"


@pytest.mark.parametrize("bolt", [FailsOnce, FailsOnceCommitting])
@pytest.mark.parametrize("spout", [Unsteady, UnsteadyCommitter, UnsteadyPartitions])
def test_a_different_batch_under_the_same_metadata_ends_the_topology(spout, bolt, in_tmp):
    """The source must replay the exact batch; the digest reveals a difference (T17)."""
    refuses(spout(), bolt(FailedException), ANOTHER)


@pytest.mark.parametrize("bolt", [FailsOnce, FailsOnceCommitting])
def test_a_different_batch_after_a_restart_ends_the_topology(bolt, in_tmp):
    with pytest.raises(Exception, match="ValueError"):
        start(Unsteady(), bolt(ValueError)).awaitTermination(60)
    refuses(Unsteady(), bolt(ValueError), ANOTHER)


@pytest.mark.parametrize("bolt", [FailsOnce, FailsOnceCommitting])
def test_a_partition_missing_from_a_replay_is_detected(bolt, in_tmp):
    says = r"txid 1: the spout emitted another batch for p than the first time \(digest none, expected something\)"
    refuses(Forgets(), bolt(FailedException), says)
