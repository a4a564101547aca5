"""Small-file compaction: the same rows in the same order in fewer files, which streaming readers do not reread."""

import json
from pathlib import Path

import pytest
from store_cases import commit, open_store
from table_steps import interrupted, upkeep_done, words_read
from upkeep_cases import LAST, counts, expected, keep_up, plain, small

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import FencedError
from txstorm.results.read import read_changes, read_sink
from txstorm.storage.tables.identity import table_ref


@pytest.fixture(autouse=True)
def bounds(monkeypatch):
    small(monkeypatch.setattr)


@pytest.fixture
def store(tmp_path):
    made = open_store(tmp_path, create=True)
    for txid in range(1, LAST + 1):
        commit(made, txid, counts(txid))
    return made


def files(data_dir, table="changes/counts"):
    return DeltaHandle.open(data_dir / table).files()


def test_small_files_are_merged_without_changing_rows(tmp_path, store):
    sink = read_sink(tmp_path, "out").to_pylist()
    changes = plain(tmp_path, "changes/counts")
    assert (len(files(tmp_path)), len(files(tmp_path, "sinks/out"))) == (LAST, LAST)
    assert keep_up(store, ("changes", "sinks")) == ["changes/counts", "changes/totals", "sinks/out"]
    assert (len(files(tmp_path)), len(files(tmp_path, "sinks/out"))) == (2, 2)
    assert plain(tmp_path, "changes/counts") == changes
    assert read_sink(tmp_path, "out").to_pylist() == sink
    for txid in (1, 5, LAST):
        assert words_read(tmp_path, txid) == expected(txid)
    entry = DeltaHandle.open(tmp_path / "changes/counts").log_entry(LAST + 2)
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    flags = [action[kind]["dataChange"] for action in actions for kind in ("add", "remove") if kind in action]
    assert flags == [False] * LAST
    assert keep_up(store, ("changes", "sinks")) == []


def test_commits_and_restarts_continue_after_a_compaction(tmp_path, store):
    work = store.upkeep.begin("changes/counts", 1)
    assert len(list(work.steps())) == 1
    commit(store, LAST + 1, counts(LAST + 1))  # concurrently
    assert store.upkeep.finish(work, 1)
    commit(store, LAST + 2, counts(LAST + 2))
    again = open_store(tmp_path, epoch=2)
    commit(again, LAST + 3, counts(LAST + 3), epoch=2)
    assert words_read(tmp_path) == expected(LAST + 3)
    assert {row["_txid"] for row in read_changes(tmp_path, "counts", 2, 3).to_pylist()} == {2, 3}


def test_two_concurrent_compactions_do_not_duplicate_rows(tmp_path, store):
    changes = plain(tmp_path, "changes/counts")
    one, other = store.upkeep.begin("changes/counts", 1), store.upkeep.begin("changes/counts", 1)
    for work in (one, other):
        list(work.steps())
    assert store.upkeep.finish(one, 1)
    assert not store.upkeep.finish(other, 1)
    assert plain(tmp_path, "changes/counts") == changes


def test_a_stale_coordinator_cannot_compact_small_files(tmp_path, store):
    work = store.upkeep.begin("changes/counts", 1)
    list(work.steps())
    open_store(tmp_path, epoch=2)
    with pytest.raises(FencedError, match="changes/counts"):
        store.upkeep.finish(work, 1)


def test_files_of_a_compaction_in_progress_are_not_swept_and_aborting_removes_them(tmp_path, store):
    def staged():
        return len(list((tmp_path / "changes/counts/_txstorm/staged").iterdir()))

    work = store.upkeep.begin("changes/counts", 1)
    list(work.steps())
    assert store.sweep([]) == []
    assert staged() == LAST + 1
    work.give_up()
    assert staged() == LAST
    assert upkeep_done(store, "changes/counts")
    assert store.sweep([]) == []  # the old files belong to versions that are still retained


def test_files_of_unpublished_upkeep_are_swept(tmp_path, store):
    for uri in ("changes/counts", "state/counts"):
        list(store.upkeep.begin(uri, 1).steps())
    written = [one for uri in ("changes/counts", "state/counts") for one in store.upkeep.kept_files(table_ref(uri), [])]
    assert len(written) > 2
    store.upkeep.compact(0.0)  # no time is left to start another compaction
    assert sorted(path.rpartition("/")[2] for path in store.sweep([])) == sorted(Path(one).name for one in written)


def test_upkeep_is_due_after_a_number_of_commits(tmp_path, store):
    keep_up(store)
    assert store.upkeep.due(0.0) is None
    commit(store, LAST + 1, counts(LAST + 1))
    commit(store, LAST + 2, counts(LAST + 2))
    assert store.upkeep.due(0.0) in ("state/counts", "state/totals")
    keep_up(store, ("state",))
    commit(store, LAST + 3, {})
    assert store.upkeep.due(0.0) in ("changes/counts", "changes/totals", "sinks/out", "state/totals")


@pytest.mark.parametrize("point", ["gather.before", "gather.staged", "gather.after"])
def test_a_failure_at_any_step_leaves_the_old_or_the_new_files(tmp_path, store, point):
    changes = plain(tmp_path, "changes/counts")
    with interrupted(point):
        keep_up(store, ("changes",))
    assert len(files(tmp_path)) == (2 if point == "gather.after" else LAST)
    assert plain(tmp_path, "changes/counts") == changes
