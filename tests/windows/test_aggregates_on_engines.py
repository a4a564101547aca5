"""Window aggregates on both engines (U3, U5): the same results, and the same bytes of the state, from the same files."""

import json
import random
from datetime import timedelta

import pytest
from runs import ended

from txstorm import Duration, TopPerWindow, TransactionalTopologyBuilder, WindowAggregate
from txstorm.bolts import Map
from txstorm.spouts import FileSpout


def topology_of(files):
    builder = TransactionalTopologyBuilder("t", "lines", FileSpout(files, max_batch_rows=300), 2)
    builder.set_bolt("bids", Map(lambda row: json.loads(row["line"]), "auction", "price", "ts"), 2).shuffle_grouping(
        "lines"
    )
    hot = WindowAggregate(
        {"auction": int}, table="hot", ttl=timedelta(days=9), n="count", mean=("price", "mean"),
        top=("ts", "argmax", "price"),
    )  # fmt: skip
    hot.with_window(Duration.seconds(10), Duration.seconds(2)).with_timestamp_field("ts").with_lag(Duration.seconds(2))
    builder.set_bolt("hot", hot, 2).fields_grouping("bids", ["auction"])
    sessions = WindowAggregate({"auction": int}, table="sessions", ttl=timedelta(days=9), total=("price", "sum"))
    sessions.with_session_window(Duration.seconds(1)).with_timestamp_field("ts").with_allowed_lateness(
        Duration.seconds(5)
    )
    builder.set_bolt("sessions", sessions, 2).fields_grouping("bids", ["auction"])
    builder.set_bolt("top", TopPerWindow(1, "n")).global_grouping("hot")
    return builder.build_topology()


def expected(rows):
    """Return the number of rows, and the sum of prices, per auction and sliding window."""
    found = {}
    for auction, price, ts in rows:
        for end in range(-(-ts // 2000) * 2000, ts + 10_000, 2000):
            n, total = found.get((auction, end), (0, 0))
            found[auction, end] = n + 1, total + price
    return found


@pytest.fixture(scope="module")
def bids(tmp_path_factory):
    rng, folder = random.Random(7), tmp_path_factory.mktemp("bids")
    rows = [(rng.randrange(40), rng.randrange(1, 1000), 20 * i + rng.randrange(1500)) for i in range(2000)]
    (folder / "bids.txt").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "*.txt", rows


def test_sliding_aggregates_are_those_of_a_loop_over_all_tuples(make_engine, bids, tmp_path):
    files, rows = bids
    handle = ended(topology_of(str(files)), tmp_path, make_engine(), end_of_input=True)
    stored = handle.state("hot").to_pylist()
    found = {(row["auction"], round(row["end"].timestamp() * 1000)): (row["n"], row["mean"]) for row in stored}
    assert len(stored) == len(found)
    assert found == {place: (n, total / n) for place, (n, total) in expected(rows).items()}
    assert sum(row["total"] for row in handle.state("sessions").to_pylist()) == sum(price for _, price, _ in rows)


@pytest.mark.spark
def test_both_engines_leave_the_same_states(spark, bids, tmp_path):
    texts = []
    for engine in ("local", "spark"):
        handle = ended(topology_of(str(bids[0])), tmp_path / engine, engine, end_of_input=True)
        texts.append([handle.state(name).to_json() for name in ("hot", "sessions")])
    assert texts[0] == texts[1]
