import pyarrow as pa
import pytest
from handle_cases import COUNTS, Bench, add, apply, in_memory

from txstorm.api.state import KeyedState
from txstorm.errors import StateError
from txstorm.keys import key_group
from txstorm.storage.rows.schema import changes_schema
from txstorm.storage.rows.update_rules import Row


@pytest.fixture
def bench():
    return Bench()


def test_writes_are_visible_to_their_task_at_once_and_to_others_with_the_txid(bench):
    mine, other = bench.open(1), bench.open(1, task=1)
    assert mine.get("a") is None
    assert mine.get("a", 7) == 7
    mine.put("a", 1)
    assert (mine.get("a"), mine.get_many(["a", "b"])) == (1, {"a": 1})
    assert bench.open(1).get("a") == 1  # a handle that is requested twice is the same one
    assert other.get("a") is None
    bench.group.end_txid(1)
    assert bench.open(2, task=1).get("a") == 1


def test_update_many_gives_the_new_values_in_the_order_of_the_partials(bench):
    bench.commit(1, lambda h: h.put_many({"a": 1, "b": 2}))
    new = bench.commit(2, lambda h: h.update_many({"b": 10, "new": 5, "a": 1}, add))
    assert list(new.items()) == [("b", 12), ("new", 5), ("a", 2)]


def test_change_rows_keep_each_txid_with_the_value_before_it_also_none(bench):
    bench.commit(1, lambda h: h.put_many({"b": 1, "a": 1}), publish=False)
    bench.commit(2, lambda h: None, publish=False)
    bench.commit(3, lambda h: (h.put("a", 2), h.remove("b")), publish=False)
    table = bench.group.changes(1, 3)
    assert table.schema == changes_schema(COUNTS)
    assert bench.rows(1, 3) == [
        {"word": "a", "n": 1, "_txid": 1, "_prev": None, "_op": "u"},
        {"word": "b", "n": 1, "_txid": 1, "_prev": None, "_op": "u"},
        {"word": "a", "n": 2, "_txid": 3, "_prev": {"n": 1}, "_op": "u"},
        {"word": "b", "n": None, "_txid": 3, "_prev": {"n": 1}, "_op": "d"},
    ]
    assert table["_kg"].to_pylist() == [key_group((word,)) for word in "abab"]
    assert bench.rows(3, 9) == bench.rows(1, 3)[2:]
    assert bench.group.changes(2, 2) is None
    bench.commit(4, lambda h: h.put("a", 2), publish=False)  # an equal value is a change, too
    assert bench.rows(4, 4) == [{"word": "a", "n": 2, "_txid": 4, "_prev": {"n": 2}, "_op": "u"}]
    bench = Bench()
    bench.commit(1, lambda h: h.put_many({"a": None, None: 2}), publish=False)
    assert bench.rows(1, 1)[0] == {"word": None, "n": 2, "_txid": 1, "_prev": None, "_op": "u"}
    found = bench.commit(2, lambda h: (h.get("a", "absent"), h.get_many(["a", None, "b"])))
    assert found == (None, {"a": None, None: 2})
    bench.commit(3, lambda h: h.put("a", 1), publish=False)
    assert bench.rows(3, 3)[0]["_prev"] == {"n": None}


def test_removing(bench):
    bench.commit(1, lambda h: h.put_many({"a": 1, "b": 1}))

    def work(handle):
        handle.remove_many(["a", "absent"])
        assert (handle.get("a"), handle.get("a", 0), handle.get_many(["a", "b"])) == (None, 0, {"b": 1})
        assert handle.update("a", lambda old: add(old, 3)) == 3
        handle.remove("b")
        handle.put("c", 1)
        handle.remove("c")

    bench.commit(2, work, publish=False)
    assert bench.rows(2, 2) == [
        {"word": "a", "n": 3, "_txid": 2, "_prev": {"n": 1}, "_op": "u"},
        {"word": "b", "n": None, "_txid": 2, "_prev": {"n": 1}, "_op": "d"},
    ]
    bench.commit(3, lambda h: h.remove_many(["b", "c"]))
    assert bench.group.changes(3, 3) is None
    bench.group.apply(3)
    assert in_memory(bench.index) == {"a": Row((3,), 2, (1,))}


