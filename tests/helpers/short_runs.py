"""Short runs: a topology that counts words, and runs to the end of a source."""

from collections.abc import Sequence

from watched import Gathering

from txstorm import BatchBolt, Committer, KeyedState, SinkTable, Topology, TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.spouts import MemoryTransactionalSpout


class CountWords(Gathering, Committer):
    """A committer that counts words and appends them to a sink."""

    takes = "word"
    counts = KeyedState("counts", key={"word": str}, value={"n": int})
    log = SinkTable("log", {"word": str})

    def finish_batch(self):
        for word in self.taken:
            self.context.state("counts").update(word, lambda old: (old or 0) + 1)
            self.context.sink("log").append(word)


def counting(words: Sequence[str], bolt: BatchBolt | None = None, *, take: int = 2, tasks: int = 1) -> Topology:
    """Build a topology that counts words in the state "counts", by default with `CountByKey`."""
    builder = TransactionalTopologyBuilder("words", "source", MemoryTransactionalSpout([list(words)], "word", take))
    bolt = bolt or CountByKey("word", table="counts")
    builder.set_committer_bolt("counts", bolt, tasks).fields_grouping("source", ["word"])
    return builder.build_topology()
