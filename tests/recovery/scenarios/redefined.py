"""Scenario: topologies of one committer whose table columns change. ``redefined DATA_DIR NAME UNTIL``."""

from datetime import timedelta
from pathlib import Path

from watched import Gathering

from txstorm import Committer, KeyedState, SinkTable, TransactionalTopologyBuilder, run
from txstorm.spouts import MemoryTransactionalSpout


def tables(name):
    """Return state and sink of code version `name`; the prefix ``merge-`` sets the layout, ``spark-`` the writer."""
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


class Keep(Gathering, Committer):
    """A committer that stores words, if there are any."""

    takes = "word"

    def __init__(self, name):
        self.new = name.endswith("new")
        self.state, self.sink = tables(name)

    def finish_batch(self):
        for word in self.taken:
            self.context.state("kept").put(word, {"n": "one", "more": 0.5} if self.new else 1)
            self.context.sink("out").append(*((word.encode(),) if self.new else (word, 1)))


def topology(name, words=("a", "b", "c", "d")):
    builder = TransactionalTopologyBuilder("t", "words", MemoryTransactionalSpout([list(words)], "word", take=1))
    builder.set_committer_bolt("keep", Keep(name), 1).global_grouping("words")
    return builder.build_topology()


def main(data_dir: str, name: str, until: str) -> None:
    run(topology(name), engine="local", data_dir=Path(data_dir), until_txid=int(until)).awaitTermination()
