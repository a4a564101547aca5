"""Joins per window: Storm's API on every form of windows, names, restarts, and the rows that DuckDB finds."""

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from fed import fed_bolt

from txstorm import BasicBolt, Count, Duration, TransactionalTopologyBuilder, run
from txstorm.joins import JoinBolt
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver
from txstorm.topology.graph import Topology

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROWS = {
    "a": [("a1", 1, 1), ("a2", 2, 2), ("a3", None, 3), ("a4", 1, 12)],
    "b": [("b1", 1, 1), ("b2", 1, 9), ("b3", None, 4), ("b4", 1, 13)],
}


def topology(bolt: JoinBolt, streams: Sequence[str] = ("a", "b"), tasks: int = 1, *, by: str = "k") -> Topology:
    return fed_bolt("j", bolt, dict.fromkeys(streams, ("id", "k", "ts")), [by], tasks).build_topology()


def joined(made: Topology, *batches: Mapping[str, Sequence[Any]]) -> list[tuple[Any, ...]]:
    with TopologyTestDriver(made) as driver:
        for batch in batches:
            driver.commit(driver.feed(batch))
        driver.commit(driver.end_of_input())
        return driver.emitted("j")


def ab() -> JoinBolt:
    return JoinBolt("a", "k").join("b", "k", "a").select("a:id, b:id").with_timestamp_field("ts")


