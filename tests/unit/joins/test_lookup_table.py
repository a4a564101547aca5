"""Rows of a table found by key, against a loop over all rows; tables of others; the cache of a process."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from txstorm.clients.external_table import ExternalTable
from txstorm.errors import InputError, StateError
from txstorm.joins.lookup import lookup_table as module
from txstorm.joins.lookup.lookup_table import Content, LookupTable, lookup_table

POOLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "whole numbers": (pa.int64(), [None, 0, 1, -1, 7, 2**62]),
    "text": (pa.string(), [None, "", "a", "b", "ab", "ba"]),
    "floats": (pa.float64(), [None, 0.0, 1.5, float("inf")]),
    "bools": (pa.bool_(), [None, True, False]),
    "bytes": (pa.binary(), [None, b"", b"a", b"b"]),
    "dates": (pa.date32(), [None, date(2026, 1, 1), date(1969, 1, 1)]),
    "times": (pa.timestamp("us", "UTC"), [None, datetime(2026, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)]),
    "decimals": (pa.decimal128(10, 2), [None, Decimal("1.50"), Decimal("-2.00")]),
}


def drawn(draw: random.Random, pool: list[Any], number: int) -> list[Any]:
    return [draw.choice(pool) for _ in range(number)]


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_keys_find_the_rows_that_a_loop_finds(seed: int, coarse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `coarse`, many different keys have the same hash."""
    if coarse:
        original = module.hash_rows
        monkeypatch.setattr(module, "hash_rows", lambda *some: original(*some) & np.uint64(1 << 63))
        monkeypatch.setattr(module, "_UNIQUE_HASHES", frozenset())
    draw = random.Random(seed)
    names = draw.choices(list(POOLS), k=draw.randrange(1, 3))
    number, asked = draw.randrange(12), draw.randrange(1, 12)
    table = [drawn(draw, POOLS[name][1], number) for name in names]
    keys = [drawn(draw, POOLS[name][1], asked) for name in names]
    key = [f"k{i}" for i in range(len(names))]
    columns = {name: pa.array(some, POOLS[kind][0]) for name, some, kind in zip(key, table, names, strict=True)}
    made = LookupTable(pa.table({**columns, "row": pa.array(range(number), pa.int64())}), key)
    given = [pa.array(some, POOLS[kind][0]) for some, kind in zip(keys, names, strict=True)]
    left, right = made.find(given, key)
    rows = made.rows.column("row").to_pylist()
    expected = [
        (i, j)
        for i, one in enumerate(zip(*keys, strict=True))
        for j, other in enumerate(zip(*table, strict=True))
        if None not in one and one == other
    ]
    assert [(i, rows[j]) for i, j in zip(left.tolist(), right.tolist(), strict=True)] == expected, f"seed {seed}"


def test_values_of_another_kind_are_refused() -> None:
    made = LookupTable(pa.table({"id": [1, 2]}), ["id"])
    with pytest.raises(InputError, match="field 'user' has values of type string, but column 'id', with which"):
        made.find([pa.array(["1"])], ["user"])
    left, _ = made.find([pa.nulls(3)], ["user"])
    assert len(left) == 0


def test_partition_columns_are_read(tmp_path: Path) -> None:
    days, numbers = ["a b", None, "a b", "c/d", "a b"], pa.array([5, 5, 6, 6, 5], pa.int32())
    rows = pa.table({"id": [1, 2, 3, 4, 5], "day": days, "n": numbers})
    write_deltalake(tmp_path / "t", rows, partition_by=["day", "n"])
    table = ExternalTable(tmp_path / "t")
    read = table.read(["day", "id"]).sort_by("id")
    assert read.column("day").to_pylist() == days
    assert read.column("id").to_pylist() == [1, 2, 3, 4, 5]
    assert sorted(table.read(["n"]).column("n").to_pylist()) == [5, 5, 5, 6, 6]
    assert table.read(["n"]).schema.field("n").type == pa.int32()


def test_a_version_reads_the_same_in_the_same_order_after_a_checkpoint(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    for number in range(12):
        write_deltalake(tmp_path / "t", pa.table({"id": [number, number + 100]}), mode="append")
    before = ExternalTable(tmp_path / "t", 9).read(["id"])
    DeltaTable(tmp_path / "t").create_checkpoint()
    assert ExternalTable(tmp_path / "t", 9).read(["id"]).equals(before)
    assert before.num_rows == 20
    with pytest.raises(StateError, match="12"):
        ExternalTable(tmp_path / "t", 12)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> list[Content]:
    """The contents that this process reads, with an empty cache."""
    read: list[Content] = []
    original = module._loaded
    monkeypatch.setattr(module, "CACHE", module._Cache())
    monkeypatch.setattr(module, "_loaded", lambda content: read.append(content) or original(content))
    return read


def test_a_process_reads_a_version_once_and_drops_the_oldest(tmp_path, cache, monkeypatch) -> None:
    for _ in range(3):
        write_deltalake(tmp_path / "t", pa.table({"id": range(1000)}), mode="append")
    table_id = ExternalTable(tmp_path / "t").id
    contents = [Content(1, str(tmp_path / "t"), table_id, version, ("id",), ("id",)) for version in range(3)]
    sizes = [lookup_table(one).size for one in contents for _ in range(2)]
    assert cache == contents
    monkeypatch.setattr(module, "CACHE_BYTES", sizes[-1] + sizes[0])
    lookup_table(contents[0])  # drops version 1, which was not used for longest
    lookup_table(contents[0])
    lookup_table(contents[2])
    assert cache == contents
    lookup_table(contents[1])
    assert cache == [*contents, contents[1]]
