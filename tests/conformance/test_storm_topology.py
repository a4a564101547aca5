"""Storm's own test-transactional-topology (storm.md, item 80), on both engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from storm_world import World, fail_on

from txstorm import BasicBolt, BatchBolt, SinkTable, TransactionalTopologyBuilder, run
from txstorm.engine.port import Engine
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.state.read import read_sink

FIRST = {
    0: [("dog", 3), ("cat", 4), ("apple", 1), ("dog", 3)],
    1: [("cat", 1), ("mango", 4)],
    2: [("happy", 11), ("mango", 2), ("zebra", 1)],
}
LATER = {
    0: [("a", 1), ("b", 2), ("c", 3)],
    1: [("d", 4), ("c", 1)],
    2: [("a", 2), ("e", 7), ("c", 11)],
    3: [("a", 2)],
}


class Identity(BasicBolt):
    fields = ("word", "amount")

    def execute(self, tuple, collector):
        collector.emit(*tuple)


class CountAll(BatchBolt):
    """Emits how many tuples it got; tells so."""

    fields = ("n",)

    def __init__(self, world, name):
        self.world, self.name, self.n = world, name, 0

    def prepare(self, context, collector, attempt):
        self.collector, self.attempt = collector, attempt

    def execute(self, tuple):
        self.n += 1

    def finish_batch(self):
        self.world.note(self.name, self.attempt.txid, self.n)
        self.collector.emit(self.n)


class SumByWord(BatchBolt):
    """Emits the sum of the amounts per word."""

    fields = ("word", "n")

    def __init__(self, world, name, amount):
        self.world, self.name, self.amount, self.sums = world, name, amount, Counter()

    def prepare(self, context, collector, attempt):
        self.collector, self.attempt = collector, attempt

    def execute(self, tuple):
        self.sums[tuple["word"]] += tuple[1] if self.amount else 1

    def finish_batch(self):
        fail_on(self.world, self.name, self.attempt)
        for word, n in self.sums.items():
            self.world.note(self.name, self.attempt.txid, word, n)
            self.collector.emit(word, n)


class Results(BatchBolt):
    sink = SinkTable("results", {"source": str, "word": str, "n": int})

    def prepare(self, context, collector, attempt):
        self.context, self.rows = context, []

    def execute(self, tuple):
        word = tuple["word"] if "word" in tuple else ""
        self.rows.append((tuple.source_component, word, tuple["n"]))

    def finish_batch(self):
        for row in sorted(self.rows):
            self.context.sink("results").append(*row)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def test_item_80_test_transactional_topology(world: World, make_engine: Callable[[], Engine], tmp_path: Path) -> None:
    source = MemoryTransactionalSpout(FIRST, ["word", "amount"], 2)
    builder = TransactionalTopologyBuilder("storm", "spout", source, 2)
    builder.set_bolt("id1", Identity(), 3).shuffle_grouping("spout")
    builder.set_bolt("id2", Identity(), 3).shuffle_grouping("spout")
    builder.set_bolt("global", CountAll(world, "global")).global_grouping("spout")
    builder.set_committer_bolt("gcommit", CountAll(world, "gcommit")).global_grouping("spout")
    builder.set_bolt("sum", SumByWord(world, "sum", True), 2).fields_grouping("id1", ["word"])
    builder.set_committer_bolt("count", SumByWord(world, "count", False), 2).fields_grouping("id2", ["word"])
    second = builder.set_committer_bolt("count2", SumByWord(world, "count2", False), 2)
    second.fields_grouping("sum", ["word"]).fields_grouping("count", ["word"])
    results = builder.set_committer_bolt("results", Results())
    for component in ("global", "gcommit", "sum", "count", "count2"):
        results.global_grouping(component)
    builder.set_settings({"max_spout_pending": 2, "max_pack_txids": 1, "max_group_txids": 1})
    world.ticket("count2-2-failed")
    topology = builder.build_topology()
    world.handle = handle = run(topology, engine=make_engine(), data_dir=tmp_path / "data", until_txid=2)
    assert handle.awaitTermination(120)
    for partition, tuples in LATER.items():
        source.add(partition, *tuples)
    handle = run(topology, engine=make_engine(), data_dir=tmp_path / "data", until_txid=6)
    assert handle.awaitTermination(120)

    found: dict[int, dict[str, dict[str, int]]] = {}
    for row in read_sink(tmp_path / "data", "results").to_pylist():
        found.setdefault(row["_txid"], {}).setdefault(row["source"], {})[row["word"]] = row["n"]
    assert found == {
        1: {
            "global": {"": 6},
            "gcommit": {"": 6},
            "sum": {"dog": 3, "cat": 5, "mango": 6, "happy": 11},
            "count": {"dog": 1, "cat": 2, "mango": 2, "happy": 1},
            "count2": {"dog": 2, "cat": 2, "mango": 2, "happy": 2},
        },
        2: {
            "global": {"": 3},
            "gcommit": {"": 3},
            "sum": {"apple": 1, "dog": 3, "zebra": 1},
            "count": {"apple": 1, "dog": 1, "zebra": 1},
            "count2": {"apple": 2, "dog": 2, "zebra": 2},
        },
        3: {
            "global": {"": 7},
            "gcommit": {"": 7},
            "sum": {"a": 5, "b": 2, "d": 4, "c": 1, "e": 7},
            "count": {"a": 3, "b": 1, "d": 1, "c": 1, "e": 1},
            "count2": {"a": 2, "b": 2, "d": 2, "c": 2, "e": 2},
        },
        4: {"global": {"": 2}, "gcommit": {"": 2}, "sum": {"c": 14}, "count": {"c": 2}, "count2": {"c": 2}},
        5: {"global": {"": 0}, "gcommit": {"": 0}},
        6: {"global": {"": 0}, "gcommit": {"": 0}},
    }
    # The failed commit of 2 ran both phases again, with the same values.
    assert world.notes("global").count(["global", 2, 3]) == 2
    assert world.notes("count").count(["count", 2, "dog", 1]) == 2
