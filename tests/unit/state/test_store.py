"""The store of all tables: opening, checks against the declarations, commit groups, overlays, and failures."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from keyed_cases import begun, committed
from store_cases import COUNTS, OUT, TOTALS, add, commit, intent_of, open_store, record, staged_files
from table_steps import decided, words_read

from txstorm.api.state import KeyedState, SinkTable
from txstorm.errors import StateError, TableCorrupt
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.state import store as state_store

EVERYTHING = ["changes/counts", "changes/totals", "sinks/out"]


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path, create=True)


def test_a_group_of_several_txids_is_one_version_with_each_txids_rows(tmp_path, store):
    before = store.versions()
    commit(store, 1, {"a": 1, "b": 2}, {"a": 3}, {"b": None})
    assert store.versions() == {uri: version + 1 for uri, version in before.items()}
    assert store.last_txids() == dict.fromkeys(EVERYTHING, 3)
    assert words_read(tmp_path) == {"a": 4}
    changes = read_changes(tmp_path, "counts", 1, 3).select(["word", "n", "_txid", "_op"]).to_pylist()
    found = [(row["_txid"], row["_op"], row["word"], row["n"]) for row in changes]
    assert found == [(1, "u", "a", 1), (1, "u", "b", 2), (2, "u", "a", 4), (3, "d", "b", None)]
    sink = read_sink(tmp_path, "out").to_pylist()[2:]
    assert sink == [{"word": "a", "n": 3, "_txid": 2}, {"word": "b", "n": None, "_txid": 3}]


def test_an_unchanged_table_gets_no_new_version_and_a_later_group_reads_rows_being_published(tmp_path, store):
    before = store.versions()
    commit(store, 1, {})
    assert store.versions() == {**before, "changes/totals": before["changes/totals"] + 1}
    assert store.last_txids() == {"changes/counts": 0, "changes/totals": 1, "sinks/out": 0}
    intent = commit(store, 2, {"a": 1})
    assert [table.previous for table in intent.tables] == [0, 1, 0]
    groups = [decided(store, txid, {"a": 1}) for txid in (3, 4)]
    assert [table.previous for table in groups[1][1].tables] == [3, 3, 3]
    for group, intent in groups:
        store.publish(intent, 1)
        group.apply(intent.last)
    assert words_read(tmp_path) == {"a": 3}


def test_upkeep_that_begins_while_the_states_are_loaded_waits_for_them(tmp_path, monkeypatch):
    before = open_store(tmp_path, create=True, max_lag=1.0)
    commit(before, 1, {"a": 1, "b": 2})
    before.close()
    reading, go_on, indexes = threading.Event(), threading.Event(), []

    def open_slowly(*arguments):
        indexes.append(arguments)
        reading.set()
        assert go_on.wait(60)
        return opened_index(*arguments)

    opened_index = state_store.opened_index
    monkeypatch.setattr(state_store, "opened_index", open_slowly)
    store = open_store(tmp_path, epoch=2, max_lag=1.0)
    with ThreadPoolExecutor() as threads:
        group = threads.submit(store.group, 2)
        assert reading.wait(60)
        assert store.upkeep.due(time.monotonic()) is None
        upkeep = threads.submit(store.upkeep.begin, "state/counts", 0)
        go_on.set()
        assert upkeep.result(60) is not None
        group.result(60)
    assert len(indexes) == 2  # each of the two states once
    assert store.upkeep.due(time.monotonic()) is not None
    commit(store, 2, {"a": 3}, epoch=2)
    assert words_read(tmp_path) == {"a": 4, "b": 2}


def test_handles_work_in_finish_batch_only(store):
    group = store.group(1)
    handle = group.begin_txid(1).state("count", 0, "counts")
    with pytest.raises(StateError):
        handle.get("a")
    group.activate(True)
    assert handle.get("a") is None
    assert group.resources.state("count", 1, "counts").get("a") is None  # a handle that is requested late
    group.activate(False)
    with pytest.raises(StateError):
        handle.put("a", 1)
    group.begin_txid(2)
    group.activate(True)
    with pytest.raises(StateError):
        handle.put("a", 1)  # the handle belongs to txid 1


def test_undeclared_and_foreign_names(tmp_path):
    resources = open_store(tmp_path, create=True, states={"count": [COUNTS], "other": [TOTALS]}).group(1).resources
    with pytest.raises(StateError, match=r"count: state 'count' is not declared \(did you mean 'counts'\?\)"):
        resources.state("count", 0, "count")
    with pytest.raises(StateError, match=r"count: sink 'oot' is not declared \(did you mean 'out'\?\)"):
        resources.sink("count", 0, "oot")
    with pytest.raises(StateError, match="other: state 'counts' belongs to component 'count'"):
        resources.state("other", 0, "counts")
    with pytest.raises(StateError, match="other: sink 'out' belongs to component 'count'"):
        resources.sink("other", 0, "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": {"a": [COUNTS], "b": [COUNTS]}}, "state 'counts' is declared by 'a' and by 'b'"),
        ({"states": {"a": [COUNTS, KeyedState("Counts", {"k": int}, {"n": int})]}}, "declared by 'a' and by 'a'"),
        ({"states": {"a": [KeyedState("../x", {"k": int}, {"n": int})]}}, r"state '\.\./x': a name is"),
        ({"states": {"a": [KeyedState("x", {"_k": int}, {"n": int})]}}, "field '_k' starts with '_'"),
        ({"states": {"a": [KeyedState("x", {"k": int}, {"K": int})]}}, "differ only in case"),
        ({"states": {"a": [KeyedState("x", {"k": float}, {"n": int})]}}, "float|double"),
        ({"sinks": {"a": [SinkTable("x", {"n": complex})]}}, "complex"),
    ],
)
def test_impossible_declarations_are_rejected_before_any_table_is_created(tmp_path, changes, message):
    with pytest.raises(StateError, match=message):
        open_store(tmp_path, create=True, **changes)
    assert list(tmp_path.iterdir()) == []


def test_schema_drift_or_another_order_of_the_key_is_rejected_before_any_table_is_created(tmp_path, store):
    commit(store, 1, {"a": 1})
    changed, new = KeyedState("counts", {"word": str}, {"m": int}), KeyedState("new", {"k": int}, {"n": int})
    with pytest.raises(StateError, match=r"(?s)state 'counts'.*column 'n'.*in the table, but not declared.*new name"):
        open_store(tmp_path, states={"count": [changed, TOTALS, new]})
    assert not (tmp_path / "changes/new").exists()
    one, other = (KeyedState("pairs", dict.fromkeys(names, int), {"n": int}) for names in ("ab", "ba"))
    store = open_store(tmp_path / "pairs", create=True, states={"count": [one]})
    committed(store, 1, 0, lambda resources: resources.state("count", 0, "pairs").put((1, 2), 1))
    with pytest.raises(StateError, match=r"declared with the key \['b', 'a'\], the table has \['a', 'b'\]"):
        open_store(tmp_path / "pairs", states={"count": [other]})


def test_a_new_state_starts_after_the_last_committed_txid(tmp_path, store):
    commit(store, 1, {"a": 1}, {"a": 1})
    new = KeyedState("new", {"k": int}, {"n": int})
    declared = {"count": [COUNTS, TOTALS, new]}
    store = open_store(tmp_path, states=declared, committed=2, recorded=EVERYTHING, epoch=2)
    assert store.last_txids()["changes/new"] == 2
    group = store.group(3)
    begun(group, 3, 0).state("count", 0, "new").put(1, 1)
    group.end_txid(3)
    intent = intent_of(group, [record(3)], 2)
    assert [(table.uri, table.previous) for table in intent.tables] == [("changes/new", 2)]
    store.publish(intent, 2)
    assert read_state(tmp_path, "new").to_pylist() == [{"k": 1, "n": 1}]


def test_an_interrupted_creation_is_completed(tmp_path, store):
    shutil.rmtree(tmp_path / "state/counts")
    (tmp_path / "sinks/out/_delta_log" / f"{0:020d}.json").unlink()
    for entry in (tmp_path / "sinks/out/_delta_log").iterdir():
        entry.unlink()
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    assert words_read(tmp_path) == {"a": 1}


@pytest.mark.parametrize("gone", ["changes/counts", "state/counts", "sinks/out"])
def test_a_missing_recorded_table_is_an_error_and_not_recreated(tmp_path, gone):
    open_store(tmp_path, create=True)
    shutil.rmtree(tmp_path / gone)
    with pytest.raises(TableCorrupt, match=f"the ledger knows the table {gone}, but there is none"):
        open_store(tmp_path, recorded=EVERYTHING)
    assert not (tmp_path / gone).exists()


def test_a_state_table_ahead_of_its_changes_is_an_error(tmp_path, store):
    shutil.copytree(tmp_path / "changes/counts", tmp_path / "old")
    commit(store, 1, {"a": 1})
    store.upkeep.compact()
    shutil.rmtree(tmp_path / "changes/counts")
    (tmp_path / "old").rename(tmp_path / "changes/counts")
    with pytest.raises(TableCorrupt, match="state/counts: is as of txid 1, but changes/counts ends at 0"):
        open_store(tmp_path).load()


def test_staging_a_published_txid_is_an_error_and_a_store_can_be_used_again_after_close(tmp_path, store):
    commit(store, 1, {"a": 1})
    group = store.group(1)
    with pytest.raises(StateError):
        add(group, 1, {"a": 1})
        group.stage([record(1)], 1)
    store.close()
    commit(store, 2, {"a": 1})  # the tables are read again
    assert words_read(tmp_path) == {"a": 2}


def test_the_sink_alone(tmp_path):
    store = open_store(tmp_path, create=True, states={})
    committed(store, 1, 0, lambda resources: resources.sink("count", 0, OUT.name).append("x", 1))
    assert read_sink(tmp_path, "out").to_pylist() == [{"word": "x", "n": 1, "_txid": 1}]
    assert len(staged_files(tmp_path)) == 1
