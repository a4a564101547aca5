"""Storm's TransactionalGlobalCount: the total number of tuples, exactly once.

txstorm run jobs.transactional_global_count --until-txid 5
txstorm state txstorm-data/global-count count

The spout holds 19 words and emits batches of 9, 7, 3, 0, 0, … of them; ``sum`` emits 9, 16, 19, 19, 19, …
"""

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder, run
from txstorm.bolts import BatchCount
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout

WORDS = ["cat dog chicken cat dog apple", "cat dog apple banana", "cat cat cat cat cat dog dog dog dog"]
PARTITIONS = [words.split() for words in WORDS]


class UpdateGlobalCount(BatchBolt, Committer):
    """A committer that adds the counts of the upstream tasks to the total of all earlier transactions."""

    fields = ("sum",)
    state = KeyedState("count", key={}, value={"count": int})

    def prepare(self, context, collector, attempt):
        self.total, self.collector, self.sum = context.state("count"), collector, 0

    def execute(self, tuple):
        self.sum += tuple["count"]

    def finish_batch(self):
        self.collector.emit(self.total.update((), lambda old: (old or 0) + self.sum))


builder = TransactionalTopologyBuilder("global-count", "spout", MemoryTransactionalSpout(PARTITIONS, "word", take=3), 3)
builder.set_bolt("partial-count", BatchCount(), 5).none_grouping("spout")
builder.set_bolt("sum", UpdateGlobalCount()).global_grouping("partial-count")
builder.set_bolt("sums", DeltaSink("sums", {"sum": int})).global_grouping("sum")
topology = builder.set_setting("max_spout_pending", 3).build_topology()

if __name__ == "__main__":
    run(topology, until_txid=5).awaitTermination()
