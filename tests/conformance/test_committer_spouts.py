"""Spouts whose emitters take part in the commit phase (Storm's ICommitterTransactionalSpout), on both engines."""

import json
from pathlib import Path

import pytest
from spout_samples import CommitterSpout
from storm_world import OfWorld, PlainLog, World, fail_on, lines_by_txid

from txstorm import CommitterEmitter, CommitterTransactionalSpout, CompositeSpout, TransactionalTopologyBuilder
from txstorm.errors import MetadataError, TopologyFailed
from txstorm.results.read import read_sink
from txstorm.spouts import MemoryTransactionalSpout


class Told(PlainLog, CommitterTransactionalSpout, CommitterEmitter):
    """A committer spout over a log: its emitters return the emitted lines, and record them again in `commit`."""

    def __init__(self, world, returns=None):
        super().__init__(world)
        self.returns = returns

    def emit_batch(self, attempt, metadata, collector):
        lines = self.emit_lines(metadata, collector)
        self.world.note("emitted", *attempt, self.context.task, lines or None)
        fail_on(self.world, "emit", attempt)
        return (lines or None) if self.returns is None else self.returns

    def commit(self, attempt, emitted):
        assert self.context.attempt == attempt
        assert self.context.stamp > 0
        self.world.note("commit", *attempt, self.context.task, emitted)
        fail_on(self.world, f"commit-{self.context.task}", attempt)

    def close(self):
        self.world.note("closed", self.context.task)


def check_told(world: World, data_dir: Path) -> None:
    """Check that each `commit` precedes its txid's `finish_batch`, in txid order, with the lines of its own attempt."""
    emitted = {tuple(note[1:4]): note[4] for note in world.notes("emitted")}
    order = [(note[1], note[2]) for note in world.notes("commit") if note[3] == 0]
    kept = {row["_txid"]: row["attempt"] for row in read_sink(data_dir, "rows").to_pylist()}
    assert [attempt for attempt in order if kept.get(attempt[0]) == attempt[1]] == sorted(kept.items())
    for note in world.notes("commit"):
        assert note[4] == emitted[tuple(note[1:4])]
    notes = world.notes()
    for place, note in enumerate(notes):
        if note[0] == "kept":
            before = [one for one in notes[:place] if one[0] == "commit" and one[1:3] == note[1:3]]
            assert [one[3] for one in before] == list(range(len(before)))
            assert before


def test_every_emitter_commits_in_txid_order_before_the_committers(start, world, tmp_path) -> None:
    world.append(0, *"abcdef")
    world.append(1, *"AB")
    handle = start(Told, tasks=2, available_now=True)
    assert handle.awaitTermination(120)
    assert lines_by_txid(tmp_path / "data") == {1: ["a", "b", "A", "B"], 2: ["c", "d"], 3: ["e", "f"]}
    check_told(world, tmp_path / "data")
    commits = [(note[1], note[3], note[4]) for note in world.notes("commit")]
    assert commits == [(1, 0, [*"ab"]), (1, 1, [*"AB"]), (2, 0, [*"cd"]), (2, 1, None), (3, 0, [*"ef"]), (3, 1, None)]
    # One emitter per task in the driver, closed at the end; those in the workers are closed with their jobs.
    assert world.notes("closed")[-2:] == [["closed", 0], ["closed", 1]]
    assert {one.group for one in handle.recentProgress} == {1}


@pytest.mark.parametrize("place", ["emit-2", "watch-finish-2", "commit-1-2", "keep-finish-2", "after-keep-2"])
def test_item_46_56_a_failure_before_or_after_the_emitters_commit_is_replayed(
    place, start_on_threads, world, tmp_path
) -> None:
    world.append(0, *"abcdef")
    world.append(1, *"ABCDEF")
    world.ticket(f"{place}-failed", times=1)
    handle = start_on_threads(Told, tasks=2, available_now=True)
    assert handle.awaitTermination(120)
    expected = {1: ["a", "b", "A", "B"], 2: ["c", "d", "C", "D"], 3: ["e", "f", "E", "F"]}
    assert lines_by_txid(tmp_path / "data") == expected
    assert handle.progress.replays == 1
    check_told(world, tmp_path / "data")
    times = [note[1] for note in world.notes("commit") if note[3] == 0].count(2)
    assert times == (1 if place in ("emit-2", "watch-finish-2") else 2)


