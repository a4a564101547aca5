"""Row hashes depend on the values of a row only, not on their representation."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from txstorm import keys
from txstorm.engine.arrow import batch_of_rows
from txstorm.engine.task.routing import row_hashes


def test_row_hashes_equal_key_hashes() -> None:
    rows = [("a", 1), (None, 2), ("c", None)]
    assert row_hashes(batch_of_rows(rows, ["s", "i"]), [0, 1]).tolist() == [keys.hash_values(row) for row in rows]
    mixed = batch_of_rows([("a",), (1,), (None,), (dt.date(2026, 1, 1),)], ["x"])
    assert row_hashes(mixed, [0]).tolist() == [keys.hash_values([v]) for v in ("a", 1, None, dt.date(2026, 1, 1))]


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, (1, "x"), 2**70, {1, 2}, Decimal("1.5")])
def test_typed_and_text_encoded_values_hash_alike(value) -> None:
    as_text = batch_of_rows([(value,), ("other",)], ["x"])
    assert row_hashes(as_text, [0])[0] == row_hashes(batch_of_rows([(value,)], ["x"]), [0])[0]
    if isinstance(value, list | Decimal):
        assert row_hashes(as_text, [0])[0] == row_hashes(pa.record_batch({"x": [value]}), [0])[0]


def test_columns_that_are_not_emittable_as_tuples_have_hashes() -> None:
    times = pa.record_batch({"x": pa.array([dt.time(1), dt.time(2), dt.time(1)])})
    first, second, third = row_hashes(times, [0])
    assert first == third != second
    large = pa.record_batch({"x": pa.array([2**63, 1], pa.uint64())})
    assert row_hashes(large, [0])[1] == keys.hash_values([1])
