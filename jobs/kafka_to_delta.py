"""Counts the hashtags of tweets from Kafka; each tweet counts exactly once.

python -m jobs.kafka_producer 127.0.0.1:9092 tweets --count 10000 --abort 0.3
txstorm run jobs.kafka_to_delta --available-now
txstorm run "jobs.kafka_to_delta:topology('tweets', 'broker:9092', max_batch_rows=10000)"
txstorm state txstorm-data/kafka-to-delta hashtags

Tweets of aborted transactions are not read. Tweets are parsed and counted per batch in parallel, for several batches
at once; only the sums per hashtag go through the commit, in txid order.
"""

import os
import re

from txstorm import BasicBolt, Topology, TransactionalTopologyBuilder, run
from txstorm.bolts import CountBy, SumByKey
from txstorm.spouts import TransactionalKafkaSpout

SERVERS = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")


class Hashtags(BasicBolt):
    """A bolt that emits the hashtags of a tweet, in lower case."""

    fields = ("hashtag",)

    def execute(self, tuple, collector):
        for hashtag in re.findall(r"#\w+", tuple["value"]["text"].lower()):
            collector.emit(hashtag)


def topology(topic: str = "tweets", servers: str = SERVERS, max_batch_rows: int = 5000) -> Topology:
    """Build the topology over a topic whose messages are JSON objects with a ``text``."""
    tweets = TransactionalKafkaSpout(topic, servers, fields=["value"], value="json", max_batch_rows=max_batch_rows)
    builder = TransactionalTopologyBuilder("kafka-to-delta", "tweets", tweets, 2)
    builder.set_bolt("hashtags", Hashtags(), 2).local_or_shuffle_grouping("tweets")
    builder.set_bolt("partial", CountBy("hashtag"), 2).local_or_shuffle_grouping("hashtags")
    builder.set_bolt("counts", SumByKey("hashtag", "n", "hashtags"), 2).fields_grouping("partial", ["hashtag"])
    return builder.build_topology()


if __name__ == "__main__":
    run(topology(), available_now=True).awaitTermination()
