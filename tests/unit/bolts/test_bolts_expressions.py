"""Expressions: their results against a table and against plain Python, their types, and messages with positions."""

import operator
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from seeded import seeded

from txstorm.bolts import parsed
from txstorm.errors import InputError
from txstorm.typed import Misfit

TIME = pa.timestamp("us", tz="UTC")
COLUMNS = {
    "a": pa.array([1, None, -3, 2], pa.int64()),
    "z": pa.array([0, 1, 2, 1], pa.uint8()),
    "f": pa.array([0.5, 2.5, None, -0.5], pa.float32()),
    "d": pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal(2)], pa.decimal128(10, 2)),
    "s": pa.array([" Ab ", None, "ß%x", "Ab"], pa.large_string()),
    "c": pa.array(["x", "y", None, "x"]).dictionary_encode(),
    "p": pa.array([True, False, None, True]),
    "n": pa.nulls(4),
    "t": pa.array(
        [datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=UTC), None, datetime(2024, 2, 29, tzinfo=UTC), None], TIME
    ),
    "end": pa.array([1, 2, 3, 4]),
    "two words": pa.array([[1], None, [], [2]]),
}
BATCH = pa.record_batch(COLUMNS)
_ = None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 0 and p", [True, False, False, True]),
        ("p AND Null", [_, False, _, _]),
        ("p or null", [True, _, _, True]),
        ("not p", [False, True, _, False]),
        ("not a = 1 or p", [True, _, True, True]),
        ("n = 1", [_] * 4),
        ("a is null or `two words` is not null", [True, True, True, True]),
        ("a in (1, 2, null)", [True, _, _, True]),
        ("a not in (1, -3)", [False, _, False, True]),
        ("c in ('x', s)", [True, _, _, True]),
        ("a between 0 and 1.5", [True, _, False, False]),
        ("a not between z and 2", [False, _, True, False]),
        ("s like '%b_' or s like 'ß\\%%'", [True, _, True, False]),
        ('s not like "Ab"', [True, _, True, False]),
        ("c = 'x' or c == \"it's\" or c = 'it''s'", [True, False, _, True]),
        ("f = 0.5", [True, False, _, False]),
        ("9007199254740993 > f and a <> 1", [False, _, _, True]),
        ("9223372036854775808 > a", [True, _, True, True]),
        ("d >= 1.499999999999999999", [True, _, False, True]),
        ("end + `end`", [2, 4, 6, 8]),
        ("-a - -1 * 2", [1, _, 5, 0]),
        ("end / 2", [0.5, 1.0, 1.5, 2.0]),
        ("d * 1.19", [Decimal("1.7850"), _, Decimal("-2.6775"), Decimal("2.38")]),
        ("d / 3", [Decimal("0.5"), _, Decimal("-0.75"), Decimal("0.666666666666666667")]),
        ("2 - 0.1 * a", [Decimal("1.9"), _, Decimal("2.3"), Decimal("1.8")]),
        ("d + f", [2.0, _, _, 1.5]),
        ("case when z > 1 then a / (z - 1) when z = 1 then a / z else 0 end", [0.0, _, -3.0, 2.0]),
        ("case when p then 'yes' end", ["yes", _, _, "yes"]),
        ("z = 0 or a / z > 1", [True, _, False, True]),
        ("z <> 0 and a / z > 1", [False, _, False, True]),
        ("coalesce(n, a, 1 / (2 - z))", [1.0, 1.0, -3.0, 2.0]),
        ("coalesce(a, d, 0)", [1, 0, -3, 2]),
        ("lower(trim(s))", ["ab", _, "ß%x", "ab"]),
        ("upper(s)", [" AB ", _, "SS%X", "AB"]),
        ("length(s)", [4, _, 3, 2]),
        ("substring(s, 2, 1)", ["A", _, "%", "b"]),
        ("substring(s, end)", [" Ab ", _, "x", ""]),
        ("concat(s, '-', c)", [" Ab -x", _, _, "Ab-x"]),
        ("starts_with(s, 'A') or ends_with(s, 'x') or contains(s, 'b ')", [True, _, True, True]),
        ("replace(replace(s, 'b', 'cc'), '', 'y')", [" Acc ", _, "ß%x", "Acc"]),
        ("abs(a) + floor(f) + ceil(d)", [3, _, _, 3]),
        ("round(f)", [1.0, 3.0, _, -1.0]),
        ("round(d, 1)", [Decimal("1.5"), _, Decimal("-2.3"), Decimal("2.0")]),
        ("round(2.675e0, 2) + round(1250, -2)", [1302.68] * 4),
        ("year(t) * 10000 + month(t) * 100 + day(t)", [19691231, _, 20240229, _]),
        ("hour(t) * 100 + minute(t)", [2359, _, 0, _]),
        ("date(t)", [date(1969, 12, 31), _, date(2024, 2, 29), _]),
        ("t < timestamp '1970-01-01T01:00:00+01:00' and date(t) = DATE '1969-12-31'", [True, _, False, _]),
        ("cast(t as str)", ["1969-12-31T23:59:59.000005Z", _, "2024-02-29T00:00:00Z", _]),
        ("cast(cast(date(t) as str) as datetime) = t", None),
        ("cast(cast(cast(t as str) as datetime) as date) = date(t)", [True, _, True, _]),
        ("cast(cast(d as str) as float)", [1.5, _, -2.25, 2.0]),
        ("cast(d as decimal(3, 1))", [Decimal("1.5"), _, Decimal("-2.3"), Decimal(2)]),
        ("cast(f as decimal) + cast('1e2' as decimal(5))", [Decimal("100.5"), Decimal("102.5"), _, Decimal("99.5")]),
        ("cast(' 12 ' as int) + cast(2.9e0 as int) + cast(true as int)", [15] * 4),
        ("cast('TRUE' as bool) and cast(a as bool)", [True, _, True, True]),
        ("cast(f as str)", ["0.5", "2.5", _, "-0.5"]),
    ],
)
def test_results_and_their_types_with_every_cut_into_batches(text, expected):
    expression = pickle.loads(pickle.dumps(parsed(text)))
    assert expression == parsed(text)
    if expected is None:
        with pytest.raises(Misfit, match="expected a time such as"):
            expression.column(BATCH)
        return
    whole = expression.column(BATCH)
    assert whole.to_pylist() == expected
    assert whole.type == expression.type_in({field.name: field.type for field in BATCH.schema})
    assert expression.known_type in (None, whole.type)
    table = pa.Table.from_batches([BATCH.slice(0, 1), BATCH.slice(1)])
    assert expression.column(table) == whole
    assert [value for row in range(4) for value in expression.column(BATCH.slice(row, 1)).to_pylist()] == expected


