"""Sample components and topologies of the topology tests."""

from txstorm.api.bolt import BasicBolt, BatchBolt, Committer
from txstorm.api.spout import TransactionalSpout
from txstorm.api.state import KeyedState, SinkTable
from txstorm.topology.builder import TransactionalTopologyBuilder


class Lines(TransactionalSpout):
    fields = ("line",)


class Split(BasicBolt):
    fields = ("word",)

    def execute(self, tuple, collector):
        for word in tuple["line"].split():
            collector.emit(word)


class Silent(BatchBolt):
    """A batch bolt that ignores its input."""

    def execute(self, tuple):
        pass


class Partial(Silent):
    fields = ("word", "n")
    streams = {"errors": ("why",)}


class Keep(Silent, Committer):
    state = KeyedState("counts", key={"word": str}, value={"n": int})


class Plain(Silent):
    """A batch bolt without tables, which is a committer only if it is added as one."""

    fields = ("x",)


class Audit(Silent):
    def __init__(self):
        self.tables = [SinkTable("audit", {"who": str, "at": int}), KeyedState("single", {}, {"n": int})]


def builder(topology="word-count", parallelism=None):
    return TransactionalTopologyBuilder(topology, "lines", Lines(), parallelism)


def word_count():
    made = builder(parallelism=2)
    made.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    made.set_bolt("partial", Partial(), 2).local_or_shuffle_grouping("split")
    made.set_committer_bolt("counts", Keep(), 2).fields_grouping("partial", ["word"])
    return made.build_topology()


def source_diagram():
    """Build the diagram of Storm's documentation: A→B*, A→C, B*→C, C→D* (* marks a committer)."""
    made = TransactionalTopologyBuilder("diagram", "A", Lines())
    made.set_committer_bolt("B", Plain()).shuffle_grouping("A")
    made.set_bolt("C", Plain()).shuffle_grouping("A").shuffle_grouping("B")
    made.set_committer_bolt("D", Plain()).shuffle_grouping("C")
    return made.build_topology()


def rich():
    """Build a topology with several streams, inputs, committers and tables, and with links that cross layers."""
    made = builder("rich", 4)
    made.set_bolt("split", Split(), 4).local_or_shuffle_grouping("lines")
    made.set_bolt("partial", Partial(), 3).shuffle_grouping("split").all_grouping("lines")
    made.set_bolt("faults", Split()).global_grouping("partial", "errors")
    made.set_committer_bolt("counts", Keep(), 2).fields_grouping("partial", ["word"])
    made.set_bolt("after", Plain()).global_grouping("faults").shuffle_grouping("lines")
    made.set_committer_bolt("audit", Audit()).global_grouping("after").none_grouping("partial", "errors")
    return made.build_topology()
