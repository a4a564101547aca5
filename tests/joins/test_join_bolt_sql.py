"""Random chains of inner and left joins over random windows give the rows that DuckDB finds, in the same order."""

import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from fed import fed_bolt

from txstorm import Duration
from txstorm.joins import JoinBolt
from txstorm.testing import TopologyTestDriver

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
