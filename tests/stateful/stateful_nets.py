"""Stateful bolts and topologies of the tests."""

import json

from txstorm import BaseStatefulBolt, StatefulBolt, StatefulWindowedBolt, TransactionalTopologyBuilder
from txstorm.bolts import SplitWords
from txstorm.spouts import MemoryTransactionalSpout

LINES = ["the cow jumped over the moon", "the cat and the cow", "the moon", "a cat a cow", "the the the"]
CALLS: list[tuple[object, ...]] = []
"""What the bolts of this process have been called with."""


class WordCount(StatefulBolt):
    """The source document's word count."""

    fields = ("word", "count")

    def prepare(self, context, collector):
        self.collector = collector
        self.task = context.task

    def init_state(self, state):
        self.counts = state

    def execute(self, tuple):
        word = tuple["word"]
        count = self.counts.get(word, 0) + 1
        self.counts.put(word, count)
        self.collector.emit(tuple, word, count)
        self.collector.ack(tuple)


class RunningSum(StatefulWindowedBolt):
    """Storm's StatefulWindowingTopology: the sum of all new tuples."""

    fields = ("sum",)

    def prepare(self, context, collector):
        self.collector = collector

    def init_state(self, state):
        self.state = state

    def execute(self, window):
        total = self.state.get("sum", 0) + sum(one["value"] for one in window.get_new())
        self.state.put("sum", total)
        self.collector.emit(total)

    def pre_prepare(self, txid):
        CALLS.append(("pre_prepare", txid))

    def pre_commit(self, txid):
        CALLS.append(("pre_commit", txid))


class StormWordCount(BaseStatefulBolt):
    """The source document's word count, in Storm's spelling."""

    def declareOutputFields(self, declarer):
        declarer.declare("word", "count")

    def prepare(self, context, collector):
        self.collector = collector

    def initState(self, state):
        self.wordCounts = state

    def execute(self, tuple):
        word = tuple.getString(0)
        count = self.wordCounts.get(word, 0)
        count += 1
        self.wordCounts.put(word, count)
        self.collector.emit([tuple], word, count)
        self.collector.ack(tuple)


class TypedWordCount(WordCount):
    key_type, value_type = str, int


class SharedWordCount(TypedWordCount):
    shared = True


class Hooked(WordCount):
    """Word count that records all its calls."""

    def prepare(self, context, collector):
        super().prepare(context, collector)
        self.called("prepare")

    def init_state(self, state):
        super().init_state(state)
        self.called("init_state")

    def execute(self, tuple):
        super().execute(tuple)
        self.called("execute", tuple["word"])

    def pre_prepare(self, txid):
        self.called("pre_prepare", txid)

    def pre_commit(self, txid):
        self.called("pre_commit", txid)

    def pre_rollback(self):
        self.called("pre_rollback")

    def called(self, *what):
        CALLS.append((*what, f"task {self.task}", self))  # not its id, which a later object may have again


def counted(lines) -> dict[str, int]:
    words = " ".join(lines).split()
    return {word: words.count(word) for word in words}


def net(bolt, *, lines=LINES, tasks=2, take=1, id="words", **settings):
    spout = MemoryTransactionalSpout([list(lines)], ["line"], take)
    builder = TransactionalTopologyBuilder(id, "lines", spout)
    builder.set_bolt("split", SplitWords()).shuffle_grouping("lines")
    builder.set_bolt("count", bolt, tasks).fields_grouping("split", ["word"])
    return builder.set_settings({"retry_backoff": 0, **settings}).build_topology()


def table_of(driver, *, text=True, txid=None) -> dict[str, int]:
    state = driver.state("count")
    rows = (state if txid is None else state.as_of(txid)).to_pylist()
    return {json.loads(row["key"]) if text else row["key"]: int(row["value"]) for row in rows}
