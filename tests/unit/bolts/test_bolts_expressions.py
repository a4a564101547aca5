"""Expressions: their results against a table and against plain Python, their types, and messages with positions."""

import operator
import pickle
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from seeded import seeded

from txstorm.bolts import parsed
from txstorm.errors import InputError
from txstorm.misfits import Misfit

COLUMNS = {
    "a": pa.array([1, None, -3, 2], pa.int64()),
    "z": pa.array([0, 1, 2, 1], pa.uint8()),
    "f": pa.array([0.5, 2.5, None, -0.5], pa.float32()),
    "d": pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal(2)], pa.decimal128(10, 2)),
    "s": pa.array([" Ab ", None, "ß%x", "Ab"], pa.large_string()),
    "c": pa.array(["x", "y", None, "x"]).dictionary_encode(),
    "p": pa.array([True, False, None, True]),
    "n": pa.nulls(4),
    "t": pa.array([-999_995, None, 1_709_164_800_000_000, None], pa.timestamp("us", tz="UTC")),
    "end": pa.array([1, 2, 3, 4]),
    "amount": pa.array([1, 2, 3, 4]),
    "day": pa.array([date(2026, 1, 1)] * 4),
    "two words": pa.array([[1], None, [], [2]]),
}
BATCH = pa.record_batch(COLUMNS)
_ = None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 0 and p", [True, False, False, True]), ("p AND Null", [_, False, _, _]),
        ("p or null", [True, _, _, True]), ("not p", [False, True, _, False]),
        ("not a = 1 or p", [True, _, True, True]), ("n = 1", [_] * 4),
        ("a is null or `two words` is not null", [True, True, True, True]), ("a in (1, 2, null)", [True, _, _, True]),
        ("a not in (1, -3)", [False, _, False, True]), ("c in ('x', s)", [True, _, _, True]),
        ("a between 0 and 1.5", [True, _, False, False]), ("a not between z and 2", [False, _, True, False]),
        ("s like '%b_' or s like 'ß\\%%'", [True, _, True, False]), ('s not like "Ab"', [True, _, True, False]),
        ("c = 'x' or c == \"it's\" or c = 'it''s'", [True, False, _, True]), ("f = 0.5", [True, False, _, False]),
        ("a * 9007199254740993 = 9007199254740992e0 / a", [False, _, False, False]), ("9223372036854775808 > a", [True, _, True, True]),
        ("d >= 1.499999999999999999", [True, _, False, True]), ("end + `end`", [2, 4, 6, 8]),
        ("-a - -1 * 2", [1, _, 5, 0]), ("end / 2", [0.5, 1.0, 1.5, 2.0]),
        ("d * 1.19", [Decimal("1.7850"), _, Decimal("-2.6775"), Decimal("2.38")]),
        ("d / 3", [Decimal("0.5"), _, Decimal("-0.75"), Decimal("0.666666666666666667")]),
        ("2 - 0.1 * a", [Decimal("1.9"), _, Decimal("2.3"), Decimal("1.8")]), ("d + f", [2.0, _, _, 1.5]),
        ("case when z > 1 then a / (z - 1) when z = 1 then a / z else 0 end", [0.0, _, -3.0, 2.0]),
        ("case when p then 'yes' end", ["yes", _, _, "yes"]), ("z = 0 or a / z > 1", [True, _, False, True]),
        ("z <> 0 and a / z > 1", [False, _, False, True]), ("coalesce(n, a, 1 / (2 - z))", [1.0, 1.0, -3.0, 2.0]),
        ("coalesce(a, d, 0)", [1, 0, -3, 2]), ("lower(trim(s))", ["ab", _, "ß%x", "ab"]),
        ("upper(s)", [" AB ", _, "SS%X", "AB"]), ("length(s)", [4, _, 3, 2]),
        ("substring(s, 2, 1)", ["A", _, "%", "b"]), ("substring(s, end)", [" Ab ", _, "x", ""]),
        ("concat(s, '-', c)", [" Ab -x", _, _, "Ab-x"]),
        ("starts_with(s, 'A') or ends_with(s, 'x') or contains(s, 'b ')", [True, _, True, True]),
        ("replace(replace(s, 'b', 'cc'), '', 'y')", [" Acc ", _, "ß%x", "Acc"]),
        ("abs(a) + floor(f) + ceil(d)", [3, _, _, 3]), ("round(f)", [1.0, 3.0, _, -1.0]),
        ("round(d, 1)", [Decimal("1.5"), _, Decimal("-2.3"), Decimal("2.0")]),
        ("1000000.0 / 3", [Decimal("333333.333333333333333333")] * 4),
        # Arrow divides decimals wrongly if the quotient is close to 2**63 or 2**64.
        ("9223372036.854775807999 * 0.000000001", [Decimal("9.223372036854775808")] * 4),
        ("round(-18446744073709.551615999999, 6)", [Decimal("-18446744073709.551616")] * 4),
        ("round(2.675e0, 2) + round(1250, -2)", [1302.68] * 4),
        ("year(t) * 10000 + month(t) * 100 + day(t)", [19691231, _, 20240229, _]),
        ("hour(t) * 100 + minute(t)", [2359, _, 0, _]), ("date(t)", [date(1969, 12, 31), _, date(2024, 2, 29), _]),
        ("t < timestamp '1970-01-01T01:00:00+01:00' and date(t) = DATE '1969-12-31'", [True, _, False, _]),
        ("cast(t as str)", ["1969-12-31T23:59:59.000005Z", _, "2024-02-29T00:00:00Z", _]),
        ("cast(cast(cast(t as str) as datetime) as date) = date(t)", [True, _, True, _]),
        ("cast(cast(d as str) as float)", [1.5, _, -2.25, 2.0]),
        ("cast(d as decimal(3, 1))", [Decimal("1.5"), _, Decimal("-2.3"), Decimal(2)]),
        ("cast(f as decimal) + cast('1e2' as decimal(5))", [Decimal("100.5"), Decimal("102.5"), _, Decimal("99.5")]),
        ("cast(' 12 ' as int) + cast(2.9e0 as int) + cast(true as int)", [15] * 4),
        ("cast('TRUE' as bool) and cast(a as bool)", [True, _, True, True]),
        ("cast(f as str)", ["0.5", "2.5", _, "-0.5"]),
    ],
)  # fmt: skip
def test_results_and_their_types_with_every_cut_into_batches(text, expected):
    expression = pickle.loads(pickle.dumps(parsed(text)))
    assert expression == parsed(text)
    whole = expression.column(BATCH)
    assert whole.to_pylist() == expected
    assert whole.type == expression.type_in({field.name: field.type for field in BATCH.schema})
    assert expression.known_type in (None, whole.type)
    table = pa.Table.from_batches([BATCH.slice(0, 1), BATCH.slice(1)])
    assert expression.column(table) == whole
    assert [value for row in range(4) for value in expression.column(BATCH.slice(row, 1)).to_pylist()] == expected


