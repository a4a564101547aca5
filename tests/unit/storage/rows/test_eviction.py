"""Range tombstones among change rows: which rows they remove, compared with a search row by row."""

import numpy as np
import pyarrow as pa
import pytest
from seeded import seeded

from txstorm.api.state import CollectionState
from txstorm.storage.rows.eviction import NO_BOUND, Tombstones, bisected, limit_of, remaining, row_codes, split_changes
from txstorm.storage.rows.schema import COUNT_BITS, changes_schema

STATE = CollectionState("events", key={"user": str, "shop": int}, order={"at": int}, value={"n": int})
KEYS = ["user", "shop", "at", "_seq"]


@pytest.fixture
def draw():
    return seeded()


def change(key, at, txid, op="u", count=0):
    seq = -1 if op in "ea" else (txid << COUNT_BITS) + count
    row = {"user": key[0], "shop": key[1], "at": at, "_seq": seq, "n": None, "_txid": txid, "_prev": None, "_op": op}
    return {**row, "_kg": 0}


def table(rows):
    return pa.Table.from_pylist(rows, schema=changes_schema(STATE))


def test_the_rows_that_are_left_are_those_that_no_tombstone_removes(draw):
    keys = [("a", 1), ("a", None), (None, 1), ("b", 2)]
    for _ in range(60):
        rows = [change(draw.choice(keys), draw.randrange(20), draw.randrange(1, 8), count=i) for i in range(30)]
        cuts = [change(draw.choice(keys), draw.randrange(20), draw.randrange(1, 8), "e") for _ in range(6)]
        bounds = [change((None, None), draw.randrange(12), draw.randrange(1, 8), "a") for _ in range(draw.randrange(3))]
        split = split_changes(table(draw.sample([*rows, *cuts, *bounds], len(rows) + len(cuts) + len(bounds))))
        bound = max((row["at"] for row in bounds), default=NO_BOUND)
        assert split.bound == bound
        left = remaining(split.rows, split.tombstones, split.bound, KEYS).to_pylist()
        expected = [row for row in split.rows.to_pylist() if row["at"] >= bound and not any(
            (cut["user"], cut["shop"]) == (row["user"], row["shop"])
            and cut["at"] > row["at"] and cut["_txid"] >= row["_txid"] for cut in cuts)]  # fmt: skip
        assert left == expected
    cut = Tombstones(np.array([0, 0]), np.array([9, 3]), limit_of(np.array([2, 5])))
    owners, orders = np.zeros(4, np.int64), np.array([8, 8, 2, 2])
    numbers = np.array([1, 3, 5, 6]) << COUNT_BITS
    assert cut.hide(owners, orders, numbers).tolist() == [True, False, True, False]


def test_many_ranges_are_searched_at_once_as_each_alone(draw):
    for _ in range(40):
        values, low, high = [], [], []
        for _ in range(draw.randrange(1, 6)):
            low.append(len(values))
            values += sorted(draw.randrange(9) for _ in range(draw.randrange(5)))
            high.append(len(values))
        wanted = [draw.randrange(-1, 10) for _ in low]
        for after in (False, True):
            found = bisected(*map(np.array, ([*values, 0], low, high, wanted)), after=after)
            expected = [
                begin + sum(value <= aim if after else value < aim for value in values[begin:end])
                for begin, end, aim in zip(low, high, wanted, strict=True)
            ]
            assert found.tolist() == expected


def test_equal_rows_have_equal_numbers_in_any_number_of_columns(draw):
    for width in range(5):
        columns = [[draw.choice([None, 1, 2, 3]) for _ in range(50)] for _ in range(width)]
        codes = row_codes([pa.array(column, pa.int64()) for column in columns], 50).tolist()
        rows = list(zip(*columns, strict=True)) or [()] * 50
        assert len(set(zip(codes, rows, strict=True))) == len(set(codes)) == len(set(rows))
