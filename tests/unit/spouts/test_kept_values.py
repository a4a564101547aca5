"""Spouts: values passed to and returned by user code are copies; mutating them does not affect stored ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txstorm import (
    NOT_READY,
    BatchBolt,
    Committer,
    CommitterEmitter,
    CommitterTransactionalSpout,
    CompositeSpout,
    Emitter,
    FailedException,
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
from txstorm.sinks import DeltaSink

Factory = Callable[[], Engine]
SIZE, STEP = 24, 2


def mutate(value: Any) -> None:
    """Mutate every mutable object nested in `value`."""
    if isinstance(value, dict):
        for inner in value.values():
            mutate(inner)
        value.clear()
        value["spoilt"] = True
    elif isinstance(value, list):
        for inner in value:
            mutate(inner)
        value[:] = ["spoilt"]


class InPlace(SpoutCoordinator):
    """A coordinator that advances the previous transaction's range in place and mutates its other arguments."""

    def __init__(self):
        self.mark = [SIZE]
        self.returned = []

    def initialize_transaction(self, txid, prev_metadata):
        m = prev_metadata or {"start": 0, "stop": 0, "more": {"of": []}}
        if m["stop"] >= SIZE:
            return NOT_READY
        m["start"], m["stop"] = m["stop"], m["stop"] + STEP
        m["more"]["of"].append(txid)
        for old in self.returned:
            mutate(old)
        self.returned = [m]
        return m

    def payload(self, metadata):
        mutate(metadata)

    def latest(self):
        mutate(self.mark)
        self.mark = [SIZE]
        return self.mark

    def reached(self, metadata, mark):
        done = metadata is not None and metadata["stop"] >= mark[0]
        mutate(metadata)
        mutate(mark)
        return done

    def committed(self, metadata):
        mutate(metadata)


def emit_range(metadata, collector):
    for n in range(metadata["start"], metadata["stop"]):
        collector.emit(n)
    mutate(metadata)


class Ranges(TransactionalSpout):
    fields = ("n",)

    def coordinator(self, context):
        return InPlace()

    def emitter(self, context):
        return RangeEmitter()


class RangeEmitter(Emitter):
    def emit_batch(self, attempt, metadata, collector):
        emit_range(metadata, collector)


class OpaqueRanges(Ranges):
    opaque = True


class CommittedRanges(CommitterTransactionalSpout):
    """A committer spout whose emitter returns a list, mutates it later, and mutates the arguments of `commit`."""

    fields = ("n",)

    def coordinator(self, context):
        return InPlace()

    def emitter(self, context):
        return CommittingEmitter()


class CommittingEmitter(CommitterEmitter):
    def __init__(self):
        self.emitted = []

    def emit_batch(self, attempt, metadata, collector):
        mutate(self.emitted)
        self.emitted = [metadata["start"]]
        emit_range(metadata, collector)
        return self.emitted

    def commit(self, attempt, emitted):
        assert emitted == [(attempt.txid - 1) * STEP]
        mutate(emitted)


class Partitions(PartitionedTransactionalSpout):
    """A partitioned spout with one partition, whose emitter advances the position in place."""

    fields = ("n",)

    def coordinator(self, context):
        return OnePartition()

    def emitter(self, context):
        return MovingEmitter()


class OnePartition(PartitionedCoordinator):
    def num_partitions(self):
        return 1


class MovingEmitter(PartitionedEmitter):
    def __init__(self):
        self.returned = None

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        return self.moved(collector, last_metadata)

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        emit_range(metadata, collector)

    def moved(self, collector, last):
        mutate(self.returned)
        m = last or {"start": 0, "stop": 0}
        if m["stop"] >= SIZE:
            mutate(m)
            return None
        m["start"], m["stop"] = m["stop"], m["stop"] + STEP
        for n in range(m["start"], m["stop"]):
            collector.emit(n)
        self.returned = m
        return m


class OpaquePartitions(OpaquePartitionedTransactionalSpout):
    fields = ("n",)

    def emitter(self, context):
        return OpaqueMovingEmitter()


class OpaqueMovingEmitter(MovingEmitter, OpaquePartitionedEmitter):
    def num_partitions(self):
        return 1

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        return self.moved(collector, last_metadata)


class FailsTwice(BatchBolt):
    """A bolt that fails the first two attempts at every third transaction, even across worker processes."""

    fields = ("n",)

    def __init__(self, marks):
        self.marks = str(marks)

    def prepare(self, context, collector, attempt):
        self.collector, self.attempt = collector, attempt

    def execute(self, tuple):
        self.collector.emit(tuple["n"])

    def finish_batch(self):
        if self.attempt.txid % 3 == 0:
            for time in (1, 2):
                mark = Path(self.marks, f"{self.attempt.txid}-{time}")
                if not mark.exists():
                    mark.touch()
                    raise FailedException("as planned")


KINDS = [Ranges, OpaqueRanges, CommittedRanges, Partitions, OpaquePartitions]


