"""`close()` of emitters: emitting a tuple there fails the batch; any other exception is only logged."""

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import ended
from spout_samples import OpaquePartitionedSpout, PartitionedSpout, Pass, PlainSpout, stored, storing

from txstorm import CompositeSpout, run
from txstorm.engine.port import Engine
from txstorm.errors import EmitError
from txstorm.testing import TopologyTestDriver

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
    assert "test_spout_close.py" in str(raised.value)
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