class Remembers(OfWorld, CommitterSpout):
    """A miniature of Storm's opaque executor: `commit` stores the position durably, under its txid."""

    fields = ("partition", "line")

    def positions(self):
        path = self.world.directory / "position"
        return {int(txid): end for txid, end in json.loads(path.read_text()).items()} if path.exists() else {}

    def emit_batch(self, attempt, metadata, collector):
        start = next((end for txid, end in sorted(self.positions().items(), reverse=True) if txid < attempt.txid), 0)
        end, lines = self.world.read(0, start)
        for line in lines:
            collector.emit(0, line)
        return end

    def commit(self, attempt, emitted):
        earlier = {txid: end for txid, end in self.positions().items() if txid < attempt.txid}
        (self.world.directory / "position").write_text(json.dumps({**earlier, attempt.txid: emitted}))


class OpaqueRemembers(Remembers):
    opaque = True


def test_item_56_a_position_committed_in_vain_is_not_used(start_on_threads, world, tmp_path) -> None:
    world.append(0, *"abcdefgh")
    world.hold(2, fails=True)
    handle = start_on_threads(OpaqueRemembers, settings={"max_spout_pending": 1}, until_txid=4)
    world.await_hold()
    world.amount = 1  # the batch of 2 is another one now
    world.release(2)
    assert handle.awaitTermination(120)
    assert lines_by_txid(tmp_path / "data") == {1: ["a", "b"], 2: ["c"], 3: ["d"], 4: ["e"]}


def test_item_58_after_a_stop_nobody_commits_what_nobody_remembers(start_on_threads, world, tmp_path) -> None:
    world.append(0, *"abcdefgh")
    world.hold(2)
    handle = start_on_threads(Told)
    world.await_hold()
    world.wait(lambda: any(note[1] == 4 for note in world.notes("emitted")), "the emission of 4")
    world.release(2)
    handle.stop()
    assert handle.committed < 4
    assert start_on_threads(Told, available_now=True).awaitTermination(120)
    assert lines_by_txid(tmp_path / "data") == {1: ["a", "b"], 2: ["c", "d"], 3: ["e", "f"], 4: ["g", "h"]}
    check_told(world, tmp_path / "data")
    again = {note[2] for note in world.notes("emitted") if note[1] == 4}
    assert len(again) == 2  # what was processed before the stop was processed again, as another attempt


def test_another_exception_in_commit_ends_the_topology_and_is_named(start_on_threads, world, tmp_path) -> None:
    world.append(0, *"abcdef")
    world.ticket("commit-1-2-other")
    with pytest.raises(TopologyFailed, match=r"txid 2 .*log\[1\] raised ValueError at .*storm_world.py.*commit-1 of 2"):
        start_on_threads(Told, tasks=2, available_now=True).awaitTermination(60)
    assert lines_by_txid(tmp_path / "data") == {1: ["a", "b"]}
    assert start_on_threads(Told, tasks=2, available_now=True).awaitTermination(60)
    assert lines_by_txid(tmp_path / "data") == {1: ["a", "b"], 2: ["c", "d"], 3: ["e", "f"]}


def test_what_emit_batch_returns_must_be_json(start_on_threads, world, tmp_path) -> None:
    world.append(0, "a")
    says = r"spout 'log', txid 1, returned by emit_batch of task [01]: metadata \{1\} cannot be stored"
    with pytest.raises(MetadataError, match=says):
        start_on_threads(Told(world, returns={1}), tasks=2, available_now=True).awaitTermination(60)
    assert lines_by_txid(tmp_path / "data") == {}


def test_a_committer_spout_among_several_sources(start, world, tmp_path) -> None:
    world.append(0, *"abc")
    more = MemoryTransactionalSpout([["x"]], ["word"], take=1)
    handle = start(CompositeSpout({"more": more, "told": Told(world)}), streams=["told"], tasks=2, available_now=True)
    assert handle.awaitTermination(120)
    assert lines_by_txid(tmp_path / "data") == {1: ["a", "b"], 2: ["c"]}
    check_told(world, tmp_path / "data")
    assert {one.group for one in handle.recentProgress} == {1}


def test_such_a_topology_is_external(world) -> None:
    spouts = Told(world), CompositeSpout({"log": Told(world)}), MemoryTransactionalSpout([[]], "word")
    builders = [TransactionalTopologyBuilder("told", "log", spout) for spout in spouts]
    assert [builder.build_topology().external for builder in builders] == [True, True, False]
