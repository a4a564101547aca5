"""Staged store rows: what is staged comes back as it was, in requests of one task and txid."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from txstorm.api.join_store import StoreRow, StoreUse, same_store
from txstorm.joins import MemoryStore
from txstorm.joins.delay.staged_rows import RowForm, puts_of
from txstorm.joins.delay.store_target import FilledStore, ReadStore
from txstorm.storage.tables.identity import TopologyIdentity

FORM = RowForm(("key", "id", "value"), ("key",), "id")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def group_with(*txids, store=None):
    """Return a group in which task → rows were staged in each of the txids, numbered from 1."""
    use = StoreUse("fill", store or MemoryStore(), fills=True, batch_size=2)
    group = FilledStore(Path("data"), TopologyIdentity("t", "1"), use)
    for txid, tasks in enumerate(txids, start=1):
        for task, values in tasks.items():
            times = np.arange(len(values), dtype=np.int64) + 1000 * txid
            group.handle("fill", task, txid).put(FORM, FORM.staged(values, times))
        group.end_txid(txid)
    return group


def typed(*values):
    columns = list(zip(*values, strict=True))
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names=["key", "id", "value"])


def test_requests_are_of_one_task_and_txid_also_of_other_types_and_an_expiry_alone():
    first = {0: typed(("a", "1", 1), ("b", "2", 2), ("a", "3", 3)), 1: typed(("c", "4", None))}
    group = group_with(first, {1: typed(("c", "5", 5))})
    made = group.changes(1, 2)
    for requests, expiry in (group.puts(1, 2), puts_of(made, 2)):
        assert [[row.id for row in rows] for rows in requests] == [["1", "2"], ["3"], ["4"], ["5"]]
        assert requests[0][1] == StoreRow("b", "2", 1001, {"key": "b", "id": "2", "value": 2})
        assert expiry is None
    assert group.puts(1, 3) is None  # another process has run txid 3
    group = group_with({0: typed(("a", "1", 1))}, {0: typed(("a", "2", "x"))}, {0: [("a", "3", 1.5)]})
    requests, _ = puts_of(group.changes(1, 3), 9)
    assert [rows[0].value["value"] for rows in requests] == [1, "x", 1.5]
    group = group_with()
    group.handle("fill", 0, 1).expiry = 77
    group.end_txid(1)
    assert puts_of(group.changes(1, 1), 9) == group.puts(1, 1) == ([], 77)


@pytest.mark.parametrize(
    "values",
    [
        typed(("a", "1", NOON), ("b", "2", None)),
        typed((b"a", 1, Decimal("1.50")), (b"b", 2, Decimal("2.25"))),
        typed(("a", "1", [1, 2]), ("b", "2", [])),
        [("a", "1", (1, "x")), (2, True, {"y": 1.5})],
    ],
)
def test_values_come_back_as_they_were(values):
    (rows,), _ = puts_of(group_with({0: values}).changes(1, 1), 2)
    given = values if isinstance(values, list) else list(zip(*(one.to_pylist() for one in values.columns), strict=True))
    found = [(row.key, row.id, row.value["value"]) for row in rows]
    assert found == given
    assert [list(map(type, row)) for row in found] == [list(map(type, row)) for row in given]


def test_look_ups_merge_store_and_staged_rows_of_earlier_txids_of_which_the_first_of_an_id_stays():
    store = MemoryStore()
    store.put_many([StoreRow("a", "1", 5, {"value": "first"}), StoreRow("a", "0", 2, {})])
    group = group_with({0: typed(("a", "1", 9), ("a", "2", 9), ("b", "3", 9))}, store=store)
    later = group.handle("fill", 0, 3)
    later.put(FORM, FORM.staged(typed(("a", "4", 9)), np.array([7])))
    later.hidden = 3
    look_ups = ReadStore(Path("data"), StoreUse("match", store), group)
    for txid, ids in ((2, ["0", "1", "2"]), (3, ["1", "4", "2"])):
        handle = look_ups.handle("match", 0, txid)
        handle.active = True
        found = handle.get_many({"a", "c"}, 0, 2000)
        assert [row.id for row in found["a"]] == ids
        assert found["c"] == []
    assert found["a"][0].value == {"value": "first"}
    first = [("a", 1, "first"), ("a", True, "bool"), ("b", 1, "b")]
    group = group_with({0: first}, {0: [("a", 1, "again"), ("a", 2, "other"), (1, 1, "int"), (True, 1, "true")]})
    handle = ReadStore(Path("data"), StoreUse("match", MemoryStore()), group).handle("match", 0, 2)
    handle.active = True

    def seen(key, start, end):
        return [row.value["value"] for row in handle.get_many([key], start, end)[key]]

    assert seen("a", 2000, 2999) == ["other"]
    assert seen("a", 0, 2999) == ["first", "bool", "other"]
    assert [seen(key, 0, 2999) for key in (1, True, "b", "c")] == [["int"], ["true"], ["b"], []]


def test_stores_are_the_same_by_object_address_or_what_they_wrap():
    class At(MemoryStore):
        address = "here"

    class Around(MemoryStore):
        def __init__(self, store):
            super().__init__()
            self.store = store

    one, other = MemoryStore(), MemoryStore()
    assert same_store(one, one)
    assert not same_store(one, other)
    assert same_store(At(), At())
    assert same_store(Around(one), one)
    assert not same_store(Around(one), other)
