"""Order of rows by several columns of integers: the same as by `numpy.lexsort`, whatever the values."""

import os

import numpy as np
import pytest

from txstorm.row_order import order_of

FIRST = int(os.environ.get("SEED", "0"))
EXTREMES = np.array([-(1 << 63), -1, 0, (1 << 63) - 1])


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 200))
def test_rows_are_sorted_as_by_lexsort(seed):
    draw = np.random.default_rng(seed)
    rows = int(draw.integers(0, 200))
    columns = []
    for _ in range(int(draw.integers(1, 5))):
        bits = int(draw.integers(0, 64))
        any_of = EXTREMES if bits == 63 else np.array([0, 1]) if not bits else None
        columns.append(draw.integers(-(1 << bits), 1 << bits, rows) if any_of is None else draw.choice(any_of, rows))
    assert order_of(*columns).tolist() == np.lexsort(columns[::-1]).tolist(), f"SEED={seed}"
