"""Hooks of spouts planned in the driver: notices, commit callbacks, refused records and `NOT_READY`."""

import json
import pickle

import cloudpickle
import pytest
from runs import ended
from spout_samples import FailsOnce, PlainSpout, stored, storing

from txstorm import NOT_READY, Committer, CompositeSpout, TransactionalTopologyBuilder, run
from txstorm.errors import SpoutError

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
