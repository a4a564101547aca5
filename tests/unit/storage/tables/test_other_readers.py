"""Tables of every kind, read with a filter on each column by deltalake, polars, DuckDB and Spark."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache, reduce
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import duckdb_ext
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from store_cases import intent_of, open_store, record, tidy
from upkeep_cases import small

from txstorm.api.state import CollectionState, KeyedState, SinkTable
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.spark_delta import SparkDelta
from txstorm.state.store import StateStore
from txstorm.storage.rows.dead_letters import TABLE_SCHEMA
from txstorm.storage.tables.history import append_history
from txstorm.storage.tables.spark_writer import SparkWriter

COUNTS = KeyedState("counts", key={"word": str}, value={"n": int, "at": datetime})
KEPT = KeyedState("kept", key={"word": str, "part": int}, value={"n": int, "of": pa.struct([("x", pa.int64())])},
                  layout="merge")  # fmt: skip
VISITS = CollectionState("visits", key={"word": str}, order={"at": int}, value={"price": Decimal})
OUT = SinkTable("out", {"word": str, "n": int, "f": float, "ok": bool, "raw": bytes, "at": datetime, "day": date,
                        "price": Decimal, "tags": pa.list_(pa.string()), "of": pa.struct([("x", pa.int64())]),
                        "none": str})  # fmt: skip
STATES, SINKS = {"count": [COUNTS, KEPT, VISITS]}, {"count": [OUT]}
TABLES = ("changes/counts", "state/counts", "state/kept", "changes/visits", "state/visits", "sinks/out",
          "dead_letters", "history")  # fmt: skip
BY_SPARK = ("changes/counts", "state/counts", "sinks/out")
WORDS = ("a", "b", "c", "ß", "\U0001f600", None)
START = datetime(2024, 1, 1, tzinfo=UTC)

EXTENSION = next(Path(next(iter(duckdb_ext.__path__))).rglob("delta.duckdb_extension"))

Row = dict[str, Any]


def opened(data_dir: Path, *, spark: Any = None, **changes: Any) -> StateStore:
    """Open the store of these tables; with `spark`, Spark writes every state and sink that it can write."""
    states, sinks = STATES, SINKS
    if spark is not None:
        states, sinks = {"count": [replace(COUNTS, writer="spark")]}, {"count": [replace(OUT, writer="spark")]}
    tables = {"states": states, "sinks": sinks, "letters": TABLE_SCHEMA}
    return open_store(data_dir, **{**tables, "spark": spark, **changes})


def play(store: StateStore, txid: int, epoch: int = 1) -> None:
    group = store.group(txid)
    resources = group.begin_txid(txid)
    names = {table.name for table in store.tables}
    at = START + timedelta(microseconds=txid * 1_000_001)
    word = WORDS[txid % len(WORDS)]
    counts, sink = resources.state("count", 0, "counts"), resources.sink("count", 0, "out")
    group.activate(True)
    counts.put(word, {"n": txid, "at": at})
    if txid % 5 == 0:
        counts.remove(WORDS[(txid + 1) % len(WORDS)])
    if "kept" in names:
        resources.state("count", 0, "kept").put((word, txid % 3), {"n": txid, "of": {"x": txid} if txid % 2 else None})
        resources.collection("count", 0, "visits").append(word, txid, Decimal(txid).scaleb(-2))
    for part in range(2):
        n = txid * 10 + part
        price = Decimal(10**20 + n).scaleb(-4) if part else None
        sink.append(word, n, n / 4, bool(part), bytes([part]), at, at.date(), price, [str(word)] * part,
                    {"x": n} if part else None, None)  # fmt: skip
    group.divert(txid, _letter(txid))
    group.end_txid(txid)
    intent = intent_of(group, [record(txid)], epoch)
    store.publish(intent, epoch)
    group.apply(txid)
    tidy(store)
    if not store.data_dir.joinpath("history").exists() or txid % 4 == 0:
        append_history(store.data_dir, [_history(one) for one in range(1, txid + 1)])


def _letter(txid: int) -> pa.Table:
    row = {field.name: f"{field.name}{txid}" for field in TABLE_SCHEMA if pa.types.is_string(field.type)}
    row |= {field.name: txid for field in TABLE_SCHEMA if pa.types.is_integer(field.type)}
    return pa.Table.from_pylist([{**row, "stamp": START}], schema=TABLE_SCHEMA)


def _history(txid: int) -> Row:
    row = {"timeline": 0, "txid": txid, "attempt": txid, "stamp": txid * 10**6, "first": txid, "last": txid}
    return {**row, "digest": "d", "extents": {}, "versions": {}, "tuples": None if txid % 2 else txid}


def keep_up(store: StateStore) -> None:
    for ref in store.tables:
        if ref.uri != "state/kept" and (work := store.upkeep.begin(ref.uri, 1)) is not None:
            for _ in work.steps():
                pass
            store.upkeep.finish(work, 1)


def content(table: Path) -> list[Row]:
    """Return the rows of a table's newest version: its log is read as plain JSON, its data files as Parquet."""
    files: dict[str, None] = {}
    logs = (table / "_delta_log", table / "_txstorm/log")
    entries = {one.name: one for log in logs for one in log.glob("[0-9]*.json") if len(one.name) == 25}
    assert sorted(entries) == [f"{version:020d}.json" for version in range(len(entries))]
    for name in sorted(entries):
        for line in entries[name].read_text().splitlines():
            for kind, action in json.loads(line).items():
                if kind == "add":
                    files[unquote(action["path"])] = None
                elif kind == "remove":
                    files.pop(unquote(action["path"]), None)
    return [row for file in files for row in pq.ParquetFile(table / file).read().to_pylist()]


