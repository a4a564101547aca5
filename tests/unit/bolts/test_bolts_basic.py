"""Ready-made basic bolts: Identity, Map, FlatMap, Filter, Select and SplitWords."""

import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bolts_harness import emitted, fields_of, outputs, rows
from seeded import seeded

from txstorm import TransactionalTopologyBuilder, run
from txstorm.api.bolt import BasicBolt, takes_batches
from txstorm.bolts import Filter, FlatMap, Identity, Map, MapBatches, Select, SplitWords, SumByKey
from txstorm.errors import EmitError, InputError, TopologyError
from txstorm.spouts import MemoryTransactionalSpout

SALES = rows("shop amount", ("a", 1), ("b", -2), ("a", 3))
MIXED = rows("thing", 1, "1", 2.5, True, None, (1, 2), {"k": [1]})


def test_identity_passes_columns_under_new_names_and_values_without_a_common_type():
    assert fields_of(Identity("place", "sum")) == ("place", "sum")
    (batch,) = emitted(Identity("place", "sum"), [SALES])
    assert batch.schema.names == ["place", "sum"]
    assert batch.column(1).buffers()[1].address == SALES.column(1).buffers()[1].address
    expected = [(1,), ("1",), (2.5,), (True,), (None,), ((1, 2),), ({"k": [1]},)]
    found = outputs(Identity("thing"), [MIXED])
    assert found == expected
    assert [type(value) for (value,) in found] == [type(value) for (value,) in expected]


@pytest.mark.parametrize(
    ("bolt", "expected"),
    [
        (Map(lambda row: row["amount"] * 2, "double"), [(2,), (-4,), (6,)]),
        (Map(lambda row: (row["shop"],), "one"), [(("a",),), (("b",),), (("a",),)]),
        (Map(lambda row: [row["amount"], row["shop"]], "amount", "shop"), [(1, "a"), (-2, "b"), (3, "a")]),
        (FlatMap(lambda row: range(max(row["amount"], 0)), "n"), [(0,), (0,), (1,), (2,)]),
        (FlatMap(lambda row: [(row["shop"], 1)] * 2, "shop", "n"), [("a", 1)] * 2 + [("b", 1)] * 2 + [("a", 1)] * 2),
        (Filter(lambda row: row["amount"] > 0, "shop", "amount"), [("a", 1), ("a", 3)]),
        (Filter("amount > 0 and shop is not null", "place", "sum"), [("a", 1), ("a", 3)]),
        (
            Select({"twice": "amount * 2", "shop": "upper(shop)", "amount": "amount"}),
            [(2, "A", 1), (-4, "B", -2), (6, "A", 3)],
        ),
        (Select(["amount", "shop"]), [(1, "a"), (-2, "b"), (3, "a")]),
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
        (Filter("amount > 0", "x"), InputError, r"for each of the fields \['shop', 'amount'\], got \['x'\]"),
        (Filter("coalesce(shop, 'x')", "x", "y"), InputError, "expected a condition, got values of type string"),
    ],
)
def test_values_and_columns_other_than_declared_are_errors(bolt, kind, message):
    with pytest.raises(kind, match=message):
        outputs(bolt, [SALES])


def test_columns_that_are_not_computed_pass_as_they_were_sent():
    """Whatever they hold, and whatever the others hold: several types, or another type in each batch."""
    odd = rows("key n", ((1, 2), 1), ("x", 2.5), (None, Decimal("0.5")), ({"k": [1]}, None), (b"y", 3))
    kept = [((1, 2), 1), ("x", 2.5), (b"y", 3)]
    with pytest.raises(InputError, match=r"values of field 'n' have no common type \(Decimal, float, int: "):
        outputs(Filter("n >= 1", "key", "n"), [odd])
    batches = [odd.slice(0, 2), odd.slice(2, 2), odd.slice(4)]
    found = outputs(Filter("n >= 1", "key", "n"), batches)
    assert (found, list(map(repr, found))) == (kept, list(map(repr, kept)))
    assert outputs(Select({"n": "n", "key": "key", "big": "n > 1"}), batches)[::2] == [
        (1, (1, 2), False), (Decimal("0.5"), None, False), (3, b"y", True),
    ]  # fmt: skip
    large = pa.record_batch(
        {"n": pa.array([1, 2]), "key": pa.array(["x", None], pa.large_string()).dictionary_encode()}
    )
    (batch,) = emitted(Select({"key": "key", "same": "key = 'x'"}), [large])
    assert batch.column(0).equals(large.column(1).dictionary_decode())
    assert batch.column(1).to_pylist() == [True, None]


def test_expressions_tell_what_they_need_and_which_types_are_known():
    select = Select({"a": "x + 1", "b": "cast(`y z` as int)", "c": "a = x", "d": "lower(t)", "e": "1.5"})
    assert select.needed_fields == ("x", "y z", "a", "t")
    assert select.known_types() == {"b": pa.int64(), "c": pa.bool_(), "d": pa.string(), "e": pa.decimal128(38, 1)}
    with pytest.raises(InputError, match="expected a condition, got an expression of type string"):
        Filter("lower(x)", "x")
    builder = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([[("a", 1)]], ("shop", "amount")))
    builder.set_bolt("keep", Filter("amout > 0", "shop", "amount")).shuffle_grouping("feed")
    with pytest.raises(TopologyError, match=r"Filter.*has no field 'amout' \(did you mean 'amount'"):
        builder.build_topology()


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_expressions_on_both_engines(engine, request, tmp_path):
    sales = [("a", Decimal("1.50")), ("b", None), (None, Decimal(2)), ("A ", Decimal("0.25"))]
    builder = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([sales], ("shop", "amount"), take=2))
    builder.set_bolt("keep", Filter("shop is not null and amount > 0.2", "shop", "amount"), 2).shuffle_grouping("feed")
    columns = {"shop": "lower(trim(shop))", "amount": "amount * 1.1"}
    builder.set_bolt("made", Select(columns), 2).shuffle_grouping("keep")
    builder.set_bolt("sums", SumByKey("shop", {"amount": Decimal}, "sums")).fields_grouping("made", ["shop"])
    session = {"spark": request.getfixturevalue("spark")} if engine == "spark" else {}
    handle = run(builder.build_topology(), engine=engine, data_dir=tmp_path / "data", available_now=True, **session)
    handle.awaitTermination()
    assert handle.state("sums").to_pylist() == [{"shop": "a", "amount": Decimal("1.925")}]


RULE = r"[a-z']+"
ALPHABET = "abzXYZ'’ \t.-09\n\x85\u2028éÉİıſKΣς"  # the lower case of some has a different length


def test_split_words_is_findall_on_the_lower_case_of_every_line_by_default():
    draw = seeded()
    texts = ["".join(draw.choices(ALPHABET, k=draw.randrange(12))) for _ in range(500)]
    batches = [rows("line", *texts[:200]), rows("line", *texts[200:])]
    expected = [(word,) for text in texts for word in re.findall(RULE, text.lower())]
    assert outputs(SplitWords("line"), batches) == expected
    batch = rows("id text", (1, "Ab, cd"), (2, None), (3, ""))
    assert fields_of(SplitWords("text", word="token")) == ("token",)
    assert outputs(SplitWords("text", pattern=r"\S+", lower=False), [batch]) == [("Ab,",), ("cd",)]
    assert emitted(SplitWords("text"), [rows("text", None, None)]) == []
    with pytest.raises(ValueError, match="groups"):
        SplitWords(pattern="(a)b")


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
