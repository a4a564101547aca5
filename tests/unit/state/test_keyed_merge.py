"""Keyed states: columnar updates, and checks of keys and values against the declaration, which name each mismatch."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from handle_cases import Bench, in_memory
from seeded import seeded

from txstorm.api.state import KeyedState, arrow_type
from txstorm.errors import StateError

MANY = {"total": int, "rows": int, "low": float, "high": str, "latest": str}
HOW = {"total": "sum", "rows": "count", "low": "min", "high": "max", "latest": "last"}
STATE = KeyedState("stats", key={"k": str, "j": int}, value=MANY)


def keyed(**value):
    """Return a bench of a state with these value columns, and one key column of text."""
    return Bench(KeyedState("s", key={"k": str}, value=value))


INTS = [None, *range(-9, 9)]
FLOATS = [None, *(n / 2 for n in range(9))]


def batch(rows):
    names = ["k", "j", "total", "low", "high", "latest"]
    kinds = [pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.string()]
    columns = zip(*rows, strict=True)
    return pa.record_batch([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], names=names)


def test_every_aggregate_also_of_own_writes_is_the_same_for_a_batch_and_row_by_row():
    bench = Bench(STATE)
    first = batch([("b", 1, 5, 0.5, "x", "1"), ("a", None, 1, 2.0, "z", "2"), ("b", 1, 6, -1.0, "y", None)])
    new = bench.commit(1, lambda h: h.merge(first, HOW))
    assert list(new.items()) == [
        (("b", 1), {"total": 11, "rows": 2, "low": -1.0, "high": "y", "latest": None}),
        (("a", None), {"total": 1, "rows": 1, "low": 2.0, "high": "z", "latest": "2"}),
    ]
    second = batch([("b", 1, None, None, None, "9"), ("b", 1, 1, 7.0, "a", "8")])
    assert bench.commit(2, lambda h: h.merge(pa.Table.from_batches([second]), HOW)) == {
        ("b", 1): {"total": 12, "rows": 4, "low": -1.0, "high": "y", "latest": "8"}
    }
    bench = keyed(n=int)
    rows = pa.table({"k": ["a", "a", "b"], "n": [1, 2, 3]})

    def work(handle):
        handle.put("a", 10)
        handle.merge(rows, {"n": "sum"})
        return handle.merge(rows, {"n": "sum"})

    assert bench.commit(1, work) == {"a": 16, "b": 6}
    assert bench.commit(2, lambda h: h.merge(rows.select(["k"]), {"n": "count"})) == {"a": 18, "b": 7}
    draw = seeded()
    by_column, by_row = Bench(STATE), Bench(STATE)
    for txid in range(1, 6):
        rows = [
            tuple(draw.choice(choices) for choices in ("abc", [None, 1, 2], INTS, FLOATS, [None, "ä", "z", ""], "pq"))
            for _ in range(draw.randrange(30))
        ]
        cut = draw.randrange(len(rows) + 1)
        for handle in [by_column.open(txid)]:
            for part in (rows[:cut], rows[cut:]):
                handle.merge(batch(part) if part else batch([(None,) * 6]).slice(0, 0), HOW)
        by_column.group.end_txid(txid)
        by_row.commit(txid, lambda h, rows=rows: [fold(h, row) for row in rows], publish=False)
        assert by_column.rows(1, txid) == by_row.rows(1, txid)


def fold(handle, row):
    k, j, total, low, high, latest = row

    def function(old):
        def known(name, *more):
            return [x for x in ((old or {}).get(name), *more) if x is not None]

        return {
            "total": sum(known("total", total)) if known("total", total) else None,
            "rows": sum(known("rows", 1)),
            "low": min(known("low", low), default=None),
            "high": max(known("high", high), default=None),
            "latest": latest,
        }

    handle.update((k, j), function)


@pytest.mark.parametrize("rows", [1, 7, 3_000])
def test_whole_numbers_are_folded_by_keys_of_several_columns(rows):
    draw = seeded()
    state = KeyedState("whole", key={"k": str, "j": int}, value={"s": int, "least": int, "most": int})
    keys = [(draw.choice(["a", "b", None]), draw.choice([0, 1, -5, None, 1 << 40])) for _ in range(rows)]
    numbers = [draw.randrange(-(1 << 40), 1 << 40) for _ in range(rows)]
    columns = {"k": [k for k, _ in keys], "j": [j for _, j in keys]}
    given = pa.table({**columns, "s": numbers, "least": numbers, "most": numbers})
    new = Bench(state).commit(1, lambda h: h.merge(given, {"s": "sum", "least": "min", "most": "max"}))
    groups = {key: [n for other, n in zip(keys, numbers, strict=True) if other == key] for key in keys}
    assert list(new.items()) == [
        (key, {"s": sum(found), "least": min(found), "most": max(found)}) for key, found in groups.items()
    ]


def test_sums_are_exact_or_rejected_and_minima_ignore_nan():
    big = 2**62
    fine = pa.table({"k": ["a"] * 3 + ["b"], "n": [big, big, -big, None]})
    assert keyed(n=int).commit(1, lambda h: h.merge(fine, {"n": "sum"})) == {"a": big, "b": None}
    with pytest.raises(StateError, match=r"key 'a'.*expected a value that fits int64, got 9223372036854775808"):
        keyed(n=int).open(1).merge(pa.table({"k": ["a", "a"], "n": [big, big]}), {"n": "sum"})
    bench = keyed(n=Decimal)
    large, small = Decimal(10) ** 19, Decimal("0.000000000000000001")
    rows = pa.table({"k": ["a"] * 3, "n": pa.array([large, small, large], pa.decimal128(38, 18))})
    for txid, part, last_digit in ((1, rows, "1"), (2, rows.slice(1, 1), "2")):
        new = bench.commit(txid, lambda h, part=part: h.merge(part, {"n": "sum"}))
        assert new == {"a": Decimal(f"20000000000000000000.00000000000000000{last_digit}")}
    bench = keyed(low=float, high=float)
    how = {"low": "min", "high": "max"}
    nan = float("nan")
    for txid, value in enumerate([nan, 1.0, nan, 2.0], start=1):
        new = bench.commit(txid, lambda h, v=value: h.merge(pa.table({"k": ["a"], "low": [v], "high": [v]}), how))
    assert new == {"a": {"low": 1.0, "high": 2.0}}


def test_states_without_key_or_with_names_that_look_like_aggregates():
    bench = Bench(KeyedState("total", key={}, value={"n": int}))
    assert bench.commit(1, lambda h: h.merge(pa.table({"n": [1, 2, 3]}), {"n": "sum"})) == {(): 6}
    assert bench.commit(2, lambda h: h.merge(pa.table({"n": pa.array([], pa.int64())}), {"n": "sum"})) == {}
    assert bench.commit(3, lambda h: h.merge(pa.table({"x": [1, 2]}), {"n": "count"})) == {(): 8}
    bench = Bench(KeyedState("s", key={"row": str, "all": str}, value={"row_min": int, "v0": int}))
    rows = pa.table({"row": ["a", "a"], "all": ["b", "b"], "row_min": [1, 2], "v0": [3, 4]})
    found = bench.commit(1, lambda h: h.merge(rows, {"row_min": "sum", "v0": "min"}))
    assert found == {("a", "b"): {"row_min": 3, "v0": 3}}


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (datetime, [datetime(2020, 1, 1, tzinfo=UTC) + timedelta(days=d) for d in (1, 3, 2)], 3),
        (Decimal, [Decimal(1), Decimal(3), Decimal(2)], 3),
        (bool, [False, True, False], True),
        (bytes, [b"a", b"c", b"b"], b"c"),
    ],
)
def test_maxima_and_last_of_other_types(kind, values, expected):
    bench = Bench(KeyedState("s", key={"k": kind}, value={"top": kind, "end": kind}))
    column = pa.array(values, arrow_type(kind))
    new = bench.commit(1, lambda h: h.merge(pa.table({"k": column.take([0, 0, 0]), "top": column, "end": column}),
                                            {"top": "max", "end": "last"}))  # fmt: skip
    assert new == {values[0]: {"top": max(values), "end": values[-1]}}
    assert max(values) == expected or kind is datetime


def test_columns_are_converted_when_nothing_is_lost_but_no_times_without_a_zone():
    bench = keyed(x=float)
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    rows = pa.table({"x": pa.array([1, 2, 3], pa.int8()), "extra": [0, 0, 0], "k": words})
    assert bench.commit(1, lambda h: h.merge(rows, {"x": "sum"})) == {"a": 4.0, "b": 2.0}
    bench = keyed(at=datetime)
    rows = pa.table({"k": ["a"], "at": pa.array([0], pa.timestamp("us"))})
    with pytest.raises(StateError, match=r"expected timestamp\[us, UTC\], got timestamp\[us\]; cast the column"):
        bench.open(1).merge(rows, {"at": "max"})


@pytest.mark.parametrize(
    ("columns", "how", "message"),
    [
        ({"k": ["a"]}, {"n": "sum"}, "merge: expected one column 'n', got"),
        ({"n": [1]}, {"n": "sum"}, "merge: expected one column 'k', got"),
        ({"k": ["a"], "n": [1.5]}, {"n": "sum"}, "value column 'n'.*expected int64, got double"),
        ({"k": [1], "n": [1]}, {"n": "sum"}, "key column 'k'.*expected string, got int64"),
        ({"k": ["a"], "n": [True]}, {"n": "sum"}, "value column 'n'.*expected int64, got bool"),
        ({"k": ["a"], "n": pa.array([2**63], pa.uint64())}, {"n": "sum"}, "column 'n'.*expected values that fit int64, got "),
        ({"k": ["a"], "n": [1]}, {}, r"merge: expected a way for each of the value columns \['n'\], got \[\]"),
        ({"k": ["a"], "n": [1]}, {"n": "sum", "m": "sum"}, r"got \['m', 'n'\]"),
        ({"k": ["a"], "n": [1]}, {"n": "mean"}, "'n': expected one of sum, count, min, max, last, got 'mean'"),
    ],
)  # fmt: skip
def test_a_batch_that_does_not_match_the_declaration_is_rejected(columns, how, message):
    bench = keyed(n=int)
    with pytest.raises(StateError, match=message):
        bench.open(1).merge(pa.table(columns), how)


@pytest.mark.parametrize(
    ("kind", "way"), [(str, "sum"), (bool, "sum"), (float, "count"), (pa.list_(pa.int64()), "max"), (datetime, "sum")]
)
def test_aggregates_not_defined_for_a_type_are_rejected(kind, way):
    with pytest.raises(StateError, match=f"values have no {way}"):
        keyed(n=kind).open(1).merge(pa.table({"k": ["a"]}), {"n": way})


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
