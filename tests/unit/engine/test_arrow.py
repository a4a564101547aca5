"""Arrow conversion: values are unchanged when they pass from one task to another."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm.engine.arrow import as_columns, batch_of_rows, conform, rows_of_batch
from txstorm.engine.cargo import Cargo, Kind, decode, encode, split
from txstorm.errors import EmitError

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(timezones=st.just(UTC)),
    st.decimals(allow_nan=False, allow_infinity=False),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.booleans()), inner, max_size=3),
    ),
    max_leaves=5,
)


def types_in(value: object) -> object:
    """Return the types of all parts of `value`, to distinguish 1 from True and 1.0."""
    if isinstance(value, list | tuple):
        return (type(value), [types_in(part) for part in value])
    if isinstance(value, dict):
        return (dict, [(types_in(k), types_in(v)) for k, v in value.items()])
    return type(value)


@given(st.lists(st.tuples(values, scalars), min_size=1, max_size=8))
def test_values_survive_a_round_trip(rows: list[tuple[object, object]]) -> None:
    batch = batch_of_rows(rows, ("a", "b"))
    cargo = decode(pa.py_buffer(encode(Cargo(Kind.DATA, 1, 2, 3, 4, 5, 6, batch=batch))))
    assert cargo.batch is not None
    back = list(rows_of_batch(cargo.batch))
    assert back == rows
    assert [types_in(row) for row in back] == [types_in(row) for row in rows]


def test_special_values_rows_without_fields_and_aligned_columns_survive_a_round_trip() -> None:
    moment = datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=2)))
    batch = batch_of_rows([(math.inf, moment, {1, 2}), ("x", moment, None)], ("mixed", "at", "s"))
    [first, second] = rows_of_batch(batch)
    assert first == (math.inf, moment, {1, 2})
    assert second == ("x", moment, None)
    numpy = batch_of_rows([(np.int64(3), np.float64(0.5), np.bool_(True))], ("i", "f", "b"))
    assert next(rows_of_batch(numpy)) == (3, 0.5, True)
    assert list(rows_of_batch(batch_of_rows([(), ()], ()))) == [(), ()]
    batch = batch_of_rows([("a", 1, 1.5, True, b"x", date(2020, 1, 1), None)], tuple("abcdefg"))
    kinds = [str(kind) for kind in batch.schema.types]
    assert kinds == "string int64 double bool binary date32[day] null".split()
    decimals = batch_of_rows([(Decimal("1.50"),)], ("d",))
    assert str(next(rows_of_batch(decimals))[0]) == "1.50"
    data = at_offset(encode(Cargo(Kind.DATA, 7, 1, 2, 3, 4, 5, batch=BATCH)), 0)
    found = buffers(decode(data).batch)
    assert all(data.address <= buffer.address < data.address + data.size for buffer in found)


@pytest.mark.parametrize("value", [datetime(2020, 1, 1), object(), [object()], {"a": datetime(2020, 1, 1)}])  # noqa: DTZ001
def test_values_that_cannot_be_sent_are_rejected_with_their_field(value: object) -> None:
    with pytest.raises(EmitError, match="field 'when'"):
        batch_of_rows([(value,)], ("when",))


@given(st.lists(st.one_of(scalars, st.lists(scalars, max_size=2)), min_size=1, max_size=4))
def test_no_value_of_a_column_changes_because_of_its_neighbours(column: list[object]) -> None:
    """Not a text to bytes, a time to a date or True to 1.0: the column is refused; numbers may become wider."""

    def same(one: object, other: object) -> bool:
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(same, one, other))
        kinds = {type(one), type(other)}
        return one == other and (len(kinds) == 1 or kinds <= {int, float, Decimal})

    try:
        found = as_columns(batch_of_rows([(value,) for value in column], ["f"]), "bolt").column(0).to_pylist()
    except EmitError:
        return
    assert all(map(same, column, found)), found


@pytest.mark.parametrize("beside", ["a", 1, None])
def test_texts_that_are_not_unicode_are_refused_beside_any_value(beside: object) -> None:
    with pytest.raises(EmitError, match=r"'f'.*UTF-8"):
        batch_of_rows([(beside,), ("\ud800",)], ["f"])


TEXTS = pa.array(["a", None, "b"])
LISTS = [["a"], None, ["b", "c"]]
FORMS = [
    pc.run_end_encode(TEXTS),
    pa.RunEndEncodedArray.from_arrays([1, 3], pa.array(["a", None], pa.string_view())),
    pa.DictionaryArray.from_arrays([2, 1, 0, 2, None], pa.array(["a", None, "b"], pa.string_view())),
    *(pa.StructArray.from_arrays([one], ["x"]) for one in (TEXTS.dictionary_encode(), pc.run_end_encode(TEXTS))),
    *(pa.array(LISTS, kind(pa.string())) for kind in (pa.list_view, pa.large_list_view)),
    pa.array([["a"], None], pa.list_(pa.string_view(), 1)),
    pa.array([[("a", b"b")], None], pa.map_(pa.string(), pa.binary(1))),
]


@pytest.mark.parametrize("column", FORMS, ids=lambda one: str(one.type))
def test_columns_of_all_forms_are_sent_as_the_values_that_they_stand_for(column: pa.Array) -> None:
    for sent in (column, column[1:], pa.chunked_array([column, column])):
        table = pa.table({"f": sent})
        batches = list(conform(table, ["f"], "here", lambda *_: None))
        found = pa.Table.from_batches(batches).column("f")
        assert found.to_pylist() == sent.to_pylist()
        assert not any(part in str(found.type) for part in ("dictionary", "run_end", "view", "fixed_size_binary"))


def test_columns_of_emitted_batches_are_reordered_as_declared_and_large_ones_split() -> None:
    def refuse(error: EmitError, record: object) -> None:
        raise error

    batch = pa.record_batch({"b": [1], "a": ["x"]})
    [out] = conform(batch, ("a", "b"), "here", refuse)
    assert out.schema.names == ["a", "b"]
    with pytest.raises(EmitError, match=r"here: .*expects the declared columns \['a'\], got \['b', 'a'\]"):
        conform(batch, ("a",), "here", refuse)
    with pytest.raises(EmitError, match="without time zone"):
        conform(pa.record_batch({"a": pa.array([1], pa.timestamp("us"))}), ("a",), "here", refuse)
    with pytest.raises(EmitError, match="got list"):
        conform([1], ("a",), "here", refuse)
    batch = batch_of_rows([("x" * 100,)] * 100, ("a",))
    pieces = list(split(batch, 1000))
    assert sum(piece.num_rows for piece in pieces) == 100
    assert all(piece.num_rows <= 10 for piece in pieces)
    assert [piece.num_rows for piece in split(batch, 1)] == [1] * 100


BATCH = pa.record_batch({"word": ["a", None, "ccc"], "n": [1, 2, 3], "x": [0.5, None, 1.5]})


def at_offset(data: bytes, by: int) -> pa.Buffer:
    """Return `data` at an address `by` bytes past an aligned one."""
    whole = pa.allocate_buffer(len(data) + by)
    memoryview(whole).cast("B")[by:] = data
    return whole.slice(by)


def buffers(batch: pa.RecordBatch) -> list[pa.Buffer]:
    return [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]


@pytest.mark.parametrize("by", range(9))
def test_rows_are_aligned_as_their_type_requires(by: int):
    cargo = decode(at_offset(encode(Cargo(Kind.DATA, 7, 1, 2, 3, 4, 5, batch=BATCH, partition=6)), by))
    assert (cargo.kind, cargo.txid, cargo.attempt_id, cargo.order, cargo.target) == (Kind.DATA, 7, 1, (2, 6, 3, 5), 4)
    assert cargo.batch == BATCH
    assert [buffer.address % 8 for buffer in buffers(cargo.batch)] == [0] * len(buffers(BATCH))


@pytest.mark.parametrize("text", ["", "x", "ab\n ", "seven77"])
def test_data_after_a_report_of_any_length_is_aligned(text: str):
    data = encode(Cargo(Kind.RESULT, 7, 1, 2, 3, 4, 5, data={"text": text}))
    assert len(data) % 8 == 0
    assert decode(pa.py_buffer(data)).data == {"text": text}