@pytest.mark.parametrize(
    ("text", "row", "message"),
    [
        ("a / (z - 1)", 3, "division of 2.0 by zero"),
        ("1.5 / a + d / z", 0, "division of"),
        ("a + 9223372036854775807", 0, "9223372036854775808"),
        ("z * 5000000000000000000", 2, "int64"),
        ("d * 10000000000000000000 * 10000000000000000000", 0, "decimal128"),
        ("a is null or cast(s as int) = 1", 0, "expected a number, got 'Ab'"),
        ("cast(trim(s) as bool)", 0, "expected true or false"),
        ("cast(d as decimal(2, 1)) * cast(d * 10 as decimal(2, 1))", 0, "decimal128"),
        ("floor(f / 1e-300 * 1e300)", 0, "floor"),
        ("substring(s, a)", 2, "at least 1"),
    ],
)
def test_a_row_without_a_result_is_named(text, row, message):
    with pytest.raises(Misfit, match=message) as refused:
        parsed(text).column(BATCH)
    assert refused.value.row == row


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a > ", "column 4: expected a value, such as a field, a number or a text in quotes, got the end, in a > "),
        ("a > 1 and\n  (b > 2", r"line 2, column 9: expected '\)', got the end"),
        ("s = 'abc", "column 5: expected a closing ', got the end"),
        ("a b", "column 3: expected an operator or the end, got 'b'"),
        ("a $ b", r"column 3: expected an operator or the end, got '\$'"),
        ("a is nul", "column 6: expected not or null, got 'nul'"),
        ("1 + lowr(s)", r"column 5: there is no function 'lowr' \(did you mean 'lower'"),
        ("substring(s)", "column 1: substring: expected 2 or 3 arguments, got 1"),
        ("cast(a as strr)", r"expected one of the types str, .*got strr \(did you mean 'str'"),
        ("cast(a as decimal(50, 1))", "at most 38 digits"),
        ("day = date '2026-13-01'", "column 7: month must be"),
        ("t > timestamp '2026-01-01T00:00'", "column 5: expected a time with a time zone such as"),
        ("1.2345678901234567890", "at most 18 of them after the point"),
        ("", "column 1: expected a value"),
        ("(" * 101 + "a" + ")" * 101, "nested at most 100 deep"),
        ("not " * 2000 + "a", "nested at most 100 deep"),
        ("(a" + " + a" * 60 + ")" + " + a" * 60, "nested at most 100 deep"),
        ("a" + " " * 10_000, "at most 10,000 characters, got 10,001"),
    ],
)
def test_texts_that_are_no_expression(text, message):
    with pytest.raises(InputError, match=message):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("amont > 1", r"there is no field 'amont' \(did you mean 'amount'\?\); there are 'amount', 's', 'day'"),
        ("amount = s", "amount = s: expected values of one type for =.*got amount of type int and s of type text"),
        ("day > '2026-01-01'", "write a constant as date '…'"),
        ("amount or true", "expected a condition.*got amount of type int"),
        ("s + 'x'", r"texts are joined by concat\(…\)"),
        ("case when true then 1 else s end", "expected results of one type"),
        ("hour(day)", "hour.*: expected a datetime"),
        ("round(1.5, amount)", "expected a constant from -38 to 38"),
        ("cast(amount as date)", "one of the types text, datetime, got amount of type int"),
    ],
)
def test_fields_and_types_that_do_not_fit(text, message):
    types = {"amount": pa.int64(), "s": pa.string(), "day": pa.date32()}
    with pytest.raises(InputError, match=message):
        parsed(text).type_in(types)


