"""Compaction: the state table becomes what a plain reader should see, once, by the leader, or not at all."""

import pytest
from store_cases import INCARNATION, TOPOLOGY, add, commit, intent_of, open_store, record

from txstorm import faults
from txstorm.clients.delta import DeltaHandle
from txstorm.errors import FencedError, TableCorrupt
from txstorm.state.read import read_state
from txstorm.state.table import DeltaTableState, Owner, TableRef


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.arm("")


def plain(data_dir):
    """What a reader sees that knows nothing of changes."""
    return sorted((row["word"], row["n"]) for row in DeltaHandle.open(data_dir / "state/counts").read().to_pylist())


def infos(data_dir):
    return [entry.info for entry in DeltaHandle.open(data_dir / "state/counts").history()]


def test_a_plain_reader_sees_the_last_txid(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1, "b": 2}, {"b": None, "c": 3})
    assert plain(tmp_path) == []
    assert store.compact() == ["counts", "totals"]
    assert plain(tmp_path) == [("a", 1), ("c", 3)]
    assert infos(tmp_path)[0]["as_of"] == 2
    row = next(row for row in DeltaHandle.open(tmp_path / "state/counts").read().to_pylist() if row["word"] == "c")
    assert (row["_txid"], row["_prev"]) == (2, None)
    assert 0 <= row["_kg"] < 32768


def test_nothing_changed_nothing_written(tmp_path):
    store = open_store(tmp_path, create=True)
    assert store.compact() == []
    commit(store, 1, {"a": 1})
    store.compact()
    commit(store, 2, {})  # changes the totals only
    assert store.compact() == ["totals"]
    assert len(infos(tmp_path)) == 3  # created, epoch, compacted


def test_an_emptied_state_is_empty(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    store.compact()
    commit(store, 2, {"a": None})
    store.compact()
    assert plain(tmp_path) == []
    assert read_state(tmp_path, "counts", 1).to_pylist() == [{"word": "a", "n": 1}]


def test_the_time_limit_leaves_the_rest_for_later(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    ticks = iter([0.0, 1.0, 2.0, 6.0])
    assert store.compact(5.0, clock=lambda: next(ticks)) == ["counts"]
    assert store.compact(0.0) == []
    assert store.compact() == ["totals"]


def test_published_but_not_applied_is_left_for_later(tmp_path):
    store = open_store(tmp_path, create=True)
    group = store.group(1)
    add(group, 1, {"a": 1})
    store.publish(intent_of(group, [record(1)]), 1)
    assert store.compact() == []
    group.apply(1)
    assert store.compact() == ["counts", "totals"]


def test_what_is_not_decided_is_not_in_it(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    add(store.group(2), 2, {"a": 1})
    store.compact()
    assert plain(tmp_path) == [("a", 1)]


def test_several_files_and_the_old_ones_leave(tmp_path, monkeypatch):
    monkeypatch.setattr("txstorm.state.compact.FILE_ROWS", 2)
    store = open_store(tmp_path, create=True)
    commit(store, 1, dict.fromkeys("abcde", 1))
    store.compact()
    assert len(DeltaHandle.open(tmp_path / "state/counts").files()) == 3
    commit(store, 2, dict.fromkeys("abcd"))
    store.compact()
    assert len(DeltaHandle.open(tmp_path / "state/counts").files()) == 1
    assert plain(tmp_path) == [("e", 1)]


def test_a_stale_coordinator_cannot_compact(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    open_store(tmp_path, epoch=2)
    with pytest.raises(FencedError, match="state/counts"):
        store.compact()
    assert plain(tmp_path) == []


def test_two_compactions_do_not_double_the_rows(tmp_path):
    store, other = open_store(tmp_path, create=True), open_store(tmp_path)
    commit(store, 1, {"a": 1})
    other.load()
    assert store.compact() == ["counts", "totals"]
    assert other.compact() == []
    assert plain(tmp_path) == [("a", 1)]


def test_a_race_in_the_last_moment_is_seen(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    late, later = store.compaction("counts", 0), store.compaction("counts", 0)
    for one in (late, later):
        assert len(list(one.steps())) == 1
    assert store.compacted(late)
    assert not store.compacted(later)
    table = DeltaTableState.open(tmp_path, Owner(TOPOLOGY, INCARNATION), TableRef("state", "counts"))
    with pytest.raises(TableCorrupt, match="state/counts: expected at most txid 0, found 1"):
        table.replace([], [], 0, 0, 1, 0)
    assert plain(tmp_path) == [("a", 1)]


@pytest.mark.parametrize("point", ["compact.before", "compact.staged", "compact.after"])
def test_failing_anywhere_leaves_the_old_or_the_new(tmp_path, point):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    faults.arm(f"{point}:raise:1")
    with pytest.raises(faults.InjectedFault):
        store.compact()
    faults.arm("")
    assert plain(tmp_path) == ([("a", 1)] if point == "compact.after" else [])
    store = open_store(tmp_path, epoch=2)
    store.compact()
    assert plain(tmp_path) == [("a", 1)]
    assert read_state(tmp_path, "counts").to_pylist() == [{"word": "a", "n": 1}]
