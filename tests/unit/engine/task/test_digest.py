"""Digest of a spout's emissions: it depends on every row and its order, and on nothing else."""

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest

from txstorm.engine.arrow import batch_of_rows
from txstorm.engine.task.collector import Emitted
from txstorm.engine.task.digest import digest_of_rows

ROWS = [("a", 1, True, None), (None, 2, False, 0.5), ("c", None, None, 0.25), ("d", 4, True, 1.5)]
NAMES = ["s", "i", "t", "f"]


def batch(rows=ROWS) -> pa.RecordBatch:
    return batch_of_rows(rows, NAMES)


def emitted(*batches: pa.RecordBatch, stream: str = "default") -> list[Emitted]:
    return [Emitted(stream, one) for one in batches]


def test_a_digest_detects_every_difference_in_rows_but_no_chunking_or_padding() -> None:
    whole = batch()
    once = digest_of_rows(emitted(whole))
    assert digest_of_rows(emitted(whole.slice(0, 1), whole.slice(1, 2), whole.slice(3))) == once
    longer = batch([*ROWS, ("x", 9, None, 9.0), (None, None, True, None)])
    assert digest_of_rows(emitted(longer.slice(0, 4))) == once
    assert digest_of_rows(emitted(batch([("x", 9, None, 9.0), *ROWS]).slice(1))) == once
    others = [
        [],
        emitted(batch(ROWS[:3])),
        emitted(batch([*ROWS[1:], ROWS[0]])),
        emitted(batch([("a", 1, True, 0.0), *ROWS[1:]])),
        emitted(batch([("a", "1", True, None), *ROWS[1:]])),
        emitted(batch(), stream="more"),
        [Emitted("default", batch(), 0)],
        [Emitted("default", batch(), 1)],
        [*emitted(batch()), *emitted(batch(), stream="more")],
        emitted(batch_of_rows([()], []), stream="ticks"),
        emitted(batch_of_rows([(), ()], []), stream="ticks"),
    ]
    assert len({digest_of_rows(one) for one in [emitted(batch()), *others]}) == len(others) + 1


COLUMNS = {
    "null": pa.nulls(20),
    "string": pa.array(["a", None, "", "long text"] * 5),
    "binary": pa.array([b"a", None, b"\0"] * 6 + [b"", b"x"]),
    "large": pa.array(["a", None] * 10, pa.large_string()),
    "dictionary": pa.array(["a", None, "b", "a"] * 5).dictionary_encode(),
    "bool": pa.array([True, None, False, False] * 5),
    "int8": pa.array([1, None, -3, 4] * 5, pa.int8()),
    "float": pa.array([0.5, None, float("nan"), -0.0] * 5),
    "time": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None] * 10, pa.timestamp("us", tz="UTC")),
    "date": pa.array([dt.date(2026, 1, 1), None] * 10),
    "decimal": pa.array([Decimal("1.50"), None] * 10),
    "list": pa.array([[1, 2], None, [], [None]] * 5),
    "struct": pa.array([{"x": 1}, None] * 10),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_digests_of_columns_of_all_types_in_random_chunks(name: str) -> None:
    rng = random.Random(7)
    column = COLUMNS[name]
    whole = digest_of_rows(emitted(pa.record_batch({"x": column})))
    more = pa.concat_arrays([column.take(pa.array([3, 2])), column, column.take(pa.array([1, 0]))])
    cut = pa.record_batch({"x": more}).slice(2, 20)
    cuts = sorted(rng.sample(range(1, 20), 4))
    found = [cut.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
    assert digest_of_rows(emitted(*found)) == whole
    if name != "null":
        other = pa.record_batch({"x": column.take(pa.array([1, 0, *range(2, 20)]))})
        assert digest_of_rows(emitted(other)) != whole
