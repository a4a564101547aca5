"""Topology for fault injection: joins the records of two topics by key, within a second of event time."""

from datetime import timedelta
from typing import Any

from txstorm import TransactionalTopologyBuilder
from txstorm.api.composite import CompositeSpout
from txstorm.bolts import Map
from txstorm.joins import IntervalJoin, Side
from txstorm.sinks import DeltaSink
from txstorm.spouts import OpaqueTransactionalKafkaSpout
from txstorm.topology.graph import Topology

BEFORE = 200
"""How long before a left record its right ones may be, in milliseconds."""
COLUMNS = {"key": str, "time": int, "partition": int, "id": str}
SETTINGS = {"retry_backoff": 0.05, "retry_backoff_max": 0.5, "max_group_txids": 4, "min_interval": 0.02}


def parsed(row: Any) -> tuple[str, int, int, str]:
    key, time, id = row["value"].split()
    return key, int(time), row["partition"], id


def topology(brokers: str, left: str, right: str, rows: int = 300) -> Topology:
    """Build the topology; used as ``txstorm run "join_job:topology(…)"``."""
    options = {"fields": ("value", "partition"), "max_batch_rows": rows, "patience": 1.0, "discover_seconds": 1.0}
    sources = {
        name: OpaqueTransactionalKafkaSpout(topic, brokers, **options)
        for name, topic in (("left", left), ("right", right))
    }
    builder = TransactionalTopologyBuilder("joined", "records", CompositeSpout(sources), 2)
    sides = []
    for name in sources:
        builder.set_bolt(f"parsed-{name}", Map(parsed, *COLUMNS), 2).local_or_shuffle_grouping("records", name)
        sides.append(Side(f"parsed-{name}", key="key", time="time", id="id", partition="partition"))
    join = IntervalJoin(*sides, before=timedelta(milliseconds=BEFORE), how="left", select=["left:id", "right:id"])
    declarer = builder.set_bolt("join", join, 2)
    for side in sides:
        declarer.fields_grouping(side.component, ["key"])
    builder.set_bolt("results", DeltaSink("results", {"left_id": str, "right_id": str})).global_grouping("join")
    for name in sources:
        sink = DeltaSink(f"unmatched_{name}", COLUMNS)
        builder.set_bolt(f"unmatched-{name}", sink).global_grouping("join", f"unmatched_{name}")
    return builder.set_settings(SETTINGS).build_topology()
