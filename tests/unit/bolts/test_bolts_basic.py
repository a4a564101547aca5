"""Ready-made basic bolts: Identity, Map, FlatMap, Filter and SplitWords."""

import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bolts_harness import emitted, fields_of, outputs, rows
from seeded import seeded

from txstorm.api.bolt import BasicBolt, takes_batches
from txstorm.bolts import Filter, FlatMap, Identity, Map, MapBatches, SplitWords
from txstorm.errors import EmitError

SALES = rows("shop amount", ("a", 1), ("b", -2), ("a", 3))
MIXED = rows("thing", 1, "1", 2.5, True, None, (1, 2), {"k": [1]})


# --- Identity ---------------------------------------------------------------------------------------------------------


def test_identity_passes_columns_under_new_names():
    assert fields_of(Identity("place", "sum")) == ("place", "sum")
    (batch,) = emitted(Identity("place", "sum"), [SALES])
    assert batch.schema.names == ["place", "sum"]
    assert batch.column(1).buffers()[1].address == SALES.column(1).buffers()[1].address


def test_identity_keeps_values_without_a_common_type():
    expected = [(1,), ("1",), (2.5,), (True,), (None,), ((1, 2),), ({"k": [1]},)]
    found = outputs(Identity("thing"), [MIXED])
    assert found == expected
    assert [type(value) for (value,) in found] == [type(value) for (value,) in expected]


# --- Map, FlatMap, Filter ---------------------------------------------------------------------------------------------


def shop_and_amount(row):
    return [row["amount"], row["shop"]]


@pytest.mark.parametrize(
    ("bolt", "expected"),
    [
        (Map(lambda row: row["amount"] * 2, "double"), [(2,), (-4,), (6,)]),
        (Map(lambda row: (row["shop"],), "one"), [(("a",),), (("b",),), (("a",),)]),
        (Map(shop_and_amount, "amount", "shop"), [(1, "a"), (-2, "b"), (3, "a")]),
        (FlatMap(lambda row: range(max(row["amount"], 0)), "n"), [(0,), (0,), (1,), (2,)]),
        (FlatMap(lambda row: [(row["shop"], 1)] * 2, "shop", "n"), [("a", 1)] * 2 + [("b", 1)] * 2 + [("a", 1)] * 2),
        (Filter(lambda row: row["amount"] > 0, "shop", "amount"), [("a", 1), ("a", 3)]),
        (MapBatches(lambda batch: batch.filter(pc.field("amount") > 0), "amount", "shop"), [(1, "a"), (3, "a")]),
        (MapBatches(lambda batch: None, "x"), []),
    ],
)
def test_functions_of_tuples_and_of_batches(bolt, expected):
    assert outputs(bolt, [SALES]) == expected


@pytest.mark.parametrize(
    ("bolt", "kind", "message"),
    [
        (Identity("place"), (EmitError, ValueError, pa.ArrowInvalid), None),
        (Map(lambda row: (1, 2), "a", "b", "c"), EmitError, "expected 3 value"),
        (MapBatches(lambda batch: batch, "x"), EmitError, "expects the declared columns"),
    ],
)
def test_values_and_columns_other_than_declared_are_errors(bolt, kind, message):
    with pytest.raises(kind, match=message):
        outputs(bolt, [SALES])


# --- SplitWords -------------------------------------------------------------------------------------------------------

RULE = r"[a-z']+"
ALPHABET = "abzXYZ'’ \t.-09\n\x85\u2028éÉİıſKΣς"  # the lower case of some has a different length


def test_split_words_is_findall_on_the_lower_case_of_every_line():
    draw = seeded()
    texts = ["".join(draw.choices(ALPHABET, k=draw.randrange(12))) for _ in range(500)]
    batches = [rows("line", *texts[:200]), rows("line", *texts[200:])]
    assert outputs(SplitWords("line"), batches) == [
        (word,) for text in texts for word in re.findall(RULE, text.lower())
    ]


def test_split_words_accepts_other_fields_and_patterns_without_groups():
    batch = rows("id text", (1, "Ab, cd"), (2, None), (3, ""))
    assert fields_of(SplitWords("text", word="token")) == ("token",)
    assert outputs(SplitWords("text", pattern=r"\S+", lower=False), [batch]) == [("Ab,",), ("cd",)]
    assert emitted(SplitWords("text"), [rows("text", None, None)]) == []
    with pytest.raises(ValueError, match="groups"):
        SplitWords(pattern="(a)b")


# --- both forms -------------------------------------------------------------------------------------------------------


class Columns(BasicBolt):
    """A basic bolt that processes record batches only, and emits the type of the first column."""

    fields = ("kind",)

    def execute_batch(self, batch, collector):
        collector.emit(str(batch.column(0).type))


def test_a_bolt_on_record_batches_sees_columns_where_tuples_were_emitted():
    assert takes_batches(Columns())
    assert outputs(Columns(), [rows("x", 1, 2.5)]) == [("double",)]
    assert outputs(Columns(), [rows("x", (1, 2), (3,))]) == [("list<item: int64>",)]
    assert outputs(Columns(), [rows("x", {"a": 1}, None)]) == [("struct<a: int64>",)]
    with pytest.raises(EmitError, match=r"bolt, stream 'default' of 'source'.*'thing'.*one type.*execute"):
        outputs(Columns(), [MIXED])
