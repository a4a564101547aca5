"""Delta tables that Spark writes, with each of its features, as sources on both engines; compared with Spark's reader."""

from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pytest
from recovery_cases import eventually
from runs import ended

from txstorm import NOT_READY, TransactionalTopologyBuilder, faults, run
from txstorm.bolts import SumByKey
from txstorm.clients.delta.log import ARCHIVE, entry_name
from txstorm.errors import SpoutError, TopologyFailed
from txstorm.results.read import read_sink, read_state
from txstorm.sinks import DeltaSink
from txstorm.spouts import DeltaSpout
from txstorm.spouts.delta.reading import read_share
from txstorm.spouts.delta.source_log import SourceLog

pytestmark = pytest.mark.spark
VECTORS, FEED = "'delta.enableDeletionVectors'='true'", "'delta.enableChangeDataFeed'='true'"
TABLES = {
    "partitions of all types": [
        "CREATE TABLE {t} (id BIGINT, d DATE, s STRING, p DOUBLE, k INT, at TIMESTAMP, m DECIMAL(10, 2), b BOOLEAN, "
        "x STRUCT<a: INT, `b.c`: ARRAY<STRUCT<z: STRING>>>, bin BINARY) USING delta PARTITIONED BY (d, s, p, k, at, m, b) "
        "TBLPROPERTIES ('delta.checkpointInterval'='1')",
        "INSERT INTO {t} VALUES (1, DATE'2026-01-02', 'ä/ b=c%', 1.5, -3, TIMESTAMP'2026-03-29 01:30:00.123456', 12.3, "
        "true, named_struct('a', 1, 'b.c', array(named_struct('z', 'q'), null)), X'00ff'), (2, null, null, null, null, "
        "null, null, null, null, null), (3, DATE'1900-01-01', '', double('-Infinity'), 5, TIMESTAMP'1900-01-01 00:00:00', "
        "0, false, named_struct('a', null, 'b.c', null), X'')",
    ],
    "renamed, dropped, added and widened columns, with vectors": [
        "CREATE TABLE {t} (id INT, `a b` STRING, gone STRING, st STRUCT<u: INT, v: ARRAY<STRUCT<w: SMALLINT>>>, f FLOAT, "
        "de DECIMAL(5, 2), part STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES "
        f"('delta.columnMapping.mode'='name', 'delta.enableTypeWidening'='true', {VECTORS})",
        "INSERT INTO {t} SELECT id, concat('x', id), 'g', named_struct('u', id, 'v', array(named_struct('w', cast(id AS "
        "SMALLINT)))), id / 3, id / 7, if(id % 2 = 0, 'e', null) FROM range(100)",
        "ALTER TABLE {t} RENAME COLUMN `a b` TO `c d`",
        "ALTER TABLE {t} RENAME COLUMN st.u TO uu",
        "ALTER TABLE {t} RENAME COLUMN part TO parti",
        "ALTER TABLE {t} DROP COLUMN gone",
        "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT, f TYPE DOUBLE, de TYPE DECIMAL(10, 4), st.v.element.w TYPE INT",
        "ALTER TABLE {t} ADD COLUMN gone DATE",
        "INSERT INTO {t} (id, `c d`, parti) VALUES (10000000000, 'big', 'e')",
        "DELETE FROM {t} WHERE id % 3 = 0",
    ],
    "columns by id, v2 checkpoints": [
        "CREATE TABLE {t} (id INT, st STRUCT<u: INT>) USING delta TBLPROPERTIES ('delta.columnMapping.mode'='id', "
        f"'delta.checkpointPolicy'='v2', 'delta.checkpointInterval'='2', {VECTORS})",
        "INSERT INTO {t} SELECT id, named_struct('u', id) FROM range(0, 90, 1, 2)",
        "DELETE FROM {t} WHERE id % 3 = 0",
        "ALTER TABLE {t} RENAME COLUMN st.u TO uu",
        "DELETE FROM {t} WHERE id % 3 = 1 AND id < 40",
    ],
    "vectors of bits and runs": [
        f"CREATE TABLE {{t}} USING delta TBLPROPERTIES ({VECTORS}) AS SELECT id FROM range(0, 200000, 1, 1)",
        "DELETE FROM {t} WHERE id % 2 = 0 OR id BETWEEN 80000 AND 150000",
    ],
}


