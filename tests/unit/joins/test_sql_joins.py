"""Keys of joins in SQL: equal by value and type; `test_join_bolt.py` checks pairs and chains against DuckDB."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from txstorm.errors import StateError
from txstorm.joins.sql_joins import MISSING, numbered_keys, pairs

VALUES: list[Any] = [1, "1", True, 1.0, b"1", 0, False, -0.0, 2**70, Decimal(1), datetime(2026, 1, 1, tzinfo=UTC)]


def test_keys_are_equal_if_value_and_type_are_and_join_as_in_a_loop() -> None:
    numbers = numbered_keys({"a": VALUES, "b": [None, *VALUES, Decimal("1.00"), 0.0]})
    a, b = (numbers[name].tolist() for name in ("a", "b"))
    assert len(set(a)) == len(VALUES)
    assert b == [MISSING, *a, a[9], a[7]]
    with pytest.raises(StateError, match=r"list .1. cannot be part of a key"):
        numbered_keys({"a": [[1]]})
    numbers = numbered_keys({"a": VALUES, "b": VALUES})
    left, right = pairs(numbers["a"], numbers["b"], keep=False)
    same = [
        (i, j)
        for (i, one), (j, other) in product(enumerate(VALUES), enumerate(VALUES))
        if type(one) is type(other) and one == other
    ]
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == same
