"""A transactional spout that does not replay exactly is found out, also when it gives no digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from txstorm import (
    BatchBolt,
    Committer,
    Emitter,
    FailedException,
    SpoutCoordinator,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    run,
)
from txstorm.errors import SpoutError


class Unsteady(TransactionalSpout):
    """Emits how often it has emitted before."""

    fields = ("n",)

    def coordinator(self, context):
        return Numbers()

    def emitter(self, context):
        return CountEmissions()


class Numbers(SpoutCoordinator):
    def initialize_transaction(self, txid, prev_metadata):
        return txid


class CountEmissions(Emitter):
    def emit_batch(self, attempt, metadata, collector):
        before = len(list(Path.cwd().glob("emitted-*")))
        Path(f"emitted-{before}").touch()
        collector.emit(before)


class FailsOnce(BatchBolt, Committer):
    def execute(self, tuple):
        pass

    def finish_batch(self):
        if not Path("failed").exists():
            Path("failed").touch()
            raise FailedException


def test_another_batch_under_the_same_metadata_ends_the_topology(in_tmp):
    builder = TransactionalTopologyBuilder("unsteady", "numbers", Unsteady())
    builder.set_bolt("fails-once", FailsOnce()).global_grouping("numbers")
    handle = run(builder.build_topology(), engine="local", until_txid=1)
    with pytest.raises(SpoutError, match="txid 1: the spout emitted another batch for task 0 of 1 than the first time"):
        handle.awaitTermination(60)
    handle.stop()
    assert handle.committed == 0