def counted(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Count rows in a normalized form, comparable across readers despite differences of order, layout and time zone."""
    return Counter(repr([(name, _plain(value)) for name, value in sorted(row.items())]) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((name, _plain(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value


@dataclass(frozen=True)
class Query:
    """A query to compare readers by: all rows of a table, some columns, or those that match a filter."""

    columns: tuple[str, ...]
    column: str = ""
    op: str = ""
    value: Any = None

    def answer(self, rows: Iterable[Row]) -> list[Row]:
        kept = [row for row in rows if self._has(row)]
        return [{name: row[name] for name in self.columns} for row in kept]

    def _has(self, row: Row) -> bool:
        if not self.column:
            return True
        found = row[self.column]
        if self.op == "null" or found is None:
            return self.op == "null" and found is None
        return bool({"=": found == self.value, ">": found > self.value, "<=": found <= self.value}[self.op])


def queries(rows: list[Row], schema: pa.Schema) -> list[Query]:
    """Return the queries of a table: all of it, each column, filters for null, least, median and greatest values."""
    names = tuple(schema.names)
    found = [Query(names), *(Query((name,)) for name in names)]
    for field in schema:
        found.append(Query(names, field.name, "null"))
        if pa.types.is_nested(field.type):
            continue
        values = sorted({row[field.name] for row in rows} - {None})
        if not values:
            continue
        least, middle, greatest = values[0], values[len(values) // 2], values[-1]
        found += [Query(names, field.name, "=", value) for value in dict.fromkeys((least, middle, greatest))]
        if not isinstance(middle, bool | bytes):
            found += [Query(names, field.name, op, middle) for op in (">", "<=")]
    return found


def by_deltalake(table: DeltaTable, query: Query) -> list[Row]:
    """Read with deltalake, by the filters of `to_pyarrow_table`."""
    filters = [(query.column, query.op, query.value)] if query.column else None
    if query.op == "null":
        return by_dataset(table.to_pyarrow_dataset(), query)
    return list(table.to_pyarrow_table(columns=list(query.columns), filters=filters).to_pylist())


def by_dataset(data: Any, query: Query) -> list[Row]:
    condition = None
    if query.column:
        field = pc.field(query.column)
        value = pa.scalar(query.value, data.schema.field(query.column).type)
        condition = {"=": field == value, ">": field > value, "<=": field <= value, "null": field.is_null()}[query.op]
    return list(data.to_table(columns=list(query.columns), filter=condition).to_pylist())


def by_polars(frame: pl.LazyFrame, query: Query) -> list[Row]:
    if query.column:
        column = pl.col(query.column)
        value = pl.lit(query.value, dtype=frame.collect_schema()[query.column]) if query.op != "null" else None
        frame = frame.filter(
            {"=": lambda: column == value, ">": lambda: column > value, "<=": lambda: column <= value,
             "null": column.is_null}[query.op]()
        )  # fmt: skip
    return list(frame.select(query.columns).collect().to_dicts())


def by_duckdb(table: str, query: Query) -> list[Row]:
    names = ", ".join(f'"{name}"' for name in query.columns)
    where = f'WHERE "{query.column}" ' if query.column else ""
    where += {"": "", "null": "IS NULL"}.get(query.op, f"{query.op} ?")
    values = [query.value] if query.op not in ("", "null") else []
    text = f"SELECT {names} FROM delta_scan('{table}') {where}"
    return list(_duckdb().execute(text, values).fetch_arrow_table().to_pylist())


@cache
def _duckdb() -> Any:
    connection = duckdb.connect()
    connection.execute(f"LOAD '{EXTENSION}'")
    connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
    return connection


def spark_differences(session: Any, table: Path, every: int = 3) -> list[str]:
    """Return what Spark answers differently: the whole table, and counts and sums by every n-th column and the txid."""
    from pyspark.sql import functions as f

    rows, schema = content(table), pa.schema(DeltaTable(str(table)).schema().to_arrow())
    frame = session.read.format("delta").load(str(table))
    wrong = [] if counted(frame.toArrow().to_pylist()) == counted(rows) else [f"{table.name}: other rows"]
    number = "txid" if table.name == "history" else "_txid"
    asked = {one.column: one for one in queries(rows, schema) if one.op == "="}
    asked = {name: asked[name] for name in {number, *list(asked)[::every]}}
    parts = [
        frame.filter(f.col(f"`{name}`") == f.lit(one.value)).select(
            f.lit(name).alias("name"), f.count("*").alias("rows"), f.sum(number).alias("sum")
        )
        for name, one in asked.items()
    ]
    for found in reduce(lambda one, other: one.union(other), parts).collect():
        expected = asked[found["name"]].answer(rows)
        if (found["rows"], found["sum"]) != (len(expected), sum(row[number] for row in expected)):
            wrong.append(f"{table.name}: {asked[found['name']]}: {found}, expected {len(expected)} rows")
    return wrong


READERS: dict[str, tuple[Callable[[str], Any], Callable[[Any, Query], list[Row]]]] = {
    "deltalake": (DeltaTable, by_deltalake),
    "dataset": (lambda table: DeltaTable(table).to_pyarrow_dataset(), by_dataset),
    "polars": (pl.scan_delta, by_polars),
    "duckdb": (str, by_duckdb),
}
"""By name, how a table is opened, and how an open one is read."""


def differences(table: Path, reader: str, every: int = 1) -> list[str]:
    """Return the queries that a reader answers differently from plain Python, of the filtered ones every n-th."""
    rows, schema = content(table), pa.schema(DeltaTable(str(table)).schema().to_arrow())
    asked = queries(rows, schema)
    unfiltered = [one for one in asked if not one.column]
    (opened, read), wrong = READERS[reader], []
    there = opened(str(table))
    for query in [*unfiltered, *[one for one in asked if one.column][::every]]:
        found, expected = read(there, query), query.answer(rows)
        if counted(found) != counted(expected) or _sums(found) != _sums(expected):
            wrong.append(f"{table.name}: {query}: {len(found)} rows, expected {len(expected)}")
    return wrong


def _sums(rows: list[Row]) -> dict[str, Any]:
    """Return the count, minimum, maximum and sum of each numeric column."""
    found = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows if isinstance(row[name], int | float | Decimal)]
        if values:
            found[name] = len(values), min(values), max(values), math.fsum(values)
    return found


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
    return [one for uri in tables for one in differences(data_dir / uri, reader, every)]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", ["as committed", "compacted"])
def test_every_reader_finds_the_rows(places, place, reader):
    assert all_differences(places[place], reader, 1 if place == "compacted" and reader != "duckdb" else 3) == []


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
    assert differences(old / "sinks/out", "deltalake")
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
    assert differences(tmp_path / "sinks/out", "deltalake")
    opened(tmp_path, epoch=2)
    assert differences(tmp_path / "sinks/out", "deltalake") == []


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
    assert differences(old / "state/counts", "deltalake") == []
    play(again, 7, epoch=3)
    again.upkeep.compact()
    opened(old, epoch=4)
    assert found(old, "state/counts") == "_kg"
    assert differences(old / "state/counts", "deltalake") == []


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
    every = 3 if tables is SOME else 1
    assert [one for uri in tables for one in spark_differences(spark, places["compacted"] / uri, every)] == []
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
