"""The source document's windows on both engines: the same windows, and the same ``txstorm state --json``."""

from __future__ import annotations

import importlib
import json

import pytest
from window_cases import WORKED_EXAMPLES, clock, shown

from txstorm import Count, Duration, KeyedState, SinkTable, TransactionalTopologyBuilder, WindowedBolt, run
from txstorm.cli.main import execute
from txstorm.engine.local import LocalEngine
from txstorm.results.views import SinkView, committed_txid
from txstorm.spouts import MemoryTransactionalSpout

ENGINES = ("local", "spark")
ONE, TWO, EACH = 100, 6, 1
"""Tuples per batch: all in one, two batches (of the worked examples), one tuple in each."""

WORKED_WINDOWS = {
    "5:59:50 6:00:10": "e1 e2 e3",
    "6:00:00 6:00:20": "e1 e2 e3 e4",
    "6:00:10 6:00:30": "e4 e5",
    "6:00:20 6:00:40": "e5 e6",
    "6:00:30 6:00:50": "e6",
    "8:00:10 8:00:30": "e7 e8 e9",
}
PICTURE = [("e1", 1), ("e2", 4), ("e3", 6), ("e4", 7), ("e5", 8), ("e6", 9), ("e7", 11), ("e8", 13), ("e9", 15)]
EVENTS = [(f"e{n}", 50 * n) for n in range(1, 9)]


class Kept(WindowedBolt):
    """Keeps the ids of each window's tuples in a state, and appends its end to a sink."""

    windows = KeyedState("windows", {"window": str}, {"ids": str, "evaluations": int})
    ends = SinkTable("ends", {"end": str})

    def prepare(self, context, collector):
        self.state, self.sink = context.state("windows"), context.sink("ends")

    def execute(self, window):
        name = f"{shown(window.start)} {shown(window.end)}"
        times = (self.state.get(name) or {"evaluations": 0})["evaluations"]
        self.state.put(name, {"ids": " ".join(one["id"] for one in window), "evaluations": times + 1})
        self.sink.append(shown(window.end))


def kept(length, slide, rows, take):
    bolt = Kept().with_window(length, slide).with_timestamp_field("ts", unit="s").with_lag(Duration.seconds(5))
    builder = TransactionalTopologyBuilder("golden", "events", MemoryTransactionalSpout([rows], ("id", "ts"), take))
    builder.set_bolt("w", bolt).global_grouping("events")
    return builder.build_topology()


@pytest.fixture
def engines(spark):
    """Return engine name → a function that makes one."""
    from txstorm.engine.spark import SparkEngine

    return {"local": LocalEngine, "spark": lambda: SparkEngine(spark)}


@pytest.fixture
def printed(engines, tmp_path, capsys):
    """Return a function that runs a topology on both engines and returns what ``txstorm state --json`` prints.

    The texts of the two engines are compared; `stops` are txids at which the run ends and another one goes on.
    """

    def both(make, *names, stops=(), **how):
        found = {}
        for engine in ENGINES:
            directory = tmp_path / f"{engine}-{len(list(tmp_path.iterdir()))}"
            for until in (*stops, None):
                end = how if until is None else {"until_txid": until}
                run(make(), engine=engines[engine](), data_dir=directory, **end).awaitTermination()
            capsys.readouterr()
            for name in names:
                assert execute(["state", str(directory), name, "--json"]) == 0
            found[engine] = directory, capsys.readouterr().out
        assert found["local"][1] == found["spark"][1]
        directory, text = found["spark"]
        return directory, [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    return both


def windows_of(states):
    [state] = states
    assert all(row["evaluations"] == 1 for row in state["rows"])
    return {row["window"]: row["ids"] for row in state["rows"]}


@pytest.mark.parametrize("take", [ONE, TWO, EACH], ids=["one batch", "two batches", "one tuple per batch"])
def test_the_worked_examples_are_the_same_bytes_on_both_engines(printed, take):
    """W20, W21."""
    rows = [(name, clock(time)) for name, time in WORKED_EXAMPLES]

    def make():
        return kept(Duration.seconds(20), Duration.seconds(10), rows, take)

    _, states = printed(make, "windows", available_now=True)
    assert windows_of(states) == WORKED_WINDOWS


@pytest.mark.parametrize(
    ("length", "slide", "expected"),
    [
        (10, 5, {"23:59:55 0:00:05": "e1 e2", "0:00:00 0:00:10": "e1 e2 e3 e4 e5 e6"}),
        (5, 5, {"0:00:00 0:00:05": "e1 e2", "0:00:05 0:00:10": "e3 e4 e5 e6"}),
    ],
    ids=["sliding", "tumbling"],
)
def test_the_pictures_are_the_same_bytes_on_both_engines(printed, length, slide, expected):
    """W12, W13."""

    def make():
        return kept(Duration.seconds(length), Duration.seconds(slide), PICTURE, 2)

    _, states = printed(make, "windows", available_now=True)
    assert windows_of(states) == expected


def test_the_third_picture_evaluates_nothing_again_after_a_restart(printed):
    """W42, W43: five minutes that slide by one; the run ends after each window, and another one goes on."""

    def make():
        return kept(Duration.minutes(5), Duration.minutes(1), EVENTS, 1)

    directory, states = printed(make, "windows", stops=(2, 3, 5), end_of_input=True)
    found = windows_of(states)
    assert list(found)[:3] == ["0:00:00 0:05:00", "0:01:00 0:06:00", "0:02:00 0:07:00"]
    for window, ids in found.items():
        end = clock(window.split()[1])
        assert ids.split() == [name for name, time in EVENTS if end - 300 < time <= end]
    ends = [row["end"] for row in SinkView(directory, "ends").to_pylist()]
    assert sorted(ends) == sorted(set(ends)) == sorted(window.split()[1] for window in found)


@pytest.mark.parametrize(
    ("job", "names"), [("sliding_window", ["running-sum"]), ("stateful_windowing", ["sum"])], ids=["W25", "W42"]
)
def test_the_examples_of_storm_starter_are_the_same_bytes_on_both_engines(printed, job, names):
    """W25, W42."""
    made = importlib.import_module(f"jobs.{job}").topology
    directory, [state] = printed(lambda: made, *names, available_now=True)
    expected = {"sliding_window": sum(range(71, 101)), "stateful_windowing": sum(range(1, 49))}[job]
    assert [str(list(row.values())[-1]) for row in state["rows"]] == [str(expected)]
    assert state["txid"] == committed_txid(directory)


@pytest.mark.parametrize("take", [ONE, EACH], ids=["one batch", "one tuple per batch"])
def test_windows_of_counts_are_the_same_bytes_on_both_engines(printed, take):
    """W2, W3."""

    def make():
        return kept(Count(4), Count(2), PICTURE, take)

    _, states = printed(make, "windows", available_now=True)
    assert windows_of(states) == {"None 0:00:04": "e1 e2", "None 0:00:07": "e1 e2 e3 e4", "None 0:00:09": "e3 e4 e5 e6"}
