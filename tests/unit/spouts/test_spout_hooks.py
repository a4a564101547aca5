"""Hooks of spouts planned in the driver: notices, commit callbacks and refused records."""

from __future__ import annotations

import json

import pytest

from txstorm import (
    NOT_READY,
    BatchBolt,
    Committer,
    CompositeSpout,
    Emitter,
    SpoutCoordinator,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    run,
)
from txstorm.errors import FailedException, SpoutError
from txstorm.sinks import DeltaSink

HEARD: list = []


class Numbers(TransactionalSpout):
    """A spout whose batches are the records 1, 2 and 3; if `refuses` is set, it refuses record 2 of each batch."""

    fields = ("n",)

    def __init__(self, refuses=False, deaf=False):
        self.refuses, self.deaf = refuses, deaf

    def coordinator(self, context):
        return Coordinator(self.deaf)

    def emitter(self, context):
        return NumbersEmitter(self.refuses)


class Coordinator(SpoutCoordinator):
    def __init__(self, deaf):
        self.deaf = deaf
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


class NumbersEmitter(Emitter):
    def __init__(self, refuses):
        self.refuses = refuses

    def emit_batch(self, attempt, metadata, collector):
        for record in (1, 2, 3):
            if record == 2 and self.refuses:
                collector.refuse(SpoutError("record 2 is bad"), {"record": record})
            else:
                collector.emit(record)


def ran(spout, data_dir, stream="default", **settings):
    builder = TransactionalTopologyBuilder("hooks", "spout", spout)
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("spout", stream)
    builder.set_settings({"max_spout_pending": 1, **settings})
    HEARD.clear()
    handle = run(builder.build_topology(), engine="local", data_dir=data_dir, until_txid=3)
    handle.awaitTermination(60)
    return handle


@pytest.mark.parametrize("deaf", [False, True])
def test_a_coordinator_is_notified_of_commits_and_its_errors_are_ignored(tmp_path, deaf):
    handle = ran(Numbers(deaf=deaf), tmp_path)
    assert HEARD == [1, 2, 3]
    assert handle.status["committed"] == 3


def test_notices_appear_in_the_progress(tmp_path):
    handle = ran(Numbers(), tmp_path)
    assert [one.reported for one in handle.recentProgress] == [(f"planned {txid}",) for txid in (1, 2, 3)]


class FailsOnce(BatchBolt, Committer):
    """A committer that fails in its first commit phase, when later txids may already have been processed."""

    def __init__(self, mark):
        self.mark = mark

    def execute(self, tuple):
        pass

    def finish_batch(self):
        if not self.mark.exists():
            self.mark.touch()
            raise FailedException


def test_notices_of_reprocessed_transactions_are_not_lost(tmp_path):
    builder = TransactionalTopologyBuilder("hooks", "spout", Numbers())
    builder.set_bolt("fails", FailsOnce(tmp_path / "failed")).global_grouping("spout")
    handle = run(builder.build_topology(), engine="local", data_dir=tmp_path / "data", until_txid=3)
    handle.awaitTermination(60)
    assert handle.progress.replays == 1
    assert "planned 3" in [notice for one in handle.recentProgress for notice in one.reported]


def test_a_refused_record_fails_the_batch(tmp_path):
    with pytest.raises(SpoutError, match="record 2 is bad"):
        ran(Numbers(refuses=True), tmp_path)


@pytest.mark.parametrize("composite", [False, True])
def test_only_the_refused_record_becomes_a_dead_letter(tmp_path, composite):
    spout = CompositeSpout({"one": Numbers(refuses=True)}) if composite else Numbers(refuses=True)
    handle = ran(spout, tmp_path, "one" if composite else "default", on_error="dead_letter")
    assert [row["n"] for row in handle.sink("rows").to_pylist()] == [1, 3] * 3
    letters = handle.dead_letters().to_pylist()
    assert [(row["what"], json.loads(row["record"]), row["_txid"]) for row in letters] == [
        ("record", {"record": 2}, txid) for txid in (1, 2, 3)
    ]
    assert {row["message"] for row in letters} == {"record 2 is bad"}
    if composite:
        assert HEARD == [1, 2, 3]
