"""Typed columns: one value has the same fate as a value and in a column; nothing wraps, and sums are exact or refused."""

import ast
import re
from contextlib import nullcontext, suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import txstorm
from txstorm.ddl import columns_fault, frame_columns
from txstorm.errors import SettingError, StateError
from txstorm.misfits import Misfit
from txstorm.storage.rows.columns import Column
from txstorm.typed import (
    column_of,
    converted,
    decimals_of,
    declaration,
    fits,
    nearest,
    python_values,
    rows_out_of_range,
)

PYTHON = Context(prec=200)
DECIMAL, TIME = pa.decimal128(38, 18), pa.timestamp("us", "UTC")
KINDS = [
    *(pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.binary()),
    *(TIME, pa.date32(), DECIMAL, pa.decimal128(18, 2), pa.decimal128(5, 0)),
]
KINDS += [*map(pa.list_, KINDS), *(pa.struct({"a": kind}) for kind in KINDS)]
numbers = st.one_of(
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.builds(lambda sign, digits, exponent: Decimal(f"{sign}{digits}E{exponent}"), st.sampled_from(["", "-"]),
              st.integers(0, 10**9), st.integers(-25, 45)),
)  # fmt: skip
zones = st.integers(-14, 14).map(lambda hours: timezone(timedelta(hours=hours)))
plain = st.one_of(
    st.none(), st.booleans(), numbers, st.text(max_size=3), st.binary(max_size=3), st.dates(),
    st.datetimes(), st.datetimes(timezones=zones), st.sampled_from([datetime.max.replace(tzinfo=UTC), date.max]),
)  # fmt: skip
values = st.one_of(plain, st.lists(plain, max_size=2), plain.map(lambda one: {"a": one}))


def outcome(make, *arguments):
    try:
        return repr(python_values(make(*arguments)))
    except Misfit as error:
        return type(error)


@given(st.sampled_from(KINDS), values)
@example(DECIMAL, Decimal("1e30"))
@example(DECIMAL, [Decimal("1e30")])
@example(pa.list_(DECIMAL), [Decimal("1e30")])
@example(pa.decimal128(18, 2), 5)
@example(pa.float32(), 1e300)
@example(pa.struct({"a": pa.float32()}), {"a": (1 << 24) + 1})
@example(pa.struct({"a": pa.float64()}), {"a": (1 << 53) + 2})
@example(pa.list_(pa.float32()), [(1 << 24) + 1])
@example(TIME, datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))))
def test_a_value_has_the_same_fate_in_a_column(kind, value):
    try:
        column = pa.array([value])
        [found] = python_values(column)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return  # no column of Arrow's has it
    if found == found and found != value:
        return  # nor has this one
    assert outcome(converted, column, kind) == outcome(column_of, [value], kind)


@given(st.from_regex(r"[+-]?([0-9]{1,24}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?", fullmatch=True))
@example("1e30")
@example("100000000000000000000")
@example("1e999999999")
def test_a_decimal_in_a_text_is_the_one_that_python_reads(text):
    whole = [Decimal(text), None, Decimal(1)]
    assert outcome(decimals_of, pa.array([text, "", " 1 "]), DECIMAL) == outcome(column_of, whole, DECIMAL)


@given(
    st.tuples(st.sampled_from([31, 63, 64, 95, 96, 127, 128]), st.sampled_from([1, 3]), st.integers(-1, 1)),
    st.sampled_from([DECIMAL, pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal128(18, 2)]),
    st.tuples(st.integers(0, 50), st.integers(0, 40), st.sampled_from([0, 0, 1, -1])),
)
@example((64, 1, -1), DECIMAL, (32, 14, 0))  # Arrow refuses it
@example((128, 1, 0), DECIMAL, (58, 20, 0))  # of such texts and decimals Arrow makes others
@example((31, 1, 1), pa.decimal128(18, 2), (41, 8, -1))  # Arrow makes 0 of it
def test_decimals_close_to_powers_of_two_keep_their_value_or_are_refused(power, kind, places):
    number = ((power[1] << power[0]) + power[2]) * 10 ** places[1] + places[2]
    value = Decimal(number).scaleb(-places[0], PYTHON)
    short = PYTHON.scaleb(value, kind.scale)
    fit = value if short == short.to_integral_value() and abs(short) < 10**kind.precision else None
    ways = {"value": lambda: column_of([value], kind), "text": lambda: decimals_of(pa.array([f"{value:f}"]), kind)}
    ways["list"] = lambda: column_of([[value]], pa.list_(kind)).flatten()
    if number < 10**76:
        column = pa.array([str(number)]).cast(pa.decimal256(76, 0)).view(pa.decimal256(76, places[0]))
        ways["column"] = lambda: converted(pa.chunked_array([column[:0], column]), kind)
        with suppress(ValueError):  # otherwise Python decides
            assert abs(PYTHON.subtract(nearest(column, kind)[0].as_py(), value)) * 2 <= Decimal(1).scaleb(-kind.scale)
    for way, convert in ways.items():
        with nullcontext() if fit is not None else pytest.raises(Misfit):
            assert convert().to_pylist() == [fit], way


