"""Deep graphs: a pack of transactions is always a single Spark job, regardless of the depth of the graph."""

from pathlib import Path
from typing import Any

import pytest
from runs import ended
from watched import Gathering

from txstorm import Committer, KeyedState, Topology, TransactionalTopologyBuilder
from txstorm.bolts import CountBy, Identity, SumByKey
from txstorm.engine.spark import SparkEngine
from txstorm.plan.stages import compile_plan
from txstorm.results.read import read_state
from txstorm.spouts import MemoryTransactionalSpout

WORDS = [["a", "b", "c", "a"] * 6, ["b", "c", "d", "a"] * 6]
PACKS = {"max_spout_pending": 4, "max_pack_txids": 2}


def source(name: str) -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder(name, "words", MemoryTransactionalSpout(WORDS, "word", take=4), 2)


def shallow() -> Topology:
    builder = source("shallow")
    builder.set_bolt("counts", Counts("total"), 2).fields_grouping("words", ["word"])
    return builder.set_settings(PACKS).build_topology()


class Counts(Gathering, Committer):
    """A committer that counts words, and emits those whose counts have changed."""

    fields = ("word", "n")
    takes = "word"

    def __init__(self, state: str) -> None:
        self.state = KeyedState(state, key={"word": str}, value={"n": int})

    def finish_batch(self):
        for word in self.taken:
            self.context.state(self.state.name).update(word, lambda old: (old or 0) + 1)
        for word in sorted(set(self.taken)):
            self.collector.emit(word, 1)


def deep() -> Topology:
    """Build a topology of ten bolts, three of them committers, with two exchanges in the processing phase."""
    builder = source("deep")
    builder.set_bolt("one", Identity("word"), 2).local_or_shuffle_grouping("words")
    builder.set_bolt("two", Identity("word"), 2).local_or_shuffle_grouping("one")
    builder.set_bolt("three", Identity("word"), 2).fields_grouping("two", ["word"])
    builder.set_bolt("four", Identity("word"), 2).local_or_shuffle_grouping("three")
    builder.set_bolt("five", Identity("word"), 3).shuffle_grouping("four")
    builder.set_bolt("six", CountBy("word"), 3).local_or_shuffle_grouping("five")
    builder.set_bolt("total", Counts("total"), 2).fields_grouping("four", ["word"])
    builder.set_bolt("behind", CountBy("word"), 2).fields_grouping("total", ["word"])
    builder.set_bolt("batches", SumByKey("word", "n", "batches"), 2).fields_grouping("behind", ["word"])
    builder.set_bolt("sums", SumByKey("word", "n", "sums"), 2).fields_grouping("six", ["word"])
    return builder.set_settings(PACKS).build_topology()


class Counting(SparkEngine):
    """A Spark engine that counts its packs."""

    packs = 0

    def submit(self, pack):
        self.packs += 1
        return super().submit(pack)


def packs_and_jobs(topology: Topology, spark: Any, data_dir: Path) -> tuple[int, int]:
    """Run six transactions; return the number of packs, and Spark's own count of the jobs for them."""
    known = spark.sparkContext._jsc.sc().statusStore()
    before = known.jobsList(None).size()
    engine = Counting(spark)
    ended(topology, data_dir, engine, until_txid=6)
    totals = {row["word"]: row["n"] for row in read_state(data_dir, "total").to_pylist()}
    assert totals == {"a": 18, "b": 12, "c": 12, "d": 6}
    return engine.packs, known.jobsList(None).size() - before


@pytest.mark.spark
def test_a_deep_graph_takes_no_more_jobs_than_a_shallow_one(spark, tmp_path: Path) -> None:
    plan = compile_plan(deep())
    kinds = [component.kind for component in deep().components]
    assert (len(kinds) - 1, kinds.count("committer"), len(plan.stages) - 1) == (10, 3, 2)
    assert packs_and_jobs(shallow(), spark, tmp_path / "shallow") == (3, 3)
    assert packs_and_jobs(deep(), spark, tmp_path / "deep") == (3, 3)
    batches = {row["word"]: row["n"] for row in read_state(tmp_path / "deep", "batches").to_pylist()}
    assert batches == {"a": 6, "b": 6, "c": 6, "d": 6}
