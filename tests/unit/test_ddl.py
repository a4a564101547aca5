"""Columns in Spark's DDL, read without Spark."""

import pyarrow as pa
import pytest

from txstorm.ddl import columns_fault, frame_columns
from txstorm.errors import SettingError

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
