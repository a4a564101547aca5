"""Joins of two sources that crash tests kill at any step: as state, or over a store outside.

``joins DATA_DIR VARIANT [--conf JSON] [--spout S] [--take N]`` runs a left join to the end of its input; the variants are
``state``, ``redis`` and ``rest``. Each result, and each unmatched row, is in a sink.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from scenarios.stateful import arguments
from scenarios.words import memory_spout, run_to_end
from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.api.composite import CompositeSpout
from txstorm.joins import DataDelaySync, IntervalJoin, RedisStore, RestStore, Side, StoreFeed, StoreJoin
from txstorm.sinks import DeltaSink

FIELDS = ("key", "at", "part", "id")
PARTITIONS = 2
BEFORE, LAG = 30, 6
"""Bound of the join and lag of both sides, in microseconds."""
KEYS = ("a", "b", "c", None)


def rows(side: str, partition: int) -> list[tuple[str | None, int, str, str]]:
    """Return the rows of a partition: (key, time in microseconds, partition, id), out of order by up to the lag."""
    shift = 3 if side == "l" else 0
    name = f"{side}{partition}"
    times = [10 * i + 5 * partition + shift - (i * 5) % LAG for i in range(12)]
    return [(KEYS[(i * 7 + shift) % 4], at, name, f"{name}-{i}") for i, at in enumerate(times)]


def topology(variant: str, spout: str, take: int, conf: dict[str, Any]) -> Any:
    numbers = range(PARTITIONS)
    sources = {side: memory_spout(spout, {n: rows(side, n) for n in numbers}, FIELDS, take) for side in "lr"}
    builder = TransactionalTopologyBuilder("joins", "rows", CompositeSpout(sources), PARTITIONS)
    fields = {"key": "key", "time": "at", "unit": "us", "id": "id", "partition": "part"}
    left, right = (
        Side("rows", side, lag=timedelta(microseconds=LAG), partitions=[f"{side}{n}" for n in numbers], **fields)
        for side in "lr"
    )
    before = timedelta(microseconds=BEFORE)
    if variant == "state":
        join = IntervalJoin(left, right, before=before, how="left", select=["l:id", "r:id"])
        builder.set_bolt("join", join, 2).fields_grouping("rows", "l", ["key"]).fields_grouping("rows", "r", ["key"])
        sink = DeltaSink("unmatched_right", dict.fromkeys(FIELDS, str) | {"at": int})
        builder.set_bolt("unmatched_right", sink).global_grouping("join", "unmatched_right")
    else:
        store = RedisStore(conf["url"], prefix="crash") if variant == "redis" else RestStore(conf["url"])
        feed = StoreFeed(right, store, retain=Duration.seconds(1), batch_size=3)
        builder.set_bolt("fill", feed, 2).fields_grouping("rows", "r", ["key"])
        sync = DataDelaySync(left)
        builder.set_bolt("sync", sync, 2).fields_grouping("rows", "l", ["key"]).all_grouping("fill", "position")
        held = Side("sync", key="key", time="at", unit="us")
        match = StoreJoin(held, store, before=before, how="left", select=["left:id", "right:id"], batch_size=4)
        builder.set_bolt("join", match, 2).fields_grouping("sync", ["key"])
    names = ("l_id", "r_id") if variant == "state" else ("sync_id", "r_id")
    builder.set_bolt("results", DeltaSink("results", dict.fromkeys(names, str))).global_grouping("join")
    sink = DeltaSink("unmatched_left", dict.fromkeys(FIELDS, str) | {"at": int})
    builder.set_bolt("unmatched_left", sink).global_grouping("join", "unmatched_left")
    return builder.build_topology()


def main(*argv: str) -> dict[str, Any]:
    """Run the topology once; return its progress."""
    options = arguments(argv, ("state", "redis", "rest"))
    made = topology(options.provider, options.spout, options.take, json.loads(options.conf))
    settings = {"max_spout_pending": 3, "max_group_txids": 2, "retry_backoff_max": 0.2}
    return run_to_end(made, options.data_dir, settings, "local", end_of_input=True)