@pytest.mark.parametrize(
    ("text", "message", "row"),
    [
        ("p is null and 1 / (z - 2) > 0", "division of 1.0 by zero", 2),
        ("a / (z - 1)", "division of 2.0 by zero", 3), ("1.5 / a + d / z", "division of", 0),
        ("a + 9223372036854775807", "9223372036854775808", 0), ("z * 5000000000000000000", "int64", 2),
        ("d * 10000000000000000000 * 10000000000000000000", "decimal128", 0),
        ("a is null or cast(s as int) = 1", "expected a number, got 'Ab'", 0),
        ("cast(trim(s) as bool)", "expected true or false", 0),
        ("cast(d as decimal(2, 1)) * cast(d * 10 as decimal(2, 1))", "decimal128", 0),
        ("cast(cast(date(t) as str) as datetime) = t", "expected a time such as", 0),
        ("floor(f / 1e-300 * 1e300)", "floor", 0), ("substring(s, a)", "at least 1", 2),
        ("a > ", "column 4: expected a value, such as a field, a number or a text in quotes, got the end, in a > ", None),
        ("a > 1 and\n  (b > 2", r"line 2, column 9: expected '\)', got the end", None),
        ("s = 'abc", "column 5: expected a closing ', got the end", None),
        ("a b", "column 3: expected an operator or the end, got 'b'", None),
        ("a $ b", r"column 3: expected an operator or the end, got '\$'", None),
        ("a is nul", "column 6: expected not or null, got 'nul'", None),
        ("1 + lowr(s)", r"column 5: there is no function 'lowr' \(did you mean 'lower'", None),
        ("substring(s)", "column 1: substring: expected 2 or 3 arguments, got 1", None),
        ("cast(a as strr)", r"expected one of the types str, .*got strr \(did you mean 'str'", None),
        ("cast(a as decimal(50, 1))", "at most 38 digits", None),
        ("day = date '2026-13-01'", "column 7: month must be", None),
        ("t > timestamp '2026-01-01T00:00'", "column 5: expected a time with a time zone such as", None),
        ("1.2345678901234567890", "at most 18 of them after the point", None),
        ("", "column 1: expected a value", None), ("(" * 101 + "a" + ")" * 101, "nested at most 100 deep", None),
        ("not " * 2000 + "a", "nested at most 100 deep", None),
        ("(a" + " + a" * 60 + ")" + " + a" * 60, "nested at most 100 deep", None),
        ("a" + " " * 10_000, "at most 10,000 characters, got 10,001", None),
        ("amont > 1", r"there is no field 'amont' \(did you mean 'amount'\?\); there are 'a', 'z'", None),
        ("amount = s", "amount = s: expected values of one type for =.*got amount of type int and s of type text", None),
        ("day > '2026-01-01'", "write a constant as date '…'", None),
        ("amount or true", "expected a condition.*got amount of type int", None),
        ("s + 'x'", r"texts are joined by concat\(…\)", None),
        ("case when true then 1 else s end", "expected results of one type", None),
        ("hour(day)", "hour.*: expected a datetime", None),
        ("round(1.5, amount)", "expected a constant from -38 to 38", None),
        ("cast(amount as date)", "one of the types text, datetime, got amount of type int", None),
    ],
)  # fmt: skip
def test_texts_fields_types_and_rows_without_a_result(text, message, row):
    """The message says where; a row without a result is named, so that it can be left out alone."""
    with pytest.raises(InputError if row is None else Misfit, match=message) as refused:
        parsed(text).column(BATCH)
    assert row is None or refused.value.row == row


