"""Bolts that compute partial aggregates, compared with equivalent plain Python."""

import math
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from bolts_harness import emitted, fields_of, outputs, rows
from seeded import seeded

from txstorm.bolts import BatchCount, CountBy, Distinct
from txstorm.engine.arrow import rows_of_batch
from txstorm.keys import any_text

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
