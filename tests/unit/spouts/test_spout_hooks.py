"""Hooks of spouts: notices, commits, refused records, `NOT_READY`, `close()`; inexact replays are detected."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
from runs import ended
from spout_samples import (
    CommitterSpout,
    FailsOnce,
    OpaquePartitionedSpout,
    PartitionedSpout,
    Pass,
    PlainSpout,
    stored,
    storing,
)

from txstorm import NOT_READY, Committer, CompositeSpout, TransactionalTopologyBuilder, run
from txstorm.engine.port import Engine
from txstorm.errors import EmitError, SpoutError
from txstorm.testing import TopologyTestDriver

HEARD: list = []


class Numbers(PlainSpout):
    """A spout whose batches are the records 1, 2 and 3; if `refuses` is set, it refuses record 2 of each batch."""

    def __init__(self, refuses=False, deaf=False):
        self.refuses, self.deaf = refuses, deaf
        self.told = []

    def initialize_transaction(self, txid, prev_metadata):
        self.told = [*self.told, f"planned {txid}"]
        return {"txid": txid} if txid < 4 else NOT_READY

    def notices(self):
        told, self.told = self.told, []
        return told

    def committed(self, metadata):
        HEARD.append(metadata["txid"])
        if self.deaf:
            raise ValueError("not heard")

    def emit_batch(self, attempt, metadata, collector):
        for record in (1, 2, 3):
            if record == 2 and self.refuses:
                collector.refuse(SpoutError("record 2 is bad"), {"record": record})
            else:
                collector.emit(record)


def ran(spout, data_dir, stream="default", **settings):
    HEARD.clear()
    topology = storing(spout, stream, max_spout_pending=1, **settings)
    return ended(topology, data_dir, until_txid=3)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_coordinator_is_notified_of_commits_its_errors_are_ignored_and_its_notices_in_the_progress(tmp_path, deaf):
    handle = ran(Numbers(deaf=deaf), tmp_path)
    assert HEARD == [1, 2, 3]
    assert handle.status["committed"] == 3
    assert [one.reported for one in handle.recentProgress] == [(f"planned {txid}",) for txid in (1, 2, 3)]


class FailsInCommit(FailsOnce, Committer):
    """A committer that fails in its first commit phase, when later txids may already have been processed."""


def test_notices_of_reprocessed_transactions_are_not_lost(tmp_path):
    builder = TransactionalTopologyBuilder("hooks", "spout", Numbers())
    builder.set_bolt("fails", FailsInCommit(tmp_path / "failed")).global_grouping("spout")
    handle = ended(builder.build_topology(), tmp_path / "data", until_txid=3)
    assert handle.progress.replays == 1
    assert "planned 3" in [notice for one in handle.recentProgress for notice in one.reported]


@pytest.mark.parametrize("composite", [False, True])
def test_only_the_refused_record_becomes_a_dead_letter(tmp_path, composite):
    spout = CompositeSpout({"one": Numbers(refuses=True)}) if composite else Numbers(refuses=True)
    handle = ran(spout, tmp_path, "one" if composite else "default", on_error="dead_letter")
    assert stored(handle) == [1, 3] * 3
    letters, source = handle.dead_letters().to_pylist(), {"source": "one"} if composite else {}
    assert [(row["what"], json.loads(row["record"]), row["_txid"]) for row in letters] == [
        ("record", {**source, "record": 2}, txid) for txid in (1, 2, 3)
    ]
    assert {row["message"] for row in letters} == {"record 2 is bad"}
    if composite:
        assert HEARD == [1, 2, 3]


class ThreeBatches(PlainSpout):
    def initialize_transaction(self, txid, prev_metadata):
        return NOT_READY if txid > 3 else txid

    def emit_batch(self, attempt, metadata, collector):
        collector.emit(metadata)


@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_not_ready_is_the_same_object_after_pickling(module):
    assert pickle.loads(module.dumps(NOT_READY)) is NOT_READY


@pytest.mark.parametrize("wait", ["available_now", "processAllAvailable"])
def test_a_source_without_marks_is_exhausted_when_it_is_not_ready(in_tmp, wait):
    handle = run(storing(ThreeBatches()), engine="local", available_now=wait == "available_now")
    if wait == "available_now":
        assert handle.awaitTermination(60)
    else:
        handle.processAllAvailable()
    assert stored(handle) == [1, 2, 3]
    handle.stop()


Factory = Callable[[], Engine]
SAYS = r"(?s)close\(\) of its emitter emitted a tuple: .*\('late',\).*: emit there"


class Late:
    """Emitter methods of spouts of every kind, which wrongly emit one more tuple in `close`."""

    collector = None

    def emit_batch(self, attempt, metadata, collector):
        self.collector = collector
        collector.emit(attempt.txid)

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        self.emit_batch(attempt, None, collector)
        return attempt.txid

    emit_partition_batch = emit_partition_batch_new

    def close(self):
        if self.collector is not None:  # this is an emitter, not the coordinator
            self.close_emitter()

    def close_emitter(self):
        self.collector.emit("late")


class LateSpout(Late, PlainSpout):
    pass


class LatePartitions(Late, PartitionedSpout):
    pass


class LateOpaquePartitions(Late, OpaquePartitionedSpout):
    pass


class LateAndBroken(LateSpout):
    """A spout whose emitter's `close` masks the error of its late tuple with another exception."""

    def close_emitter(self):
        try:
            super().close_emitter()
        finally:
            raise OSError("cannot be closed")


class Unclosable(LateSpout):
    def close_emitter(self):
        raise OSError("cannot be closed")


@pytest.mark.parametrize("spout", [LateSpout, LatePartitions, LateOpaquePartitions, LateAndBroken])
def test_a_tuple_emitted_in_close_fails_the_last_batch_of_the_pack(spout, make_engine: Factory, tmp_path):
    topology = storing(spout(), bolt=Pass(), max_spout_pending=6, max_pack_txids=3)
    handle = run(topology, engine=make_engine(), data_dir=tmp_path, until_txid=6)
    with pytest.raises(EmitError, match=SAYS) as raised:
        handle.awaitTermination(300)
    assert "spout[0] raised EmitError at" in str(raised.value)
    assert "test_spout_hooks.py" in str(raised.value)
    # The batches before the last one of the first pack are emitted completely, and commit.
    assert (stored(handle) if handle.committed else []) == list(range(1, handle.committed + 1))
    assert handle.committed < 3


def test_a_tuple_emitted_in_close_fails_the_batch_or_makes_it_a_dead_letter(tmp_path):
    for stream in ("one", "two"):
        topology = storing(CompositeSpout({"one": LateSpout(), "two": LateOpaquePartitions()}), stream, Pass())
        with pytest.raises(EmitError, match=SAYS), TopologyTestDriver(topology) as driver:
            driver.commit()
    topology = storing(LateSpout(), bolt=Pass(), on_error="dead_letter", retry_backoff=0)
    letters = ended(topology, tmp_path, until_txid=2).dead_letters().to_arrow().to_pylist()
    assert letters
    assert all("close() of its emitter" in one["message"] for one in letters)


def test_an_emitter_whose_close_raises_fails_no_batch(tmp_path: Path, caplog):
    assert stored(ended(storing(Unclosable(), bolt=Pass()), tmp_path, until_txid=3)) == [1, 2, 3]
    assert "close() of its emitter failed" in caplog.text


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
