"""Frame bolts: any code of DataFrames between a frame spout and bolts on tuples, transaction by transaction."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pandas as pd
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from txstorm import Duration, TransactionalTopologyBuilder, WindowAggregate, explain, faults, run
from txstorm.bolts import Map, SumByKey
from txstorm.errors import InputError, TopologyError, TopologyFailed
from txstorm.replay.audit import replay_txid
from txstorm.results.read import read_sink, read_state
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryFrames, MemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
COLUMNS = "country STRING, cents BIGINT"
MANY = [[("abc"[n % 3], n) for n in range(start, start + start % 7 + 1)] for start in range(8)]
BATCHES = MANY[:5]


def builder(batches=BATCHES, columns=COLUMNS):
    return TransactionalTopologyBuilder("orders", "orders", MemoryFrames(columns, batches), 2)


def totals(orders):
    return orders.where("cents > 1").groupBy("country").agg({"cents": "sum"}).toDF("country", "cents")


def go(made, data_dir, spark, **settings):
    topology = made.set_settings(settings).build_topology()
    return run(topology, spark=spark, data_dir=data_dir, available_now=True)


def test_each_transaction_is_aggregated_by_itself_also_within_a_pack(spark, tmp_path):
    made = builder()
    made.set_frame_bolt("counts", lambda orders: orders.groupBy().count().toDF("n")).reads("orders")
    made.set_bolt("kept", DeltaSink("counts", {"n": int})).shuffle_grouping("counts")
    go(made, tmp_path, spark, max_pack_txids=8).awaitTermination()
    kept = read_sink(tmp_path, "counts").sort_by("_txid").to_pylist()
    assert [row["n"] for row in kept] == [len(batch) for batch in BATCHES]


def test_several_readers_and_frame_bolts_over_one_evaluation(spark, tmp_path):
    names = spark.createDataFrame([("a", "Austria"), ("b", "Belgium")], "country STRING, name STRING")
    made = builder()
    made.set_frame_bolt("totals", totals, 3).reads("orders")
    made.set_frame_bolt("named", lambda sums: sums.join(names, "country"), 2).reads("totals")
    made.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("totals", ["country"])
    made.set_bolt("rows", DeltaSink("rows", {"country": str, "cents": int}), 2).shuffle_grouping("orders")
    made.set_bolt("named-rows", DeltaSink("named", {"country": str, "cents": int, "name": str})).global_grouping(
        "named"
    )
    handle = go(made, tmp_path, spark)
    handle.awaitTermination()
    rows = [row for batch in BATCHES for row in batch]
    assert Counter((row["country"], row["cents"]) for row in read_sink(tmp_path, "rows").to_pylist()) == Counter(rows)
    sums = Counter()
    for country, cents in rows:
        sums[country] += cents if cents > 1 else 0
    assert {row["country"]: row["cents"] for row in read_state(tmp_path, "sums").to_pylist()} == +sums
    named = Counter()
    for row in read_sink(tmp_path, "named").to_pylist():
        named[row["name"]] += row["cents"]
    assert named == {"Austria": sums["a"], "Belgium": sums["b"]}
    assert sum(one["tuples"] for one in handle.history().to_pylist()) > 0


TIMES = st.builds(
    lambda seconds, zone: datetime.fromtimestamp(seconds, zone),
    st.integers(-(10**9), 6 * 10**9),
    st.sampled_from([UTC, ZoneInfo("Asia/Kabul")]),
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "B", "é", "", None]),
        st.none() | st.integers(-(2**62), 2**62),
        st.none() | st.decimals(-(10**9), 10**9, places=2),
        st.none() | TIMES,
        st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=3),
        st.none() | st.tuples(st.none() | st.integers(0, 9), st.text("xyz", max_size=2)),
    ),
    max_size=6,
)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(ROWS, min_size=1, max_size=3))
def test_a_function_makes_of_each_batch_what_it_makes_by_hand(spark, tmp_path_factory, batches):
    columns = "k STRING, n BIGINT, d DECIMAL(12, 2), t TIMESTAMP, l ARRAY<INT>, s STRUCT<a: INT, b: STRING>"

    def function(rows):
        parts = rows.select("k", "n", "d", "t", F.explode_outer("l").alias("one"), "s.a", "s.b")
        most = Window.partitionBy("k").orderBy(F.col("d").desc_nulls_last())
        ranked = parts.withColumn("rank", F.rank().over(most))
        sums = (F.sum("d").alias("d"), F.max("t").alias("t"), F.sum("one").alias("n"), F.count("b").alias("m"))
        return ranked.where("rank < 3").groupBy("k", "a").agg(*sums)

    made = builder(batches, columns)
    made.set_frame_bolt("f", function, 2).reads("orders")
    kinds = {"k": str, "a": int, "d": Decimal, "t": datetime, "n": int, "m": int}
    made.set_bolt("kept", DeltaSink("kept", kinds), 2).shuffle_grouping("f")
    place = tmp_path_factory.mktemp("by-hand")
    go(made, place, spark, max_pack_txids=3).awaitTermination()
    kept = read_sink(place, "kept")
    for txid, batch in enumerate(batches, 1):
        by_hand = function(spark.createDataFrame(batch, columns)).toArrow().to_pylist()
        found = kept.filter(pc.equal(kept["_txid"], txid)).select(list(kinds)).to_pylist()
        assert Counter(map(str, map(comparable, found))) == Counter(map(str, map(comparable, by_hand)))


def comparable(row):
    """The values of a row, whatever the time zone of its time and the scale of its decimal."""
    at, cents = row["t"], row["d"]
    return (row["k"], row["a"], row["n"], row["m"], at and at.astimezone(UTC), cents and cents.normalize())


def test_values_of_all_types_arrive_as_python_has_them(spark, tmp_path):
    columns = (
        "t TIMESTAMP, d DATE, m DECIMAL(20, 3), x DOUBLE, b BINARY, l ARRAY<STRUCT<`n.m`: INT>>, s STRING, o BOOLEAN"
    )
    at = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    row = (
        at,
        date(2026, 1, 2),
        Decimal("12345678901234567.125"),
        0.1,
        b"\x00a",
        [{"n.m": 1}, {"n.m": None}],
        "é",
        True,
    )
    made = builder([[row, (None,) * 8]], columns)
    made.set_frame_bolt("same", lambda frame: frame).reads("orders")
    made.set_bolt("text", Map(lambda one: repr([*one.values][1:]), "text")).global_grouping("same")
    made.set_bolt("at", Map(lambda one: None if one["t"] is None else one["t"].isoformat(), "text")).global_grouping(
        "same"
    )
    made.set_bolt("kept", DeltaSink("kept", {"text": str})).global_grouping("text").global_grouping("at")
    go(made, tmp_path, spark).awaitTermination()
    kept = Counter(one["text"] for one in read_sink(tmp_path, "kept").to_pylist())
    assert kept == Counter([repr(list(row[1:])), repr([None] * 7), at.isoformat(), None])


def doubled(values: pd.Series) -> pd.Series:
    return values * 2 if not (values == 77).any() else odd_value(values)


def odd_value(values: pd.Series) -> pd.Series:
    raise ValueError(f"77 of {len(values)}")


def test_two_inputs_pandas_and_empty_batches(spark, tmp_path):
    twice = F.pandas_udf(doubled, "bigint")
    made = builder([[], [("a", 1), ("b", 2)], [], [("a", 3)]])
    made.set_frame_bolt("twice", lambda orders: orders.withColumn("cents", twice("cents"))).reads("orders")
    made.set_frame_bolt("both", lambda one, other: one.unionByName(other)).reads("orders", "twice")
    made.set_bolt("rows", DeltaSink("rows", {"country": str, "cents": int})).global_grouping("both")
    handle = go(made, tmp_path, spark)
    handle.awaitTermination()
    assert sorted(row["cents"] for row in read_sink(tmp_path, "rows").to_pylist()) == [1, 2, 2, 3, 4, 6]
    assert [row["tuples"] for row in handle.history().to_pylist()] == [0, 6, 0, 3]


def first_of(orders):
    return orders if orders.isEmpty() else orders.where("cents >= 0")


def test_the_digest_is_that_of_all_rows_whatever_a_function_reads_of_them(spark, tmp_path):
    """A batch is read whole, and once: also if the function takes some rows, none, or has looked at it before."""
    none = spark.range(9).groupBy("id").count().where("count > 1").selectExpr("CAST(id AS STRING) AS country")
    functions = {
        "all": lambda orders: orders,
        "some": lambda orders: orders.limit(1),
        "none": lambda orders: orders.where("1 = 0"),
        "a join without rows": lambda orders: orders.join(none, "country"),
        "other rows": lambda orders: spark.createDataFrame([("z", 1)], COLUMNS),
        "an action before": first_of,
        "several times": lambda orders: orders.unionByName(orders),
    }
    rows = {"all": 24, "some": 2, "other rows": 3, "an action before": 24, "several times": 48}
    batches = [[("abc"[n % 3], n) for n in range(20)], [], BATCHES[3]]
    expected = None
    spark.conf.set("spark.sql.adaptive.enabled", "true")  # as in Spark's own sessions
    try:
        for name, function in functions.items():
            made = builder(batches)
            made.set_frame_bolt("f", function).reads("orders")
            made.set_bolt("kept", DeltaSink("kept", {"country": str, "cents": int}), 2).shuffle_grouping("f")
            handle = go(made, tmp_path / name, spark, max_pack_txids=3)
            handle.awaitTermination()
            digests = [row["digest"] for row in handle.history().to_pylist()]
            expected = expected or digests
            assert digests == expected, name
            assert sum(one.numInputRows for one in handle.recentProgress) == 24, name
            assert read_sink(tmp_path / name, "kept").num_rows == rows.get(name, 0), name
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")


def test_an_error_of_a_udf_names_the_bolt_and_the_line(spark, tmp_path):
    twice = F.pandas_udf(doubled, "bigint")
    made = builder([[("a", 1)], [("a", 77)]])
    made.set_frame_bolt("twice", lambda orders: orders.withColumn("cents", twice("cents"))).reads("orders")
    made.set_bolt("rows", DeltaSink("rows", {"country": str, "cents": int})).global_grouping("twice")
    handle = go(made, tmp_path, spark, max_retries=0, on_error="fail_topology")
    with pytest.raises(TopologyFailed, match=r"txid 2 .*twice\[0\] raised ValueError at .*in odd_value: 77 of 1"):
        handle.awaitTermination()
    assert handle.committed == 1


def test_a_failed_bolt_ends_the_run_at_its_transaction_or_is_left_out(spark, tmp_path):
    def odd(orders):
        return orders.selectExpr("country", "CASE WHEN cents = 5 THEN raise_error('five') ELSE cents END AS cents")

    made = builder(MANY)
    made.set_frame_bolt("odd", odd, columns=COLUMNS).reads("orders")
    made.set_bolt("rows", DeltaSink("rows", {"country": str, "cents": int})).global_grouping("odd")
    handle = go(made, tmp_path / "stops", spark, max_retries=0, on_error="fail_topology")
    with pytest.raises(TopologyFailed, match=r"txid .*odd.*five"):
        handle.awaitTermination()
    bad = next(number for number, batch in enumerate(MANY, 1) if any(cents == 5 for _, cents in batch))
    assert handle.committed == bad - 1
    go(made, tmp_path / "goes-on", spark, max_retries=1, on_error="dead_letter").awaitTermination()
    good = [row for batch in MANY if all(cents != 5 for _, cents in batch) for row in batch]
    kept = read_sink(tmp_path / "goes-on", "rows").to_pylist()
    assert Counter((row["country"], row["cents"]) for row in kept) == Counter(good)


def test_a_replay_has_the_digest_of_the_first_attempt_whatever_the_order(spark, tmp_path):
    batches = [list(batch) for batch in BATCHES]
    made = builder(batches)
    made.set_frame_bolt("totals", totals).reads("orders")
    made.set_bolt("sums", SumByKey("country", "cents", "sums")).fields_grouping("totals", ["country"])
    faults.arm("p6.before:raise:2")
    with pytest.raises(faults.InjectedFault):
        go(made, tmp_path, spark, max_group_txids=1).awaitTermination()
    faults.arm("")
    for batch in batches:
        batch.reverse()
    go(made, tmp_path, spark, max_group_txids=1).awaitTermination()
    sums = Counter()
    for country, cents in (row for batch in BATCHES for row in batch):
        sums[country] += cents if cents > 1 else 0
    assert {row["country"]: row["cents"] for row in read_state(tmp_path, "sums").to_pylist()} == +sums


def reading(function, **more):
    return lambda made: made.set_frame_bolt("f", function, **more).reads("orders")


@pytest.mark.parametrize(
    ("declare", "fault"),
    [
        (lambda made: made.set_frame_bolt("f", totals), "frame bolt 'f' reads nothing"),
        (lambda made: made.set_frame_bolt("f", totals).reads("order"), "which does not exist"),
        (reading(7), "is no function of DataFrames"),
        (reading(lambda orders: 7), "returned int, expected a DataFrame"),
        (reading(lambda orders: orders.select("x")), "its function raised"),
        (reading(totals, columns="a INT b"), "',' or the end"),
        (reading(lambda orders: orders.selectExpr("map(1, 2) m")), "type map"),
        (
            reading(lambda orders: orders.selectExpr("interval 1 day i")),
            "type interval has no values in Python; cast it to STRING",
        ),
        (
            reading(lambda orders: orders.sparkSession.readStream.text("/tmp")),
            "returned a streaming DataFrame",
        ),
        (reading(lambda orders: orders.selectExpr("1 a", "2 a")), "'a' is there twice"),
    ],
)
def test_faults_are_found_when_the_topology_is_built(spark, declare, fault):
    made = builder()
    declare(made)
    with pytest.raises(TopologyError, match=fault):
        made.build_topology()


def test_edges_that_cannot_be_are_named(spark):
    made = TransactionalTopologyBuilder("t", "rows", MemoryTransactionalSpout([["a"]], "word"))
    made.set_frame_bolt("f", totals).reads("rows")
    with pytest.raises(TopologyError, match="'rows' → 'f': a frame bolt reads a frame spout or frame bolts"):
        made.build_topology()
    made = builder()
    made.set_frame_bolt("f", totals).reads("orders")
    made.set_bolt("sums", SumByKey("land", "cents", "sums")).fields_grouping("f", ["land"])
    with pytest.raises(TopologyError, match="no field 'land'"):
        made.build_topology()


def test_windows_behind_frame_bolts_close_at_the_end_of_input(spark, tmp_path):
    """System transactions, in which no frame is read, pass frame bolts."""
    at = datetime(2026, 3, 29, 1, 30, 10, tzinfo=UTC)
    made = builder([[("a", at), ("b", at)], [("a", at)]], "country STRING, at TIMESTAMP")
    made.set_frame_bolt("same", lambda orders: orders).reads("orders")
    window = WindowAggregate("country", table="windows", ttl=timedelta(days=1), n="count")
    window.with_timestamp_field("at").with_tumbling_window(Duration.minutes(1))
    made.set_bolt("windows", window).fields_grouping("same", ["country"])
    run(made.build_topology(), spark=spark, data_dir=tmp_path, end_of_input=True).awaitTermination()
    assert {row["country"]: row["n"] for row in read_state(tmp_path, "windows").to_pylist()} == {"a": 2, "b": 1}


def test_the_test_driver_and_replay_have_spark_process_the_frames(spark, tmp_path):
    made = builder()
    made.set_frame_bolt("totals", totals, 2).reads("orders")
    made.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("totals", ["country"])
    topology = made.build_topology()
    with TopologyTestDriver(topology, pending=2) as driver:
        driver.fail(1)
        assert len(driver.attempts(1)) == 2
        driver.commit(len(BATCHES))
        assert sorted(driver.emitted("totals", 3)) == [("a", 3), ("b", 4), ("c", 2)]
        stepped = driver.state("sums").to_pylist()
        digests = [one["digest"] for one in driver.history().to_pylist()]
    handle = go(made, tmp_path, spark)
    handle.awaitTermination()
    assert read_state(tmp_path, "sums").to_pylist() == stepped
    assert [one["digest"] for one in handle.history().to_pylist()] == digests
    assert all(replay_txid(topology, tmp_path, txid).equal for txid in range(1, len(BATCHES) + 1))


def test_code_of_frame_bolts_that_fails_in_a_replay_is_met_where_it_fails(spark, tmp_path):
    made = builder()
    made.set_frame_bolt("totals", totals, 2).reads("orders")
    made.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("totals", ["country"])
    go(made, tmp_path, spark).awaitTermination()

    def replayed(function, caught):
        made = builder()
        made.set_frame_bolt("totals", function, 2, columns=COLUMNS).reads("orders")
        made.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("totals", ["country"])
        return replay_txid(made.build_topology(), tmp_path, 2, caught)

    with pytest.raises(InputError, match="'totals': its function raised AnalysisException"):
        replayed(lambda orders: orders.select("cent"), None)
    met = []
    verdict = replayed(lambda orders: orders if orders.isEmpty() else 1 / 0, met.append)
    assert (verdict.failure.type, [type(one) for one in met]) == ("ZeroDivisionError", [ZeroDivisionError])


def test_the_explanation_has_the_plan_of_spark(spark):
    made = builder()
    made.set_frame_bolt("totals", totals, 2).reads("orders")
    made.set_frame_bolt("top", lambda sums: sums.where("cents > 100")).reads("totals")
    made.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("top", ["country"])
    text = explain(made.build_topology())
    first, _, second = text.partition("Spark's plan of totals for one transaction:")[2].partition("Spark's plan of top")
    assert "HashAggregate" in first
    assert "Filter" in second


def built_without_spark(monkeypatch, key="country"):
    """A topology of frame bolts, a window and a sum behind them, of whose columns nothing is known when it is built."""
    made = builder([[("a", 1), ("b", 2)], [("a", 3)]])
    made.set_frame_bolt("twice", lambda orders: orders.selectExpr("country AS land", "cents * 2 AS cents")).reads(
        "orders"
    )
    made.set_frame_bolt("again", lambda one: one.withColumnRenamed("land", "country")).reads("twice")
    made.set_bolt("sums", SumByKey(key, "cents", "sums"), 2).fields_grouping("again", [key])
    window = WindowAggregate(key, table="windows", ttl=timedelta(days=1), total=("cents", "sum"))
    window.with_tumbling_window(Duration.minutes(1))
    made.set_bolt("windows", window).fields_grouping("again", [key])
    with monkeypatch.context() as patched:
        patched.setattr("txstorm.engine.frames.session_here", lambda: None)
        topology = made.build_topology()
        assert {"again", "windows"} <= set(topology.describe().split())
        assert all(map(topology.describe, ("mermaid", "dot", "svg", "json")))
        with pytest.raises(InputError, match="create a session first"):
            explain(topology)
    return topology


def test_columns_are_found_at_the_start_if_there_was_no_session_at_the_build(spark, tmp_path, monkeypatch):
    topology = built_without_spark(monkeypatch).with_settings({"max_retries": 0})
    run(topology, spark=spark, data_dir=tmp_path, end_of_input=True).awaitTermination()
    assert {row["country"]: row["cents"] for row in read_state(tmp_path, "sums").to_pylist()} == {"a": 8, "b": 4}
    assert sum(row["total"] for row in read_state(tmp_path, "windows").to_pylist()) == 12
    with TopologyTestDriver(topology) as driver:
        driver.commit(2)
        assert {row["country"]: row["cents"] for row in driver.state("sums").to_pylist()} == {"a": 8, "b": 4}
    assert replay_txid(topology, tmp_path, 1).equal


def test_edges_of_a_topology_that_was_built_without_a_session_are_checked_before_anything_happens(
    spark, tmp_path, monkeypatch
):
    topology = built_without_spark(monkeypatch, "nation")
    with pytest.raises(TopologyError, match=r"(?s)no field 'nation'.*windows.*'nation'"):
        run(topology, spark=spark, data_dir=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="needs engine='spark'"):
        run(topology, engine="local", data_dir=tmp_path / "new")
