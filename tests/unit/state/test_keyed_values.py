"""Checks of keys and values against the declaration: each mismatch is rejected by an error that names it."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from handle_cases import Bench, in_memory

from txstorm.api.state import KeyedState
from txstorm.errors import StateError

NOON = datetime(2020, 5, 1, 12, tzinfo=UTC)


class Colour(IntEnum):
    RED = 3


def stored(kind, value):
    bench = Bench(KeyedState("s", key={"k": str}, value={"v": kind}))
    new = bench.commit(1, lambda h: h.update("k", lambda _: value))
    assert bench.commit(2, lambda h: h.get("k")) == new
    return new


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, np.int32(5), 5),
        (int, Colour.RED, 3),
        (int, -(2**63), -(2**63)),
        (float, 2, 2.0),
        (float, np.float32(0.5), 0.5),
        (pa.float32(), 0.1, 0.10000000149011612),
        (bool, np.bool_(True), True),
        (str, np.str_("x"), "x"),
        (str, "a\0b", "a\0b"),
        (datetime, NOON.astimezone(timezone(timedelta(hours=5))), NOON),
        (datetime, pd.Timestamp("2020-05-01T12:00:00Z"), NOON),
        (date, date(1, 1, 1), date(1, 1, 1)),
        (Decimal, 7, Decimal(7)),
        (Decimal, Decimal("1.5"), Decimal("1.5")),
        (pa.decimal128(5, 2), Decimal("123.45"), Decimal("123.45")),
        (pa.list_(pa.int64()), (1, 2), [1, 2]),
        (pa.struct([("x", pa.int64())]), {"x": None}, {"x": None}),
    ],
)
def test_values_are_normalized(kind, value, expected):
    new = stored(kind, value)
    assert new == expected
    assert type(new) is type(expected)
    if isinstance(new, datetime):
        assert new.tzinfo is UTC
    if isinstance(new, Decimal) and kind is Decimal:
        assert new.as_tuple().exponent == -18


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "5", "expected int, got str '5'"),
        (int, 5.0, "expected int, got float 5.0"),
        (int, True, "expected int, got bool True"),
        (int, np.float64(1), "expected int, got float64"),
        (int, 2**63, "expected a value that fits int64, got 9223372036854775808"),
        (pa.int8(), 128, "expected a value that fits int8, got 128"),
        (float, "1", "expected float, got str '1'"),
        (float, True, "expected float, got bool True"),
        (float, 2**60 + 1, "expected a value that fits double, got 1152921504606846977"),
        (bool, 1, "expected bool, got int 1"),
        (str, b"x", "expected str, got bytes b'x'"),
        (str, "\ud800", "expected a value that fits string"),
        (bytes, "x", "expected bytes, got str 'x'"),
        (datetime, datetime(2020, 1, 1), "expected a datetime with a time zone, got the naive"),  # noqa: DTZ001
        (datetime, date(2020, 1, 1), "expected datetime, got date"),
        (date, NOON, "expected date, got datetime"),
        (Decimal, 0.5, "expected Decimal, got float 0.5"),
        (Decimal, Decimal("1e-19"), "expected a value that fits decimal128"),
        (Decimal, Decimal("1e21"), "expected a value that fits decimal128"),
        (Decimal, Decimal("NaN"), "expected a value that fits decimal128"),
        (pa.list_(pa.int64()), [1, "x"], "expected int, got str 'x'"),
        (pa.list_(pa.int64()), 1, "expected list, got int 1"),
        (pa.struct([("x", pa.int64())]), {"y": 1}, r"expected a dict with \['x'\], got one with \['y'\]"),
        (pa.struct([("x", pa.list_(pa.bool_()))]), {"x": [1]}, "expected bool, got int 1"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_key_and_column(kind, value, message):
    bench = Bench(KeyedState("s", key={"k": str}, value={"v": kind}))
    handle = bench.open(4)
    with pytest.raises(
        StateError, match=r"state 's', value column 'v', key 'bad' \(counter\[0\], txid 4\): " + message
    ):
        handle.put_many({"good": None, "bad": value})
    bench.group.end_txid(4)
    assert bench.group.changes(4, 4) is None


@pytest.mark.parametrize(
    ("kind", "key", "message"),
    [
        (str, 1, "expected str, got int 1"),
        (int, True, "expected int, got bool True"),
        (int, 1.0, "expected int, got float 1.0"),
        (int, 2**63, "expected a value that fits int64"),
        (bool, 1, "expected bool, got int 1"),
        (datetime, datetime(2020, 1, 1), "naive"),  # noqa: DTZ001
        (Decimal, 1.5, "expected Decimal, got float 1.5"),
    ],
)
def test_a_key_of_another_type_is_rejected_by_reads_too(kind, key, message):
    handle = Bench(KeyedState("s", key={"k": kind}, value={"v": int})).open(1)
    for use in (handle.get, handle.remove, handle.previous, lambda k: handle.put(k, 1), lambda k: handle.get_many([k])):
        with pytest.raises(StateError, match="state 's', key column 'k', key .*" + message):
            use(key)


def test_equal_keys_of_different_types_are_one_key_and_without_columns_it_is_the_empty_tuple():
    bench = Bench(KeyedState("s", key={"n": int, "at": datetime, "d": Decimal}, value={"v": int}))
    key = (1, NOON, Decimal("1.50"))
    other = (np.int64(1), NOON.astimezone(timezone(timedelta(hours=-3))), Decimal("1.5"))
    bench.commit(1, lambda h: h.put(key, 1))
    assert bench.commit(2, lambda h: h.update(other, lambda old: old + 1)) == 2
    assert len(in_memory(bench.index)) == 1
    handle = Bench(KeyedState("s", key={}, value={"v": int})).open(1)
    handle.put((), 1)
    assert handle.get(()) == 1
    with pytest.raises(StateError, match=r"a tuple of 0 \[\]"):
        handle.get("x")


def test_keys_and_values_of_another_shape_are_refused_in_short_messages():
    handle = Bench(KeyedState("s", key={"a": str, "b": int}, value={"v": int})).open(1)
    for key in ("a", ("a",), ("a", 1, 2), None):
        with pytest.raises(StateError, match=r"state 's'.*expected a key that is a tuple of 2 \['a', 'b'\]"):
            handle.get(key)
    handle = Bench(KeyedState("s", key={"k": str}, value={"n": int, "m": int})).open(1)
    for value in ({"n": 1}, {"n": 1, "m": 2, "o": 3}, {"n": 1, "o": 3}, 5, None, (1, 2)):
        with pytest.raises(StateError, match=r"state 's', key 'k' .*expected a dict with \['n', 'm'\]"):
            handle.put("k", value)
    handle = Bench(KeyedState("s", key={"k": str}, value={"n": int})).open(1)
    with pytest.raises(StateError) as caught:
        handle.put("k" * 10_000, "v" * 10_000)
    assert len(str(caught.value)) < 500
