"""Pipelines without code: what each kind of part does, and that the printed program builds the same topology."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from txstorm import run
from txstorm.pipelines import Pipeline

LINES = """
{"id": 1, "at": "2026-05-01T12:00:00Z", "shop": " North", "amount": 12.5, "tags": "a"}
{"id": 2, "at": "2026-05-01T12:30:00Z", "shop": "south", "amount": "3.1"}
{"id": 2, "at": "2026-05-01T12:30:00Z", "shop": "south", "amount": "3.1"}
{"id": 3, "at": "2026-05-01T12:31:00Z", "shop": "south", "amount": "much"}
{"id": 4, "at": "2026-05-01T13:00:00Z", "shop": "NORTH", "amount": 7.4}
{"id": 5, "at": "2026-05-01T13:20:00Z", "shop": "south", "amount": -3}
{"id": 6, "at": "2026-05-01T13:40:00Z", "shop": null, "amount": 1}
"""
PAYMENTS = "order,at\n1,2026-05-01T12:01:00Z\n4,2026-05-01T14:00:00Z\n9,2026-05-01T12:00:00Z\n"
PARTS = """
name = "parts"
parallelism = 2
[source.sales]
type = "files"
path = "sales.jsonl"
fields = { id = "int", at = "datetime", shop = "str", amount = "decimal" }
bounded = true
[source.payments]
type = "files"
path = "payments.csv"
fields = { order = "int", at = "datetime" }
bounded = true
[source.towns]
type = "delta"
path = "shops"
start = 0
ignore = ["deletes"]
[step.once]
type = "deduplicate"
from = "sales"
id = "id"
keep = "1 h"
[step.clean]
type = "select"
from = "once"
fields = { id = "id", at = "at", shop = "lower(trim(shop))", amount = "amount" }
[step.sold]
type = "filter"
from = "clean"
where = "amount > 0 and shop is not null"
[step.days]
type = "select"
from = "sold"
fields = { day = "date(at)", cents = "amount * 100" }
[step.whole]
type = "cast"
from = "days"
types = { cents = "int" }
[step.per_day]
type = "sum"
from = "whole"
by = "day"
sum = "cents"
[step.numbers]
type = "count"
from = "sold"
by = ["shop"]
[step.hours]
type = "window"
from = "sold"
by = "shop"
time = "at"
length = "1 h"
closed = "left"
names = { end = "until" }
values = { n = "count", total = "sum(amount)", dearest = "argmax(id, amount)" }
[step.best]
type = "top"
from = "hours"
n = 1
by = "total"
[step.paid]
type = "join"
left = { from = "sales", key = "id", time = "at" }
right = { from = "payments", key = "order", time = "at" }
after = "10 min"
before = "0 s"
how = "inner"
select = ["left:id", "right:at"]
[step.named]
type = "lookup"
from = "sold"
table = "shops"
on = { shop = "name" }
select = ["id", "table:city"]
[sink.best_rows]
type = "delta"
from = "best"
columns = ["shop", "until", "n", "total", "dearest", "rank"]
[sink.pairs]
type = "delta"
from = "paid"
[sink.unpaid]
type = "delta"
from = "paid.unmatched_right"
[sink.cities]
type = "delta"
from = "named"
[sink.towns_rows]
type = "delta"
from = "towns"
[settings]
on_error = "dead_letter"
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.chdir(tmp_path)
    Path("sales.jsonl").write_text(LINES)
    Path("payments.csv").write_text(PAYMENTS)
    write_deltalake("shops", pa.table({"name": ["north", "south"], "city": ["Oslo", "Rome"]}))
    Path("parts.toml").write_text(PARTS)
    return Pipeline.read("parts.toml")


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 5, 1, hour, minute, tzinfo=UTC)


def rows_of(handle: Any, name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values())[:-1] for row in handle.sink(name).to_pylist())


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_every_kind_of_part(pipeline: Pipeline, engine: str):
    handle = run(pipeline.topology(), engine=engine, end_of_input=True)
    handle.awaitTermination()
    assert handle.state("per_day").to_pylist() == [{"day": date(2026, 5, 1), "cents": 2300}]
    assert {one["shop"]: one["n"] for one in handle.state("numbers").to_pylist()} == {"north": 2, "south": 1}
    best = [("north", at(13), 1, Decimal("12.5"), 1, 1), ("north", at(14), 1, Decimal("7.4"), 4, 1)]
    assert rows_of(handle, "best_rows") == best
    assert rows_of(handle, "pairs") == [(1, at(12, 1))]
    assert rows_of(handle, "unpaid") == [(4, at(14)), (9, at(12))]
    assert rows_of(handle, "towns_rows") == [("north", "Oslo"), ("south", "Rome")]
    assert rows_of(handle, "cities") == [(1, "Oslo"), (2, "Rome"), (4, "Oslo")]
    (letter,) = handle.dead_letters().to_pylist()
    assert json.loads(letter["record"])["line"] == 5


def test_the_printed_program_builds_the_same_topology(pipeline: Pipeline):
    found: dict[str, Any] = {}
    exec(compile(pipeline.python("parts.toml"), "parts.py", "exec"), found)
    assert found["topology"].describe("json") == pipeline.topology().describe("json")
