"""The source document's windows on both engines: the same windows, and the same ``txstorm state --json``."""

import json

import pytest
from runs import ended
from window_cases import WORKED_EXAMPLES, clock, shown

from txstorm import Count, Duration, KeyedState, SinkTable, TransactionalTopologyBuilder, WindowedBolt
from txstorm.engine.local import LocalEngine
from txstorm.results.views import SinkView
from txstorm.spouts import MemoryTransactionalSpout

ONE, TWO, EACH = 100, 6, 1
"""Tuples per batch: all in one, two batches (of the worked examples), one tuple in each."""

WORKED = {
    "5:59:50 6:00:10": "e1 e2 e3",
    "6:00:00 6:00:20": "e1 e2 e3 e4",
    "6:00:10 6:00:30": "e4 e5",
    "6:00:20 6:00:40": "e5 e6",
    "6:00:30 6:00:50": "e6",
    "8:00:10 8:00:30": "e7 e8 e9",
}
SLIDING = {"23:59:55 0:00:05": "e1 e2", "0:00:00 0:00:10": "e1 e2 e3 e4 e5 e6"}
TUMBLING = {"0:00:00 0:00:05": "e1 e2", "0:00:05 0:00:10": "e3 e4 e5 e6"}
COUNTS = {"None 0:00:04": "e1 e2", "None 0:00:07": "e1 e2 e3 e4", "None 0:00:09": "e3 e4 e5 e6"}
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
def printed(spark, tmp_path, command):
    """Return a function that runs a topology on both engines, and compares what ``txstorm state --json`` prints.

    It returns a data directory and the windows; `stops` are txids at which the run ends and another one goes on.
    """
    from txstorm.engine.spark import SparkEngine

    engines = {"local": LocalEngine, "spark": lambda: SparkEngine(spark)}

    def both(make, stops=(), **how):
        texts = []
        for name, engine in engines.items():
            for until in (*stops, None):
                ended(make(), tmp_path / name, engine(), **(how if until is None else {"until_txid": until}))
            texts.append(command.printed("state", tmp_path / name, "windows", "--json"))
        assert texts[0] == texts[1]
        [rows] = [json.loads(line)["rows"] for line in texts[0].splitlines() if line.startswith("{")]
        assert all(row["evaluations"] == 1 for row in rows)
        return tmp_path / "spark", {row["window"]: row["ids"] for row in rows}

    return both


GOLDEN = {
    "one batch": (Duration.seconds(20), Duration.seconds(10), WORKED_EXAMPLES, ONE, WORKED),
    "two batches": (Duration.seconds(20), Duration.seconds(10), WORKED_EXAMPLES, TWO, WORKED),
    "one tuple per batch": (Duration.seconds(20), Duration.seconds(10), WORKED_EXAMPLES, EACH, WORKED),
    "sliding picture": (Duration.seconds(10), Duration.seconds(5), PICTURE, 2, SLIDING),
    "tumbling picture": (Duration.seconds(5), Duration.seconds(5), PICTURE, 2, TUMBLING),
    "counts, one batch": (Count(4), Count(2), PICTURE, ONE, COUNTS),
    "counts, one tuple per batch": (Count(4), Count(2), PICTURE, EACH, COUNTS),
}
"""Length, slide, tuples, tuples per batch, and the windows: start and end → ids."""


@pytest.mark.parametrize("name", GOLDEN)
def test_the_worked_examples_are_the_same_bytes_on_both_engines(printed, name):
    """W2, W3, W12, W13, W20, W21."""
    length, slide, events, take, expected = GOLDEN[name]
    rows = [(id, clock(time) if isinstance(time, str) else time) for id, time in events]
    _, found = printed(lambda: kept(length, slide, rows, take))
    assert found == expected


def test_the_third_picture_evaluates_nothing_again_after_a_restart(printed):
    """W42, W43: five minutes that slide by one; the run ends after each window, and another one goes on."""
    directory, found = printed(
        lambda: kept(Duration.minutes(5), Duration.minutes(1), EVENTS, 1), stops=(2, 3, 5), end_of_input=True
    )
    assert list(found)[:3] == ["0:00:00 0:05:00", "0:01:00 0:06:00", "0:02:00 0:07:00"]
    for window, ids in found.items():
        end = clock(window.split()[1])
        assert ids.split() == [name for name, time in EVENTS if end - 300 < time <= end]
    ends = [row["end"] for row in SinkView(directory, "ends").to_pylist()]
    assert sorted(ends) == sorted(set(ends)) == sorted(window.split()[1] for window in found)
