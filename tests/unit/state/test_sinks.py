from datetime import UTC, datetime

import pyarrow as pa
import pytest

from txstorm.api.state import SinkTable
from txstorm.errors import StateError
from txstorm.state.sinks import SinkGroup
from txstorm.storage.rows.schema import sink_schema

SINK = SinkTable("out", {"word": str, "n": int})


@pytest.fixture
def group():
    return SinkGroup(SINK)


def opened(group, txid, task=0):
    handle = group.handle("writer", task, txid)
    handle.active = True
    return handle


def test_rows_are_ordered_by_txid_then_task_then_append(group):
    second, first = opened(group, 1, task=10), opened(group, 1, task=2)
    second.append("c", 3)
    first.append("b", None)
    first.append_batch(pa.table({"n": [5, 6], "more": [0, 0], "word": ["x", None]}))
    first.append("a", 1)
    group.end_txid(1)
    opened(group, 2).append_batch(pa.record_batch({"word": ["z"], "n": [9]}))
    group.end_txid(2)
    assert group.changes(1, 2).schema == sink_schema(SINK)
    assert [tuple(row.values()) for row in group.changes(1, 2).to_pylist()] == [
        ("b", None, 1), ("x", 5, 1), (None, 6, 1), ("a", 1, 1), ("c", 3, 1), ("z", 9, 2)
    ]  # fmt: skip
    assert group.changes(2, 5).num_rows == 1
    opened(group, 3).append_batch(pa.table({"word": pa.array([], pa.string()), "n": pa.array([], pa.int64())}))
    group.end_txid(3)
    group.end_txid(4)
    assert group.changes(3, 5) is None  # a txid that appends nothing has no rows


def test_published_rows_and_failed_txids_are_dropped_from_memory(group):
    for txid in (1, 2, 3):
        opened(group, txid).append("w", txid)
        group.end_txid(txid)
    late = opened(group, 4)
    group.apply(1)
    group.drop_from(3)
    assert group.changes(1, 9)["_txid"].to_pylist() == [2]
    with pytest.raises(StateError, match="outside finish_batch"):
        late.append("w", 4)
    opened(group, 3).append("again", 3)
    group.end_txid(3)
    assert group.changes(2, 3)["word"].to_pylist() == ["w", "again"]


def test_a_handle_works_in_finish_batch_only_and_a_value_of_another_type_fails_the_txid(group):
    handle = group.handle("writer", 1, 6)
    for use in (lambda: handle.append("a", 1), lambda: handle.append_batch(None)):
        with pytest.raises(StateError, match=r"sink 'out' of writer\[1\], txid 6 used outside finish_batch"):
            use()
    handle = opened(group, 8)
    handle.append("a", 1)
    handle.append("b", "2")
    with pytest.raises(
        StateError, match=r"sink 'out', column 'n', row 1 .*writer\[0\], txid 8.*expected int, got str '2'"
    ):
        group.end_txid(8)
    assert group.changes(8, 8) is None
    group.drop_from(8)
    group.end_txid(8)
    assert group.changes(8, 8) is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"word": ["a"]}, r"sink 'out'.*expected one column 'n', got \['word'\]"),
        ({"word": ["a"], "n": [0.5]}, "'n'.*expected int64, got double; cast the column"),
        ({"word": [1], "n": [1]}, "'word'.*expected string, got int64"),
    ],
)
def test_a_batch_that_does_not_match_the_declaration_is_rejected(group, table, message):
    with pytest.raises(StateError, match=message):
        opened(group, 1).append_batch(pa.table(table))


def test_times_are_utc_and_a_column_of_nulls_fits_every_type():
    sink = SinkTable("out", {"at": datetime, "what": pa.list_(pa.int64())})
    group = SinkGroup(sink)
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    handle = opened(group, 1)
    handle.append(noon, [1, None])
    handle.append_batch(pa.table({"at": pa.array([noon], pa.timestamp("ms", tz="Europe/Berlin")), "what": [None]}))
    group.end_txid(1)
    assert group.changes(1, 1).schema == sink_schema(sink)
    assert group.changes(1, 1)["at"].to_pylist() == [noon, noon]
