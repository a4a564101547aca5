"""The companion of Hailstorm runs: the negotiator's path of a real run, processors lost on it, the status."""

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from txstorm import BasicBolt, Clock, MonoidBolt, TransactionalTopologyBuilder, run
from txstorm.errors import InputError
from txstorm.hailstorm import SnapshotStore
from txstorm.hailstorm.companion import companion_for
from txstorm.hailstorm.stores import MemoryStore
from txstorm.monoids import Count
from txstorm.operations.lifecycle import rebalance
from txstorm.operations.status import read_status
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver

SECONDS = 60
START = ["Initialize", "SpoutsRewind", "Flowing"]
NAMES = ["counts-0", "counts-1", "spout-0", "spout-1", "spout-2"]


class Hail:
    """A topology of three partitions with a companion, the states that its negotiator passes, and its runs."""

    def __init__(self) -> None:
        self.source = MemoryTransactionalSpout([["a", "b"], ["c"], ["d", "a"]], ["word"], 1)
        self.states: list[str] = []

    def topology(self, store: Any = None, passes: BasicBolt | None = None, **settings: Any) -> Any:
        builder = TransactionalTopologyBuilder("words", "spout", self.source, 3)
        if passes is not None:
            builder.set_bolt("passes", passes, 2).fields_grouping("spout", ["word"])
        source = "spout" if passes is None else "passes"
        builder.set_bolt("counts", MonoidBolt("counts", Count(), "word"), 2).fields_grouping(source, ["word"])
        companion = companion_for(store, watch=[lambda state: self.states.append(str(state))])
        return dataclasses.replace(builder.build_topology(), companion=companion).with_settings(settings)

    def shown(self, driver: TopologyTestDriver) -> dict[str, Any]:
        found: dict[str, Any] = driver._stepper._driver.companion.status()
        return found


@pytest.fixture
def hail() -> Hail:
    return Hail()


def test_the_path_of_a_run_to_its_first_snapshot(hail: Hail) -> None:
    clock = '{"0": 0, "1": 0, "2": 0}'
    with TopologyTestDriver(hail.topology(), pending=1) as driver:
        assert hail.states == START
        driver.advance(10)
        assert hail.states == [*START, "SpoutsPaused", f"Flowing({clock})"]
        shown = hail.shown(driver)
        assert (shown["master_state"], shown["snapshot"]) == ({"state": "Flowing", "clock": Clock.parse(clock)}, None)
        driver.commit()
        assert hail.states == [*START, "SpoutsPaused", f"Flowing({clock})", "Flowing"]
        shown = hail.shown(driver)
        assert (shown["snapshot"]["txid"], shown["snapshot"]["clock"]) == (1, Clock.parse(clock))
        entries = shown["living_processors"]
        assert sorted(entries) == NAMES
        assert (entries["counts-1"]["state"], entries["counts-1"]["clock"]) == ("BoltSaved", Clock.parse(clock))
        spouts = {(entries[name]["partition"], entries[name]["offset"], entries[name]["pid"]) for name in NAMES[2:]}
        assert spouts == {("0", 1, os.getpid()), ("1", 0, os.getpid()), ("2", 1, os.getpid())}
        driver.commit()
        assert hail.shown(driver)["living_processors"]["counts-1"]["state"] == "BoltRunning"
        driver.commit()  # nothing more: the clock stays
        driver.advance(10)
        driver.commit()
        count = len(hail.states)
        driver.advance(10)
        driver.commit()
        assert len(hail.states) == count
        driver.restart()
        assert hail.states[count:] == ["Initialize", 'SpoutsRewind({"0": 1, "1": 0, "2": 1})', "Flowing"]


@pytest.mark.parametrize("taking", [False, True])
@pytest.mark.parametrize("phase", ["idle", "processing", "committing"])
def test_a_lost_processor_registers_again_and_undecided_transactions_are_replayed(
    hail: Hail, taking: bool, phase: str
) -> None:
    with TopologyTestDriver(hail.topology(), pending=1) as driver:
        driver.commit()
        if phase == "committing":
            driver.ack(2)
        if taking:
            driver.advance(10)
        before = len(hail.states)
        for _ in range(4):  # more often than a batch may fail that loses its worker
            driver.lose("counts-1")
        assert hail.states[before:] == ["Initialize"]
        assert hail.shown(driver)["living_processors"] == {}
        assert (len(driver.attempts(2)), driver.status(2)) == (5, "processing")
        driver.advance(1)
        assert hail.states[before:] == ["Initialize", 'SpoutsRewind({"0": 0, "1": 0, "2": 0})', "Flowing"]
        assert sorted(hail.shown(driver)["living_processors"]) == NAMES
        driver.commit()
        rows = driver.state("counts").to_pylist()
        assert {row["word"]: row["state"] for row in rows} == {"a": 2, "b": 1, "c": 1, "d": 1}
        assert (hail.shown(driver)["snapshot"] is not None) == taking
        with pytest.raises(InputError, match=r"did you mean 'counts-1'.*there are spout-0"):
            driver.lose("count-1")


