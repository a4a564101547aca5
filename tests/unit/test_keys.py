"""Key groups and hashes of keys, which must never change, because stored rows depend on them; the order of rows."""

import os
from datetime import UTC

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm import keys
from txstorm.row_order import order_of

GOLDEN = [(("a",), 2016), ((1,), 18564), ((True,), 31697), (("1",), 26173), ((None,), 2017), (("a", 1), 14076)]


@pytest.mark.parametrize(("key", "group"), GOLDEN, ids=str)
def test_golden_key_groups(key: tuple[object, ...], group: int) -> None:
    assert keys.key_group(key) == group


COLUMNS = {
    "string": (st.text(), pa.string()),
    "large_string": (st.text(), pa.large_string()),
    "binary": (st.binary(), pa.binary()),
    "int": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "bool": (st.booleans(), pa.bool_()),
    "float": (st.floats(), pa.float64()),
    "date": (st.dates(), pa.date32()),
    "time": (st.datetimes(timezones=st.just(UTC)), pa.timestamp("us", tz="UTC")),
}


@pytest.mark.parametrize("kind", COLUMNS)
@given(data=st.data())
def test_columns_hash_like_their_values(kind: str, data: st.DataObject) -> None:
    strategy, arrow = COLUMNS[kind]
    values = data.draw(st.lists(st.one_of(st.none(), strategy), max_size=20))
    expected = [keys.hash_value(value) for value in values]
    whole = pa.array(values, arrow)
    assert keys.hash_column(whole).tolist() == expected
    assert keys.hash_column(pa.chunked_array([whole.slice(0, 3), whole.slice(3)])).tolist() == expected
    assert keys.hash_column(whole.slice(1)).tolist() == expected[1:]


def test_long_strings_hash_the_same_whatever_the_chunking() -> None:
    values = ["x" * 3_000_000, "", "abc" * 500_000, "tail"]
    assert keys.hash_column(pa.array(values)).tolist() == [keys.hash_value(value) for value in values]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 64])
def test_key_groups_are_spread_evenly(parallelism: int) -> None:
    groups = keys.key_groups([pa.array([f"word-{i}" for i in range(20_000)])])
    tasks = np.bincount(keys.tasks_of(groups, parallelism), minlength=parallelism)
    assert tasks.min() > 0.8 * 20_000 / parallelism
    expected = keys.tasks_of(groups[:50], parallelism).tolist()
    assert [keys.task_of(int(group), parallelism) for group in groups[:50]] == expected


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
