"""Monoid bolts on both engines: trends over several bolts, states behind a window, sketches that Spark SQL reads."""

from collections import Counter

import pytest

from txstorm import Duration, MonoidBolt, TransactionalTopologyBuilder, WindowAggregate, run
from txstorm.monoids import Count, HyperLogLog, Max, SetUnion, TopN
from txstorm.spouts import OpaqueMemoryTransactionalSpout

TAGS = [f"t{(n * n) % 23:02}" for n in range(120)] + ["t99"] * 2
"""The last one is so late that the windows of all others fire."""


@pytest.mark.parametrize("instances", [1, 3])
def test_trends_and_what_lies_behind_a_window_equal_plain_python(instances, make_engine, tmp_path):
    rows = [(tag, f"user {n % 11}", 1000 * n + 900_000 * (n >= 120)) for n, tag in enumerate(TAGS)]
    spout = OpaqueMemoryTransactionalSpout([rows[::2], rows[1::2]], ["tag", "user", "at"], take=17)
    builder = TransactionalTopologyBuilder("trends", "tags", spout, 2)
    counts = MonoidBolt("counts", Count(), "tag")
    builder.set_bolt("counts", counts, instances).fields_grouping("tags", ["tag"])
    top = MonoidBolt("topn", TopN(3), to_state=("tag", "state"))
    builder.set_bolt("topn", top, instances).function_grouping("counts", lambda values: -int(values[0][1:]))
    builder.set_bolt("top", MonoidBolt("top", TopN(3), to_state="state")).global_grouping("topn")
    users = MonoidBolt("users", HyperLogLog(), "tag", to_state="user", emit=None)
    builder.set_bolt("users", users, instances).fields_grouping("tags", ["tag"])
    minutes = WindowAggregate("tag", n="count").with_tumbling_window(Duration.minutes(1)).with_timestamp_field("at")
    minutes = minutes.with_lag(Duration.minutes(1))
    builder.set_bolt("minutes", minutes, instances).fields_grouping("tags", ["tag"])
    builder.set_bolt("most", MonoidBolt("most", Max(), "tag", to_state="n")).fields_grouping("minutes", ["tag"])
    handle = run(builder.build_topology(), data_dir=tmp_path, engine=make_engine(), available_now=True)
    handle.awaitTermination()

    expected = Counter(TAGS)
    best = sorted(expected.items(), key=lambda one: (-one[1], one[0]))[:3]
    assert {row["tag"]: row["state"] for row in handle.state("counts").to_pylist()} == expected
    assert handle.state("top").to_pylist() == [
        {"instance": 0, "state": [{"key": tag, "count": count} for tag, count in best]}
    ]
    per_minute = Counter((tag, (at - 1) // 60_000) for tag, _, at in rows)
    most = {tag: max(n for (one, _), n in per_minute.items() if one == tag) for tag in expected if tag != "t99"}
    assert {row["tag"]: row["state"] for row in handle.state("most").to_pylist()} == most
    sketches = {row["tag"]: row["state"] for row in handle.state("users").to_pylist()}
    assert sketches == {tag: HyperLogLog().fold([(user,) for one, user, _ in rows if one == tag]) for tag in expected}
    assert handle.clock() == {"0": 60, "1": 60}


def test_sketches_are_read_by_spark_and_merge_with_those_that_spark_made(spark):
    from txstorm.monoids import Quantiles, Theta

    for distinct in (5, 3000):
        rows = [(f"user {n}",) for n in range(distinct)]
        made = [bytearray(one.fold(rows)) for one in (HyperLogLog(), Theta())]
        made.append(bytearray(Quantiles().fold([(float(n),) for n in range(distinct)])))
        ours = spark.createDataFrame([made], "h binary, t binary, q binary")
        theirs = spark.range(distinct).selectExpr(
            "hll_sketch_agg(concat('user ', id)) h2", "theta_sketch_agg(concat('user ', id)) t2"
        )
        (found,) = ours.crossJoin(theirs).selectExpr(
            "hll_sketch_estimate(h)", "hll_sketch_estimate(hll_union(h, h2))",
            "theta_sketch_estimate(t)", "theta_sketch_estimate(theta_union(t, t2))",
            "kll_sketch_get_quantile_double(q, 0.5d)", "h2", "t2",
        ).collect()  # fmt: skip
        hll, hll_union, theta, theta_union, median, h2, t2 = found
        h, t = map(bytes, made[:2])
        assert (hll, theta) == (round(HyperLogLog.value(h)), round(Theta.value(t)))
        assert (hll_union, theta_union) == (hll, theta)
        assert HyperLogLog().merge(bytes(h2), h) == h
        assert Theta().merge(bytes(t2), t) == t
        assert abs(median - distinct / 2) <= 0.03 * distinct + 1
    assert SetUnion().dump(SetUnion().of(1, True, 1.0, "1", None)) == [True, 1.0, 1, "1"]
