"""Blocks of sorted rows and layers of them, compared with a search row by row, also if hashes of keys collide."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from seeded import seeded

from txstorm.state.index.layers import Layers, Sources
from txstorm.state.index.sorted_rows import ALL, Owners, SortedRows, Span, few

USERS = ["a", "b", None, "ä", ""]


@pytest.fixture
def draw():
    return seeded()


@pytest.fixture(params=["hashes", "colliding hashes", "equal hashes"])
def hashes(request, monkeypatch):
    """Let the keys have their hashes, or two hashes, or one."""
    from txstorm.state.index import sorted_rows

    plain, bits = sorted_rows.hash_rows, {"hashes": 64, "colliding hashes": 1, "equal hashes": 0}[request.param]
    if bits < 64:
        monkeypatch.setattr(sorted_rows, "hash_rows", lambda *a: plain(*a) & np.uint64((1 << bits) - 1))


def block(rows):
    """Return a block of rows (user, order, number), whose value is the number, too."""
    users, orders, numbers = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    numbers = np.array(numbers, np.int64)
    return SortedRows.of([pa.array(users, pa.string())], np.array(orders, np.int64), numbers, [pa.array(numbers)])


def drawn(draw, numbers, most=30):
    return [(draw.choice(USERS), draw.randrange(10), next(numbers)) for _ in range(draw.randrange(most))]


def wanted(users):
    return Owners.of([pa.array(users, pa.string())], len(users))


def listed(found, users):
    columns = (found.owners, found.orders, found.values[0].to_pylist())
    return [(users[owner], order, value) for owner, order, value in zip(*columns, strict=True)]


def expected(rows, users, span):
    result = []
    for user in users:
        there = sorted((order, number) for other, order, number in rows if other == user)
        there = [row for row in there if span.first <= row[0] <= span.last]
        if span.most is not None:
            there = there[-span.most :] if span.backwards else there[: span.most]
        result += [(user, *row) for row in there]
    return result


@pytest.mark.usefixtures("hashes")
def test_layers_find_the_rows_that_a_search_row_by_row_finds(draw):
    for _ in range(60):
        numbers = iter(range(10_000))
        parts = [drawn(draw, numbers) for _ in range(draw.randrange(1, 6))]
        rows = [row for part in parts for row in part]
        gone = draw.sample(rows, len(rows) // 4)
        bound = draw.choice([-1, 2])
        layers = Layers([Sources.of(block(part) for part in parts)], [block(gone)], (), bound)
        users = draw.sample([*USERS, "nobody"], draw.randrange(1, 6))
        first = draw.randrange(10)
        span = Span(first, draw.randrange(first, 10), draw.choice([None, 1, 3, 50]), draw.random() < 0.5)
        found = layers.find(wanted(users), span, lambda rows: rows, [pa.array([], pa.int64())])
        left = [row for row in rows if row not in gone and row[1] >= bound]
        assert listed(found, users) == expected(left, users, span)
        there = layers.owners(span, ["user"], [pa.array([], pa.string())]).keys[0].to_pylist()
        assert there == sorted(there, key=lambda user: (user is not None, user or ""))
        assert {user for user, order, _ in left if span.first <= order <= span.last} <= set(there)


@pytest.mark.usefixtures("hashes")
def test_joined_blocks_have_the_rows_of_all_and_equal_rows_once(draw):
    for _ in range(30):
        numbers = iter(range(10_000))
        parts = [drawn(draw, numbers, 12) for _ in range(5)]
        parts[1] += parts[0][:3]
        joined = SortedRows.joined([block(part) for part in parts])
        rows = {row for part in parts for row in part}
        assert len(joined) == len(rows)
        users = list(dict.fromkeys(user for user, _, _ in rows))
        assert listed(joined.find(wanted(users), ALL), users) == expected(rows, users, ALL)
        merged: list[SortedRows] = []
        for part in parts:
            merged = few([*merged, block(part)])
        assert {row for one in merged for row in listed(one.find(wanted(USERS), ALL), USERS)} == rows
        assert all(len(one) > 2 * len(other) for one, other in pairwise(merged))


@pytest.mark.usefixtures("hashes")
def test_distinct_keys_are_numbered_by_first_appearance_and_found_again(draw):
    rows = [(draw.choice(USERS), draw.choice([1, 2, None])) for _ in range(200)]
    both = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int64())]
    for width in (1, 2):
        columns = both[:width]
        owners, codes = Owners.distinct(columns, len(rows))
        keys = list(zip(*(column.to_pylist() for column in owners.keys), strict=True))
        assert keys == list(dict.fromkeys(row[:width] for row in rows))
        assert [keys[code] for code in codes] == [row[:width] for row in rows]
        some = owners.taken(np.array([len(owners) - 1, 0]))
        assert owners.numbers_of(some).tolist() == [len(owners) - 1, 0]
