"""Heartbeats and the end of input over spouts of every kind, on both engines: exactly once, and the same in replays."""

import logging
from pathlib import Path
from typing import Any

import pytest
from spout_samples import OneClass
from storm_world import OfWorld, OpaqueLog, OpaquePlainLog, PartitionedLog, PlainLog, World
from watched import Gathering

from txstorm import Committer, CompositeSpout, OpaquePartitionedCoordinator, TransactionalTopologyBuilder, run
from txstorm.api.state import KeyedState, SinkTable
from txstorm.engine.local import LocalEngine
from txstorm.errors import InputError, TopologyFailed
from txstorm.operations.rewind import rewind
from txstorm.replay.audit import audit
from txstorm.replay.backfill import backfill
from txstorm.replay.recording import Recording, span_of
from txstorm.results.read import read_sink, read_state
from txstorm.results.views import read_directory_history
from txstorm.topology.graph import Topology


class OnTicket:
    """Coordinator that is ready once for each ticket; without one its source is silent."""

    def is_ready(self) -> bool:
        return self.world.take("ready")


class QuietPartitionedLog(OnTicket, PartitionedLog):
    """A partitioned spout that may be silent."""


class QuietOpaqueLog(OnTicket, OpaqueLog, OpaquePartitionedCoordinator):
    """An opaque partitioned spout that may be silent."""

    coordinator = OneClass.coordinator


KINDS = {"plain": PlainLog, "opaque": OpaquePlainLog, "partitioned": PartitionedLog, "opaque-partitioned": OpaqueLog}
QUIET = {**KINDS, "partitioned": QuietPartitionedLog, "opaque-partitioned": QuietOpaqueLog}


class Mark(Gathering):
    """Emits how many lines its task got, and what the transaction is, in the workers."""

    fields = ("kind", "lines")
    takes = "line"

    def finish_batch(self) -> None:
        kind = "end" if self.context.end_of_input else "heartbeat" if self.context.heartbeat else "data"
        self.collector.emit(kind, len(self.taken))


class Keep(OfWorld, Gathering, Committer):
    """Counts lines by kind of transaction, and asks for a heartbeat at once."""

    timers = True
    total = KeyedState("total", key={"kind": str}, value={"lines": int, "tasks": int})
    log = SinkTable("log", {"kind": str, "lines": int, "epoch": int})

    def execute(self, tuple: Any) -> None:
        self.taken.append((tuple["kind"], tuple["lines"]))

    def finish_batch(self) -> None:
        for kind, lines in self.taken:
            old = self.context.state("total").get(kind) or {"lines": 0, "tasks": 0}
            self.context.state("total").put(kind, {"lines": old["lines"] + lines, "tasks": old["tasks"] + 1})
        self.context.sink("log").append(self.taken[0][0], sum(lines for _, lines in self.taken), self.context.epoch)
        self.context.wake_at(self.context.stamp)
        if self.world.take(f"commit-{self.attempt.txid}"):
            raise RuntimeError("as the ticket says")


@pytest.fixture
def world(world: World) -> World:
    world.append(0, "a", "b", "c")
    world.append(1, "d")
    return world


def topology(world: World, kind: str, kinds: Any = KINDS) -> Topology:
    spout: Any = CompositeSpout({name: kinds[name](world) for name in kinds}) if kind == "all" else kinds[kind](world)
    builder = TransactionalTopologyBuilder("system", "log", spout, 2)
    mark = builder.set_bolt("mark", Mark(), 2)
    for stream in spout.sources if kind == "all" else ["default"]:
        mark.shuffle_grouping("log", stream)
    builder.set_bolt("keep", Keep(world)).global_grouping("mark")
    builder.set_settings({"retry_backoff": 0.001, "heartbeat_interval": 0.001, "max_pack_txids": 2})
    return builder.build_topology()


def totals(data_dir: Path) -> dict[str, int]:
    return {row["kind"]: row["lines"] for row in read_state(data_dir, "total").to_pylist()}


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_the_end_of_input_is_the_last_transaction(world, make_engine, tmp_path, kind):
    made, data, lines = topology(world, kind), tmp_path / "data", 16 if kind == "all" else 4
    run(made, engine=make_engine(), data_dir=data, end_of_input=True).awaitTermination(120)
    assert totals(data) == {"data": lines, "end": 0}
    assert read_sink(data, "log")["kind"].to_pylist()[-1] == "end"
    tasks = {row["kind"]: row["tasks"] for row in read_state(data, "total").to_pylist()}
    assert tasks["end"] == 2  # every task of the bolt was called


