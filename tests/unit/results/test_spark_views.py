"""Spark SQL views show the same rows as txstorm's readers at every txid, while tables grow and after compaction."""

import pyarrow as pa
import pytest
from every_type import KINDS, ROW, WIDE, put, wide
from keyed_cases import SECOND, committed, opened
from runs import counting
from seeded import seeded
from store_cases import commit, open_store

from txstorm import run
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.results.spark_views import register_views, views

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def dropped(spark):
    """Drop the views of a test."""
    yield
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)


def shown(spark, view):
    return sorted(map(repr, spark.table(f"`{view}`").toArrow().to_pylist()))


def read(table):
    return sorted(map(repr, table.to_pylist()))


def make(spark, data_dir, txid, committed, prefix):
    for view in views(data_dir, txid, committed, prefix):
        spark.sql(view.statement)


def test_views_show_the_rows_txstorm_reads(spark, tmp_path):
    """Views show the rows that txstorm reads, after random writes and removals; live views are created halfway."""
    chance, data = seeded(), tmp_path / "with `quotes` and blanks"
    store = open_store(data, create=True)
    for txid in range(1, 13):
        counts = {word: chance.choice([1, 2, None]) for word in chance.sample("abcdef", 3)}
        commit(store, txid, counts)
        if txid in (4, 9):
            store.upkeep.compact()
        if txid == 6:
            make(spark, data, None, 6, "now-")
    assert shown(spark, "now-state_counts") == read(read_state(data, "counts"))
    assert shown(spark, "now-state_totals") == read(read_state(data, "totals"))
    make(spark, data, 8, 12, "then_")
    assert shown(spark, "then_state_counts") == read(read_state(data, "counts", 8))
    assert shown(spark, "then_sink_out") == read(read_sink(data, "out", last=8))
    changed = spark.table("then_changes_counts").select("word", "n", "_txid", "_prev", "_op").toArrow()
    assert read(changed) == read(read_changes(data, "counts", 1, 8))


def test_keys_of_every_type_and_without_value(spark, tmp_path):
    key, nothing = tuple(ROW[name] for name in KINDS), (None,) * len(KINDS)
    store = put(tmp_path, WIDE, {key: wide(), nothing: wide()})
    put(tmp_path, WIDE, {nothing: dict.fromkeys(wide())}, 2, store)
    make(spark, tmp_path, None, 2, "")
    columns = [name for name in (*KINDS, *wide()) if name not in ("t", "vt")]
    found, expected = spark.table("state_wide"), read_state(tmp_path, "wide")
    assert read(found.select(*columns).toArrow()) == read(expected.select(columns))
    micros = [row[0] for row in found.selectExpr("unix_micros(t)").collect()]
    assert sorted(micros, key=str) == sorted(expected["t"].cast("int64").to_pylist(), key=str)


def test_views_of_a_live_run(spark, tmp_path):
    handle = run(counting("abacba", tasks=2), engine="local", data_dir=tmp_path / "data")
    try:
        handle.processAllAvailable()
        assert handle.register_views(spark, name_prefix="live_") == ["live_state_counts", "live_changes_counts"]
        assert register_views(spark, tmp_path / "data", 2, "at2_") == ["at2_state_counts", "at2_changes_counts"]
        while_it_ran = shown(spark, "live_state_counts")
    finally:
        handle.stop()
    assert while_it_ran == shown(spark, "live_state_counts") == read(handle.state("counts").to_arrow())
    assert shown(spark, "at2_state_counts") == read(handle.state("counts").as_of(txid=2).to_arrow())


def test_collections_evictions_and_expired_keys(spark, tmp_path):
    store = opened(tmp_path, create=True)
    stamps = {txid: 4 * txid * SECOND for txid in range(1, 7)}
    for txid, stamp in stamps.items():
        committed(store, txid, stamp, lambda r, txid=txid: write(r, txid))
        if txid == 4:
            store.upkeep.compact()
        if txid == 5:
            follow = views(tmp_path, None, 5, "now_", stamps.get)
    for view in [*follow, *views(tmp_path, 3, 6, "then_", stamps.get)]:
        spark.sql(view.statement)
    counts = {"now_state_seen": 3, "now_state_events": 6, "then_state_events": 7, "then_state_recent": 3}
    for view, count in counts.items():
        rows, (at, _, name) = shown(spark, view), view.split("_")
        assert rows == read(read_state(tmp_path, name, 6 if at == "now" else 3, 6, stamps.get))
        assert len(rows) == count


def write(resources, txid):
    resources.state("count", 0, "seen").put(f"u{txid}", {"n": txid, "by": "test"})
    resources.collection("count", 0, "events").append("a", txid, "k", txid)
    resources.collection("count", 0, "events").remove("a", txid - 4, txid - 4)
    resources.collection("count", 0, "recent").append((), -txid, txid)
    evict(resources.collection("count", 0, "events"), txid)


def evict(events, txid):
    """Append rows of two more users, one of them None, and evict some by a bound per key or for all keys."""
    events.append_many([("b", txid, "k", txid), (None, txid, "k", txid)])
    if txid % 2 == 0:
        events.evict_batch(pa.table({"user": pa.array([None, "b"]), "at": [99, txid - 1]}))
    if txid in (3, 6):
        events.evict_before(txid // 2)
    if txid == 5:
        events.append("b", 1, "late", txid)