def plain(rows):
    """Return rows in a form that can be counted."""

    def value(one):
        if isinstance(one, dict):
            return tuple((name, value(part)) for name, part in one.items())
        if isinstance(one, datetime):
            return one.astimezone(UTC)
        return tuple(map(value, one)) if isinstance(one, list) else bytes(one) if isinstance(one, bytearray) else one

    return Counter(value(row) for row in rows)


def rows_of(spout):
    """Return all rows, as the tasks read them."""
    coordinator, metadata, found = spout.coordinator(SimpleNamespace(component="t", parallelism=1)), None, []
    while (planned := coordinator.initialize_transaction(1, metadata)) is not NOT_READY:
        metadata = planned
        for share in coordinator.payload(metadata):
            found += [row for rows, _ in read_share(spout.path, spout._columns, share) for row in rows.to_pylist()]
    return plain(found)


def of_spark(frame):
    return plain(row.asDict(recursive=True) for row in frame.collect())


@pytest.mark.parametrize("name", TABLES)
def test_features(spark, tmp_path, name):
    for statement in TABLES[name]:
        spark.sql(statement.format(t=f"delta.`{tmp_path}`"))
    expected = of_spark(spark.read.format("delta").load(str(tmp_path)))
    assert rows_of(DeltaSpout(tmp_path, max_batch_files=2)) == expected
    assert sum(expected.values()) >= 3


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_change_data_feed_and_compaction(spark, tmp_path, every):
    table = f"delta.`{tmp_path}`"
    statements = (
        f"CREATE TABLE {table} (id INT, n STRING, p INT) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ({FEED}, {VECTORS})",
        f"INSERT INTO {table} SELECT id, 'a', id % 2 FROM range(50)",
        f"UPDATE {table} SET n = 'b' WHERE id < 5",
        f"DELETE FROM {table} WHERE id % 7 = 0",
        f"DELETE FROM {table} WHERE p = 1",
        f"MERGE INTO {table} t USING (SELECT explode(array(2, 4, 1000)) id) s ON t.id = s.id WHEN MATCHED THEN "
        "UPDATE SET n = 'm' WHEN NOT MATCHED THEN INSERT (id, n, p) VALUES (s.id, 'new', 5)",
        f"RESTORE TABLE {table} TO VERSION AS OF 3",
        f"OPTIMIZE {table}",
        f"INSERT OVERWRITE {table} VALUES (1, 'z', 1)",
    )
    for statement in statements:
        if every or not statement.startswith(("MERGE", "RESTORE", "INSERT OVERWRITE")):
            spark.sql(statement)
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(str(tmp_path))
    assert rows_of(DeltaSpout(tmp_path, start=1, changes=True, max_batch_files=2)) == of_spark(feed)
    with pytest.raises(SpoutError, match=r"version 2 \(UPDATE\) changes rows"):
        rows_of(DeltaSpout(tmp_path, start=1))


def append(spark, table, first, stop, files=1):
    rows = spark.range(first, stop, 1, files).selectExpr("cast(id % 3 AS STRING) AS k", "id AS n")
    rows.write.format("delta").mode("append").save(str(table))


def topology(table, *, frames, **options):
    builder = TransactionalTopologyBuilder("lake", "table", DeltaSpout(table, **options), 2)
    if frames:
        builder.set_frame_bolt("totals", lambda rows: rows.groupBy("k").agg({"n": "sum"}).toDF("k", "n")).reads("table")
    builder.set_bolt("sums", SumByKey("k", "n", "sums"), 2).fields_grouping("totals" if frames else "table", ["k"])
    if frames:
        builder.set_bolt("rows", DeltaSink("rows", {"k": str, "n": int}), 2).shuffle_grouping("table")
    return builder.set_settings({"max_group_txids": 1, "max_retries": 0}).build_topology()


def totals(stop):
    return {str(k): sum(range(k, stop, 3)) for k in range(3)}


def kept(data_dir):
    return {row["k"]: row["n"] for row in read_state(data_dir, "sums").to_pylist()}


