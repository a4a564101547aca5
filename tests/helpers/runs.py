"""Complete runs of topologies, such as one that counts words, to the end of a source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from watched import Gathering

from txstorm import BatchBolt, Committer, KeyedState, SinkTable, TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.runtime.handle import RunHandle
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.topology.graph import Topology


def ended(topology: Topology, data_dir: Path, engine: Any = "local", **options: Any) -> RunHandle:
    """Run a topology to the end of what its source holds now, or as the options of `run` say; raises what ended it."""
    limit = {} if options.keys() & {"until_txid", "end_of_input"} else {"available_now": True}
    handle = run(topology, engine=engine, data_dir=data_dir, **limit, **options)
    assert handle.awaitTermination(600)
    return handle


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