def test_later_runs_read_nothing_more_until_a_rewind(world, make_engine, tmp_path, caplog):
    made, data = topology(world, "opaque-partitioned"), tmp_path / "data"
    run(made, engine=make_engine(), data_dir=data, end_of_input=True).awaitTermination(120)
    last = read_directory_history(data)["txid"].to_pylist()[-1]
    world.append(0, "later")
    for options in ({}, {"available_now": True}, {"end_of_input": True}):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "txstorm.runtime.driver"):
            handle = run(made, engine=make_engine(), data_dir=data, **options)
            handle.awaitTermination(120)
        assert f"the input of topology system ended with txid {last}" in caplog.text
        assert handle.committed == last
    rewind(data, last - 1)
    run(made, engine=make_engine(), data_dir=data, end_of_input=True).awaitTermination(120)
    assert totals(data) == {"data": 5, "end": 0}


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_heartbeats_follow_timers_while_the_source_is_silent_and_keep_positions(world, make_engine, tmp_path, kind):
    made, data, times = topology(world, kind, QUIET), tmp_path / "data", 4 if kind == "all" else 1
    world.ticket("ready", 4)
    beats: list[int] = []

    def heard(progress: Any) -> None:
        if progress.tuples.get("log") == 0:
            beats.append(progress.txid)

    handle = world.handle = run(made, engine=make_engine(), data_dir=data, listeners=[heard])
    world.wait(lambda: len(beats) > 2, "heartbeats")
    assert totals(data) == {"data": 4 * times, "heartbeat": 0}
    world.append(0, "later")
    world.ticket("ready", 4)
    world.wait(lambda: totals(data).get("data") == 5 * times, "the later line")
    seen = len(beats)
    world.wait(lambda: len(beats) > seen, "another heartbeat")
    handle.stop()
    world.append(1, "last")
    run(topology(world, kind), engine=make_engine(), data_dir=data, available_now=True).awaitTermination(120)
    assert totals(data) == {"data": 6 * times, "heartbeat": 0}


def test_runs_that_end_by_themselves_have_no_heartbeats(world, make_engine, tmp_path):
    for options in ({"available_now": True}, {"available_now": True}, {"end_of_input": True}):
        run(topology(world, "plain"), engine=make_engine(), data_dir=tmp_path / "data", **options).awaitTermination(120)
    assert totals(tmp_path / "data") == {"data": 4, "end": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_in_the_last_transaction_is_repeated_by_the_next_run(world, tmp_path, kind):
    """It has the epoch of its plan: a transaction that was planned and stored has that of the first run."""
    made, data = topology(world, kind), tmp_path / "data"
    world.ticket("commit-3", times=4)
    handle = run(made, engine=LocalEngine(), data_dir=data, end_of_input=True)
    with pytest.raises(TopologyFailed, match="as the ticket says"):
        handle.awaitTermination(120)
    assert totals(data) == {"data": 4}
    while world.take("commit-3"):
        pass
    run(made, engine=LocalEngine(), data_dir=data, end_of_input=True).awaitTermination(120)
    assert totals(data) == {"data": 4, "end": 0}
    assert read_sink(data, "log")["epoch"].to_pylist()[:3] == ([1, 1, 2] if "opaque" in kind else [1, 1, 1])


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
def test_audits_and_backfills_repeat_system_transactions(world, make_engine, tmp_path, kind):
    made, data, again = topology(world, kind, QUIET), tmp_path / "data", tmp_path / "again"
    world.ticket("ready", 4)
    handle = world.handle = run(made, engine=make_engine(), data_dir=data)
    world.wait(lambda: handle.committed > 6, "heartbeats")
    world.append(1, "later")
    world.ticket("ready", 4)
    world.wait(lambda: totals(data).get("data") == 5, "the later line")
    handle.stop(drain=True)  # what is planned is committed in the same epoch, which the sink shows
    run(made, engine=make_engine(), data_dir=data, end_of_input=True).awaitTermination(120)
    recording = Recording(data)
    result = audit(made, recording, span_of(recording, None, None), make_engine(), lambda verdict: None)
    assert (result.different, result.txids) == ([], recording.committed)
    backfill(made, recording, span_of(recording, None, None), again, make_engine(), None, lambda txid: None)
    assert totals(again) == totals(data)
    columns = ["txid", "attempt", "stamp", "extents"]
    assert read_directory_history(again).select(columns) == read_directory_history(data).select(columns)


def test_an_end_of_input_needs_no_last_txid(world, tmp_path):
    with pytest.raises(InputError, match="leave out one of the two"):
        run(topology(world, "plain"), engine="local", data_dir=tmp_path / "d", end_of_input=True, until_txid=4)
    assert not (tmp_path / "d").exists()
