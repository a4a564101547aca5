"""Spark reads every table, and its maintenance commands (OPTIMIZE, VACUUM) do not harm later commits."""

from datetime import UTC, datetime, timedelta

import pytest
from every_type import KINDS, ROW, WIDE, put, wide
from keyed_cases import committed
from store_cases import commit, open_store
from table_ranges import table_ranges

from txstorm.api.state import CollectionState
from txstorm.results.read import read_state

pytestmark = pytest.mark.spark


def rows(spark, path, *columns):
    found = spark.read.format("delta").load(str(path)).select(*columns).collect()
    return sorted(tuple(row) for row in found)


def test_spark_reads_every_type(spark, tmp_path):
    put(tmp_path, WIDE, {tuple(ROW[name] for name in KINDS): wide()}).upkeep.compact()
    table = spark.read.format("delta").load(str(tmp_path / "state/wide"))
    found = table.toArrow().select([*KINDS, *wide()])
    expected = read_state(tmp_path, "wide")
    assert found.select([*"sibydmfl"]).to_pylist() == expected.select([*"sibydmfl"]).to_pylist()
    assert table.selectExpr("unix_micros(t)").collect()[0][0] == expected["t"].cast("int64")[0].as_py()


def test_a_collection_is_read_from_files_that_spark_has_written(spark, tmp_path):
    """Spark reads the files of a collection, whose columns are delta-encoded; what OPTIMIZE makes of them is scanned."""
    typed = CollectionState("typed", key={"k": str}, order={"at": datetime}, value={"n": int})
    begin = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
    states = {"states": {"count": [typed]}, "sinks": {}}
    store = open_store(tmp_path, create=True, **states)

    def turn(store, txid, work, epoch=1):
        committed(store, txid, txid, lambda r: work(r.collection("count", 0, "typed")), epoch)

    for txid in range(1, 5):
        given = [("ab"[n % 2], begin + timedelta(seconds=n), n) for n in range(txid, 40, 4)]
        turn(store, txid, lambda typed, given=given: typed.append_many(given))
    ninth = begin + timedelta(seconds=9)
    turn(store, 5, lambda typed: [typed.evict_before(ninth, "a"), typed.remove("b", None, begin)])
    changes = spark.read.format("delta").load(str(tmp_path / "changes/typed"))
    assert sorted(row[0] for row in changes.where("_op = 'u'").select("n").collect()) == list(range(1, 40))
    spark.sql(f"OPTIMIZE delta.`{tmp_path / 'changes/typed'}`")
    store.close()
    store, found = open_store(tmp_path, epoch=2, committed=5, **states), []
    turn(store, 6, lambda typed: found.append([n for _, n in typed.scan("a")]), 2)
    assert found == [list(range(10, 40, 2))]
    left = sorted([*range(1, 40, 2), *range(10, 40, 2)])
    assert sorted(read_state(tmp_path, "typed")["n"].to_pylist()) == left
    store.upkeep.compact()
    assert [row[0] for row in rows(spark, tmp_path / "state/typed", "n")] == left


@pytest.mark.long
def test_commits_continue_after_optimize_and_vacuum(spark, tmp_path):
    store = open_store(tmp_path, create=True)
    for txid in range(1, 23):  # beyond a checkpoint
        commit(store, txid, {f"w{txid % 3}": 1})
    expected = {txid: read_state(tmp_path, "counts", txid) for txid in (0, 7, 22)}
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    changes = f"delta.`{tmp_path / 'changes/counts'}`"
    spark.sql(f"OPTIMIZE {changes}")
    spark.sql(f"VACUUM {changes} RETAIN 0 HOURS")
    spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    commit(store, 23, {"w0": 1})  # its handles do not know of Spark's commits
    commit(open_store(tmp_path, epoch=2), 24, {"w0": 1}, epoch=2)
    assert read_state(tmp_path, "counts")["n"].to_pylist() == [9, 8, 7]
    assert {txid: read_state(tmp_path, "counts", txid) for txid in expected} == expected
    assert [one.last for one in table_ranges(tmp_path)["changes/counts"]] == list(range(1, 25))
    label = spark.sql(f"DESCRIBE HISTORY {changes} LIMIT 1").select("userMetadata").collect()
    assert label[0][0] == "txstorm txids 24 to 24"