def at(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


FORMS = {
    "tumbling": (lambda: ab().with_tumbling_window(Duration(10)), ["a1b1", "a1b2", "a4b4"]),
    "sliding": (lambda: ab().with_window(Duration(10), Duration(5)), ["a1b1", "a1b1", "a1b2", "a4b2", "a4b4", "a4b4"]),
    "a duration, slid by a count": (lambda: ab().with_window(Duration(10), Count(8)), ["a4b2", "a4b4"]),
    "a count": (lambda: ab().with_tumbling_window(Count(4)), ["a1b1", "a4b2", "a4b4"]),
    "a count, slid by a duration": (lambda: ab().with_window(Count(3), Duration(20)), ["a4b2", "a4b4"]),
    "sessions": (lambda: ab().with_session_window(Duration(2)), ["a1b1", "a4b4"]),
    "a trigger": (lambda: ab().with_window(Duration(10), lambda one: one["id"] == "b2"), ["a1b1", "a1b2"]),
    "per key": (lambda: ab().with_key("k").with_tumbling_window(Duration(10)), ["a1b1", "a1b2", "a4b4"]),
    "an evictor": (
        lambda: ab().with_tumbling_window(Duration(20)).with_evictor(lambda some: [x for x in some if x["id"] > "a1"]),
        ["a4b1", "a4b2", "a4b4"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_windows_joins_its_content(name: str) -> None:
    """U10, U11: in sliding windows, a pair appears in each window that has both. None matches nothing."""
    make, expected = FORMS[name]
    batches = [{"a": ROWS["a"][:2], "b": ROWS["b"][1:3]}, {"a": ROWS["a"][2:], "b": [ROWS["b"][0], ROWS["b"][3]]}]
    whole = joined(topology(make()), ROWS)
    assert ["".join(row) for row in whole] == expected
    lagging = make().with_lag(Duration(20))
    assert ["".join(row) for row in joined(topology(lagging), *batches)] == expected


def test_processing_time_joins_what_comes_together() -> None:
    made = JoinBolt("a", "k").leftJoin("b", "k", "a").select("a:id", "b:id").withTumblingWindow(Duration(10))
    assert sorted(joined(topology(made), ROWS), key=str) == sorted(
        [("a1", "b1"), ("a1", "b2"), ("a1", "b4"), ("a2", None), ("a3", None),
         ("a4", "b1"), ("a4", "b2"), ("a4", "b4")], key=str
    )  # fmt: skip


def test_times_of_the_window_are_selected() -> None:
    bolt = JoinBolt("a", "k").join("b", "k", "a").select("a:id, window:start, window:end").with_timestamp_field("ts")
    found = joined(topology(bolt.with_tumbling_window(Duration(10))), ROWS)
    assert found == [("a1", at(0), at(10)), ("a1", at(0), at(10)), ("a4", at(10), at(20))]
    bolt = JoinBolt("a", "k").join("b", "k", "a").select("a:id, window:start, window:end").with_timestamp_field("ts")
    assert joined(topology(bolt.with_tumbling_window(Count(4))), ROWS)[0] == ("a1", None, at(3))


def output_fields(made: Topology, stream: str = "default") -> tuple[str, ...]:
    return made.component("j").streams[stream].fields


def test_a_name_that_occurs_twice_has_its_stream_before_it() -> None:
    assert output_fields(topology(ab().with_tumbling_window(Count(2)))) == ("a_id", "b_id")
    some = JoinBolt("a", "k").join("b", "k", "a").select("a:id,b:ts").with_tumbling_window(Count(2))
    assert output_fields(topology(some)) == ("id", "ts")
    everything = JoinBolt("a", "k").join("b", "k", "a").with_tumbling_window(Count(2))
    assert output_fields(topology(everything)) == ("a_id", "a_k", "a_ts", "b_id", "b_k", "b_ts")


def test_a_name_without_stream_is_that_of_the_first_stream_that_has_one() -> None:
    bolt = JoinBolt("s", "id").left_join("t", "who.id", "s").left_join("u", "who", "s")
    bolt.select("id, x, u:x, who.name, who.no.such, y.z, :ts")
    streams = {"s": ("id", "who", "ts"), "t": ("who", "x", "ts"), "u": ("who", "x", "y.z", "ts")}
    rows = {
        "s": [(1, {"name": "Ann"}, 1), (2, "text", 2)],
        "t": [({"id": 1, "name": "Bob"}, "t1", 1)],
        "u": [(1, "u1", "z1", 1), (2, "u2", "z2", 1)],
    }
    bolt.with_timestamp_field("ts").with_tumbling_window(Duration(10))
    made = fed_bolt("j", bolt, streams).build_topology()
    assert output_fields(made) == ("id", "t_x", "u_x", "who.name", "who.no.such", "y.z", "ts")
    assert joined(made, rows) == [(1, "t1", "u1", "Ann", None, "z1", 1), (2, "u2", "u2", None, None, "z2", 2)]


class Numbers(MemoryTransactionalSpout):
    def __init__(self) -> None:
        super().__init__([[(n, n % 3, n) for n in range(1, 7)]], ("n", "k", "ts"), take=2)


class Forward(BasicBolt):
    """Passes tuples on, to the default stream and to `even`, with other names."""

    fields = ("m", "key", "ts")
    streams = {"even": ("m", "key", "ts")}

    def execute(self, tuple: Any, collector: Any) -> None:
        collector.emit(*tuple.values)
        if tuple[0] % 2 == 0:
            collector.emit(*tuple.values, stream="even")


Selector = JoinBolt.Selector
SELECTED = {
    "names": (lambda: JoinBolt("numbers", "k").join("forward", "key", "numbers"), "default"),
    "a stream's name": (lambda: JoinBolt("numbers", "k").join("even", "key", "numbers"), "even"),
    "Selector.SOURCE": (lambda: JoinBolt(Selector.SOURCE, "numbers", "k").join("forward", "key", "numbers"), "even"),
    "Selector.STREAM": (lambda: JoinBolt(Selector.STREAM, "default", "k").join("even", "key", "default"), "even"),
}


def named_topology(bolt: JoinBolt, stream: str, output: str = "default") -> Topology:
    builder = TransactionalTopologyBuilder("names", "numbers", Numbers())
    builder.set_bolt("forward", Forward()).local_or_shuffle_grouping("numbers")
    bolt.select("n, m").with_timestamp_field("ts").with_tumbling_window(Duration(100))
    declarer = builder.set_bolt("j", bolt, 2).fields_grouping("numbers", ["k"])
    declarer.fields_grouping("forward", stream, ["key"])
    builder.set_bolt("keep", DeltaSink("rows", {"n": int, "m": int})).global_grouping("j", output)
    return builder.build_topology()


@pytest.mark.parametrize("name", SELECTED)
def test_names_are_those_of_streams_or_components(name: str, tmp_path: Path) -> None:
    make, stream = SELECTED[name]
    made = named_topology(make(), stream)
    run(made, engine="local", data_dir=tmp_path / "data", end_of_input=True).awaitTermination(120)
    rows = {(row["n"], row["m"]) for row in read_sink(tmp_path / "data", "rows").to_pylist()}
    right = range(2, 7, 2) if stream == "even" else range(1, 7)
    assert rows == {(n, m) for n in range(1, 7) for m in right if n % 3 == m % 3}


def test_both_engines_join_the_same_and_once(make_engine: Any, tmp_path: Path) -> None:
    """U10. The second run has nothing to add."""
    for _ in range(2):
        bolt = JoinBolt("numbers", "k").join("forward", "key", "numbers").withOutputStream("pairs")
        made = named_topology(bolt, "default", "pairs")
        run(made, engine=make_engine(), data_dir=tmp_path / "data", end_of_input=True).awaitTermination(120)
        rows = [(row["n"], row["m"]) for row in read_sink(tmp_path / "data", "rows").to_pylist()]
        assert sorted(rows) == [(n, m) for n in range(1, 7) for m in range(1, 7) if n % 3 == m % 3]


def test_a_window_that_is_open_at_a_restart_has_its_tuples() -> None:
    made = topology(ab().with_tumbling_window(Duration(10)), tasks=2)
    with TopologyTestDriver(made) as driver:
        driver.commit(driver.feed({"a": [("a1", 1, 1)], "b": [("b1", 2, 2)]}))
        driver.restart()
        driver.commit(driver.feed({"a": [("a2", 2, 4)], "b": [("b2", 1, 5)]}))
        txid = driver.feed({"a": [("a3", 1, 25)], "b": [("b3", 1, 26)]})
        driver.fail(txid)
        driver.advance(60)
        driver.restart()
        driver.commit(txid)
        assert sorted(driver.emitted("j", txid)) == [("a1", "b2"), ("a2", "b1")]


SEEDS = range(30)
NAMES = ("a", "b", "c", "d")
SCHEMA = pa.schema({"id": pa.string(), "k": pa.int64(), "ts": pa.int64(), "n": pa.int64()})

Steps = list[tuple[str, str, bool]]
Rows = dict[str, list[tuple[str, int | None, int]]]


def chain(draw: random.Random) -> Steps:
    names = NAMES[: draw.randrange(2, 5)]
    return [(name, draw.choice(names[:at]), draw.random() < 0.6) for at, name in enumerate(names) if at]


def some_rows(draw: random.Random, names: list[str]) -> Rows:
    def key() -> int | None:
        return None if draw.random() < 0.1 else draw.randrange(4)

    return {name: [(f"{name}{n}", key(), draw.randrange(40)) for n in range(draw.randrange(12))] for name in names}


def in_sql(rows: Rows, steps: Steps, length: int, slide: int) -> dict[int, list[tuple[Any, ...]]]:
    """Return the end of each window → its results, as DuckDB computes them."""
    names = ["a", *(name for name, _, _ in steps)]
    tables = {}
    for name in names:
        columns = list(zip(*rows[name], strict=True)) or [(), (), ()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=False)]
        tables[name] = pa.Table.from_arrays([*arrays, pa.array(range(len(rows[name])), pa.int64())], schema=SCHEMA)
    joins = " ".join(
        f"{'LEFT' if left else 'INNER'} JOIN w{name} {name} ON {name}.k = {other}.k" for name, other, left in steps
    )
    order = ", ".join(f"{name}.ts, {name}.n" for name in names)
    found = {}
    with duckdb.connect() as sql:
        for name, table in tables.items():
            sql.register(f"t{name}", table)
        for end in range(0, 40 + length + slide, slide):
            views = ", ".join(
                f"w{name} AS (SELECT * FROM t{name} WHERE ts > {end - length} AND ts <= {end})" for name in names
            )
            query = (
                f"WITH {views} SELECT {', '.join(f'{name}.id' for name in names)} FROM wa a {joins} ORDER BY {order}"
            )
            found[end] = sql.execute(query).fetchall()
    return {end: some for end, some in found.items() if some}


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_have_the_rows_that_sql_finds(seed: int) -> None:
    """U10, U11: sliding and tumbling windows, None keys, missing middle rows, one or two tasks, cut into batches."""
    draw = random.Random(seed)
    steps = chain(draw)
    names = ["a", *(name for name, _, _ in steps)]
    rows = some_rows(draw, names)
    slide = draw.choice([5, 10, 20])
    length = slide * draw.choice([1, 2])
    tasks = draw.choice([1, 2])
    bolt = JoinBolt("a", "k")
    for name, other, left in steps:
        (bolt.left_join if left else bolt.join)(name, "k", other)
    bolt.select(*[f"{name}:id" for name in names], "window:end").with_timestamp_field("ts")
    bolt.with_window(Duration(length), Duration(slide)).with_lag(Duration(50))
    made = fed_bolt("j", bolt, dict.fromkeys(names, ("id", "k", "ts")), "k", tasks).build_topology()
    cuts = {name: sorted(draw.choices(range(len(rows[name]) + 1), k=2)) for name in names}
    with TopologyTestDriver(made) as driver:
        for part in range(3):
            bounds = {name: [0, *cuts[name], len(rows[name])][part : part + 2] for name in names}
            driver.commit(driver.feed({name: rows[name][first:last] for name, (first, last) in bounds.items()}))
        driver.commit(driver.end_of_input())
        emitted = driver.emitted("j")
    found: dict[int, list[tuple[Any, ...]]] = {}
    for *row, end in emitted:
        found.setdefault(int(end.timestamp() * 1000), []).append(tuple(row))
    expected = in_sql(rows, steps, length, slide)
    if tasks == 1:
        assert found == expected, f"seed {seed}"
    else:
        assert {end: sorted(some, key=str) for end, some in found.items()} == {
            end: sorted(some, key=str) for end, some in expected.items()
        }, f"seed {seed}"