def test_a_key_changed_by_two_tasks_fails_the_txid_and_names_the_remedy(bench):
    bench.open(1).put_many({"a": 1, "b": 1, "x": 1})
    bench.open(1, task=2).put_many({"b": 1, "x": 1, "y": 1})
    bench.open(1, task=1).put("z", 1)
    with pytest.raises(StateError) as caught:
        bench.group.end_txid(1)
    message = str(caught.value)
    assert "state 'counts', txid 1: key 'b' and 1 more was changed by 2 tasks (counter[0], counter[2])" in message
    assert "use fields_grouping on the state's key ['word']" in message
    assert bench.group.changes(1, 1) is None
    bench.group.drop_from(1)
    bench.open(1).put("a", 1)
    bench.open(1, task=1).put("b", 2)
    bench.group.end_txid(1)
    assert [row["word"] for row in bench.rows(1, 1)] == ["a", "b"]


def test_a_handle_works_only_while_its_finish_batch_runs(bench):
    handle = bench.group.handle("counter", 0, 7)
    uses = [
        lambda: handle.get("a"),
        lambda: handle.get_many([]),
        lambda: handle.put("a", 1),
        lambda: handle.put_many({}),
        lambda: handle.update("a", lambda old: 1),
        lambda: handle.update_many({}, add),
        lambda: handle.merge(None, {}),
        lambda: handle.remove("a"),
        lambda: handle.remove_many([]),
        lambda: handle.previous("a"),
    ]
    for use in uses:
        with pytest.raises(StateError, match=r"state 'counts' of counter\[0\], txid 7 used outside finish_batch"):
            use()
    handle.active = True
    handle.put("a", 1)
    bench.group.end_txid(7)
    dropped = bench.open(8)
    bench.group.drop_from(8)
    for ended in (handle, dropped):
        with pytest.raises(StateError, match="outside finish_batch"):
            ended.put("a", 2)


def test_a_row_ahead_of_the_txid_is_named_and_one_that_carries_it_counts_from_before_it(bench):
    apply(bench.index, {"a": Row((1,), 5, None), "b": Row((1,), 2, None)})
    handle = bench.open(3)
    assert handle.get("b") == 1
    with pytest.raises(StateError, match=r"state 'counts', key 'a': state is ahead.*txid 3 or earlier.*txid 5"):
        handle.update("a", lambda old: add(old, 1))
    bench = Bench()
    apply(bench.index, {"a": Row((8,), 5, (3,)), "new": Row((8,), 5, None)})
    assert bench.commit(5, lambda h: h.update_many({"a": 1, "new": 1}, add)) == {"a": 4, "new": 1}
    assert bench.index.rows(["a"]) == [Row((4,), 5, (3,))]


def test_mutating_a_value_that_was_read_does_not_change_the_state():
    bench = Bench(KeyedState("s", key={"k": str}, value={"seen": pa.list_(pa.string())}))
    given = ["a"]
    bench.commit(1, lambda h: h.put("k", given))
    given.append("x")
    bench.commit(2, lambda h: h.get("k").append("y"))
    assert bench.commit(3, lambda h: h.update("k", lambda old: old.append("b") or old), publish=False) == ["a", "b"]
    bench.group.drop_from(3)
    assert bench.commit(3, lambda h: h.get("k")) == ["a"]


def test_a_removed_put_and_an_update_that_raises_leave_no_row(bench):
    handle = bench.open(1)
    handle.put("c", 1)
    handle.remove("c")
    with pytest.raises(ZeroDivisionError):
        handle.update_many({"a": 1, "b": 0}, lambda old, n: 1 // n)
    bench.group.end_txid(1)
    assert bench.group.changes(1, 1) is None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_txid_applied_to_the_index_during_a_read_is_seen(bench, moment):
    bench.commit(1, lambda h: h.put_many({"a": 1, "b": 1}))
    bench.commit(2, lambda h: (h.put("a", 2), h.remove("b"), h.put("c", 2)), publish=False)
    look_up = bench.index.rows

    def publishing(keys, **how):
        if moment == "before":
            bench.group.apply(2)
        found = look_up(keys, **how)
        if moment == "after":
            bench.group.apply(2)
        return found

    bench.index.rows = publishing
    assert bench.open(3).get_many(["a", "b", "c"]) == {"a": 2, "c": 2}


def test_txids_end_once_and_in_order(bench):
    for txid in (1, 3):
        bench.commit(txid, lambda h: h.put("a", 1), publish=False)
    for txid in (3, 2):
        with pytest.raises(StateError, match=rf"state 'counts': expected a txid after 3 to end, got {txid}; drop_from"):
            bench.group.end_txid(txid)
    bench.group.drop_from(2)
    bench.group.end_txid(2)
    bench.commit(3, lambda h: h.put("a", 5), publish=False)
    assert [row["n"] for row in bench.rows(1, 3)] == [1, 5]
