"""Random pipelines of ready-made parts: their tables are those of a plain Python model, however the input is cut."""

import json
import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from runs import ended
from seeded import seeded

from txstorm.pipelines import Pipeline

START = datetime(2026, 5, 1, tzinfo=UTC)
CITIES = {"north": "Oslo", "south": "Rome"}
ROWS = {"id": "int", "at": "datetime", "shop": "str", "note": "str", "amount": "decimal"}


def minutes(length):
    return timedelta(minutes=length)


def drawn(chance):
    """Return rows in the order of their times but for an hour, and a part of them again."""
    rows = []
    for number in range(chance.randint(1, 60)):
        at = START + minutes(chance.randint(0, 5) * number) - minutes(chance.choice([0, 0, 60]))
        shop, note = chance.choice(["north", "south", "east"]), chance.choice([None, "", "new"])
        rows.append({"id": chance.randint(1, 40), "at": at, "shop": shop, "note": note})
        rows[-1]["amount"] = Decimal(chance.randint(-500, 2000)) / 100
    return rows


def first_of_each(rows):
    found = {}
    for row in rows:
        found.setdefault(row["id"], row)
    return list(found.values())


def looked_up(rows, how):
    there = [{**row, "city": CITIES.get(row["shop"])} for row in rows]
    return [row for row in there if how == "left" or row["city"] is not None]


STEPS = {
    "sold": ({"type": "filter", "where": "amount > 0 and shop <> 'east'"}, lambda rows: [
        row for row in rows if row["amount"] > 0 and row["shop"] != "east"]),
    "noted": ({"type": "filter", "where": "note is not null or id < 10"}, lambda rows: [
        row for row in rows if row["note"] is not None or row["id"] < 10]),
    "doubled": ({"type": "select", "fields": {**{one: one for one in ROWS}, "shop": "upper(shop)", "amount": "amount * 2"}},
        lambda rows: [{**row, "shop": row["shop"].upper(), "amount": row["amount"] * 2} for row in rows]),
    "texts": ({"type": "cast", "types": {"id": "str"}}, lambda rows: [{**row, "id": str(row["id"])} for row in rows]),
    "once": ({"type": "deduplicate", "id": "id", "keep": "10 d"}, first_of_each),
    "placed": ({"type": "lookup", "table": "", "on": "shop", "how": "left", "select": [*ROWS, "table:city"]},
        lambda rows: looked_up(rows, "left")),
    "found": ({"type": "lookup", "table": "", "on": "shop", "how": "inner", "select": [*ROWS, "table:city"]},
        lambda rows: looked_up(rows, "inner")),
}  # fmt: skip
"""Name of a step → its section, and what it does to rows."""


TURNS = {"once": 0, "texts": 2, "placed": 3, "found": 3}
"""Only behind one exchange rows are in the order of the source; a text is no number, and a select drops columns."""


def windows(rows, length, slide, closed):
    """Return (shop, start, end) → the rows of each window that has any."""
    found, step = {}, minutes(slide)
    for row in rows:
        exact = (row["at"] - START) / step
        end = START + (math.floor(exact) + 1 if closed == "left" else math.ceil(exact)) * step
        while (end - minutes(length) <= row["at"]) if closed == "left" else (end - minutes(length) < row["at"]):
            found.setdefault((row["shop"], end - minutes(length), end), []).append(row)
            end += step
    return found


def toml(sections):
    lines = ['name = "drawn"']
    for name, section in sections.items():
        lines += [f"[{name}]" if name else "", *(f"{key} = {inline(value)}" for key, value in section.items())]
    return "\n".join(lines)


def inline(value):
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {inline(one)}' for name, one in value.items())} }}"
    return json.dumps(value)


@pytest.mark.parametrize("number", range(8))
def test_tables_of_a_random_pipeline_are_those_of_a_plain_model(tmp_path, number):
    chance = random.Random(f"{seeded().random()} {number}")
    rows, last, sections = drawn(chance), "files", {}
    write_deltalake(tmp_path / "shops", pa.table({"shop": list(CITIES), "city": list(CITIES.values())}))
    expected = rows
    chosen = chance.sample([*STEPS], chance.randint(0, 4))
    for name in sorted(chosen, key=lambda one: TURNS.get(one, 1)):
        if name == "placed" and "found" in chosen:
            continue
        section = {"from": last, **STEPS[name][0], "parallelism": chance.choice([1, 2])}
        sections[f"step.{name}"] = {**section, **({"table": str(tmp_path / "shops")} if "table" in section else {})}
        last, expected = name, STEPS[name][1](expected)
    length, slide, closed = (*chance.choice([(10, 10), (30, 10), (7, 3)]), chance.choice(["left", "right"]))
    values = {"n": "count", "total": "sum(amount)", "highest": "max(amount)", "least": "min(id)"}
    within = {"type": "window", "from": last, "by": "shop", "time": "at", "length": f"{length} min", "values": values}
    within |= {"slide": f"{slide} min", "closed": closed, "lag": "1 d", "parallelism": chance.choice([1, 2])}
    sections |= {
        "source.files": {"type": "files", "path": str(tmp_path / "*.jsonl"), "fields": ROWS}
        | {"max_batch_rows": chance.choice([3, 17, 1000])},
        "step.visits": {"type": "count", "from": last, "by": "shop", "parallelism": 2},
        "step.revenue": {"type": "sum", "from": last, "by": "shop", "sum": "amount"},
        "step.windows": within,
        "step.best": {"type": "top", "from": "windows", "n": 2, "by": "total"},
        "sink.rows": {"type": "delta", "from": last},
        "sink.results": {"type": "delta", "from": "windows"},
        "sink.tops": {"type": "delta", "from": "best"},
    }
    (tmp_path / "drawn.toml").write_text(toml(sections))
    data, cut = tmp_path / "data", chance.randint(0, len(rows))
    for part, end in ((rows[:cut], False), (rows[cut:], True)):
        lines = [json.dumps({**row, "at": row["at"].isoformat(), "amount": str(row["amount"])}) for row in part]
        (tmp_path / f"{end}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        limit = {"end_of_input": True} if end else {}
        handle = ended(Pipeline.read(tmp_path / "drawn.toml").topology(), data, **limit)

    def table(given, *names):
        return Counter(tuple(row[name] for name in names) for row in given)

    names = [*expected[0]] if expected else []
    assert table(handle.sink("rows").to_pylist(), *names) == table(expected, *names)
    shops = Counter(row["shop"] for row in expected)
    assert {row["shop"]: row["n"] for row in handle.state("visits").to_pylist()} == shops
    sums = {shop: sum(row["amount"] for row in expected if row["shop"] == shop) for shop in shops}
    assert {row["shop"]: row["amount"] for row in handle.state("revenue").to_pylist()} == sums
    wanted, by_end = Counter(), {}
    for key, held in windows(expected, length, slide, closed).items():
        amounts = [row["amount"] for row in held]
        wanted[(*key, len(held), sum(amounts), max(amounts), min(row["id"] for row in held))] += 1
        by_end.setdefault(key[2], []).append(sum(amounts))
    assert table(handle.sink("results").to_pylist(), "shop", "start", "end", *values) == wanted
    tops = Counter((end, one) for end, totals in by_end.items() for one in sorted(totals, reverse=True)[:2])
    assert table(handle.sink("tops").to_pylist(), "end", "total") == tops
