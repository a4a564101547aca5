"""Sample topologies that the tests of the plan compiler compile."""

from topology_samples import Silent
from topology_samples import source_diagram as source_diagram

from txstorm.api.bolt import BasicBolt
from txstorm.api.spout import TransactionalSpout
from txstorm.api.state import KeyedState, SinkTable
from txstorm.topology.builder import TransactionalTopologyBuilder


class Lines(TransactionalSpout):
    fields = ("word",)


class Each(BasicBolt):
    fields = ("word",)

    def execute(self, tuple, collector):
        pass


class Batch(Silent):
    fields = ("word",)
    streams = {"errors": ("why",)}


class Keep(Batch):
    tables = (KeyedState("counts", {"word": str}, {"n": int}), SinkTable("log", {"word": str}))


def builder(parallelism=None, name="t"):
    return TransactionalTopologyBuilder(name, "s", Lines(), parallelism)


def word_count():
    made = builder(2, "word-count")
    made.set_bolt("split", Each(), 2).shuffle_grouping("s")
    made.set_bolt("partial", Batch(), 2).local_or_shuffle_grouping("split")
    made.set_committer_bolt("counts", Keep(), 2).fields_grouping("partial", ["word"])
    return made.build_topology()


def branches():
    """Build two branches of different depths that join, with an additional stream of errors."""
    made = builder(4, "branches")
    made.set_bolt("near", Each(), 4).local_or_shuffle_grouping("s")
    made.set_bolt("far", Batch(), 3).fields_grouping("near", ["word"])
    made.set_bolt("meet", Batch(), 4).local_or_shuffle_grouping("near").all_grouping("far")
    made.set_committer_bolt("faults", Batch()).global_grouping("far", "errors").global_grouping("meet", "errors")
    return made.build_topology()
