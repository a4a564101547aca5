"""Ready-made bolts and committers that aggregate: partial counts, declared tables, and their contents after a run."""

import math
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bolts_harness import emitted, fields_of, outputs, rows
from runs import ended
from seeded import seeded

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.bolts import BatchCount, CountBy, CountByKey, Distinct, SumByKey
from txstorm.engine.arrow import rows_of_batch
from txstorm.errors import EmitError, StateError, TopologyError
from txstorm.keys import any_text
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver

HOUR = timedelta(hours=1)


def built(bolt: BatchBolt, fields: str, rows: list[Any], grouping: list[str], tasks: int = 2) -> Any:
    """Build a topology that sends `rows` to the committer `bolt`; each batch has two rows of each of two partitions."""
    spout = MemoryTransactionalSpout([rows[::2], rows[1::2]], fields.split(), take=2)
    builder = TransactionalTopologyBuilder("t", "rows", spout)
    builder.set_bolt("keep", bolt, tasks).fields_grouping("rows", grouping)
    return builder.build_topology()


def result(topology: Any, tmp_path: Path, name: str = "table") -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in ended(topology, tmp_path / "data").state(name).to_pylist()]


def test_count_by_key_counts_tuples_also_of_several_typed_fields(tmp_path: Path):
    words = ["a", "b", "a", None, "a", "c", None]
    bolt = CountByKey("word", table="table")
    assert result(built(bolt, "word", words, ["word"]), tmp_path) == [(None, 2), ("a", 3), ("b", 1), ("c", 1)]
    for one in (bolt, SumByKey("word", "n", "table")):
        assert isinstance(one, BatchBolt)
        assert isinstance(one, Committer)
    rows = [("x", 1, True), ("x", 2, True), ("x", 1, False), ("y", 1, True)]
    bolt = CountByKey({"name": str, "n": int}, "table", count="times")
    assert bolt.state.value == {"times": int}
    found = result(built(bolt, "name n other", rows, ["name"]), tmp_path / "typed")
    assert found == [("x", 1, 2), ("x", 2, 1), ("y", 1, 1)]


def test_sum_by_key_adds_up_over_transactions_also_several_typed_fields(tmp_path: Path):
    rows = [("a", 1), ("b", -2), ("a", 3), ("b", None), ("a", 1 << 40), ("c", 0)]
    bolt = SumByKey("name", "n", "table")
    assert result(built(bolt, "name n", rows, ["name"]), tmp_path) == [("a", 4 + (1 << 40)), ("b", -2), ("c", 0)]
    rows = [("a", Decimal("0.10"), 1.5), ("a", Decimal("0.20"), 2), ("b", Decimal("1"), None), ("a", Decimal("3"), 1)]
    bolt = SumByKey(["name"], {"price": Decimal, "weight": float}, "table")
    found = result(built(bolt, "name price weight", rows, ["name"]), tmp_path / "typed")
    assert found == [("a", Decimal("3.30"), 4.5), ("b", Decimal("1"), None)]


@pytest.mark.parametrize(
    ("bolt", "fields", "rows", "kind", "message"),
    [
        (SumByKey("word", "n", "table"), "word n", [("a", (1 << 63) - 1), ("a", 0), ("a", 1)], StateError, "'n'"),
        (CountByKey("word", "table"), "word", [1, 2], StateError, r"keep.*'word'"),
        (CountByKey("word", "table"), "word", ["a", 1, 2, "b"], EmitError, r"keep.*'word'"),
        (CountByKey("word", "no/name"), "word", [], TopologyError, "no/name"),
    ],
)
def test_overflows_keys_of_another_type_and_bad_table_names_fail_the_topology(
    tmp_path: Path, bolt, fields, rows, kind, message
):
    with pytest.raises(kind, match=message):
        result(built(bolt, fields, rows, ["word"]), tmp_path)


@pytest.mark.parametrize(
    "bolt", [CountByKey("word", "table", ttl=HOUR), SumByKey("word", "n", "table", ttl=HOUR, layout="merge")]
)
def test_an_expired_key_starts_from_zero(bolt):
    rows = [("a", 1), ("b", 1), ("a", 1), ("a", 1)]
    spout = MemoryTransactionalSpout([rows], ["word", "n"], take=1)
    builder = TransactionalTopologyBuilder("t", "rows", spout)
    builder.set_bolt("keep", bolt, 2).fields_grouping("rows", ["word"])
    with TopologyTestDriver(builder.build_topology()) as driver:
        found = []
        for minutes in (40, 10, 80, 0):  # until the next transaction, which is planned after this one
            driver.advance(60 * minutes)
            driver.commit()
            found.append([tuple(row.values()) for row in driver.state("table").to_pylist()])
    assert found == [[("a", 1)], [("a", 1), ("b", 1)], [("a", 2), ("b", 1)], [("a", 1)]]


