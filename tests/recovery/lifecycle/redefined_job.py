"""Topologies of one committer whose columns change. Arguments as a script: data directory, name of the code, last txid."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from txstorm import BatchBolt, Committer, KeyedState, SinkTable, TransactionalTopologyBuilder, run
from txstorm.spouts import MemoryTransactionalSpout


def tables(name):
    """State and sink as the code of this name declares them; ``merge-…`` in that layout, ``spark-…`` with that writer."""
    writer = "spark" if name.startswith("spark") else "deltalake"
    layout = "merge" if name.startswith("merge") else "changes"
    value, columns, ttl = {"n": int}, {"word": str, "n": int}, None
    if name.endswith("new"):
        value, columns, ttl = {"n": str, "more": float}, {"word": bytes}, timedelta(days=1)
    if name.endswith("typed"):
        value = {"n": str}
    return KeyedState("kept", {"word": str}, value, layout=layout, ttl=ttl, writer=writer), SinkTable(
        "out", columns, writer=writer
    )


class Keep(BatchBolt, Committer):
    """Keeps words, once there are any."""

    def __init__(self, name):
        self.new = name.endswith("new")
        self.state, self.sink = tables(name)

    def prepare(self, context, collector, attempt):
        self.context, self.words = context, []

    def execute(self, tuple):
        self.words.append(tuple["word"])

    def finish_batch(self):
        for word in self.words:
            self.context.state("kept").put(word, {"n": "one", "more": 0.5} if self.new else 1)
            self.context.sink("out").append(*((word.encode(),) if self.new else (word, 1)))


def topology(name, words=("a", "b", "c", "d")):
    """The topology with the code of this name."""
    builder = TransactionalTopologyBuilder("t", "words", MemoryTransactionalSpout([list(words)], "word", take=1))
    builder.set_committer_bolt("keep", Keep(name), 1).global_grouping("words")
    return builder.build_topology()


if __name__ == "__main__":
    handle = run(topology(sys.argv[2]), engine="local", data_dir=Path(sys.argv[1]), until_txid=int(sys.argv[3]))
    handle.awaitTermination()
    if handle.exception():
        raise handle.exception()
