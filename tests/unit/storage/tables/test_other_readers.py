"""Tables of every kind, read with a filter on each column by deltalake, polars, DuckDB and Spark."""

import json

import pytest
from deltalake import DeltaTable
from reader_cases import (
    BY_SPARK,
    READERS,
    TABLES,
    WORDS,
    content,
    differences,
    keep_up,
    opened,
    play,
    spark_differences,
)
from upkeep_cases import small

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.spark_delta import SparkDelta
from txstorm.storage.tables.spark_writer import SparkWriter

STATS = "delta.dataSkippingStatsColumns"
LAST = 26  # there is a checkpoint in between


def filled(data_dir, last=LAST, **changes):
    store = opened(data_dir, create=True, **changes)
    for txid in range(1, last + 1):
        play(store, txid)
    return store


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return two data directories with the same transactions, by name: one as committed, the other compacted."""
    found = {}
    for name in ("as committed", "compacted"):
        found[name] = tmp_path_factory.mktemp(name.replace(" ", "_"))
        store = filled(found[name])
        if name == "compacted":
            with pytest.MonkeyPatch.context() as patch:
                small(patch.setattr)
                keep_up(store)
                play(store, LAST + 1)
                keep_up(store)
        store.close()
    return found


def all_differences(data_dir, reader, every=3, tables=TABLES):
    return [one for uri in tables for one in differences(data_dir / uri, READERS[reader], every=every)]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", ["as committed", "compacted"])
def test_every_reader_finds_the_rows(places, place, reader):
    assert all_differences(places[place], reader, every=1 if place == "compacted" else 3) == []


def test_plain_python_reads_the_rows_that_were_written(places):
    words: dict[str | None, int] = {}
    for txid in range(1, LAST + 2):
        words[WORDS[txid % 6]] = txid
        if txid % 5 == 0:
            words.pop(WORDS[(txid + 1) % 6], None)
    compacted = places["compacted"]
    assert {row["word"]: row["n"] for row in content(compacted / "state/counts")} == words
    removed = sum((txid + 1) % 6 in {one % 6 for one in range(1, txid + 1)} for txid in range(5, LAST + 2, 5))
    assert len(content(compacted / "changes/counts")) == LAST + 1 + removed
    numbers = [txid * 10 + part for txid in range(1, LAST + 2) for part in range(2)]
    assert sorted(row["n"] for row in content(compacted / "sinks/out")) == numbers
    assert len(content(places["as committed"] / "dead_letters")) == LAST


def open_old(data_dir, **changes):
    """Open a store as older versions of txstorm did: without setting the table property for statistics columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txstorm.storage.tables.table.STATS_COLUMNS", "theirs")
        patch.setattr("txstorm.storage.tables.table.DeltaTableState.due_properties", lambda _: {})
        return opened(data_dir, **changes)


@pytest.fixture
def old(tmp_path):
    store = open_old(tmp_path, create=True)
    for txid in range(1, 7):
        play(store, txid)
    store.close()
    assert not any(found(tmp_path, uri) for uri in TABLES)
    return tmp_path


def found(data_dir, uri):
    return DeltaTable(str(data_dir / uri)).metadata().configuration.get(STATS)


def test_tables_without_the_statistics_property_get_it_at_the_next_start(old):
    assert differences(old / "sinks/out", READERS["deltalake"])
    store = opened(old, epoch=2)
    versions = {ref.uri: table.version for ref, table in store.tables.items()}
    assert all_differences(old, "deltalake") == []
    for uri in TABLES[:-1]:
        assert found(old, uri) == ("_kg" if uri.startswith("state/") else "_txid")
    store.close()
    again = opened(old, epoch=3)  # commits only the epoch
    assert {ref.uri: table.version - 1 for ref, table in again.tables.items()} == versions
    play(again, 7, epoch=3)
    assert all_differences(old, "dataset") == []


def test_a_statistics_property_set_by_a_user_is_reset(tmp_path):
    """The next start resets a statistics property that a user has set, because the files lack those statistics."""
    filled(tmp_path, 4).close()
    table = DeltaTable(str(tmp_path / "sinks/out"))
    table.alter.set_table_properties({STATS: "word,n"})
    assert differences(tmp_path / "sinks/out", READERS["deltalake"])
    opened(tmp_path, epoch=2)
    assert differences(tmp_path / "sinks/out", READERS["deltalake"]) == []


def test_files_with_statistics_of_another_column_have_no_bounds(old):
    """Files with statistics of another column, as an older txstorm restores them, have no bounds until compaction."""
    store = open_old(old, epoch=2)
    store.upkeep.compact()
    store.close()
    handle = DeltaHandle.open(old / "state/counts")
    actions = [json.loads(line) for line in handle.log_entry(handle.version).read_text().splitlines()]
    [file] = [one["add"] for one in actions if "add" in one]
    file = {**file, "stats": file["stats"].replace("_kg", "_txid"), "dataChange": False}
    theirs = [{"commitInfo": {"operation": "COMPUTE STATS"}}, {"add": file}]
    handle.log_entry(handle.version + 1).write_text("\n".join(map(json.dumps, theirs)))
    again = opened(old, epoch=3)
    assert found(old, "state/counts") == ""
    assert differences(old / "state/counts", READERS["deltalake"]) == []
    play(again, 7, epoch=3)
    again.upkeep.compact()
    opened(old, epoch=4)
    assert found(old, "state/counts") == "_kg"
    assert differences(old / "state/counts", READERS["deltalake"]) == []


@pytest.mark.parametrize("column", ["_kg", "word", ""])
def test_txstorm_finds_bounds_whatever_the_statistics_property(tmp_path, column):
    store = filled(tmp_path, 3)
    store.upkeep.compact()
    for uri in ("state/counts", "changes/counts"):
        DeltaTable(str(tmp_path / uri)).alter.set_table_properties({STATS: column})
        handle = DeltaHandle.open(tmp_path / uri)
        bounded = "_kg" if uri.startswith("state/") else "_txid"
        for checkpoint in (False, True):
            if checkpoint:
                handle.checkpoint(1)
            bounds = handle.actions(bounded)
            assert None not in bounds[f"min.{bounded}"].to_pylist()
            assert handle.row_count(("_txid", 2)) == (handle.row_count() if bounded == "_kg" else 1)
        old = DeltaHandle.open(tmp_path / uri, handle.version - 1)
        assert None not in old.actions(bounded)[f"max.{bounded}"].to_pylist()


SOME = ("state/kept", "changes/visits")
"""A state whose rows are merged, and a collection: for Spark, which takes seconds for a table."""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tables", [SOME, pytest.param(TABLES, marks=pytest.mark.long)], ids=["some", "all"])
def test_spark_finds_the_rows(places, spark, tables):
    assert [one for uri in tables for one in spark_differences(spark, places["compacted"] / uri)] == []
    assert spark_differences(spark, places["as committed"] / "sinks/out") == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tables_written_by_spark_are_read_by_every_reader(tmp_path, spark):
    store = filled(tmp_path, 2, spark=SparkWriter(SparkDelta(spark)))
    store.upkeep.compact()
    for reader in READERS:
        assert all_differences(tmp_path, reader, 5, BY_SPARK) == []
    assert spark_differences(spark, tmp_path / "sinks/out") == []
