"""Topologies from Storm's own tests and from the worked examples in its documentation."""

from collections import Counter

from spout_samples import OpaquePartitionedSpout
from watched import Gathering

from txstorm import BasicBolt, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout


class Identity(BasicBolt):
    fields = ("word", "amount")

    def execute(self, tuple, collector):
        collector.emit(*tuple)


class CountAll(Gathering):
    """A batch bolt that emits the number of tuples that its task received."""

    fields = ("n",)

    def execute(self, tuple):
        self.taken.append(tuple)

    def finish_batch(self):
        self.collector.emit(len(self.taken))


class SumByWord(CountAll):
    """A batch bolt that emits, per word, the sum of its amounts or its number of occurrences."""

    fields = ("word", "n")

    def __init__(self, amount=False):
        self.amount = amount

    def finish_batch(self):
        sums = Counter()
        for one in self.taken:
            sums[one["word"]] += one[1] if self.amount else 1
        for word, n in sums.items():
            self.collector.emit(word, n)


class Sum(Gathering, Committer):
    """A committer that stores the sum of its input, and emits the number of tuples that it received."""

    fields = ("n",)
    total = KeyedState("total", key={}, value={"n": int})

    def finish_batch(self):
        self.context.state("total").update((), lambda old: (old or 0) + sum(self.taken))
        self.collector.emit(len(self.taken))


class OpaqueNumbers(OpaqueMemoryTransactionalSpout):
    """An opaque spout of numbers in one partition, with batch sizes set by a transcript."""

    def amounts(self, usual, by_txid):
        self.set_take(lambda txid: by_txid.get(str(txid), usual))


class NumbersFromTasks(OpaquePartitionedSpout):
    """An opaque spout of the numbers 1 to 4, two per batch, planned by its tasks."""

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        start = last_metadata["next"] if last_metadata else 1
        numbers = range(start, min(start + 2, 5))
        for number in numbers:
            collector.emit(number)
        return {"next": start + len(numbers)}


def transactional_topology(more=None):
    """Build Storm's test-transactional-topology; `more` is called with the builder."""
    tuples = {
        0: [("dog", 3), ("cat", 4), ("apple", 1), ("dog", 3)],
        1: [("cat", 1), ("mango", 4)],
        2: [("happy", 11), ("mango", 2), ("zebra", 1)],
    }
    builder = TransactionalTopologyBuilder("storm", "spout", MemoryTransactionalSpout(tuples, ["word", "amount"], 2), 2)
    builder.set_bolt("id1", Identity(), 3).shuffle_grouping("spout")
    builder.set_bolt("id2", Identity(), 3).shuffle_grouping("spout")
    builder.set_bolt("global", CountAll()).global_grouping("spout")
    builder.set_committer_bolt("gcommit", CountAll()).global_grouping("spout")
    builder.set_bolt("sum", SumByWord(amount=True), 2).fields_grouping("id1", ["word"])
    builder.set_committer_bolt("count", SumByWord(), 2).fields_grouping("id2", ["word"])
    second = builder.set_committer_bolt("count2", SumByWord(), 2)
    second.fields_grouping("sum", ["word"]).fields_grouping("count", ["word"])
    if more is not None:
        more(builder)
    return builder.build_topology()


def opaque_topology():
    spout = OpaqueMemoryTransactionalSpout({0: ["dog", "cat", "apple", "dog"]}, ["word"], take=2)
    builder = TransactionalTopologyBuilder("opaque", "spout", spout, 2)
    builder.set_committer_bolt("count", SumByWord(), 2).fields_grouping("spout", ["word"])
    return builder.build_topology()


def restart_topology():
    spout = MemoryTransactionalSpout({0: ["a", "b", "c", "d"], 1: ["d", "c"]}, ["word"], take=3)
    builder = TransactionalTopologyBuilder("restart", "spout", spout, 2)
    builder.set_committer_bolt("count", CountAll(), 2).global_grouping("spout")
    return builder.build_topology()


def numbers_topology(spout, committer):
    """Build a topology of a spout of numbers with a committer directly downstream."""
    builder = TransactionalTopologyBuilder("numbers", "spout", spout)
    builder.set_bolt("keep", committer).global_grouping("spout")
    return builder.build_topology()


def counted():
    """Return a committer that counts every number in a state."""
    return CountByKey({"n": int}, "seen", count="times")


def source_document():
    return numbers_topology(OpaqueNumbers([list(range(1, 151))], ["n"], take=50), counted())


def stale_failure():
    return numbers_topology(OpaqueNumbers([list(range(1, 31))], ["n"], take=10), counted())


def late_commit():
    return numbers_topology(NumbersFromTasks(), Sum())


def no_phantom_batch():
    builder = TransactionalTopologyBuilder("phantom", "spout", NumbersFromTasks())
    builder.set_bolt("P", CountAll()).global_grouping("spout")
    builder.set_bolt("F", Sum()).global_grouping("P")
    return builder.build_topology()