def test_frame_bolts_and_tuple_bolts_over_one_table_after_crashes(spark, tmp_path):
    table = tmp_path / "table"
    for number in range(4):
        append(spark, table, number * 30, number * 30 + 30, 2)
    for frames in (True, False):
        data_dir = tmp_path / f"frames-{frames}"
        for point in ("p4.after:raise:2", "p6.after:raise:2"):
            faults.arm(point)
            with pytest.raises(faults.InjectedFault):
                ended(topology(table, frames=frames, max_batch_files=1), data_dir, spark=spark, engine="spark")
            faults.arm("")
        ended(topology(table, frames=frames, max_batch_files=1), data_dir, spark=spark, engine="spark")
        assert kept(data_dir) == totals(120)
    ended(topology(table, frames=False, max_batch_files=3), tmp_path / "local")
    assert kept(tmp_path / "local") == totals(120)
    assert sorted(row["n"] for row in read_sink(tmp_path / "frames-True", "rows").to_pylist()) == [*range(120)]
    following = topology(tmp_path / "frames-True/sinks/rows", frames=True)
    handle = ended(following, tmp_path / "following", spark=spark, engine="spark")
    assert kept(tmp_path / "following") == totals(120)
    assert sum(one.numInputRows for one in handle.recentProgress) == 120


def test_beside_a_writer_that_compacts_vacuums_and_updates(spark, tmp_path):
    table, data_dir = tmp_path / "table", tmp_path / "data"
    append(spark, table, 0, 30)
    handle = run(topology(table, frames=True, max_batch_files=2), spark=spark, data_dir=data_dir)
    try:
        for number in range(1, 3):
            append(spark, table, number * 30, number * 30 + 30)
            spark.sql(f"OPTIMIZE delta.`{table}`")
        eventually(lambda: sum(kept(data_dir).values()) == sum(range(90)))
        spark.sql(f"VACUUM delta.`{table}`")
        spark.sql(f"UPDATE delta.`{table}` SET n = 0 WHERE k = '1'")
        with pytest.raises((SpoutError, TopologyFailed), match=r"version \d+ \(UPDATE\) changes rows"):
            handle.awaitTermination(120)
    finally:
        handle.stop()
    assert kept(data_dir) == totals(90)
    append(spark, table, 90, 120)
    again = topology(table, frames=True, ignore="change_commits")
    run(again, spark=spark, data_dir=data_dir, available_now=True).awaitTermination()
    assert kept(data_dir) == totals(120)
    append(spark, table, 120, 150)
    newest = max(table.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()
    with pytest.raises((SpoutError, TopologyFailed), match=r"holds rows of version \d+, is missing \(VACUUM"):
        run(topology(table, frames=True, ignore="change_commits"), spark=spark, data_dir=data_dir).awaitTermination(120)


@pytest.mark.parametrize("frames", [False, True])
def test_an_undecided_transaction_comes_again_after_a_change_of_columns(spark, tmp_path, frames):
    table, data_dir = tmp_path / "table", tmp_path / "data"
    spark.sql(f"CREATE TABLE delta.`{table}` (k STRING, n BIGINT) USING delta TBLPROPERTIES ({VECTORS})")
    append(spark, table, 0, 32)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE n >= 30")
    faults.arm("p4.after:raise:1")
    with pytest.raises(faults.InjectedFault):
        ended(topology(table, frames=frames), data_dir, spark=spark, engine="spark")
    faults.arm("")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMN more STRING")
    append(spark, table, 30, 60)
    ended(topology(table, frames=frames), data_dir, spark=spark, engine="spark")
    assert kept(data_dir) == totals(60)


def test_a_table_that_another_one_replaces_within_a_run(tmp_path):
    table, other = tmp_path / "table", tmp_path / "other"
    for path, files in ((table, 2), (other, 4)):
        for number in range(files):
            rows = {"k": pa.array([str(number)], pa.string_view()), "n": [number]}
            deltalake.write_deltalake(path, pa.table(rows), mode="append")
    handle = run(topology(table, frames=False), engine="local", data_dir=tmp_path / "data")
    try:
        handle.processAllAvailable()
        table.rename(tmp_path / "before")
        other.rename(table)
        with pytest.raises(SpoutError, match="it is not the table that was read up to version 2"):
            handle.processAllAvailable()
    finally:
        handle.stop()
    assert kept(tmp_path / "data") == {"0": 0, "1": 1}


def test_an_entry_that_is_archived_while_it_is_read(tmp_path, monkeypatch):
    deltalake.write_deltalake(tmp_path, pa.table({"n": [1]}))
    log, place = SourceLog(tmp_path), tmp_path / "_delta_log" / entry_name(0)
    (tmp_path / ARCHIVE).mkdir(parents=True)
    place.rename(tmp_path / ARCHIVE / place.name)
    monkeypatch.setattr(log, "_file", lambda version: place)
    assert len(log.entry(0).adds) == log.files(0).num_rows == 1
