"""Key hashes: equal values have equal hashes in every representation and on every path; other hashes are unchanged."""

import base64
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm import keys
from txstorm.engine.arrow import batch_of_rows, text_of
from txstorm.engine.task.routing import row_hashes
from txstorm.errors import StateError
from txstorm.state.external.map_rows import key_text

SAFE_TIMES = {"min_value": datetime(1800, 1, 1), "max_value": datetime(2200, 1, 1)}  # noqa: DTZ001 - zones are drawn
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [Decimal(text) for text in ("-0", "0.00", "-0E+7", "1.50", "100", "1E+2", "1E-9", "1E+600", f"1.{'0' * 40}1")]
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    | st.binary(max_size=5) | st.dates() | st.datetimes(timezones=ZONES, **SAFE_TIMES) | DECIMALS
)  # fmt: skip
HASHABLE = st.recursive(
    SCALARS, lambda parts: st.lists(parts, max_size=3).map(tuple) | st.frozensets(parts, max_size=3), max_leaves=5
)
VALUES = st.recursive(
    HASHABLE,
    lambda parts: (
        st.lists(parts, max_size=3) | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(HASHABLE, parts, max_size=3) | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


def in_another_representation(value: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """Draw a value that is equal to `value` and of the same types, but possibly in another representation."""
    match value:
        case float() if value == 0:
            return draw(st.sampled_from([0.0, -0.0]))
        case Decimal() if value.is_finite():
            sign, digits, exponent = value.as_tuple()
            more = draw(st.integers(0, 3))
            sign = draw(st.sampled_from([0, 1])) if not value else sign
            assert isinstance(exponent, int)
            return Decimal((sign, digits + (0,) * more, exponent - more))
        case datetime():
            return value.astimezone(draw(ZONES))
        case tuple() | list():
            return type(value)(in_another_representation(part, draw) for part in value)
        case set() | frozenset():
            return type(value)(in_another_representation(part, draw) for part in draw(st.permutations(list(value))))
        case dict():
            items = draw(st.permutations(list(value.items())))
            return {in_another_representation(key, draw): in_another_representation(part, draw) for key, part in items}
        case _:
            return value


def hashes(value: Any) -> dict[str, int]:
    """Return the hashes of `value`: alone, in a column of mixed types, and (if possible) in a typed Arrow column."""
    found = {
        "alone": row_hashes(batch_of_rows([(value,)], ["x"]), [0])[0],
        "among others": row_hashes(batch_of_rows([(value,), ("other",), (1,)], ["x"]), [0])[0],
    }
    if arrow := as_arrow(value):
        found["as a column"] = row_hashes(arrow, [0])[0]
    return {way: int(one) for way, one in found.items()}


def as_arrow(value: Any) -> pa.RecordBatch | None:
    """Convert `value` to a one-row record batch, as a bolt could emit; None if Arrow cannot represent it exactly."""
    try:
        column = pa.array([value])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return pa.record_batch({"x": column}) if typed(column.to_pylist()[0]) == typed(value) else None


def typed(value: Any) -> Any:
    """Return `value` together with its types, so that ``1`` and ``True`` differ."""
    match value:
        case tuple() | list():
            return type(value), [typed(part) for part in value]
        case set() | frozenset():
            return type(value), frozenset(map(repr, map(typed, value)))
        case dict():
            return dict, {repr(typed(key)): typed(part) for key, part in value.items()}
        case _:
            return type(value), value


@given(data=st.data(), value=VALUES)
def test_equal_values_hash_alike(data: st.DataObject, value: Any) -> None:
    other = in_another_representation(value, data.draw)
    assert other == value
    assert len({*hashes(value).values(), *hashes(other).values()}) == 1, (hashes(value), hashes(other), other)


@given(value=st.lists(HASHABLE, max_size=3).map(tuple), data=st.data())
def test_equal_state_keys_have_one_canonical_form(data: st.DataObject, value: tuple[Any, ...]) -> None:
    other = in_another_representation(value, data.draw)
    try:
        expected = keys.canonical(value)
    except StateError:
        return
    assert keys.canonical(other) == expected
    assert (keys.key_group(other), keys.hash_values(other)) == (keys.key_group(value), keys.hash_values(value))
    if not any(isinstance(part, float) for part in value):
        assert key_text(other, "map") == key_text(value, "map")


KNOWN = {
    "decimal zeros": [Decimal("0"), Decimal("-0"), Decimal("-0.00"), Decimal("0E+5")],
    "decimals in a tuple": [(Decimal("1.5"),), (Decimal("1.50"),), (Decimal("15E-1"),)],
    "zeros in a tuple": [(0.0,), (-0.0,)],
    "zeros in a set": [{0.0}, {-0.0}],
    "dicts": [{"a": 1, "b": [Decimal("1.0")]}, {"b": [Decimal(1)], "a": 1}],
    "dicts by odd keys": [{(1, -0.0): 1, None: 2, b"x": 3}, {b"x": 3, None: 2, (1, 0.0): 1}],
    "large decimals": [Decimal("1E+600"), Decimal("10E+599")],
    "larger decimals": [(Decimal("1E+999999"),), (Decimal("10E+999998"),)],
    "list": [[1, 2]],
    "dict": [{"a": 1}],
    "tuple": [(1, "x")],
    "large": [2**70],
    "set": [{1, 2}],
    "decimal": [Decimal("1.5")],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_representations_of_one_value_hash_alike(name: str) -> None:
    assert len({one for value in KNOWN[name] for one in hashes(value).values()}) == 1


def test_row_hashes_equal_key_hashes_and_ignore_the_order_of_struct_fields_and_time_units() -> None:
    rows = [("a", 1), (None, 2), ("c", None)]
    assert row_hashes(batch_of_rows(rows, ["s", "i"]), [0, 1]).tolist() == [keys.hash_values(row) for row in rows]
    mixed = ["a", 1, None, date(2026, 1, 1)]
    found = row_hashes(batch_of_rows([(value,) for value in mixed], ["x"]), [0])
    assert found.tolist() == [keys.hash_values([value]) for value in mixed]
    times = pa.record_batch({"x": pa.array([time(1), time(2), time(1)])})
    first, second, third = row_hashes(times, [0])
    assert first == third != second
    large = pa.record_batch({"x": pa.array([2**63, 1], pa.uint64())})
    assert row_hashes(large, [0])[1] == keys.hash_values([1])
    first = pa.record_batch({"x": [{"a": -0.0, "b": 1}]})
    second = pa.record_batch({"x": pa.array([{"b": 1, "a": 0.0}])})
    assert row_hashes(first, [0]).tolist() == row_hashes(second, [0]).tolist()
    # Durations cannot be emitted in tuples; their only text representation is Python's.
    times = [pa.array([{"d": timedelta(1), "f": -0.0}]), pa.array([{"f": 0.0, "d": timedelta(1)}])]
    assert len({int(row_hashes(pa.record_batch({"x": one}), [0])[0]) for one in times}) == 1
    noon = datetime(2026, 2, 28, 12, 0, 0, 5, UTC)
    fine = pa.array([pd.Timestamp(noon).value, pd.Timestamp(noon).value + 1], pa.timestamp("ns", tz="Europe/Vienna"))
    whole, finer = row_hashes(pa.record_batch({"x": fine}), [0])
    assert whole == row_hashes(batch_of_rows([(noon,)], ["x"]), [0])[0] == keys.hash_values([noon])
    assert whole != finer


# Hashes of earlier versions; they still apply to values in canonical representation.


def earlier_decimal_text(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@given(DECIMALS.filter(lambda value: bool(value)) | st.sampled_from([Decimal(0), Decimal("NaN"), Decimal("-Infinity")]))
def test_text_of_decimals_of_up_to_400_digits_except_negative_zero_is_unchanged(value: Decimal) -> None:
    earlier = earlier_decimal_text(value)
    if sum(map(str.isdecimal, earlier)) <= 400:
        assert keys.decimal_text(value) == earlier
    else:
        assert len(keys.decimal_text(value)) < len(str(value)) + 12
    assert Decimal(keys.decimal_text(value)) == value or value.is_nan()


def earlier_text(value: Any) -> Any:
    """Return the tagged JSON of `value` that earlier versions of txstorm hashed."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"f": repr(value)}
        case tuple():
            return {"t": [earlier_text(part) for part in value]}
        case dict():
            return {"d": [[earlier_text(key), earlier_text(part)] for key, part in value.items()]}
        case bytes():
            return {"b": base64.b64encode(value).decode()}
        case datetime():
            return {"T": (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)}
        case date():
            return {"D": value.isoformat()}
        case Decimal():
            return {"n": str(value)}
        case frozenset() | set():
            tag = "S" if isinstance(value, frozenset) else "s"
            return {tag: sorted((earlier_text(part) for part in value), key=json.dumps)}
        case list():
            return [earlier_text(part) for part in value]


def is_canonical(value: Any) -> bool:
    """Return whether every part of `value` is in its canonical representation."""
    match value:
        case float():
            return math.copysign(1, value) > 0 or value != 0
        case Decimal():
            return str(value) == str(keys.plain_decimal(value))
        case tuple() | list() | set() | frozenset():
            return all(map(is_canonical, value))
        case dict():
            texts = [text_of(key, "") for key in value]
            return texts == sorted(texts) and all(map(is_canonical, [*value, *value.values()]))
        case _:
            return True


@given(VALUES.filter(lambda value: isinstance(value, tuple | list | dict | set | frozenset)).filter(is_canonical))
def test_hashes_of_canonical_values_are_unchanged(value: Any) -> None:
    before = keys.hash_values([json.dumps(earlier_text(value), separators=(",", ":"))])
    assert row_hashes(batch_of_rows([(value,)], ["x"]), [0])[0] == before


GOLDEN = {
    "tuple": ((1, "two", None, 0.5, Decimal("1.5"), Decimal("100"), Decimal("1E-9")), 6694378079655417442),
    "dict": ({"a": 1, "b": [1, 2]}, 8833160666470756404),
    "set": ({1, 2}, 17059229098300378445),
    "large": (2**70, 2686019308720732645),
    "decimal": (Decimal("1.50"), 17715334259646565221),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_hashes(name: str) -> None:
    value, expected = GOLDEN[name]
    assert row_hashes(batch_of_rows([(value,)], ["x"]), [0])[0] == expected


def test_texts_of_map_keys_are_exact() -> None:
    one, other = (Decimal(f"1.{'0' * 40}{digit}") for digit in "12")
    assert key_text(one, "map") != key_text(other, "map")
    assert key_text(Decimal("1.50"), "map") == '{"decimal":"1.5"}'
    assert key_text(Decimal("-0.0"), "map") == key_text(Decimal(0), "map") == '{"decimal":"0"}'
