"""Click stream with duplicates, bad lines and late clicks: clicks per page and minute, and sessions of users.

txstorm run jobs.click_stream --end-of-input
txstorm run "jobs.click_stream:topology(closed='right')" --end-of-input --data-dir as-in-storm

A click at 12:01:00.000 is in the minute that begins then, as in Spark and Flink; with `closed='right'` it is in the one
that ends then, as in Storm. The clicks, and what they lead to, are from jobs/producers/click_stream.py.
"""

from datetime import timedelta
from pathlib import Path

from txstorm import Duration, Topology, TransactionalTopologyBuilder, run
from txstorm.joins import Deduplicator
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout
from txstorm.windows import WindowAggregate

CLICKS = Path(__file__).parent / "data" / "clicks.txt"
FIELDS = {"id": int, "user": str, "page": str, "time": int}


def counts_per(key: str, table: str) -> WindowAggregate:
    """Return an aggregate that counts clicks, which are a minute out of order at most."""
    made = WindowAggregate(key, table=table, ttl=timedelta(days=7), n="count")
    return made.with_timestamp_field("time").with_lag(Duration.minutes(1)).with_late_tuple_stream("late")


def topology(path: str | Path = CLICKS, closed: str = "left") -> Topology:
    """Build the topology over a file of clicks."""
    spout = FileSpout(path, format="jsonl", fields=list(FIELDS), max_batch_rows=50)
    builder = TransactionalTopologyBuilder("click-stream", "clicks", spout, 2)
    once = Deduplicator("id", keep=Duration.days(1))
    builder.set_bolt("once", once, 2).fields_grouping("clicks", ["id"])
    pages = counts_per("page", "pages").with_tumbling_window(Duration.minutes(1), closed=closed)
    builder.set_bolt("pages", pages, 2).fields_grouping("once", ["page"])
    sessions = counts_per("user", "sessions").with_session_window(Duration.seconds(20))
    builder.set_bolt("sessions", sessions, 2).fields_grouping("once", ["user"])
    builder.set_bolt("late", DeltaSink("late", FIELDS)).global_grouping("pages", "late")
    builder.set_settings({"on_error": "dead_letter"})
    return builder.build_topology()


if __name__ == "__main__":
    run(topology(), end_of_input=True).awaitTermination()