@pytest.mark.parametrize("text", ["x", "1_0", "NaN", "1e", "٣", "--1"])
def test_a_text_that_is_no_number_is_refused(text):
    with pytest.raises(Misfit, match="expected a decimal number, got") as refused:
        decimals_of(pa.chunked_array([["1"], [None, text]]), DECIMAL)
    assert refused.value.row == 2


def test_the_first_value_that_does_not_fit_is_named_and_which_types_fit():
    column = pa.chunked_array([[1, 2], [None, 300, 4, 500]])
    with pytest.raises(Misfit, match=r"expected values that fit int8, got 300") as refused:
        converted(column, pa.int8())
    assert refused.value.row == 3
    with pytest.raises(Misfit, match="expected a value that fits int8, got 300") as refused:
        column_of(column.to_pylist(), pa.int8())
    assert refused.value.row == 3
    with pytest.raises(Misfit, match="expected int8, got string") as refused:
        converted(pa.array(["1"]), pa.int8())
    assert refused.value.row is None
    assert fits(pa.null(), DECIMAL)
    assert fits(pa.dictionary(pa.int8(), pa.string_view()), pa.string())
    assert not fits(pa.timestamp("us"), TIME)
    assert not fits(pa.list_(pa.string()), pa.list_(pa.int64()))
    assert not fits(pa.struct({"a": pa.int64(), "b": pa.int64()}), pa.struct({"a": pa.int64()}))


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.int8(), "{'v': int}"),
        (pa.dictionary(pa.int32(), pa.string()), "{'v': str}"),
        (pa.list_(pa.int64()), "the type list<item: int64> of pyarrow"),
        *((kind, None) for kind in (pa.duration("s"), pa.time32("s"), pa.null(), pa.month_day_nano_interval())),
    ],
)
def test_advice_names_only_types_that_can_be_declared(kind, advice):
    assert declaration("v", kind) == advice
    if advice is None and not pa.types.is_null(kind):
        given = (1, 2, 3) if pa.types.is_interval(kind) else 1
        column = pa.chunked_array([pa.array([given], kind)])
        with pytest.raises(StateError, match=r"cast the column$"):
            Column("sink 's'", "column", pa.field("v", pa.int64())).conformed(column, "row 1")


@pytest.mark.parametrize("kind", [pa.float32(), pa.list_(pa.float32()), pa.struct({"a": pa.float32()})], ids=str)
def test_a_float_does_not_become_infinite(kind):
    def of(number):
        return [number] if pa.types.is_list(kind) else {"a": number} if pa.types.is_struct(kind) else number

    for make in (lambda values: converted(pa.array(values), kind), lambda values: column_of(values, kind)):
        assert make([of(float("inf")), of(1.5)]).to_pylist() == [of(float("inf")), of(1.5)]
        with pytest.raises(Misfit, match="out of the range of float") as refused:
            make([of(1.5), None, of(-1e300)])
        assert refused.value.row == 2


FAR = {pa.timestamp("us"): 2**62, TIME: -(2**62), pa.timestamp("s"): 2**40, pa.date64(): 2**50, pa.time64("us"): -1}


@pytest.mark.parametrize("kind", FAR, ids=str)
def test_times_that_python_does_not_have_are_found_wherever_they_are(kind):
    column = pa.array([0, FAR[kind], None, FAR[kind]]).view(kind)
    assert rows_out_of_range(column) == [1, 3]
    assert rows_out_of_range(pa.chunked_array([column, column])) == [1, 3, 5, 7]
    lists = pa.ListArray.from_arrays([0, 1, 4], column)
    assert rows_out_of_range(lists) == [1]
    assert rows_out_of_range(pa.StructArray.from_arrays([column, pa.array([1, 2, 3, 4])], ["a", "b"])) == [1, 3]
    for one in (column, lists):
        with pytest.raises(Misfit, match="out of the years 1 to 9999, which Python does not have") as refused:
            converted(one, one.type)
        assert refused.value.row == 1


