"""Runs of the article's parts over a file of views and clicks, and what a loop over all rows finds in it."""

import json
import random

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.bolts import FlatMap
from txstorm.joins import DataDelaySync, Side, StoreFeed, StoreJoin
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout

BEFORE, AFTER, LAG = 3000, 500, 1500


def only(side):
    """Return a function that parses the lines of one side."""
    return lambda row: [tuple(one[1:]) for one in [json.loads(row["line"])] if one[0] == side]


def topology_of(files, store, rows=300):
    builder = TransactionalTopologyBuilder("t", "lines", FileSpout(files, max_batch_rows=rows), 2)
    for name in ("views", "clicks"):
        builder.set_bolt(name, FlatMap(only(name), "ad", "ts", "id"), 2).shuffle_grouping("lines")
    right = Side("views", key="ad", time="ts", id="id", lag=Duration(LAG))
    left = Side("clicks", key="ad", time="ts", id="id", lag=Duration(LAG))
    feed = StoreFeed(right, store, retain=Duration.hours(1), batch_size=50)
    builder.set_bolt("fill", feed, 2).fields_grouping("views", ["ad"])
    sync = DataDelaySync(left, after=Duration(AFTER))
    builder.set_bolt("sync", sync, 2).fields_grouping("clicks", ["ad"]).all_grouping("fill", "position")
    match = StoreJoin(
        Side("sync", key="ad", time="ts"),
        store,
        before=Duration(BEFORE),
        after=Duration(AFTER),
        how="left",
        select=["left:id", "right:id"],
        batch_size=40,
    )
    builder.set_bolt("match", match, 2).fields_grouping("sync", ["ad"])
    builder.set_bolt("keep", DeltaSink("out", {"left_id": str, "right_id": str})).global_grouping("match")
    return builder.build_topology()


def write_lines(folder, count=1500):
    """Write a file of `count` rows, of which half are clicks; return a pattern that finds it, and the rows."""
    rng = random.Random(11)
    rows = [
        (rng.choice(("views", "clicks")), rng.choice((*range(30), None)), 20 * i + rng.randrange(LAG), f"i{i}")
        for i in range(count)
    ]
    (folder / "lines.txt").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "*.txt"), rows


def expected(rows):
    """Return the pairs, and left rows without one, that a loop over all rows finds."""
    views = [row for row in rows if row[0] == "views" and row[1] is not None]
    found = []
    for side, ad, ts, id in rows:
        if side == "clicks":
            mine = [one[3] for one in views if one[1] == ad and ts - BEFORE <= one[2] <= ts + AFTER]
            found += [(id, one) for one in mine or [None]]
    return sorted(found, key=str)


def compare(handle, lines):
    stored = [(row["left_id"], row["right_id"]) for row in handle.sink("out").to_pylist()]
    assert sorted(stored, key=str) == expected(lines[1])