def test_expressions_as_deep_and_long_as_allowed_are_evaluated():
    deep = ("(" * 98 + "a" + ")" * 98, "1.5 * (" * 49 + "a" + ")" * 49)
    for text in (*deep, "a" + " + a" * 98, "a = 2 or " * 1100 + "p"):
        assert len(parsed(text).column(BATCH)) == 4
    case = "case when a / 1 > 0 then " * 96 + "a" + " end" * 96
    assert parsed(case).column(BATCH).to_pylist() == [1, None, None, 2]


ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
COMPARED = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
DRAWN = {
    "i": (-1, pa.int64(), [None, 0, 1, -7, 2**62, -(2**63)]),
    "j": (-1, pa.int8(), [None, 0, 3, -3]),
    "d": (2, pa.decimal128(10, 2), [None, 0, 150, -225, 10**9]),
    "e": (18, pa.decimal256(40, 18), [None, 0, 1, 10**18, 5 * 10**17, -(10**37)]),
}
"""Field → digits after the point (-1: an int), type, and values without their point."""


class Fault(Exception):
    """There is no result for the row."""


def as_kind(value, kind):
    """Round a fraction to the digits of its type; `Fault` if it is out of range."""
    if not (-(1 << 63) <= value < 1 << 63 if kind < 0 else abs(value * 10**kind) < 10**38):
        raise Fault
    return value if kind < 0 else Fraction(round(value * 10**kind), 10**kind)


