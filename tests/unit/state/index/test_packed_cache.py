"""The packed-row cache: random operations give the same rows as a dictionary."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm.api.state import KeyedState
from txstorm.state.index import key_codec as keybytes
from txstorm.state.index.packed_cache import PackedCache, PackedRows
from txstorm.state.index.row_codec import RowCodec

WORDS = KeyedState("words", key={"word": str}, value={"n": int})
FIXED = KeyedState(
    "fixed",
    key={"i": int, "s": str, "b": bytes},
    value={"f": float, "f4": pa.float32(), "t": bool, "d": date, "at": datetime, "dec": Decimal},
)
LARGE = 1 << 30
KEYS = [None, "", "a", "ab", "b", "ß", "x" * 300, *(f"w{i}" for i in range(20))]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove", "look"]), st.lists(st.sampled_from(KEYS), unique=True)), max_size=40
)


def row(n, txid=1, before=None):
    return (n,), txid, None if before is None else (before,)


def cache_of(state, limit=LARGE):
    return PackedCache(RowCodec(state), limit)


def check_against_a_dictionary(cache, steps):
    model = {}
    for number, (step, keys) in enumerate(steps, 1):
        if step == "put":
            rows = {key: row(None if number % 3 == 0 else number, number, number - 1) for key in keys}
            cache.put(rows)
            model |= rows
        elif step == "remove":
            cache.remove(keys)
            model = {key: stored for key, stored in model.items() if key not in keys}
        assert cache.get(KEYS) == [model.get(key) for key in KEYS]
        assert len(cache) == len(model)
    assert cache.complete


@given(steps=STEPS)
def test_any_operations_match_a_dictionary(steps):
    check_against_a_dictionary(cache_of(WORDS), steps)


@pytest.mark.parametrize("different", [1, 2, 5])
def test_keys_with_the_same_hash_are_distinguished(monkeypatch, different):
    usual = keybytes.hash_rows

    def few(columns, rows):  # a null has a distinct hash although its content equals that of ""
        hashes = usual(columns, rows) % np.uint64(different)
        return np.where(np.asarray(columns[0].is_null()), np.uint64(1 << 63), hashes)

    monkeypatch.setattr(keybytes, "hash_rows", few)
    draw = random.Random(different)
    steps = [(draw.choice(["put", "put", "remove"]), draw.sample(KEYS, draw.randrange(12))) for _ in range(60)]
    check_against_a_dictionary(cache_of(WORDS), steps)


def test_rows_of_every_fixed_type_survive_a_round_trip_and_the_last_one_of_a_key_wins():
    draw = random.Random(3)

    def some(value):
        return None if draw.random() < 0.2 else value

    def value():
        at = datetime(2026, 1, 1, 2, 3, 4, draw.randrange(10**6), tzinfo=UTC)
        dec = Decimal(draw.randrange(10**20)).scaleb(-18)
        return some(draw.random()), some(0.5), some(True), some(at.date()), some(at), some(dec)

    rows = {
        (some(i), some(draw.choice(["", "ß"])), draw.randbytes(i % 5)): (value(), i, some(value())) for i in range(500)
    }
    cache = cache_of(FIXED)
    cache.put(rows)
    keys = draw.sample(list(rows), 300)
    assert cache.get([*keys, (None, None, b"other")]) == [*(rows[key] for key in keys), None]
    single = cache_of(FIXED)
    single.put(iter(rows.items()))
    assert [single.get([key])[0] for key in rows] == list(rows.values())
    cache = cache_of(WORDS)
    cache.put({"gone": row(7), "other": row(8)})
    table = pa.table(
        {
            "word": ["a", "gone", "a", "b", "b"],
            "n": [1, None, 3, 4, None],
            "_txid": [1, 1, 2, 2, 3],
            "_prev": pa.array([None, {"n": 7}, {"n": 1}, None, {"n": 4}], pa.struct([("n", pa.int64())])),
            "_op": ["u", "d", "u", "u", "d"],
        }
    )
    cache.put_table(table)
    cache.put_table(table.slice(0, 0))
    assert cache.get(["a", "b", "gone", "other"]) == [row(3, 2, 1), None, None, row(8)]


def test_rows_are_compact_space_of_removed_ones_is_reused_and_a_full_cache_keeps_the_newest():
    codec = RowCodec(WORDS)
    packed = PackedRows(codec.record)
    for first in range(0, 100_000, 10_000):
        words = [f"w{i:06}" for i in range(first, first + 10_000)]
        packed.put(codec.packed(words), codec.records([(1,)] * 10_000, [1] * 10_000, [None] * 10_000))
    assert len(packed) == 100_000
    assert packed.nbytes < 80 * 100_000
    everything = [f"w{i:06}" for i in range(100_000)]
    packed.remove(codec.packed(everything[10:]))
    assert len(packed) == 10
    assert packed.nbytes < 1_000_000
    there, records = packed.get(codec.packed(everything))
    assert np.flatnonzero(there).tolist() == list(range(10))
    assert codec.of_records(records) == [row(1)] * 10
    cache = cache_of(WORDS, 400_000)
    for first in range(0, 50_000, 1_000):
        cache.put({f"w{i}": row(i) for i in range(first, first + 1_000)})
    assert not cache.complete
    assert 0 < len(cache) < 10_000
    assert cache.get(["w49999", "w0"]) == [row(49_999), None]
    cache.remove(["w49999"])
    assert cache.get(["w49999"]) == [None]
    cache.forget()
    assert len(cache) == 0


LEAST = [0, False, "", b"", date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize("least", LEAST, ids=lambda least: type(least).__name__)
def test_a_missing_key_differs_from_the_least_key(least):
    cache = cache_of(KeyedState("one", key={"k": type(least)}, value={"n": int}))
    cache.put({least: row(1)})
    assert cache.get([None, least]) == [None, row(1)]
    cache.put({None: row(2)})
    assert cache.get([None, least]) == [row(2), row(1)]
