"""Topology whose first transaction makes a hundred window ends due, which fire a few at a time."""

import sys

from window_bolts import Emitting

import txstorm
from txstorm import Count, Duration, TransactionalTopologyBuilder
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout


def contents(window):
    return int(window.end.timestamp()), " ".join(one["id"] for one in window.get())


def topology(limit):
    spout = MemoryTransactionalSpout([[("a", 0), ("b", 90), ("c", 100)]], ("id", "ts"), take=3)
    bolt = Emitting("end ids", contents).with_window(Count(3), Duration.seconds(1)).with_timestamp_field("ts", unit="s")
    builder = TransactionalTopologyBuilder("ends", "feed", spout).set_settings({"max_ends_per_txid": limit})
    builder.set_bolt("windows", bolt, 2).fields_grouping("feed", ["id"])
    builder.set_bolt("keep", DeltaSink("contents", {"end": int, "ids": str})).global_grouping("windows")
    return builder.build_topology()


if __name__ == "__main__":
    txstorm.run(topology(15), engine="local", data_dir=sys.argv[1], available_now=True).awaitTermination()
