"""Storm's TransactionalWords: the count of each word, and the number of words with counts of 0 to 9, 10 to 19, ….

txstorm run jobs.transactional_words --available-now
txstorm state txstorm-data/top-n-words buckets

Two states follow the same txid order: both buckets of a word that moves change in the transaction of its count.
"""

from collections import Counter

from txstorm import BasicBolt, BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder, run
from txstorm.bolts import SumByKey
from txstorm.spouts import MemoryTransactionalSpout

WORDS = ["cat dog chicken cat dog apple", "cat dog apple banana", "cat cat cat cat cat dog dog dog dog"]
PARTITIONS = [words.split() for words in WORDS]
BUCKET_SIZE = 10


class KeyedCountUpdater(BatchBolt, Committer):
    """A committer that counts words, and emits every changed count together with the previous one."""

    fields = ("word", "count", "prev_count")
    state = KeyedState("counts", key={"word": str}, value={"count": int})

    def prepare(self, context, collector, attempt):
        self.counts, self.collector, self.partial = context.state("counts"), collector, Counter()

    def execute(self, tuple):
        self.partial[tuple["word"]] += 1

    def finish_batch(self):
        counts = self.counts.update_many(self.partial, lambda old, n: (old or 0) + n)
        for word, count in counts.items():
            self.collector.emit(word, count, self.counts.previous(word))


class Bucketize(BasicBolt):
    """A bolt that emits the changes of the buckets that result from the change of a count."""

    fields = ("bucket", "words")

    def execute(self, tuple, collector):
        bucket, previous = tuple["count"] // BUCKET_SIZE, tuple["prev_count"]
        if previous is None:
            collector.emit(bucket, 1)
        elif previous // BUCKET_SIZE != bucket:
            collector.emit(bucket, 1)
            collector.emit(previous // BUCKET_SIZE, -1)


builder = TransactionalTopologyBuilder("top-n-words", "spout", MemoryTransactionalSpout(PARTITIONS, "word", take=3), 2)
builder.set_bolt("count", KeyedCountUpdater(), 5).fields_grouping("spout", ["word"])
builder.set_bolt("bucketize", Bucketize()).none_grouping("count")
builder.set_bolt("buckets", SumByKey({"bucket": int}, "words", "buckets"), 5).fields_grouping("bucketize", ["bucket"])
topology = builder.set_setting("max_spout_pending", 3).build_topology()

if __name__ == "__main__":
    run(topology, available_now=True).awaitTermination()
