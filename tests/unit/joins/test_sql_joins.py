"""Pairs of rows with equal keys, and chains of inner and left joins, against a naive model."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pytest

from txstorm.errors import StateError
from txstorm.joins.sql_joins import MISSING, Step, chain, numbered_keys, pairs

SEEDS = range(200)


def naive_pairs(probe: list[int], build: list[int], *, keep: bool) -> list[tuple[int, int]]:
    made = []
    for left, key in enumerate(probe):
        found = [(left, right) for right, other in enumerate(build) if key == other != MISSING]
        made += found or ([(left, MISSING)] if keep else [])
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_are_those_of_two_loops(seed: int) -> None:
    draw = random.Random(seed)
    probe, build = ([draw.randrange(-1, 6) for _ in range(draw.randrange(9))] for _ in range(2))
    for keep in (False, True):
        left, right = pairs(np.array(probe, np.int64), np.array(build, np.int64), keep=keep)
        assert list(zip(left.tolist(), right.tolist(), strict=True)) == naive_pairs(probe, build, keep=keep), seed


def naive_chain(first: str, steps: list[Step], keys: dict[str, list[int]]) -> list[dict[str, int]]:
    rows = [{first: number} for number in range(len(keys[first]))]
    for step in steps:
        made = []
        for row in rows:
            at = row[step.other]
            key = MISSING if at == MISSING else keys[step.other][at]
            found = [number for number, other in enumerate(keys[step.stream]) if key == other != MISSING]
            made += [{**row, step.stream: number} for number in found or ([MISSING] if step.left else [])]
        rows = made
    return rows


@pytest.mark.parametrize("seed", SEEDS)
def test_a_chain_keeps_rows_whose_middle_is_missing(seed: int) -> None:
    draw = random.Random(seed)
    names = ["a", "b", "c", "d"][: draw.randrange(1, 5)]
    steps = [Step(name, draw.choice(names[:at]), draw.random() < 0.6) for at, name in enumerate(names) if at]
    keys = {name: [draw.randrange(-1, 4) for _ in range(draw.randrange(6))] for name in names}
    rows = chain("a", steps, {name: np.array(some, np.int64) for name, some in keys.items()})
    found = [
        dict(zip(rows, numbers, strict=True))
        for numbers in zip(*(some.tolist() for some in rows.values()), strict=True)
    ]
    assert found == naive_chain("a", steps, keys), seed


VALUES: list[Any] = [1, "1", True, 1.0, b"1", 0, False, -0.0, 2**70, Decimal(1), datetime(2026, 1, 1, tzinfo=UTC)]


def test_keys_are_equal_if_value_and_type_are() -> None:
    numbers = numbered_keys({"a": VALUES, "b": [None, *VALUES, Decimal("1.00"), 0.0]})
    a, b = (numbers[name].tolist() for name in ("a", "b"))
    assert len(set(a)) == len(VALUES)
    assert b == [MISSING, *a, a[9], a[7]]


def test_a_value_that_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(StateError, match=r"list .1. cannot be part of a key"):
        numbered_keys({"a": [[1]]})


def test_keys_of_all_kinds_join_as_a_loop_over_them() -> None:
    numbers = numbered_keys({"a": VALUES, "b": VALUES})
    left, right = pairs(numbers["a"], numbers["b"], keep=False)
    same = [
        (i, j)
        for (i, one), (j, other) in product(enumerate(VALUES), enumerate(VALUES))
        if type(one) is type(other) and one == other
    ]
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == same