def test_expressions_as_deep_and_long_as_allowed_are_evaluated():
    for text in (
        "(" * 98 + "a" + ")" * 98,
        "1.5 * (" * 49 + "a" + ")" * 49,
        "a" + " + a" * 98,
        " or ".join(["a = 2"] * 1100),
    ):
        assert len(parsed(text).column(pa.table({"a": [2]}))) == 1
    case = "case when a / 1 > 0 then " * 96 + "a" + " end" * 96
    assert parsed(case).column(pa.table({"a": [2, -1]})).to_pylist() == [2, None]


# --- against plain Python ---------------------------------------------------------------------------------------------

ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
COMPARED = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PLACES = {"i": 0, "j": 0, "d": 2, "e": 18}


class Fault(Exception):
    """There is no result for the row."""


class Drawn:
    """A drawn expression: its text, its value for a row, and the type of it: digits after the point, "int" or "bool"."""

    def __init__(self, text, kind, value):
        self.text, self.kind, self.value = text, kind, value


def in_range(value, kind):
    if value is None or kind == "bool":
        return value
    if not (-(1 << 63) <= value < 1 << 63 if kind == "int" else abs(value * 10**kind) < 10**38):
        raise Fault
    return value


def number(draw, depth):
    """Draw an expression of a number; ints and decimals are fractions in Python."""
    name = draw.choice(list(PLACES))
    if depth == 0 and draw.random() < 0.3:
        value, places = draw.randrange(-20, 20), draw.randrange(3)
        text = f"{Decimal(abs(value)).scaleb(-places):f}"
        sign = "-" if value < 0 else ""
        return Drawn(f"{sign}{text}", places or "int", lambda row: Fraction(value, 10**places))
    if depth == 0:
        return Drawn(name, PLACES[name] or "int", lambda row: row[name])
    one, other = number(draw, depth - 1), number(draw, draw.randrange(depth))
    if draw.random() < 0.3:
        when = condition(draw, depth - 1)
        same = one.kind == other.kind == "int"
        kind = "int" if same else max(kind for kind in (one.kind, other.kind) if kind != "int")
        text = f"case when {when.text} then {one.text} else {other.text} end"
        return Drawn(text, kind, lambda row: in_range((one if when.value(row) else other).value(row), kind))
    symbol = draw.choice("+-*/" if "int" not in (one.kind, other.kind) or one.kind != other.kind else "+-*")
    scales = [0 if part.kind == "int" else part.kind for part in (one, other)]
    kind = "int" if one.kind == other.kind == "int" else min(18, {"*": sum(scales), "/": 18}.get(symbol, max(scales)))

    def value(row):
        pair = [part.value(row) for part in (one, other)]
        if None in pair:
            return None
        if symbol == "/" and pair[1] == 0:
            raise Fault
        result = ARITHMETIC[symbol](*pair)
        return in_range(result if kind == "int" else Fraction(round(result * 10**kind), 10**kind), kind)

    return Drawn(f"({one.text} {symbol} {other.text})", kind, value)


