"""Spouts: values passed to and returned by user code are copies; mutating them does not affect stored ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import ended
from spout_samples import CommitterSpout, OpaquePartitionedSpout, PartitionedSpout, Pass, PlainSpout, stored, storing
from topology_samples import Silent

from txstorm import NOT_READY, Committer, CompositeSpout, FailedException, TransactionalTopologyBuilder, run
from txstorm.engine.port import Engine

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


class InPlace:
    """Coordinator methods that advance the previous transaction's range in place and mutate their other arguments."""

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


class Ranges(InPlace, PlainSpout):
    def emit_batch(self, attempt, metadata, collector):
        emit_range(metadata, collector)


class OpaqueRanges(Ranges):
    opaque = True


class CommittedRanges(InPlace, CommitterSpout):
    """A committer spout whose emitter returns a list, mutates it later, and mutates the arguments of `commit`."""

    emitted = None

    def emit_batch(self, attempt, metadata, collector):
        mutate(self.emitted)
        self.emitted = [metadata["start"]]
        emit_range(metadata, collector)
        return self.emitted

    def commit(self, attempt, emitted):
        assert emitted == [(attempt.txid - 1) * STEP]
        mutate(emitted)


class Moving:
    """Emitter methods of a partitioned spout that advance the position in place."""

    returned = None

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        mutate(self.returned)
        m = last_metadata or {"start": 0, "stop": 0}
        if m["stop"] >= SIZE:
            mutate(m)
            return None
        m["start"], m["stop"] = m["stop"], m["stop"] + STEP
        for n in range(m["start"], m["stop"]):
            collector.emit(n)
        self.returned = m
        return m


class Partitions(Moving, PartitionedSpout):
    def emit_partition_batch(self, attempt, collector, partition, metadata):
        emit_range(metadata, collector)


class OpaquePartitions(Moving, OpaquePartitionedSpout):
    emit_partition_batch = Moving.emit_partition_batch_new


class FailsTwice(Pass):
    """A bolt that fails the first two attempts at every third transaction, even across worker processes."""

    def __init__(self, marks):
        self.marks = str(marks)

    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.attempt = attempt

    def finish_batch(self):
        if self.attempt.txid % 3 == 0:
            for time in (1, 2):
                mark = Path(self.marks, f"{self.attempt.txid}-{time}")
                if not mark.exists():
                    mark.touch()
                    raise FailedException("as planned")


KINDS = [Ranges, OpaqueRanges, CommittedRanges, Partitions, OpaquePartitions]


def numbers(
    place: Path, spout: Any, engine: Engine, stream: str = "default", untils: tuple[int, ...] = (SIZE // STEP,)
) -> list[int]:
    """Run a topology with `spout` to each of the txids `untils`; return all committed numbers, sorted."""
    place.mkdir()
    topology = storing(spout, stream, FailsTwice(place), retry_backoff=0, compact_on_stop=False)
    for until in untils:
        handle = ended(topology, place / "data", engine, until_txid=until)
    return sorted(stored(handle))


@pytest.mark.parametrize("kind", KINDS)
def test_user_code_may_mutate_its_arguments_and_return_values(kind, make_engine: Factory, tmp_path):
    assert numbers(tmp_path / "place", kind(), make_engine()) == list(range(SIZE))


@pytest.mark.parametrize("kind", KINDS)
def test_sources_of_a_composite_spout_and_restarts_read_unmodified_metadata(kind, tmp_path):
    spout = CompositeSpout({"one": kind(), "two": Ranges()})
    for stream in ("one", "two"):
        assert numbers(tmp_path / stream, spout, "local", stream) == list(range(SIZE))
    found = numbers(tmp_path / "place", kind(), "local", untils=(2, 3, 7, SIZE // STEP))
    assert found == list(range(SIZE))


def test_the_mark_passed_to_reached_is_unmodified(tmp_path):
    """The mark passed to `reached` is intact although the coordinator mutates the list that `latest` returned."""
    handle = run(storing(Ranges()), engine="local", data_dir=tmp_path)
    try:
        handle.processAllAvailable()
        assert len(stored(handle)) == SIZE
    finally:
        handle.stop()


class SettingsChanger(Silent, Committer):
    """A bolt that checks its settings and its nested component configuration, then mutates both."""

    def prepare(self, context, collector, attempt):
        found = [context.settings["mine"], context.settings["cargo_bytes"]]
        assert found == [{"list": [1]}, 4_000_000], found
        context.settings["mine"]["list"].append(2)
        context.settings["cargo_bytes"] = 1


class SettingsSpout(Ranges):
    """A spout whose coordinator and emitters mutate their settings."""

    def coordinator(self, context):
        assert context.settings["cargo_bytes"] == 4_000_000
        assert context.settings["own"] == [1]
        context.settings["own"].append(2)
        context.settings["cargo_bytes"] = 1
        return super().coordinator(context)

    emitter = coordinator


def test_every_task_has_its_own_copy_of_the_settings(make_engine: Factory, tmp_path):
    builder = TransactionalTopologyBuilder("kept", "spout", SettingsSpout(), 2)
    given = [1]
    builder.get_spout_declarer().add_configuration("own", given)
    declarer = builder.set_bolt("change", SettingsChanger(), 2).shuffle_grouping("spout")
    declarer.add_configuration("mine", {"list": [1]})
    builder.set_settings({"cargo_bytes": 4_000_000})
    assert ended(builder.build_topology(), tmp_path, make_engine(), until_txid=4).committed == 4
    assert given == [1]


def test_every_listener_has_its_own_copy_of_the_progress(tmp_path):
    seen: list[str] = []

    def mutator(progress):
        progress.tuples.clear()
        progress.commit_ms.clear()

    listeners = [mutator, lambda progress: seen.append(progress.json)]
    handle = ended(storing(Ranges()), tmp_path, until_txid=4, listeners=listeners)
    assert [json.loads(one)["numInputRows"] for one in seen] == [STEP] * 4
    assert all(json.loads(one)["commit_ms"] for one in seen)
    mutator(handle.lastProgress)
    mutate(handle.status)
    assert [one.numInputRows for one in handle.recentProgress] == [STEP] * 4
    assert handle.status["committed"] == 4