def wait(true: Callable[[], Any]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_run_shows_itself_in_its_status_and_takes_snapshots_while_the_clock_moves(hail: Hail, tmp_path) -> None:
    handle = run(hail.topology(snapshot_every=0.05, min_interval=0.02), engine="local", data_dir=tmp_path)
    wait(lambda: hail.states[-1:] == ["Flowing"] and len(hail.states) >= 6)
    hail.source.add(1, "e")
    wait(lambda: ((read_status(tmp_path).get("hailstorm") or {}).get("snapshot") or {}).get("clock", {}).get("1") == 1)
    passed = [state.partition("(")[0] for state in hail.states]
    assert passed == START + ["SpoutsPaused", "Flowing", "Flowing"] * (len(passed) // 3 - 1)
    rebalance(tmp_path, {"counts": 3})
    wait(lambda: "counts-2" in (read_status(tmp_path)["hailstorm"] or {})["living_processors"])
    assert [state.partition("(")[0] for state in hail.states[len(passed) :]] == START
    handle.stop()
    assert handle.exception() is None
    ended = read_status(tmp_path)["hailstorm"]
    assert (ended["master_state"], ended["living_processors"]) == ({"state": "Unavailable", "clock": None}, {})


def test_a_new_directory_begins_with_the_snapshot_of_a_store(hail: Hail) -> None:
    store, clock = MemoryStore(), {"0": 0, "1": 0, "2": 0}
    with TopologyTestDriver(hail.topology(store), pending=1) as driver:
        driver.advance(10)
        driver.commit()
        assert hail.shown(driver)["store"] == {"name": store.name, "saved": clock, "problem": None}
        driver.commit()
    hail.states.clear()
    with TopologyTestDriver(hail.topology(store), pending=1) as driver:
        assert hail.states == ["Initialize", f"SpoutsRewind({Clock(clock)})", "Flowing"]
        driver.commit()
        rows = driver.state("counts").to_pylist()
        assert {row["word"]: row["state"] for row in rows} == {"a": 2, "b": 1, "c": 1, "d": 1}


class Slow(SnapshotStore):
    """A store whose first save waits until it may fail, and that has the others at once."""

    name = "slow"

    def __init__(self) -> None:
        self.asked, self.may = threading.Event(), threading.Event()

    def clocks(self, bolt, instance):
        return []

    def save(self, bolt, instance, state, clock):
        if not self.asked.is_set():
            self.asked.set()
            self.may.wait(SECONDS)
            raise ValueError("full")


def test_a_store_that_is_slow_and_fails_holds_up_no_transaction_and_is_said(hail: Hail, tmp_path: Path) -> None:
    store = Slow()
    settings = {"snapshot_every": 0.05, "min_interval": 0.02}
    handle = run(hail.topology(store, **settings), engine="local", data_dir=tmp_path)
    assert store.asked.wait(SECONDS)
    before = handle.committed
    wait(lambda: handle.committed > before + 5)
    assert hail.states[-1].startswith("Flowing({")
    store.may.set()
    wait(lambda: hail.states[-1] == "Flowing")
    companion = handle._driver.companion
    assert "full" in handle._driver.ask(companion.status).result(SECONDS)["store"]["problem"]
    hail.source.add(1, "e")
    wait(lambda: handle._driver.ask(companion.status).result(SECONDS)["store"]["saved"] == {"0": 1, "1": 1, "2": 1})
    handle.stop()
    assert handle.exception() is None


class Once(BasicBolt):
    """A bolt that does something the first time that a file is not there."""

    fields = ("word",)

    def __init__(self, mark: Path, act: Callable[[], object]) -> None:
        self.mark, self.act = mark, act

    def execute(self, tuple, collector):
        collector.emit(tuple["word"])
        if tuple["word"] == "c" and not self.mark.exists():
            self.mark.touch()
            self.act()


def ends_with_a_loss(hail: Hail, topology: Any, data_dir: Path, **options: Any) -> dict[str, Any]:
    """Run `topology` until its worker is lost and it has gone on; return the processors that it shows then."""
    handle = run(topology, data_dir=data_dir, **options)
    try:
        wait(lambda: [state.partition("(")[0] for state in hail.states] == START * 2 and handle.committed >= 2)
        shown: dict[str, Any] = handle._driver.ask(handle._driver.companion.status).result(SECONDS)["living_processors"]
        counts = {row["word"]: row["state"] for row in handle.state("counts").to_pylist()}
    finally:
        handle.stop()
    assert (counts, handle.exception()) == ({"a": 2, "b": 1, "c": 1, "d": 1}, None)
    return shown


def test_a_worker_that_gives_no_answer_in_time_is_lost(hail: Hail, tmp_path: Path) -> None:
    hang = Once(tmp_path / "mark", partial(time.sleep, SECONDS))
    topology = hail.topology(passes=hang, batch_timeout=3, snapshot_every=3600)
    assert ends_with_a_loss(hail, topology, tmp_path / "data", engine="local")["passes-1"]["pid"] == os.getpid()


@pytest.mark.spark
def test_a_worker_of_spark_that_dies_is_lost_and_entries_name_the_new_ones(spark: Any, hail: Hail, tmp_path) -> None:
    topology = hail.topology(
        passes=Once(tmp_path / "mark", partial(os._exit, 1)), min_interval=0.05, snapshot_every=3600
    )
    shown = ends_with_a_loss(hail, topology, tmp_path / "data", engine="spark", spark=spark)
    assert os.getpid() not in {shown[name]["pid"] for name in ("spout-0", "passes-0", "passes-1")}
    assert shown["counts-0"]["pid"] == os.getpid()
