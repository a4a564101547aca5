"""The ready-made committers that count and sum by key: their declared tables, and the table contents after a run."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from runs import ended

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.bolts import CountBy, CountByKey, SumByKey
from txstorm.errors import EmitError, StateError, TopologyError
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