@pytest.mark.parametrize("make", [CountByKey, lambda key, table, **of: SumByKey(key, "n", table, **of)])
def test_options_of_their_states_are_declared_and_checked(make, tmp_path):
    of = {"ttl": HOUR, "layout": "changes", "writer": "spark"}
    assert make("word", "table", **of).state == KeyedState("table", {"word": str}, {"n": int}, **of)
    for wrong, message in (({"ttl": 3600}, "ttl is a timedelta"), ({"layout": "wide"}, "expected the layout changes")):
        with pytest.raises(TopologyError, match=rf"component 'keep', state 'table'.*{message}"):
            built(make("word", "table", **wrong), "word n", [], ["word"])
    merged = built(make("word", "table", layout="merge"), "word n", [("a", 1), ("a", 1)], ["word"])
    assert result(merged, tmp_path) == [("a", 2)]
    assert not (tmp_path / "data/changes/table").exists()


def test_partial_counts_and_sums_equal_plain_counts(tmp_path: Path):
    words = [f"w{i * i % 13}" for i in range(100)]
    plain = result(built(CountByKey("word", "table"), "word", words, ["word"]), tmp_path / "plain")
    spout = MemoryTransactionalSpout([words[:60], words[60:]], "word", take=7)
    builder = TransactionalTopologyBuilder("t", "rows", spout, 2)
    builder.set_bolt("partial", CountBy("word"), 3).shuffle_grouping("rows")
    builder.set_bolt("keep", SumByKey("word", "n", "table"), 2).fields_grouping("partial", ["word"])
    assert result(builder.build_topology(), tmp_path / "partial") == plain
    assert sum(n for _, n in plain) == 100


VALUES = ["a", "b", None, "", 1, 2, 0.0, -0.0, math.nan, -math.nan, True, 1.0, Decimal(1), (1, 2), [1], b"x", "1"]


def drawn() -> list[pa.RecordBatch]:
    """Return random record batches whose columns have nullable strings, integers, floats, or values of mixed types."""
    draw = seeded()
    kinds = [VALUES[:4], VALUES[4:6], VALUES[6:10], VALUES]
    batches = []
    for _ in range(8):
        some, other = draw.choice(kinds), draw.choice(kinds)
        batches.append(
            rows("x y z", *((draw.choice(some), draw.choice(other), 0) for _ in range(draw.randrange(1, 40))))
        )
    return batches


@pytest.mark.parametrize("names", ["x", "xy", "yx"])
def test_count_by_counts_every_tuple_once(names: str):
    """Under one combination of values, which are equal as keys are, whatever batches they come in."""
    batches = drawn()
    given = (tuple(row["xyz".index(name)] for name in names) for batch in batches for row in rows_of_batch(batch))
    expected = Counter(map(any_text, given))
    found = [(any_text(tuple(values)), n) for *values, n in outputs(CountBy(*names), batches)]
    assert sorted(found) == sorted(expected.items())
    assert sorted(map(any_text, outputs(Distinct(*names), batches))) == sorted(expected)


def test_count_by_and_distinct_emit_every_combination_once_in_order_of_appearance():
    batches = [rows("word", "b", "a", "b"), rows("word", "a", "c")]
    assert fields_of(CountBy("word")) == ("word", "n")
    assert outputs(CountBy("word"), batches) == [("b", 2), ("a", 2), ("c", 1)]
    assert len(emitted(CountBy("word"), batches)) == 1
    assert outputs(CountBy("word"), []) == []
    assert [n for _, n in outputs(CountBy("x"), [rows("x", 0.0, -0.0, math.nan, -math.nan)])] == [2, 2]
    batch = rows("count_all k0", (1, 2), (1, 2), (3, 2))
    assert fields_of(CountBy("count_all", "k0", count="times")) == ("count_all", "k0", "times")
    assert outputs(CountBy("count_all", "k0", count="times"), [batch]) == [(1, 2, 2), (3, 2, 1)]
    batches = [pa.record_batch({"w": pa.array(words).dictionary_encode()}) for words in (["a", "b"], ["c", "a"])]
    assert Counter(dict(outputs(CountBy("w"), batches))) == {"a": 2, "b": 1, "c": 1}
    batches = [rows("url user n", ("u", "a", 1), ("u", "b", 2), ("u", "a", 3)), rows("url user n", ("u", "b", 4))]
    assert fields_of(Distinct("url", "user")) == ("url", "user")
    assert outputs(Distinct("url", "user"), batches) == [("u", "a"), ("u", "b")]
    assert outputs(Distinct("user", "url"), batches) == [("a", "u"), ("b", "u")]
    assert outputs(Distinct("thing"), [rows("thing", (1, 2), "x", (1, 2))]) == [((1, 2),), ("x",)]


@pytest.mark.parametrize(
    ("batches", "count"), [([], 0), ([rows("x", 1, 2)], 2), ([rows("x", 1, "a"), rows("x", "b")], 3)]
)
def test_batch_count_emits_once_even_for_an_empty_batch(batches, count):
    assert fields_of(BatchCount("count")) == ("count",)
    assert outputs(BatchCount(), batches) == [(count,)]
