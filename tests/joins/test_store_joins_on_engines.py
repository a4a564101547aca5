"""External store join on both engines (A9, A12, A13, A16, A20): every pair within bounds, every other left row once."""

import json
import random
from time import sleep

import pytest
from servers.running import start_redis

from txstorm import BatchBolt, Committer, Duration, SinkTable, TransactionalTopologyBuilder, run
from txstorm.bolts import FlatMap
from txstorm.joins import DataDelaySync, MemoryStore, RedisStore, Side, StoreFeed, StoreJoin
from txstorm.spouts import FileSpout

BEFORE, AFTER, LAG = 3000, 500, 1500


class Keep(BatchBolt, Committer):
    """Keeps the results in a sink."""

    out = SinkTable("out", {"left": str, "right": str})

    def prepare(self, context, collector, attempt):
        self.context, self.rows = context, []

    def execute(self, tuple):
        self.rows.append((tuple[0], tuple[1]))

    def finish_batch(self):
        for row in self.rows:
            self.context.sink("out").append(*row)


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
    builder.set_bolt("keep", Keep()).global_grouping("match")
    return builder.build_topology()


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    rng, folder = random.Random(11), tmp_path_factory.mktemp("lines")
    rows = [
        (rng.choice(("views", "clicks")), rng.choice((*range(30), None)), 20 * i + rng.randrange(LAG), f"i{i}")
        for i in range(1500)
    ]
    (folder / "lines.txt").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "*.txt", rows


def expected(rows):
    """Return the pairs, and left rows without one, that a loop over all rows finds."""
    views = [row for row in rows if row[0] == "views" and row[1] is not None]
    found = []
    for side, ad, ts, id in rows:
        if side == "clicks":
            mine = [one[3] for one in views if one[1] == ad and ts - BEFORE <= one[2] <= ts + AFTER]
            found += [(id, one) for one in mine or [None]]
    return sorted(found, key=str)


def check(engine, lines, data_dir):
    handle = run(topology_of(str(lines[0]), MemoryStore()), engine=engine, data_dir=data_dir, end_of_input=True)
    handle.awaitTermination()
    compare(handle, lines)


def compare(handle, lines):
    stored = [(row["left"], row["right"]) for row in handle.sink("out").to_pylist()]
    assert sorted(stored, key=str) == expected(lines[1])


def test_in_process(make_engine, lines, tmp_path):
    check(make_engine(), lines, tmp_path)


@pytest.mark.integration
def test_a_redis_that_is_killed_and_comes_back_costs_a_pause(lines, tmp_path):
    """A9: puts wait for it, look-ups are replayed; no row is lost or joined twice."""
    with start_redis(tmp_path / "redis") as redis:
        topology = topology_of(str(lines[0]), RedisStore(f"redis://{redis.address()}/0"), rows=40)
        settings = {"retry_backoff_max": 0.2}
        handle = run(topology, engine="local", data_dir=tmp_path / "t", end_of_input=True, settings=settings)
        for committed in (3, 12):
            redis.wait(lambda least=committed: handle.committed >= least, "transactions", 60)
            redis.kill()
            sleep(0.4)
            redis.restart()
        handle.awaitTermination()
        compare(handle, lines)


@pytest.mark.spark
def test_on_spark(spark, lines, tmp_path):
    check("spark", lines, tmp_path)
