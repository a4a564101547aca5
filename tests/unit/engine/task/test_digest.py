"""What tasks emit: the values and record batches of a collector, and the digest of a spout's emissions."""

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from txstorm.api.output import StreamDeclaration
from txstorm.engine.arrow import batch_of_rows, rows_of_batch
from txstorm.engine.task import collector as module
from txstorm.engine.task.collector import Emitted, OutputCollector
from txstorm.engine.task.digest import digest_of_rows
from txstorm.errors import EmitError

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


STREAMS = {
    "default": StreamDeclaration(("word", "n")),
    "errors": StreamDeclaration(("why",)),
    "aimed": StreamDeclaration(("x",), direct=True),
    "ticks": StreamDeclaration(()),
}


@pytest.fixture
def collector() -> OutputCollector:
    return OutputCollector("split", STREAMS)


def taken(collector: OutputCollector) -> list[tuple[str, int | None, list[Any]]]:
    return [(one.stream, one.direct, list(rows_of_batch(one.batch))) for one in collector.take()]


def test_tuples_are_emitted_as_record_batches_per_stream_in_order(collector: OutputCollector) -> None:
    """Each stream's tuples arrive in order, without the transaction id among their fields (T26)."""
    collector.emit("a", 1)
    collector.emit("bad", stream="errors")
    collector.emit("b", 2)
    collector.emit_batch(pa.record_batch({"n": [3], "word": ["c"]}))
    collector.emit("d", 4)
    collector.emit_batch(pa.table({"word": ["e", "f"], "n": [5, 6]}))
    assert collector.count == 6
    found = taken(collector)
    default = [row for stream, _, rows in found if stream == "default" for row in rows]
    assert default == list(zip("abcdef", range(1, 7), strict=True))
    assert [rows for stream, _, rows in found if stream == "errors"] == [[("bad",)]]
    assert collector.count == 7
    assert collector.take() == []


def test_direct_tuples_keep_their_order_and_target_task_also_under_storms_method_names(collector) -> None:
    for task, x in ((0, "a"), (0, "b"), (2, "c"), (0, "d")):
        collector.emit_direct(task, x, stream="aimed")
    assert taken(collector) == [("aimed", 0, [("a",), ("b",)]), ("aimed", 2, [("c",)]), ("aimed", 0, [("d",)])]
    collector.emitDirect(1, "x", stream="aimed")
    collector.emitBatch(pa.record_batch({"word": ["a"], "n": [1]}))
    collector.reportError(ValueError("seen"))
    assert [stream for stream, _, _ in taken(collector)] == ["default", "aimed"]
    assert [str(error) for error in collector.errors] == ["seen"]


def test_streams_without_fields_empty_batches_and_long_runs_of_tuples(collector, monkeypatch) -> None:
    collector.emit_batch(pa.record_batch({"word": pa.array([], pa.string()), "n": pa.array([], pa.int64())}))
    assert collector.take() == []
    assert collector.count == 0
    collector.emit(stream="ticks")
    collector.emit(stream="ticks")
    assert taken(collector) == [("ticks", None, [(), ()])]
    monkeypatch.setattr(module, "FLUSH_VALUES", 10)
    for n in range(17):
        collector.emit("w", n)
    batches = [one.batch.num_rows for one in collector.take()]
    assert sum(batches) == 17
    assert max(batches) <= 10


REFUSED = {
    "too few": (lambda c: c.emit("a"), r"split, stream 'default': expected 2 values .*\['word', 'n'\].*got 1"),
    "too many": (lambda c: c.emit("a", 1, 2), "expected 2 .* got 3"),
    "a tuple as one value": (lambda c: c.emit(("a", 1)), "pass one argument per field"),
    "unknown stream": (lambda c: c.emit("a", stream="eror"), r"stream 'eror': not declared.*did you mean 'errors'"),
    "direct as plain": (lambda c: c.emit("a", stream="aimed"), "the stream is direct; use emit_direct"),
    "plain as direct": (lambda c: c.emit_direct(0, "a", 1), "the stream is not direct; use emit"),
    "direct of another arity": (lambda c: c.emit_direct(0, stream="aimed"), "expected 1 .* got 0"),
    "batch to a direct stream": (lambda c: c.emit_batch(pa.record_batch({"x": [1]}), stream="aimed"), "is direct"),
    "batch to nowhere": (lambda c: c.emit_batch(pa.record_batch({"x": [1]}), stream="x"), "not declared"),
    "other columns": (lambda c: c.emit_batch(pa.record_batch({"word": ["a"]})), r"declared columns .*got \['word'\]"),
    "not a batch": (lambda c: c.emit_batch([("a", 1)]), "default': emit_batch takes .*got list"),
    "tuple to a stream without fields": (lambda c: c.emit(1, stream="ticks"), "expected 0 .* got 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_emits_are_rejected_with_a_reason(case: str, collector: OutputCollector) -> None:
    emit, message = REFUSED[case]
    with pytest.raises(EmitError, match=message):
        emit(collector)
    assert collector.take() == []