def condition(draw, depth):
    """Draw a condition; None is null."""
    if depth > 0 and draw.random() < 0.5:
        one, other = condition(draw, depth - 1), condition(draw, depth - 1)
        word, decided = draw.choice([("and", False), ("or", True)])

        def joined(row):
            if (first := one.value(row)) is decided:
                return decided
            second = other.value(row)
            return decided if second is decided else None if None in (first, second) else not decided

        return Drawn(f"({one.text} {word} {other.text})", "bool", joined)
    one, other, symbol = number(draw, depth), number(draw, depth), draw.choice(list(COMPARED))

    def compared(row):
        pair = [part.value(row) for part in (one, other)]
        return None if None in pair else COMPARED[symbol](*pair)

    return Drawn(f"{one.text} {symbol} {other.text}", "bool", compared)


def result(expression, batch):
    try:
        return [
            value if type(value) in (bool, type(None)) else Fraction(value)
            for value in expression.column(batch).to_pylist()
        ]
    except Misfit as fault:
        return fault.row


@pytest.mark.parametrize("count", [150, pytest.param(20_000, marks=pytest.mark.long)])
def test_drawn_expressions_are_what_python_computes(count):
    """Row by row, and together: nulls, ranges, quotients by zero; what is not needed for a row does not fail for it."""
    draw = seeded()
    kinds = {"i": pa.int64(), "j": pa.int8(), "d": pa.decimal128(10, 2), "e": pa.decimal256(40, 18)}
    for _ in range(count):
        chosen = {
            "i": [None, 0, 1, -7, 2**62, -(2**63)], "j": [None, 0, 3, -3], "d": [None, 0, 150, -225, 10**9],
            "e": [None, 0, 1, 10**18, 5 * 10**17, -(10**37)],
        }  # fmt: skip
        drawn = [{name: draw.choice(values) for name, values in chosen.items()} for _ in range(6)]
        rows = [{n: None if v is None else Fraction(v, 10 ** PLACES[n]) for n, v in row.items()} for row in drawn]
        columns = {
            name: pa.array([None if row[name] is None else Decimal(row[name]).scaleb(-PLACES[name]) for row in drawn], kind)
            if pa.types.is_decimal(kind) else pa.array([row[name] for row in drawn], kind)
            for name, kind in kinds.items()
        }  # fmt: skip
        batch, one = pa.record_batch(columns), draw.choice([number, condition])(draw, draw.randrange(1, 4))
        expected = []
        for row in rows:
            try:
                expected.append(one.value(row))
            except Fault:
                expected.append(Fault)
        expression, good = parsed(one.text), [row for row, value in enumerate(expected) if value is not Fault]
        singly = [result(expression, batch.slice(row, 1)) for row in range(len(rows))]
        assert singly == [0 if value is Fault else [value] for value in expected], (one.text, drawn)
        assert result(expression, batch.take(good)) == [expected[row] for row in good], (one.text, drawn)
        if len(good) < len(rows):
            assert expected[result(expression, batch)] is Fault, (one.text, drawn)
