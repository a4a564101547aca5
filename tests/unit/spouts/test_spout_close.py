"""`close()` of emitters: emitting a tuple there fails the batch; any other exception is only logged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txstorm import (
    BatchBolt,
    CompositeSpout,
    Emitter,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    SpoutCoordinator,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    run,
)
from txstorm.engine.port import Engine
from txstorm.errors import EmitError
from txstorm.sinks import DeltaSink
from txstorm.testing import TopologyTestDriver

Factory = Callable[[], Engine]
SAYS = r"(?s)close\(\) of its emitter emitted a tuple: .*\('late',\).*: emit there"


class Numbers(SpoutCoordinator):
    def initialize_transaction(self, txid, prev_metadata):
        return txid


class Late(Emitter):
    """An emitter that wrongly emits one more tuple in `close`."""

    def emit_batch(self, attempt, metadata, collector):
        self.collector = collector
        collector.emit(f"txid {attempt.txid}")

    def close(self):
        self.collector.emit("late")


class LateSpout(TransactionalSpout):
    fields = ("text",)

    def coordinator(self, context):
        return Numbers()

    def emitter(self, context):
        return Late()


class LatePartitions(PartitionedTransactionalSpout):
    fields = ("text",)

    def coordinator(self, context):
        return OnePartition()

    def emitter(self, context):
        return LatePartition()


class OnePartition(PartitionedCoordinator):
    def num_partitions(self):
        return 1


class LatePartition(Late, PartitionedEmitter, OpaquePartitionedEmitter):
    def num_partitions(self):
        return 1

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        self.emit_batch(attempt, None, collector)
        return attempt.txid

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        return self.emit_partition_batch_new(attempt, collector, partition, metadata)


class LateOpaquePartitions(OpaquePartitionedTransactionalSpout):
    fields = ("text",)

    def emitter(self, context):
        return LatePartition()


class LateAndBroken(Late):
    """An emitter whose `close` masks the error of its late tuple with another exception."""

    def close(self):
        try:
            super().close()
        finally:
            raise OSError("cannot be closed")


class LateAndBrokenSpout(LateSpout):
    def emitter(self, context):
        return LateAndBroken()


class Pass(BatchBolt):
    """A bolt that emits its input unchanged."""

    fields = ("text",)

    def prepare(self, context, collector, attempt):
        self.collector = collector

    def execute(self, tuple):
        self.collector.emit(tuple["text"])


def built(spout: Any, stream: str = "default", **settings: Any):
    builder = TransactionalTopologyBuilder("late", "spout", spout)
    builder.set_bolt("pass", Pass()).shuffle_grouping("spout", stream)
    builder.set_bolt("keep", DeltaSink("rows", {"text": str})).global_grouping("pass")
    return builder.set_settings(settings).build_topology()


SPOUTS = [LateSpout(), LatePartitions(), LateOpaquePartitions(), LateAndBrokenSpout()]


@pytest.mark.parametrize("spout", SPOUTS, ids=lambda one: type(one).__name__)
def test_a_tuple_emitted_in_close_fails_the_last_batch_of_the_pack(spout, make_engine: Factory, tmp_path):
    topology = built(spout, max_spout_pending=6, max_pack_txids=3)
    handle = run(topology, engine=make_engine(), data_dir=tmp_path, until_txid=6)
    with pytest.raises(EmitError, match=SAYS) as raised:
        handle.awaitTermination(300)
    assert "spout[0] raised EmitError at" in str(raised.value)
    assert "test_spout_close.py" in str(raised.value)
    # The batches before the last one of the first pack are emitted completely, and commit.
    texts = handle.sink("rows").to_arrow()["text"].to_pylist() if handle.committed else []
    assert texts == [f"txid {txid}" for txid in range(1, handle.committed + 1)]
    assert handle.committed < 3


def test_a_tuple_emitted_in_close_fails_the_batch_of_a_composite_spout(tmp_path):
    for stream in ("one", "two"):
        topology = built(CompositeSpout({"one": LateSpout(), "two": LateOpaquePartitions()}), stream)
        with pytest.raises(EmitError, match=SAYS), TopologyTestDriver(topology) as driver:
            driver.commit()


def test_a_batch_with_a_tuple_emitted_in_close_can_be_a_dead_letter(tmp_path):
    topology = built(LateSpout(), on_error="dead_letter", retry_backoff=0)
    handle = run(topology, engine="local", data_dir=tmp_path, until_txid=2)
    handle.awaitTermination(60)
    letters = handle.dead_letters().to_arrow().to_pylist()
    assert letters
    assert all("close() of its emitter" in one["message"] for one in letters)


class Unclosable(Emitter):
    def emit_batch(self, attempt, metadata, collector):
        collector.emit("whole")

    def close(self):
        raise OSError("cannot be closed")


class UnclosableSpout(LateSpout):
    def emitter(self, context):
        return Unclosable()


def test_an_emitter_whose_close_raises_fails_no_batch(tmp_path: Path, caplog):
    handle = run(built(UnclosableSpout()), engine="local", data_dir=tmp_path, until_txid=3)
    handle.awaitTermination(60)
    assert handle.sink("rows").to_arrow()["text"].to_pylist() == ["whole"] * 3
    assert "close() of its emitter failed" in caplog.text
