"""The companion of Hailstorm runs: the negotiator's path of a real run, processors lost on it, the status."""

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from txstorm import Clock, TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.errors import InputError
from txstorm.hailstorm.companion import companion_for
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

    def topology(self, **settings: Any) -> Any:
        builder = TransactionalTopologyBuilder("words", "spout", self.source, 3)
        builder.set_bolt("counts", CountByKey("word", "counts"), 2).fields_grouping("spout", ["word"])
        companion = companion_for(watch=[lambda state: self.states.append(str(state))])
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
        assert {row["word"]: row["n"] for row in driver.state("counts").to_pylist()} == {"a": 2, "b": 1, "c": 1, "d": 1}
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
    handle.stop()
    assert handle.exception() is None
    assert [state.partition("(")[0] for state in hail.states] == START + ["SpoutsPaused", "Flowing", "Flowing"] * (
        (len(hail.states) - 3) // 3
    )
    ended = read_status(tmp_path)["hailstorm"]
    assert (ended["master_state"], ended["living_processors"]) == ({"state": "Unavailable", "clock": None}, {})