def numbers(place: Path, spout: Any, engine: Engine, stream: str = "default", **settings: Any) -> list[int]:
    """Run a topology with `spout` to completion; return all committed numbers, sorted."""
    place.mkdir()
    builder = TransactionalTopologyBuilder("kept", "spout", spout)
    builder.set_bolt("fails", FailsTwice(place)).shuffle_grouping("spout", stream)
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("fails")
    builder.set_settings({"retry_backoff": 0, "compact_on_stop": False, **settings})
    topology = builder.build_topology()
    handle = run(topology, engine=engine, data_dir=place / "data", until_txid=SIZE // STEP)
    handle.awaitTermination(300)
    return sorted(handle.sink("rows").to_arrow()["n"].to_pylist())


@pytest.mark.parametrize("kind", KINDS)
def test_user_code_may_mutate_its_arguments_and_return_values(kind, make_engine: Factory, tmp_path):
    assert numbers(tmp_path / "place", kind(), make_engine()) == list(range(SIZE))


@pytest.mark.parametrize("kind", KINDS)
def test_user_code_of_a_composite_spouts_sources_may_mutate_its_values(kind, tmp_path):
    spout = CompositeSpout({"one": kind(), "two": Ranges()})
    for stream in ("one", "two"):
        assert numbers(tmp_path / stream, spout, "local", stream) == list(range(SIZE))


@pytest.mark.parametrize("kind", KINDS)
def test_restarts_read_unmodified_metadata(kind, tmp_path):
    place = tmp_path / "place"
    builder = TransactionalTopologyBuilder("kept", "spout", kind())
    builder.set_bolt("fails", FailsTwice(place)).shuffle_grouping("spout")
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("fails")
    builder.set_settings({"retry_backoff": 0, "compact_on_stop": False})
    place.mkdir()
    for until in (2, 3, 7, SIZE // STEP):
        handle = run(builder.build_topology(), engine="local", data_dir=place / "data", until_txid=until)
        handle.awaitTermination(300)
    assert sorted(handle.sink("rows").to_arrow()["n"].to_pylist()) == list(range(SIZE))


def test_the_mark_passed_to_reached_is_unmodified(tmp_path):
    """The mark passed to `reached` is intact although the coordinator mutates the list that `latest` returned."""
    builder = TransactionalTopologyBuilder("kept", "spout", Ranges())
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("spout")
    handle = run(builder.build_topology(), engine="local", data_dir=tmp_path)
    try:
        handle.processAllAvailable()
        assert handle.sink("rows").to_arrow().num_rows == SIZE
    finally:
        handle.stop()


class SettingsChanger(BatchBolt, Committer):
    """A bolt that checks its settings and its nested component configuration, then mutates both."""

    def prepare(self, context, collector, attempt):
        found = [context.settings["mine"], context.settings["cargo_bytes"]]
        assert found == [{"list": [1]}, 4_000_000], found
        context.settings["mine"]["list"].append(2)
        context.settings["cargo_bytes"] = 1

    def execute(self, tuple):
        pass


class SettingsSpout(Ranges):
    """A spout whose coordinator and emitters mutate their settings."""

    def coordinator(self, context):
        self.mutate_settings(context)
        return super().coordinator(context)

    def emitter(self, context):
        self.mutate_settings(context)
        return super().emitter(context)

    def mutate_settings(self, context):
        assert context.settings["cargo_bytes"] == 4_000_000
        assert context.settings["own"] == [1]
        context.settings["own"].append(2)
        context.settings["cargo_bytes"] = 1


def test_every_task_has_its_own_copy_of_the_settings(make_engine: Factory, tmp_path):
    builder = TransactionalTopologyBuilder("kept", "spout", SettingsSpout(), 2)
    given = [1]
    builder.get_spout_declarer().add_configuration("own", given)
    declarer = builder.set_bolt("change", SettingsChanger(), 2).shuffle_grouping("spout")
    declarer.add_configuration("mine", {"list": [1]})
    builder.set_settings({"cargo_bytes": 4_000_000})
    handle = run(builder.build_topology(), engine=make_engine(), data_dir=tmp_path, until_txid=4)
    handle.awaitTermination(300)
    assert handle.committed == 4
    assert given == [1]


def test_every_listener_has_its_own_copy_of_the_progress(tmp_path):
    seen: list[str] = []

    def mutator(progress):
        progress.tuples.clear()
        progress.commit_ms.clear()

    builder = TransactionalTopologyBuilder("kept", "spout", Ranges())
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("spout")
    listeners = [mutator, lambda progress: seen.append(progress.json)]
    handle = run(builder.build_topology(), engine="local", data_dir=tmp_path, until_txid=4, listeners=listeners)
    handle.awaitTermination(60)
    assert [json.loads(one)["numInputRows"] for one in seen] == [STEP] * 4
    assert all(json.loads(one)["commit_ms"] for one in seen)
    mutator(handle.lastProgress)
    mutate(handle.status)
    assert [one.numInputRows for one in handle.recentProgress] == [STEP] * 4
    assert handle.status["committed"] == 4
