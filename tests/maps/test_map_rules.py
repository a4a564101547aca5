"""Items 67 to 76 of Storm's conformance list for maps in a store: one test for each, with further rules."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from seeded import seeded

from txstorm import MapState, MemoryBackend, ReportedFailedException
from txstorm.api.external import MapRow
from txstorm.errors import StateError
from txstorm.state.external.map_rows import staged_rows, staged_table
from txstorm.state.external.maps import StoredMap, TaskMap
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.staging import encoded


class Commit:
    """Test harness: commits txids to one map without a ledger, so that a txid can be repeated."""

    def __init__(self, backend: Any, kind: str = "opaque") -> None:
        self.backend = backend
        self.state = MapState("counts", backend, kind=kind)
        self.group = self.begun()

    def begun(self, timeline: int = 0) -> StoredMap:
        return StoredMap(Path("data"), TopologyIdentity("t", "1", timeline), "committer", self.state)

    def __call__(self, txid: int, work: Callable[[TaskMap], Any]) -> Any:
        handle = self.group.handle("committer", 0, txid)
        handle.active = True
        result = work(handle)
        self.group.end_txid(txid)
        table = self.group.changes(txid, txid)
        if table is not None:
            keeps = self.state.kind != "non_transactional"
            self.backend.multi_put(staged_rows(bytes(encoded(table)), 0, keeps_txid=keeps))
        self.group.apply(txid)
        return result


def adding(n):
    return lambda old: (old or 0) + n


def put(backend, **rows):
    backend.multi_put({f'"{key}"': row for key, row in rows.items()})


def stored(backend, *keys):
    return [row and (row.value, row.txid, row.prev) for row in backend.multi_get([f'"{key}"' for key in keys])]


def test_item_67_reads_of_an_opaque_value_at_after_and_before_its_txid(backend):
    commit = Commit(backend)

    def at(txid, work):
        put(backend, a=MapRow("v1", 8, 0, "v0"))
        return commit(txid, work)

    assert at(100, lambda it: it.get("a")) == "v1"
    assert at(9, lambda it: it.get("a")) == "v1"
    assert at(8, lambda it: it.get("a")) == "v0"
    with pytest.raises(StateError, match=r"state is ahead.*txid 7 or earlier, got one of txid 8"):
        at(7, lambda it: it.get("a"))
    at(8, lambda it: it.update("a", lambda _: "v2"))
    assert stored(backend, "a") == [("v2", 8, "v0")]
    at(9, lambda it: it.put("a", "v2"))
    assert stored(backend, "a") == [("v2", 9, "v1")]


def test_item_68_an_opaque_map_counts_a_repeated_txid_once(backend):
    commit = Commit(backend)

    def first(it):
        return [it.get("a"), it.update("a", adding(1)), it.get("a"), it.update("a", adding(2)), it.get("a")]

    assert commit(1, first) == [None, 1, 1, 3, 3]
    assert commit(1, lambda it: [it.get("a"), it.update("a", adding(2))]) == [None, 2]
    assert commit(2, lambda it: [it.get("a"), it.update("a", adding(3)), it.update("a", adding(1))]) == [2, 5, 6]
    assert stored(backend, "a") == [(6, 2, 2)]


def test_item_69_a_transactional_map_skips_rows_that_carry_the_txid(backend):
    commit = Commit(backend, "transactional")

    def twice(one, two):
        return lambda it: [it.get("a"), it.update("a", adding(one)), it.update("a", adding(two))]

    assert commit(1, twice(1, 2)) == [None, 1, 3]
    assert commit(1, twice(1, 2)) == [3, 3, 3]
    assert commit(2, twice(3, 1)) == [3, 6, 7]


def test_item_70_a_removed_key_reappears_when_its_txid_is_repeated(backend):
    commit = Commit(backend)
    commit(1, lambda it: it.put_many({"a": 1, "b": 2}))

    def removed(it):
        it.remove("a")
        return it.get("a"), it.get("b")

    assert commit(2, removed) == (None, 2)
    assert commit(2, lambda it: (it.get("a"), it.get("b"), removed(it))) == (1, 2, (None, 2))
    assert commit(3, lambda it: it.get("a")) is None
    commit(4, lambda it: it.put("c", 1))
    assert stored(backend, "a", "b", "c") == [None, (2, 1, None), (1, 4, None)]  # the row itself has been deleted


def test_item_71_the_transactional_example_of_storms_documentation(backend):
    put(backend, man=MapRow(3, 1), dog=MapRow(4, 3), apple=MapRow(10, 2))
    counts = {"man": 2, "dog": 1}
    Commit(backend, "transactional")(3, lambda it: it.update_many(counts, lambda old, n: (old or 0) + n))
    assert stored(backend, "man", "dog", "apple") == [(5, 3, None), (4, 3, None), (10, 2, None)]


@pytest.mark.parametrize(("txid", "expected"), [(3, (6, 3, 4)), (2, (3, 2, 1))])
def test_item_72_the_opaque_example_of_storms_documentation(backend, txid, expected):
    put(backend, a=MapRow(4, 2, 0, 1))
    Commit(backend)(txid, lambda it: it.update("a", adding(2)))
    assert stored(backend, "a") == [expected]


def test_item_73_a_retry_skips_the_maps_that_are_at_its_txid_and_applies_the_others(make_backend):
    done, behind = Commit(make_backend(), "transactional"), Commit(make_backend(), "transactional")
    for commit in (done, behind):
        commit(1, lambda it: it.put("a", 1))
    done(2, lambda it: it.update("a", adding(5)))
    for commit in (done, behind):
        commit(2, lambda it: it.update("a", adding(5)))
    assert stored(done.backend, "a") == stored(behind.backend, "a") == [(6, 2, None)]


@pytest.mark.parametrize("kind", ["opaque", "transactional", "non_transactional"])
def test_item_74_word_count_over_many_batches_and_empty_ones(backend, kind):
    commit = Commit(backend, kind)
    batches = ["hello the man said the", "", "the man on the moon where are you", "", "the the", "", "the"]
    asked, seen = ["the", "hello", "man", "where", "you"], []
    for txid, line in enumerate(batches, start=1):
        counts = Counter(line.split())
        commit(txid, lambda it, counts=counts: it.update_many(counts, lambda old, n: (old or 0) + n))
        seen.append(commit(txid + 100, lambda it: it.get_many(asked)))
        commit.group = commit.begun()
    assert seen[0] == {"the": 2, "hello": 1, "man": 1}
    assert seen[2] == {"the": 4, "hello": 1, "man": 2, "where": 1, "you": 1}
    assert [seen[4]["the"], seen[6]["the"]] == [6, 7]


def test_item_75_a_txid_without_changes_puts_nothing(backend):
    puts = []
    backend.multi_put = puts.append
    commit = Commit(backend)
    commit(1, lambda it: it.remove("never there"))
    commit(2, lambda it: it.get("a"))
    assert puts == []
    commit(3, lambda it: it.put("a", 1))
    assert puts == [{'"a"': MapRow(1, 3)}]


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize(
    "use", [lambda m: m.get("a"), lambda m: m.put("a", 1), lambda m: m.update("a", adding(1)), lambda m: m.remove("a")]
)
def test_item_76_a_map_ahead_of_the_txid_is_an_error_that_names_the_key(backend, kind, use):
    put(backend, a=MapRow(1, 8))
    with pytest.raises(StateError, match=r"map 'counts' \(committer\[0\], txid 7\), key \"a\": state is ahead"):
        Commit(backend, kind)(7, use)
    assert stored(backend, "a") == [(1, 8, None)]


def test_only_rows_of_later_timelines_are_ahead(backend):
    put(backend, a=MapRow(5, 9, 1))
    with pytest.raises(StateError, match="timeline 0 or earlier, got 1"):
        Commit(backend)(10, lambda it: it.get("a"))
    commit = Commit(backend)
    commit.group = commit.begun(timeline=2)
    assert commit(3, lambda it: it.update("a", adding(1))) == 6


def test_unpublished_txids_are_visible_and_staged_as_the_last_row_of_each_key(backend):
    commit = Commit(backend)
    commit(1, lambda it: it.put_many({"a": 1, "b": 1}))
    group = commit.group
    for txid in (2, 3):
        handle = group.handle("committer", 0, txid)
        handle.active = True
        handle.update("a", adding(1))
        if txid == 3:
            handle.remove("b")
            assert handle.previous("a") == 2
        group.end_txid(txid)
    rows = staged_rows(bytes(encoded(group.changes(2, 3))), 0, keeps_txid=True)
    assert rows == {'"a"': MapRow(3, 3, 0, 2), '"b"': MapRow(None, 3, 0, 1)}
    assert stored(backend, "a", "b") == [(1, 1, None), (1, 1, None)]  # the store is unchanged before `apply`


def test_two_tasks_that_change_one_key_fail_the_txid():
    group = Commit(MemoryBackend()).group
    for task in (0, 1):
        handle = group.handle("committer", task, 1)
        handle.active = True
        handle.put("a", task)
    with pytest.raises(StateError, match=r'key "a" was changed by 2 tasks \(committer\[0\], committer\[1\]\)'):
        group.end_txid(1)


def test_keys_that_are_equal_in_python_or_in_a_database_differ(backend):
    moment = datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    keys = ["1", 1, True, None, "a", "A", b"a", moment, date(2020, 1, 2), Decimal("1.5"), ("a", 1), ("a", "1")]
    keys += ["é", "e\u0301", "x\0y"]
    commit = Commit(backend)
    for number, key in enumerate(keys, start=1):
        commit(number, lambda it, key=key, number=number: it.put(key, number))
    assert commit(99, lambda it: [it.get(key) for key in keys]) == list(range(1, len(keys) + 1))


@pytest.mark.parametrize("key", [1.5, ("a", 2.5), object(), ["a"], 1 << 70, "\ud800"])
def test_invalid_keys_are_rejected_by_name(key):
    with pytest.raises(StateError, match=r"map 'counts' .*key"):
        Commit(MemoryBackend())(1, lambda it: it.get(key))


@pytest.mark.parametrize("value", [None, float("nan"), {1: 2}, {"a": {3}}, b"x", [object()], "\ud800"])
def test_values_that_are_not_json_are_rejected_by_name(value):
    with pytest.raises(StateError, match=r"map 'counts' .*key 'a'"):
        Commit(MemoryBackend())(1, lambda it: it.put("a", value))


def test_values_are_returned_as_json_and_are_copies(backend):
    commit = Commit(backend)
    mine = {"n": [1, (2, 3)], "text": "\0 ünï ☃", "none": None, "big": 1 << 80, "real": 1.5, "yes": True}
    told = {**mine, "n": [1, [2, 3]]}

    def work(it):
        it.put("a", mine)
        mine["n"].append(4)
        it.get("a")["n"].clear()
        return it.get("a")

    assert commit(1, work) == told
    assert commit(2, lambda it: it.get("a")) == told


def test_handles_are_inactive_outside_finish_batch_and_merge_is_rejected():
    handle = Commit(MemoryBackend()).group.handle("committer", 0, 1)
    with pytest.raises(StateError, match="outside finish_batch"):
        handle.get("a")
    handle.active = True
    with pytest.raises(StateError, match="use update_many"):
        handle.merge(None, {})


def test_a_transactional_map_has_no_value_before_an_applied_txid(backend):
    commit = Commit(backend, "transactional")
    commit(1, lambda it: it.put("a", 1))
    assert commit(2, lambda it: (it.put("a", 2), it.previous("a"))) == (None, 1)
    with pytest.raises(StateError, match="keeps no value before a txid; use kind='opaque'"):
        commit(2, lambda it: it.previous("a"))


def test_a_task_reads_each_key_from_the_store_at_most_once():
    backend = MemoryBackend()

    def work(it):
        it.update_many(dict.fromkeys(range(1000), 1), lambda old, n: (old or 0) + n)
        for key in range(1000):
            it.update(key, adding(1))

    Commit(backend)(1, work)
    assert backend.calls == {"multi_get": 1, "multi_put": 1, "put_marked": 0}


class Away(MemoryBackend):
    def multi_get(self, keys):
        raise ConnectionError("no route to host")


def test_an_unreadable_store_fails_the_batch_and_a_wrong_result_is_an_error():
    with pytest.raises(ReportedFailedException, match=r"map 'counts'.*no route to host.*tried again"):
        Commit(Away())(1, lambda it: it.get("a"))
    short = MemoryBackend()
    short.multi_get = lambda keys: []
    with pytest.raises(StateError, match="multi_get gave 0 rows for 1 keys"):
        Commit(short)(1, lambda it: it.get("a"))


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_random_replays_end_as_if_there_were_only_the_last_attempts(backend, kind):
    """Failed attempts, which write other keys and values, leave no trace, because they are dropped before any put."""
    draw = seeded()
    commit, expected = Commit(backend, kind), {}

    def batch():
        return {key: draw.randint(0, 9) for key in "abcd" if draw.random() < 0.5}

    def work(numbers):
        return lambda it: [it.update(key, adding(n)) if n else it.remove(key) for key, n in numbers.items()]

    for txid in range(1, 15):
        for _ in range(draw.randint(0, 2)):
            handle = commit.group.handle("committer", 0, txid)
            handle.active = True
            work(batch())(handle)
            commit.group.end_txid(txid)
            commit.group.drop_from(txid)
        numbers = batch()
        commit(txid, work(numbers))
        for key, n in numbers.items():
            expected[key] = expected.get(key, 0) + n if n else 0
        assert commit(txid + 1, lambda it: it.get_many("abcd")) == {key: n for key, n in expected.items() if n}
        commit.group.drop_from(txid + 1)


def test_staged_rows_of_a_map_without_txids_are_plain_values_and_deletions():
    data = bytes(encoded(staged_table({"a": MapRow([1], 4), "b": MapRow(None, 5)})))
    assert staged_rows(data, 0, keeps_txid=False) == {"a": MapRow([1]), "b": None}
