"""Pipelines without code over generated files: on both engines their tables are those that plain Python finds."""

import runpy
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from commands import printed_by
from runs import ended

from jobs.producers import trends_and_sales as produced
from txstorm.engine.port import Engine
from txstorm.pipelines import Pipeline
from txstorm.runtime.handle import RunHandle

ROOT = Path(__file__).resolve().parents[2]
MakeEngine = Callable[[], Engine]
HOUR, STEP = timedelta(hours=1), timedelta(minutes=5)
Found = dict[str, list[Any]]


def ranked(values: dict[str, Any], n: int) -> list[tuple[int, str]]:
    """Return the ranks of the `n` greatest values, as SQL's RANK() has them, with their keys."""
    ranks = {key: 1 + sum(other > value for other in values.values()) for key, value in values.items()}
    return [(rank, key) for key, rank in ranks.items() if rank <= n]


def columns(rows: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows)


def test_trends_per_hour(make_engine: MakeEngine, in_tmp: Path):
    """Every five minutes, the three tags used most in the hour before; their own hours hold their start."""
    produced.write("posts", in_tmp / "posts")
    expected = []
    start = produced.START - 2 * HOUR
    while start < produced.START + 5 * HOUR:
        counts = Counter(tag.strip().lower() for at, tag in produced.posts() if start <= at < start + HOUR)
        expected += [(start, start + HOUR, rank, tag, counts[tag]) for rank, tag in ranked(counts, 3)]
        start += STEP
    topology = Pipeline.read(ROOT / "jobs" / "trends_per_hour.toml").topology()
    handle = ended(topology, in_tmp / "data", make_engine(), end_of_input=True)
    assert columns(handle.sink("trends").to_pylist(), "start", "end", "rank", "tag", "n") == sorted(expected)
    assert (len(handle.dead_letters().to_pylist()), len(expected) > 150) == (1, True)


def expected_sales() -> Found:
    """Return the rows of all tables of the example; late rows are in those without windows only."""
    sold = [
        one._replace(shop=one.shop.strip().lower()) for one in produced.sales() if one.amount > 0 and one.shop.strip()
    ]
    revenue, hours = dict[str, Decimal](), dict[datetime, dict[str, list[Decimal]]]()
    for one in sold:
        revenue[one.shop] = revenue.get(one.shop, Decimal()) + one.amount
        if not one.late:
            start = one.at.replace(minute=0, second=0)
            hours.setdefault(start, {}).setdefault(one.shop, []).append(one.amount)
    results = {
        (shop, start, start + HOUR): (len(some), sum(some), max(some))
        for start, shops in hours.items()
        for shop, some in shops.items()
    }
    best = [
        (shop, start, start + HOUR, *results[shop, start, start + HOUR], rank)
        for start, shops in hours.items()
        for rank, shop in ranked({shop: sum(some) for shop, some in shops.items()}, 1)
    ]
    cents = [(one.at, one.shop, one.amount.quantize(Decimal("0.01"), ROUND_HALF_UP)) for one in sold]
    return {
        "rows": sorted(cents),
        "revenue": sorted(revenue.items()),
        "visits": sorted(Counter(one.shop for one in sold).items()),
        "per_hour": sorted((*key, *values) for key, values in results.items()),
        "best_shops": sorted(best),
    }


def found_sales(handle: RunHandle) -> Found:
    hour = ("shop", "start", "end", "n", "total", "highest")
    return {
        "rows": columns(handle.sink("rows").to_pylist(), "at", "shop", "amount"),
        "revenue": columns(handle.state("revenue").to_pylist(), "shop", "amount"),
        "visits": columns(handle.state("visits").to_pylist(), "shop", "n"),
        "per_hour": columns(handle.state("per_hour").to_pylist(), *hour),
        "best_shops": columns(handle.sink("best_shops").to_pylist(), *hour, "rank"),
    }


@pytest.mark.integration
def test_the_sales_of_the_example(make_engine: MakeEngine, in_tmp: Path):
    """Duplicates, bad and late rows of CSV: the tables of the printed pipeline, after a restart too, and of its program."""
    produced.write("sales", in_tmp / "sales")
    text = printed_by("-m", "txstorm", "example", "--pipeline")
    several = text.replace("[source.sales]", "[source.sales]\nmax_batch_rows = 30")
    Path("sales.toml").write_text(several, encoding="utf-8")
    pipeline = Pipeline.read("sales.toml")
    ended(pipeline.topology(), in_tmp / "data", make_engine(), until_txid=4)
    handle = ended(pipeline.topology(), in_tmp / "data", make_engine(), end_of_input=True)
    expected = expected_sales()
    assert found_sales(handle) == expected
    assert [len(expected[name]) for name in ("revenue", "visits")] == [3, 3]
    assert len(handle.dead_letters().to_pylist()) == 1
    Path("program.py").write_text(pipeline.python("sales.toml"), encoding="utf-8")
    program = runpy.run_path("program.py")["topology"]
    again = ended(program, in_tmp / "again", make_engine(), end_of_input=True)
    assert found_sales(again) == expected
    assert again.sink("rows").to_pylist() == handle.sink("rows").to_pylist()