def lifted(function, one, other, kind=None):
    """Return a function of a row: that of two others, or None if one of them is."""

    def run(row):
        pair = [one(row), other(row)]
        if None in pair:
            return None
        try:
            return function(*pair) if kind is None else as_kind(function(*pair), kind)
        except ZeroDivisionError:
            raise Fault from None

    return run


def number(draw, depth):
    """Draw a number: its text, its digits after the point, and its value for a row."""
    if depth == 0 and draw.random() < 0.3:
        value, places = draw.randrange(20), draw.randrange(3)
        return f"{Decimal(value).scaleb(-places):f}", places or -1, lambda row: Fraction(value, 10**places)
    if depth == 0:
        name = draw.choice(list(DRAWN))
        return name, DRAWN[name][0], operator.itemgetter(name)
    (text, kind, one), (more, like, other) = number(draw, depth - 1), number(draw, draw.randrange(depth))
    most = max(kind, like)
    if draw.random() < 0.3:
        when, is_true = condition(draw, depth - 1)

        def case(row):
            value = one(row) if is_true(row) else other(row)
            return None if value is None else as_kind(value, most)

        return f"case when {when} then {text} else {more} end", most, case
    symbol = draw.choice("+-*/" if most >= 0 else "+-*")
    if most >= 0:
        most = min(18, {"*": max(kind, 0) + max(like, 0), "/": 18}.get(symbol, most))
    return f"({text} {symbol} {more})", most, lifted(ARITHMETIC[symbol], one, other, most)


def condition(draw, depth):
    """Draw a condition: its text, and its value for a row."""
    if depth == 0 or draw.random() < 0.5:
        (text, _, one), (more, _, other) = number(draw, depth), number(draw, depth)
        symbol = draw.choice(list(COMPARED))
        return f"{text} {symbol} {more}", lifted(getattr(operator, COMPARED[symbol]), one, other)
    (text, one), (more, other) = condition(draw, depth - 1), condition(draw, depth - 1)
    word, decides = draw.choice([("and", False), ("or", True)])

    def joined(row):
        if (first := one(row)) is decides or (second := other(row)) is decides:
            return decides
        return None if None in (first, second) else not decides

    return f"({text} {word} {more})", joined


def outcome(function, *given):
    """Return the results as fractions, or the row without one."""
    try:
        found = function(*given)
        return [
            x if x is None else Fraction(x) for x in (found.to_pylist() if isinstance(found, pa.Array) else [found])
        ]
    except Misfit as fault:
        return fault.row
    except Fault:
        return Fault


@pytest.mark.parametrize("count", [150, pytest.param(20_000, marks=pytest.mark.long)])
def test_drawn_expressions_are_what_python_computes(count):
    """Row by row, and together: nulls, ranges, quotients by zero; what a row does not need does not fail for it."""
    draw = seeded()
    for _ in range(count):
        drawn = [{name: draw.choice(values) for name, (*_, values) in DRAWN.items()} for _ in range(6)]
        columns = {
            name: pa.array([v if (v := row[name]) is None or places < 0 else Decimal(v).scaleb(-places) for row in drawn], kind)
            for name, (places, kind, _) in DRAWN.items()
        }  # fmt: skip
        batch = pa.record_batch(columns)
        text, *_, value = draw.choice([number, condition])(draw, draw.randrange(1, 4))
        rows = [{name: v if v is None else Fraction(v) for name, v in row.items()} for row in batch.to_pylist()]
        expected = [outcome(value, row) for row in rows]
        good = [row for row, found in enumerate(expected) if found is not Fault]
        column = parsed(text).column
        singly = [outcome(column, batch.slice(row, 1)) for row in range(len(rows))]
        assert singly == [0 if found is Fault else found for found in expected], (text, drawn)
        together = outcome(column, batch.take(pa.array(good, pa.int64())))
        assert together == [expected[row][0] for row in good], (text, drawn)
        if len(good) < len(rows):
            assert expected[outcome(column, batch)] is Fault, (text, drawn)
