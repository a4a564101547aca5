"""The sweeper removes exactly the unreferenced staged files, which it recognizes by name."""

import os

import pytest
from store_cases import add, commit, intent_of, open_store, record, staged_files
from table_steps import decided, history_row, words_read

from txstorm.storage.tables.history import append_history


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path, create=True)


def test_published_and_decided_files_are_kept_and_orphans_removed(tmp_path, store):
    commit(store, 1, {"a": 1})
    published = staged_files(tmp_path)
    group, _ = decided(store, 2, {"a": 1})
    orphans = sorted(set(staged_files(tmp_path)) - set(published))
    group.drop_from(2)
    add(group, 2, {"b": 1})
    intent = intent_of(group, [record(2, 21)])
    # Files that this run may still decide on are kept, although no intent names them.
    assert sorted(store.sweep([])) == orphans
    later = open_store(tmp_path, epoch=2)
    assert later.sweep([intent]) == []
    assert sorted(later.sweep([])) == [f"{table.uri}/{table.staged.path}" for table in intent.tables]
    assert staged_files(tmp_path) == published


def test_files_of_a_newer_coordinator_or_with_foreign_names_are_kept(tmp_path, store):
    decided(open_store(tmp_path, epoch=2), 1, {"a": 1}, epoch=2)
    assert store.sweep([]) == []
    assert len(staged_files(tmp_path)) == 3
    foreign = tmp_path / "changes/counts/_txstorm/staged/part-000.parquet"
    beside = tmp_path / "changes/counts/1-1-1-count-all-aa.parquet"
    for file in (foreign, beside):
        file.write_bytes(b"x")
        os.utime(file, (0, 0))
    assert store.sweep([]) == []
    assert foreign.exists()
    assert beside.exists()


def test_files_of_retained_versions_are_kept_and_those_of_dropped_ones_removed(tmp_path, store):
    for txid in (1, 2, 3):
        commit(store, txid, {"a": 1})
        store.upkeep.compact()
    assert store.sweep([]) == []
    assert [words_read(tmp_path, txid) for txid in (1, 2, 3)] == [{"a": 1}, {"a": 2}, {"a": 3}]

    log = tmp_path / "state/counts/_delta_log"
    store = open_store(tmp_path, epoch=2)
    table = store._delta[next(ref for ref in store._delta if ref.uri == "state/counts")]
    table.handle.checkpoint(0)
    for entry in sorted(log.glob("*.json")):  # as Delta's log cleanup does
        if int(entry.stem) < table.version:
            entry.unlink()
    gone = store.sweep([])
    assert [path.partition("/_txstorm")[0] for path in gone] == ["state/counts"] * 2
    assert words_read(tmp_path) == {"a": 3}


def test_the_history_table_is_swept_too(tmp_path):
    append_history(tmp_path, [history_row(1)])
    orphan = tmp_path / "history/_txstorm/staged/0-9-9-history-all-aa.parquet"
    orphan.write_bytes(b"x")
    store = open_store(tmp_path, create=True)
    assert store.sweep([]) == ["history/_txstorm/staged/0-9-9-history-all-aa.parquet"]
