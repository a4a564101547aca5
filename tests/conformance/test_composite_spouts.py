"""Composite spouts over sources of every kind, ready or not, failing or stopped, on both engines."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from spout_samples import PlainSpout
from storm_world import OpaqueLog, PartitionedLog, PlainLog, World, finished, lines_by_txid

from txstorm import CompositeSpout
from txstorm.errors import DataDirectoryError, MetadataError, SpoutError, StateError
from txstorm.runtime.handle import RunHandle
from txstorm.spouts import MemoryTransactionalSpout

Starts = Callable[..., RunHandle]


@pytest.fixture
def worlds(tmp_path: Path) -> dict[str, World]:
    """Create one world per source, and one named ``bolts`` for the failures and recorded calls of the bolts."""
    made = {name: World(tmp_path / name) for name in ("plain", "parted", "opaque", "bolts")}
    for world in made.values():
        world.amount = 2
    return made


def sources(worlds: dict[str, World], *names: str) -> CompositeSpout:
    kinds = {"plain": PlainLog, "parted": PartitionedLog, "opaque": OpaqueLog}
    return CompositeSpout({name: kinds[name](worlds[name]) for name in names})


@pytest.fixture
def world(worlds) -> World:
    return worlds["bolts"]


@pytest.fixture
def start_on_threads(start_on_threads) -> Starts:
    return partial(start_on_threads, tasks=2)


@pytest.fixture
def batches(tmp_path: Path):
    """Return a function that reads the committed lines by txid, ordered by source name."""
    return lambda: {txid: "".join(lines) for txid, lines in lines_by_txid(tmp_path / "data").items()}


ALL = ("opaque", "parted", "plain")


def fill(worlds, **lines: str) -> None:
    for name, text in lines.items():
        worlds[name].append(0, *text)


def test_a_batch_of_every_source_per_transaction_also_after_a_restart_with_other_tasks(start, worlds, batches) -> None:
    fill(worlds, opaque="abcdefg", parted="hijkl", plain="mnopqrst")
    finished(start(sources(worlds, *ALL), tasks=2, until_txid=2))
    finished(start(sources(worlds, *ALL), tasks=3, available_now=True))
    expected = {1: "abhimn", 2: "cdjkop", 3: "eflqr", 4: "gst"}
    assert {txid: lines for txid, lines in batches().items() if lines} == expected


@pytest.mark.parametrize("place", ["watch-finish-2", "after-keep-2"])
def test_a_failure_replays_the_batches_of_all_sources(place, start_on_threads, worlds, batches) -> None:
    fill(worlds, parted="abcdef", plain="ghijkl")
    worlds["bolts"].ticket(f"{place}-failed", times=2)
    handle = start_on_threads(sources(worlds, "parted", "plain"), available_now=True)
    finished(handle)
    assert handle.progress.replays == 2
    assert {txid: lines for txid, lines in batches().items() if lines} == {1: "abgh", 2: "cdij", 3: "efkl"}
    assert [note[1] for note in worlds["plain"].notes("initialize")][:3] == [1, 2, 3]


def test_with_an_opaque_source_a_replay_may_be_another_batch_of_each(start_on_threads, worlds, batches) -> None:
    fill(worlds, opaque="abcdefgh", plain="ijklmnop")
    worlds["bolts"].hold(2, fails=True)
    spout = sources(worlds, "opaque", "plain")
    assert spout.opaque
    handle = start_on_threads(spout, settings={"max_spout_pending": 1}, until_txid=3)
    worlds["bolts"].await_hold()
    for world in worlds.values():
        world.amount = 3
    worlds["bolts"].release(2)
    finished(handle)
    assert batches() == {1: "abij", 2: "cdeklm", 3: "fghnop"}


@pytest.mark.parametrize("late", ["plain", "parted", "opaque"])
def test_a_source_that_is_not_ready_gives_nothing_and_keeps_its_position(late, start_on_threads, worlds, batches):
    other = "parted" if late == "plain" else "plain"
    worlds[late].append(0, *"abcd")
    worlds[other].append(0, *"ABCDEFGH")
    spout = sources(worlds, late, other)
    finished(start_on_threads(spout, until_txid=1))
    log, away = (worlds[late].directory / name for name in ("p0.log", "away"))
    if late == "opaque":  # it is always ready, its partition need not be there
        log.rename(away)
    else:
        worlds[late].ticket("not-ready", times=2)
    finished(start_on_threads(spout, until_txid=3))
    if late == "opaque":
        away.rename(log)
    finished(start_on_threads(spout, until_txid=4))
    assert batches() == {1: "abAB", 2: "CD", 3: "EF", 4: "cdGH"}


def test_none_ready_is_not_ready(start_on_threads, worlds, batches) -> None:
    worlds["plain"].append(0, "a")
    spout = sources(worlds, "plain", "parted")
    worlds["parted"].ticket("not-ready", times=1000)
    handle = start_on_threads(spout, available_now=True)
    finished(handle)
    assert handle.committed == 1
    assert batches() == {1: "a"}


def test_sources_that_all_tell_what_they_hold_end_with_the_last_of_it(start_on_threads, worlds, batches) -> None:
    worlds["plain"].append(0, *"abcde")
    spout = CompositeSpout(
        {"plain": PlainLog(worlds["plain"]), "words": MemoryTransactionalSpout([[(0, "x")]], ["p", "w"])}
    )
    handle = start_on_threads(spout, available_now=True)
    finished(handle)
    assert handle.committed == 3
    assert batches() == {1: "abx", 2: "cd", 3: "e"}


def test_a_source_that_is_added_starts_and_one_that_comes_back_goes_on(start_on_threads, worlds, batches) -> None:
    fill(worlds, parted="abcdef", plain="ghijkl")
    both = ("parted", "plain")
    finished(start_on_threads(sources(worlds, "plain"), until_txid=1))
    finished(start_on_threads(sources(worlds, *both), until_txid=2))
    with pytest.raises(StateError, match=r"source parted is recorded .*--drop parted"):
        start_on_threads(sources(worlds, "plain"), until_txid=3)
    finished(start_on_threads(sources(worlds, "plain"), until_txid=3, drop=["parted"]))
    finished(start_on_threads(sources(worlds, *both), until_txid=4))
    assert batches() == {1: "gh", 2: "abij", 3: "kl", 4: "cd"}


def test_a_source_that_is_gone_while_its_batch_is_not_committed(start_on_threads, worlds, batches) -> None:
    fill(worlds, parted="abcd", plain="efgh")
    worlds["bolts"].ticket("keep-finish-2-other")
    both = ("parted", "plain")
    with pytest.raises(Exception, match="keep-finish of 2"):
        start_on_threads(
            sources(worlds, *both), settings={"max_spout_pending": 2}, available_now=True
        ).awaitTermination(60)
    says = r"txid \d is planned with source 'parted' and not committed; run the code that has it until txid \d"
    with pytest.raises(DataDirectoryError, match=says):
        start_on_threads(sources(worlds, "plain"), available_now=True, drop=["parted"]).awaitTermination(60)
    finished(start_on_threads(sources(worlds, *both), available_now=True))
    assert {txid: lines for txid, lines in batches().items() if lines} == {1: "abef", 2: "cdgh"}


class Unsteady(PlainSpout):
    """A non-deterministic spout: it emits the number of its earlier emissions."""

    fields = ("partition", "line")

    def __init__(self, directory: Path):
        self.directory = directory

    def emit_batch(self, attempt, metadata, collector):
        before = len(list(self.directory.glob("emitted-*")))
        (self.directory / f"emitted-{before}").touch()
        collector.emit(0, str(before))


@pytest.mark.parametrize("place", ["watch-finish-1", "keep-finish-1"])
def test_a_source_that_replays_another_batch_is_named(place, start_on_threads, worlds, tmp_path, batches) -> None:
    worlds["plain"].append(0, *"ab")
    worlds["bolts"].ticket(f"{place}-failed")
    spout = CompositeSpout({"plain": PlainLog(worlds["plain"]), "unsteady": Unsteady(tmp_path)})
    says = r"txid 1: the spout emitted another batch for unsteady/task 0 of 1 than the first time \(digest"
    with pytest.raises(SpoutError, match=says):
        start_on_threads(spout, tasks=1, until_txid=1).awaitTermination(60)
    assert batches() == {}


def test_metadata_of_a_source_that_cannot_be_stored_names_it(start_on_threads, worlds, batches) -> None:
    class Wrong(PlainLog):
        def initialize_transaction(self, txid, prev_metadata):
            return {1, 2}

    worlds["plain"].append(0, "a")
    spout = CompositeSpout({"plain": PlainLog(worlds["plain"]), "wrong": Wrong(worlds["plain"])})
    with pytest.raises(MetadataError, match=r"spout 'log/wrong', txid 1: metadata \{1, 2\} cannot be stored"):
        start_on_threads(spout, available_now=True).awaitTermination(60)
    assert batches() == {}