EXCEPTIONS = {
    "engine/frames.py": "the zone of times, and the width of offsets, of columns that Spark has made",
    "typed.py": "this is the module",
    "clients/delta/data_files.py": "numbers of rows",
    "results/windowed_components.py": "numbers of tuples; ends of windows",
    "storage/tables/rewrite.py": "positions of rows",
    "windows/aggregates/groups.py": "sums that sum_may_overflow has looked at",
    "keys.py": "from large to small strings and binary values",
    "joins/side_rows.py": "times that were stored",
    "hailstorm/entries.py": "JSON of whole numbers, and back, which Arrow checks",
    "recovery/clone.py": "the widths and zones of a table's columns, for values that were stored or checked",
    "joins/delay/lone_side.py": "lengths of texts",
    "spouts/delta/reading.py": "types that a table has widened, names of changes",
    "spouts/delta/source_log.py": "columns of the log",
    "spouts/files/csv_records.py": "text, to see whether it is a number that Arrow's reader can parse",
}
OWN = {"TXID.type", "_TIME", "TIME", "_UTC", "INSTANT"}
"""Types that the package itself gives to times and txids."""


def test_no_other_module_casts_to_a_declared_type_or_adds_up():
    package, found = Path(txstorm.__file__).parent, set()
    for path in package.rglob("*.py"):
        name, text = path.relative_to(package).as_posix(), path.read_text()
        calls = re.search(r"\.cast\(|\.aggregate\(|pc\.[a-z]|np\.add", text) and not name.startswith("simulation/")
        for node in ast.walk(ast.parse(text)) if calls else ():
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            kind = ast.unparse(node.args[-1]) if node.args else ""
            casts = called.endswith(".cast") and node.args and kind not in OWN
            casts = casts and not (kind.startswith("pa.") and "decimal" not in kind)
            adds = called in ("pc.sum", "pc.product", "pc.multiply", "pc.cumulative_sum", "np.add.at")
            if casts or adds or (called.endswith(".aggregate") and "sum" in kind):
                found.add(name)
    assert found - EXCEPTIONS.keys() <= {"joins/lookup/lookup_table.py", "state/index/row_groups.py"}
    assert found >= EXCEPTIONS.keys()


GOOD = {
    "country STRING, cents BIGINT": {"country": ("string", pa.string()), "cents": ("bigint", pa.int64())},
    "a: int NOT NULL COMMENT 'it''s, x', `b ``c` dec": {
        "a": ("int", pa.int32()),
        "b `c": ("decimal(10,0)", pa.decimal128(10, 0)),
    },
    "t TIMESTAMP, l ARRAY<STRUCT<x: Decimal(38, 18), `y z`: array<date>>>": {
        "t": ("timestamp", pa.timestamp("us", "UTC")),
        "l": (
            "array<struct<x:decimal(38,18),`y z`:array<date>>>",
            pa.list_(pa.struct([("x", pa.decimal128(38, 18)), ("y z", pa.list_(pa.date32()))])),
        ),
    },
}


@pytest.mark.parametrize("text", GOOD)
def test_columns_and_their_types(text):
    assert frame_columns(text) == GOOD[text]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a name, got ''"),
        ("a", "expected a name"),
        ("a INT b INT", "expected ',' or the end, got 'b INT'"),
        ("a INT,", "expected a name"),
        ("a INTT", "type intt is unknown; known are"),
        ("a INT, A STRING", "'A' is declared twice"),
        ("m MAP<STRING, INT>", "column 'm': type map has no values in Python; select map_entries"),
        ("a ARRAY<TIMESTAMP_NTZ>", "column 'a': type timestamp_ntz has no values in Python; cast it to TIMESTAMP"),
        ("a DECIMAL(39, 0)", "1 to 38 digits"),
        ("a DECIMAL(3, 4)", "1 to 38 digits"),
        ("a DECIMAL(x)", "one or two numbers"),
        ("a ARRAY<INT", "expected '>'"),
        ("a STRUCT<>", "expected a name"),
        ("a INT NOT", "NULL after NOT"),
        ("a INT COMMENT", "a text in quotes"),
        ("_txstorm_txid INT", "txstorm's own"),
        (7, "Spark's DDL"),
    ],
)
def test_a_text_that_is_no_ddl_is_refused(text, why):
    with pytest.raises(SettingError, match="columns") as refused:
        frame_columns(text)
    assert why in str(refused.value)


def test_columns_that_differ_are_named():
    assert columns_fault({"a": "int"}, [("a", "int")]) == ""
    found = [("a", "bigint"), ("b", "string"), ("d", "date"), ("b", "string")]
    fault = columns_fault({"a": "int", "b": "string", "c": "date"}, found)
    assert fault == "'b' is there twice; 'c' is missing; 'd' is not declared; 'a' is bigint, expected int"
