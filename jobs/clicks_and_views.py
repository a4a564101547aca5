"""Views of advertisements, each joined with the clicks on it; the clicks pause, resume far behind, and catch up.

txstorm run jobs.clicks_and_views --end-of-input          (or: python -m jobs.clicks_and_views)
txstorm join txstorm-data/clicks-and-views join
python -m jobs.producers.clicks_and_views 127.0.0.1:9092
txstorm run "jobs.clicks_and_views:topology('127.0.0.1:9092')" --data-dir from-kafka

Events are JSON; views wait until clicks of their ten minutes cannot come any more. The same from a configuration file:
jobs/stream_join.py.
"""

import json
from functools import partial

from txstorm import CompositeSpout, Duration, Topology, TransactionalSpout, TransactionalTopologyBuilder, run
from txstorm.bolts import Map
from txstorm.joins import IntervalJoin, Side
from txstorm.sinks import DeltaSink
from txstorm.spouts import OpaqueTransactionalKafkaSpout

try:
    from jobs.producers.clicks_and_views import FIELDS, RECORD, minutes
except ModuleNotFoundError:  # as a script
    from producers.clicks_and_views import FIELDS, RECORD, minutes


def parsed(names, record):
    """Return the fields of an event, which is the value of a record, and the record's partition."""
    event = json.loads(record["value"])
    return [*(event[name] for name in names), record["partition"]]


def topology(kafka: str | None = None) -> Topology:
    """Build the topology over generated events or, if given, the topics ``views`` and ``clicks`` of Kafka servers."""

    def spout(topic: str) -> TransactionalSpout:
        return OpaqueTransactionalKafkaSpout(topic, kafka, fields=RECORD) if kafka else minutes(topic)

    builder = TransactionalTopologyBuilder("clicks-and-views", "events", CompositeSpout({t: spout(t) for t in FIELDS}))
    for topic, fields in FIELDS.items():
        parse = Map(partial(parsed, fields), *fields, "partition")
        builder.set_bolt(topic, parse, 2).local_or_shuffle_grouping("events", topic)
    views = Side("views", key="view", time="at", id="view", partition="partition")
    clicks = Side("clicks", key="view", time="at", id="click", partition="partition")
    join = IntervalJoin(
        views,
        clicks,
        before=Duration(0),
        after=Duration.minutes(10),
        how="left",
        select=["views:view", "views:ad", "clicks:click"],
    )
    builder.set_bolt("join", join, 2).fields_grouping("views", ["view"]).fields_grouping("clicks", ["view"])
    builder.set_bolt("joined", DeltaSink("joined", {"view": int, "ad": str, "click": int})).global_grouping("join")
    return builder.build_topology()


if __name__ == "__main__":
    run(topology(), end_of_input=True).awaitTermination()
