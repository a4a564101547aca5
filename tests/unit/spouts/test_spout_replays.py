"""Inexact replays of transactional spouts of every kind are detected, even if the spout declares no digest."""

from pathlib import Path

import pytest
from spout_samples import CommitterSpout, FailsOnce, PartitionedSpout, Pass, PlainSpout

from txstorm import Committer, TransactionalTopologyBuilder, run
from txstorm.errors import SpoutError


def emissions() -> int:
    """Return the number of earlier calls in this test, counted in files so that it survives restarts."""
    before = len(list(Path.cwd().glob("emitted-*")))
    Path(f"emitted-{before}").touch()
    return before


class Unsteady(PlainSpout):
    """A spout that emits the number of its earlier emissions, so that every replay differs."""

    def emit_batch(self, attempt, metadata, collector):
        collector.emit(emissions())


class UnsteadyCommitter(CommitterSpout):
    """A committer spout with the emissions of `Unsteady`."""

    emit_batch = Unsteady.emit_batch


class UnsteadyPartitions(PartitionedSpout):
    """A partitioned spout, planned in its tasks, with the emissions of `Unsteady`."""

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        self.emit_partition_batch(attempt, collector, partition, 0)
        return attempt.txid

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        collector.emit(emissions())


class Forgets(PlainSpout):
    """A spout that reads partition ``p`` in its first attempt, and nothing in later ones."""

    def emit_batch(self, attempt, metadata, collector):
        if emissions() == 0:
            collector.digest("p", "something")
            collector.emit(1)


class FailsOnceCommitting(FailsOnce, Committer):
    pass


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
    refuses(spout(), bolt(Path("failed")), ANOTHER)


@pytest.mark.parametrize("bolt", [FailsOnce, FailsOnceCommitting])
def test_a_different_batch_after_a_restart_ends_the_topology(bolt, in_tmp):
    with pytest.raises(Exception, match="ValueError"):
        start(Unsteady(), bolt(Path("failed"), ValueError)).awaitTermination(60)
    refuses(Unsteady(), bolt(Path("failed"), ValueError), ANOTHER)


@pytest.mark.parametrize("bolt", [FailsOnce, FailsOnceCommitting])
def test_a_partition_missing_from_a_replay_is_detected(bolt, in_tmp):
    says = r"txid 1: the spout emitted another batch for p than the first time \(digest none, expected something\)"
    refuses(Forgets(), bolt(Path("failed")), says)
