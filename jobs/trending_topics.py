"""Trending topics: every minute, the three topics that were mentioned most in the last hour, by event time.

txstorm run jobs.trending_topics --end-of-input
txstorm windows txstorm-data/trending-topics
txstorm run "jobs.trending_topics:topology(kafka=('mentions', '127.0.0.1:9092'))"

Mentions are JSON with a time (ms) and a topic, a minute late at most. They are counted per minute in the workers.
"""

import json
from datetime import datetime, timedelta
from pathlib import Path

from txstorm import BasicBolt, BatchBolt, Committer, Duration, SinkTable, Topology, TransactionalTopologyBuilder, run
from txstorm.spouts import FileSpout, OpaqueTransactionalKafkaSpout
from txstorm.windows import TopPerWindow, WindowAggregate

MENTIONS = Path(__file__).parent / "data" / "mentions.txt"


class Parse(BasicBolt):
    """A bolt that parses a mention, the line of a file or the value of a Kafka message."""

    fields = ("time", "topic")

    def execute(self, tuple, collector):
        collector.emit(*map(json.loads(tuple[0]).get, self.fields))


class Trends(BatchBolt, Committer):
    """A committer that appends rankings to a sink."""

    sink = SinkTable("trends", columns={"end": datetime, "rank": int, "topic": str, "mentions": int})

    def prepare(self, context, collector, attempt):
        self.context, self.rows = context, []

    def execute(self, tuple):
        self.rows.append((tuple["end"], tuple["rank"], tuple["topic"], tuple["n"]))

    def finish_batch(self):
        for row in self.rows:
            self.context.sink("trends").append(*row)


def topology(path: str | Path = MENTIONS, kafka: tuple[str, str] | None = None) -> Topology:
    """Build the topology over a file or, if given, a Kafka topic and its servers."""
    spout = OpaqueTransactionalKafkaSpout(*kafka, fields=["value"]) if kafka else FileSpout(path, max_batch_rows=50)
    counts = WindowAggregate("topic", table="mentions", ttl=timedelta(days=7), n="count")
    builder = TransactionalTopologyBuilder("trending-topics", "mentions", spout, 2)
    builder.set_bolt("parse", Parse(), 2).local_or_shuffle_grouping("mentions")
    counts.with_window(Duration.hours(1), Duration.minutes(1)).with_timestamp_field("time")
    builder.set_bolt("counts", counts.with_lag(Duration.minutes(1)), 2).fields_grouping("parse", ["topic"])
    builder.set_bolt("top", TopPerWindow(3, "n")).global_grouping("counts")
    builder.set_bolt("trends", Trends()).global_grouping("top")
    return builder.build_topology()


if __name__ == "__main__":
    run(topology(), end_of_input=True).awaitTermination()
