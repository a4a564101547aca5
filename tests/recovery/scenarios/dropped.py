"""A topology whose set of tables changes: ``dropped DATA_DIR --drop|--late``."""

from pathlib import Path

from watched import Gathering

from txstorm import Committer, KeyedState, SinkTable, TransactionalTopologyBuilder, run
from txstorm.spouts import MemoryTransactionalSpout

WORDS = [f"w{number % 3}" for number in range(30)]


class Keep(Gathering, Committer):
    """A committer that counts words in a state and lists them in a sink, if it has these tables."""

    takes = "word"

    def __init__(self, state=None, sink=None, layout="changes"):
        self.state = KeyedState(state, key={"word": str}, value={"n": int}, layout=layout) if state else None
        self.sink = SinkTable(sink, {"word": str}) if sink else None

    def finish_batch(self):
        if self.state:
            handle = self.context.state(self.state.name)
            for word in self.taken:
                handle.put(word, (handle.get(word) or 0) + 1)
        if self.sink:
            for word in self.taken:
                self.context.sink(self.sink.name).append(word)


def topology(*bolts, spout=None, streams=("words",)):
    """Build a topology of word lists in batches of one, passed to `bolts`, named a, b, …"""
    source = spout or MemoryTransactionalSpout([WORDS], "word", take=1)
    builder = TransactionalTopologyBuilder("t", "words", source)
    for name, bolt in zip("abcdef", bolts, strict=False):
        made = builder.set_committer_bolt(name, bolt, 1)
        for stream in streams:
            made.global_grouping("words", stream) if stream != "words" else made.global_grouping("words")
    builder.set_setting("max_group_txids", 2)
    return builder.build_topology()


def built(*tables):
    """Build the topology with a committer for each of `tables`, such as ``counts`` and ``sinks/out``."""
    return topology(*(Keep(sink=one[6:]) if one.startswith("sinks/") else Keep(one) for one in tables))


def main(data_dir: str, change: str) -> None:
    """Run to txid 5 with ``--drop`` (two tables fewer) or ``--late`` (one more table)."""
    fewer = change == "--drop"
    changed = topology(Keep("counts")) if fewer else topology(Keep("counts"), Keep(sink="late"))
    drop = ["old", "out"] if fewer else []
    run(changed, engine="local", data_dir=Path(data_dir), until_txid=5, drop=drop).awaitTermination()
