"""The right rows of an interval join in blocks: rows read from the state against a loop, merges and bounds (A2, U6).

Look-ups, flags, expiry and releases are checked against a model in `test_joins_against_model.py`.
"""

import random

import numpy as np
import pyarrow as pa
import pytest

from txstorm.errors import InputError
from txstorm.joins.rules.blocks import Block, Rows
from txstorm.joins.rules.matching import LOWEST, RightWindow
from txstorm.joins.side_rows import POSITION_BITS, arrivals_of


def rows_of(rows):
    """Return rows (key, time, number); the hash of a key is such that some keys share it."""
    keys = pa.array([key for key, _, _ in rows], pa.int64())
    times = np.array([time for _, time, _ in rows], np.int64)
    hashes = np.array([0 if key is None else (key % 5) << 61 | key % 3 for key, _, _ in rows], np.uint64)
    numbers = pa.array([number for _, _, number in rows], pa.int64())
    table = pa.table({"key": keys, "number": numbers, "arrival": numbers})
    return Rows(hashes, times, table, np.array([key is not None for key, _, _ in rows], bool))


@pytest.mark.parametrize("seed", range(40))
def test_rows_read_from_the_state_in_any_order_are_found_as_if_they_had_just_come(seed):
    draw = random.Random(seed)
    rows = [(draw.choice([*range(6), None]), draw.randrange(8), number) for number in range(draw.randrange(1, 60))]
    left = rows_of([(draw.randrange(6), draw.randrange(8), 0) for _ in range(20)])
    already = set(draw.sample(range(len(rows)), len(rows) // 3))
    parts, anyhow = list[Block](), draw.sample(rows, len(rows))
    while anyhow:
        part, anyhow = rows_of(anyhow[:20]), anyhow[20:]
        flags = np.isin(part.stored.column("number"), list(already))
        parts.append(Block.of(part.hashes, part.times, part.stored, flags, loaded=True))
    later = [(key, time, number + len(rows)) for key, time, number in rows[:15]]
    window = RightWindow(tuple(parts)).with_rows(rows_of(later))
    merged = Block.merged(window.blocks, LOWEST)
    low, high = left.times - draw.randrange(4), left.times + draw.randrange(4)
    for found in (window, RightWindow((merged,)), RightWindow((Block.merged([merged], LOWEST),))):
        pairs = found.pairs(left, low, high, 0)
        got = found.stored(pairs, ["number"]).column(0).to_pylist() if len(pairs) else []
        assert list(zip(pairs.left.tolist(), got, strict=True)) == [
            (i, number)
            for i, key in enumerate(left.stored.column("key").to_pylist())
            for _, time, number in sorted((row for row in rows + later if row[0] == key), key=lambda row: row[1:])
            if low[i] <= time <= high[i]
        ], seed
        flagged = [n for one in found.blocks for n in np.asarray(one.stored.column("number"))[one.at[one.matched]]]
        assert sorted(flagged) == sorted(already), seed


def test_a_merge_drops_expired_rows_and_keeps_flags_and_a_window_its_bound_and_columns():
    blocks = [
        Block.of(one.hashes, one.times, one.stored) for one in (rows_of([(1, 5, 0), (2, 1, 1)]), rows_of([(1, 4, 2)]))
    ]
    window = RightWindow(tuple(blocks))
    left = rows_of([(1, 5, 9)])
    window, news = window.marked(window.pairs(left, left.times, left.times, 2))
    assert [len(rows) for _, rows in news] == [1]
    merged = Block.merged(window.blocks, 4)
    assert (len(merged), merged.times.tolist(), merged.matched.tolist()) == (2, [4, 5], [False, True])
    assert merged.stored.column("number").take(pa.array(merged.at)).to_pylist() == [2, 0]
    window, _ = RightWindow().with_rows(rows_of([(1, 5, 0), (1, 9, 1)])).expire(7, 0)
    window, never = window.expire(3, 1)
    assert (window.bound, len(window), never) == (7, 1, [])
    window = RightWindow().with_rows(rows_of([(1, 5, 0), (16, 5, 1)]))
    assert numbers_of(window, rows_of([(16, 5, 9)]), 1) == [1]
    rows = rows_of([(1, 5, 0), (2, 6, 1)])
    rows = Rows(rows.hashes, rows.times, rows.stored.append_column("text", pa.array(["a", "b"])), rows.keyed)
    window = RightWindow(columns=("key", "number")).with_rows(rows).with_rows(rows)
    assert [block.stored.column_names for block in window.blocks] == [["key", "number"]] * 2
    assert numbers_of(window, rows_of([(1, 5, 9)]), 0) == [0, 0]


def numbers_of(window, left, known):
    """Return the numbers of the rows in a window that match `left` rows at their times."""
    return window.stored(window.pairs(left, left.times, left.times, known), ["number"])["number"].to_pylist()


def test_more_rows_in_a_transaction_than_there_are_arrivals_are_refused():
    assert arrivals_of(3, np.array([0, 5])).tolist() == [3 << POSITION_BITS, (3 << POSITION_BITS) + 5]
    with pytest.raises(InputError, match=r"transaction 3 has too many rows for a join: expected at most 16,777,216"):
        arrivals_of(3, np.array([1 << POSITION_BITS]))
