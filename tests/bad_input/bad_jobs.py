"""Faulty targets for the command line, given as `MODULE:FACTORY(ARGS)`."""

from pathlib import Path

import bad_topologies
from bad_input_cases import Keep, topology

from txstorm import BasicBolt, TransactionalTopologyBuilder
from txstorm.spouts import MemoryTransactionalSpout


class Emits(BasicBolt):
    fields = ("line",)

    def __init__(self, what):
        self.what = what

    def execute(self, tuple, collector):
        if self.what == "raise":
            raise ValueError("bad word")
        collector.emit(*[object()] if self.what == "object" else [])


class Puts(Keep):
    def finish_batch(self):
        self.counts.put("a", "one")


def words(source):
    return topology(Path(source))


def bad(name):
    return bad_topologies.make(name)


def emits(what):
    builder = TransactionalTopologyBuilder("words", "lines", MemoryTransactionalSpout({0: ["a"]}, ["line"]))
    builder.set_bolt("emits", Emits(what)).shuffle_grouping("lines")
    builder.set_committer_bolt("keep", Keep()).global_grouping("emits")
    return builder.build_topology()


def puts(source):
    return topology(Path(source), Puts())
