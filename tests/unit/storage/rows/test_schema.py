from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from txstorm.api.state import KeyedState, SinkTable
from txstorm.errors import StateError
from txstorm.storage.rows.schema import (
    changes_schema,
    check_schema,
    in_order,
    key_columns,
    schema_differences,
    sink_schema,
    state_schema,
    value_columns,
)

STATE = KeyedState("s", key={"b": int, "a": str}, value={"n": int, "at": datetime})


def test_columns_of_changes_states_and_sinks():
    utc = pa.timestamp("us", tz="UTC")
    before = pa.struct([("n", pa.int64()), ("at", utc)])
    columns = {"b": pa.int64(), "a": pa.string(), "n": pa.int64(), "at": utc}
    own = {"_txid": pa.int64(), "_prev": before, "_op": pa.string(), "_kg": pa.int32()}
    assert changes_schema(STATE) == pa.schema([*columns.items(), *own.items()])
    assert [name for name in changes_schema(STATE).names if name != "_op"] == state_schema(STATE).names
    assert (key_columns(STATE), value_columns(STATE)) == (["b", "a"], ["n", "at"])
    # A state without key columns is one row.
    assert changes_schema(KeyedState("s", key={}, value={"n": int})).names == ["n", "_txid", "_prev", "_op", "_kg"]
    sink = SinkTable("out", {"word": str, "day": date, "price": Decimal, "tags": pa.list_(pa.string())})
    assert sink_schema(sink).names == ["word", "day", "price", "tags", "_txid"]
    with pytest.raises(StateError, match="no value column"):
        changes_schema(KeyedState("s", key={"k": str}, value={}))
    with pytest.raises(StateError, match="no column"):
        sink_schema(SinkTable("o", {}))


@pytest.mark.parametrize("kind", [float, pa.float32(), pa.list_(pa.int64()), pa.struct([("x", pa.int64())])])
def test_types_that_cannot_be_keys_are_rejected(kind):
    with pytest.raises(StateError, match=r"state 's', key 'k': .* cannot be part of a key"):
        changes_schema(KeyedState("s", key={"k": kind}, value={"n": int}))


@pytest.mark.parametrize(
    "kind", [complex, "int", None, pa.uint64(), pa.timestamp("us"), pa.timestamp("ns", tz="UTC"), pa.large_string(),
             pa.list_(pa.duration("s")), pa.struct([])]
)  # fmt: skip
def test_a_type_that_tables_cannot_store_is_rejected_by_name(kind):
    with pytest.raises(StateError, match="state 's', value 'n': expected one of str, int"):
        state_schema(KeyedState("s", key={"k": str}, value={"n": kind}))
    with pytest.raises(StateError, match="sink 'o', column 'n': expected one of str, int"):
        sink_schema(SinkTable("o", {"n": kind}))


def test_added_removed_and_retyped_columns_are_differences_but_not_a_readers_physical_layout():
    inner = [pa.struct([("n", kind)]) for kind in (pa.int64(), pa.int32())]
    declared = pa.schema([("k", pa.string()), ("n", pa.int64()), ("new", pa.bool_()), ("_prev", inner[0])])
    table = pa.schema([("k", pa.string()), ("n", pa.string()), ("old", pa.int64()), ("_prev", inner[1])])
    assert schema_differences(declared, table) == [
        "column 'new' (bool) is declared, but the table has none",
        "column 'old' (int64) is in the table, but not declared",
        "column 'n' is declared as int64, the table has string",
        "column '_prev' is declared as struct<n: int64>, the table has struct<n: int32>",
    ]
    declared = pa.schema([("s", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.string())),
                          ("t", pa.timestamp("us", tz="UTC")), ("p", pa.struct([("s", pa.string())]))])  # fmt: skip
    table = pa.schema(
        [
            pa.field("p", pa.struct([pa.field("s", pa.large_string(), nullable=False)])),
            pa.field("t", pa.timestamp("us", tz="+00:00")),
            pa.field("l", pa.large_list(pa.field("element", pa.large_string()))),
            pa.field("b", pa.large_binary()),
            pa.field("s", pa.string_view(), metadata={"x": "y"}),
        ]
    )
    assert schema_differences(declared, table) == []
    check_schema("state 's'", state_schema(STATE), state_schema(STATE))
    with pytest.raises(
        StateError,
        match=r"(?s)state 's'.*'m' \(int64\) is declared.*new name.*new data directory: jobs/replay.py --into",
    ):
        check_schema("state 's'", pa.schema([("m", pa.int64())]), pa.schema([]))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), [None, "", "A", "a", "ä", "日"]),
        (pa.int64(), [None, -5, 0, 7]),
        (pa.binary(), [None, b"", b"\x00", b"\xff"]),
        (pa.bool_(), [None, False, True]),
        (pa.date32(), [None, date(1969, 1, 1), date(2020, 1, 1)]),
        (pa.decimal128(38, 18), [None, Decimal(-2), Decimal("0.5"), Decimal(10)]),
    ],
)
def test_rows_are_totally_ordered_with_none_first(kind, values):
    table = pa.table({"k": pa.array(reversed(values), kind), "n": pa.array(range(len(values)))})
    assert in_order(table, ["k"])["k"].to_pylist() == pa.array(values, kind).to_pylist()


def test_the_first_column_decides_before_nulls_of_the_second():
    table = pa.table({"a": ["x", "x", None], "b": [2, None, 9]})
    assert in_order(table, ["a", "b"]).to_pylist() == [{"a": None, "b": 9}, {"a": "x", "b": None}, {"a": "x", "b": 2}]
    assert in_order(table, []).to_pylist() == table.to_pylist()
