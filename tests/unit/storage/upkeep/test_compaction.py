"""Compaction: brings the state table up to date for plain readers, when it is due, atomically and by the leader only."""

import shutil
from itertools import pairwise

import pytest
from recovery_cases import ends, killed
from seeded import seeded
from store_cases import INCARNATION, TOPOLOGY, add, commit, open_store
from table_steps import decided, full_disk, interrupted, plain_words, words_read
from upkeep_cases import LAST, counts, expected, keep_up, plain, small

from txstorm.clients.delta.entry import DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import FencedError, TableCorrupt
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import RewriteFiles
from txstorm.storage.upkeep.growth import LEAST_ROWS, Growth, Recent


@pytest.fixture
def store(tmp_path):
    """Return a store that has committed txid 1, which counts one word."""
    made = open_store(tmp_path, create=True)
    commit(made, 1, {"a": 1})
    return made


def state_table(data_dir):
    return DeltaTableState.open(data_dir, TopologyIdentity(TOPOLOGY, INCARNATION), TableRef("state", "counts"))


def files(data_dir):
    return DeltaHandle.open(data_dir / "state/counts").files()


def infos(data_dir):
    return [entry.info for entry in DeltaHandle.open(data_dir / "state/counts").history()]


def test_a_plain_reader_sees_the_last_txid(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1, "b": 2}, {"b": None, "c": 3})
    assert plain_words(tmp_path) == {}
    assert store.upkeep.compact() == ["counts", "totals"]
    assert plain_words(tmp_path) == {"a": 1, "c": 3}
    assert infos(tmp_path)[0]["as_of"] == 2
    row = next(row for row in DeltaHandle.open(tmp_path / "state/counts").read().to_pylist() if row["word"] == "c")
    assert (row["_txid"], row["_prev"]) == (2, None)
    assert 0 <= row["_kg"] < 32768


def test_nothing_is_written_if_nothing_changed(tmp_path):
    store = open_store(tmp_path, create=True)
    assert store.upkeep.compact() == []
    commit(store, 1, {"a": 1})
    store.upkeep.compact()
    commit(store, 2, {})  # changes the totals only
    assert store.upkeep.compact() == ["totals"]
    assert len(infos(tmp_path)) == 3  # created, epoch, compacted


def test_states_beyond_the_time_limit_are_compacted_later(store):
    ticks = iter([0.0, 1.0, 2.0, 6.0])
    assert store.upkeep.compact(5.0, clock=lambda: next(ticks)) == ["counts"]
    assert store.upkeep.compact(0.0) == []
    assert store.upkeep.compact() == ["totals"]


def test_rows_published_but_not_applied_are_compacted_later(tmp_path):
    store = open_store(tmp_path, create=True)
    group, intent = decided(store, 1, {"a": 1})
    store.publish(intent, 1)
    assert store.upkeep.compact() == []
    group.apply(1)
    assert store.upkeep.compact() == ["counts", "totals"]


def test_undecided_rows_are_not_compacted(tmp_path, store):
    add(store.group(2), 2, {"a": 1})
    store.upkeep.compact()
    assert plain_words(tmp_path) == {"a": 1}


def test_several_files_are_written_and_old_files_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("txstorm.storage.tables.rewrite.FILE_ROWS", 2)
    store = open_store(tmp_path, create=True)
    commit(store, 1, dict.fromkeys("abcde", 1))
    store.upkeep.compact()
    assert len(files(tmp_path)) == 3
    commit(store, 2, dict.fromkeys("abcd"))
    store.upkeep.compact()
    assert len(files(tmp_path)) == 1
    assert plain_words(tmp_path) == {"e": 1}
    commit(store, 3, {"e": None})
    store.upkeep.compact()
    assert (plain_words(tmp_path), words_read(tmp_path, 2)) == ({}, {"e": 1})


def test_a_stale_coordinator_cannot_compact(tmp_path, store):
    open_store(tmp_path, epoch=2)
    with pytest.raises(FencedError, match="state/counts"):
        store.upkeep.compact()
    assert plain_words(tmp_path) == {}


def test_two_compactions_do_not_double_the_rows(tmp_path, store):
    other = open_store(tmp_path)
    other.load()
    assert store.upkeep.compact() == ["counts", "totals"]
    assert other.upkeep.compact() == []
    assert plain_words(tmp_path) == {"a": 1}


def test_of_two_racing_compactions_one_is_rejected(tmp_path, store):
    late, later = store.upkeep.begin("state/counts", 0), store.upkeep.begin("state/counts", 0)
    for one in (late, later):
        assert len(list(one.steps())) == 1
    assert store.upkeep.finish(late, 1)
    assert not store.upkeep.finish(later, 1)
    with pytest.raises(TableCorrupt, match="state/counts: expected at most txid 0, found 1"):
        state_table(tmp_path).exchange(RewriteFiles([], [], 0, 0, 0), 1)
    assert plain_words(tmp_path) == {"a": 1}


@pytest.mark.parametrize("point", ["compact.before", "compact.staged", "compact.after"])
def test_a_failure_at_any_step_leaves_the_old_or_the_new_files(tmp_path, store, point):
    with interrupted(point):
        store.upkeep.compact()
    assert plain_words(tmp_path) == ({"a": 1} if point == "compact.after" else {})
    store = open_store(tmp_path, epoch=2)
    store.upkeep.compact()
    assert plain_words(tmp_path) == words_read(tmp_path) == {"a": 1}


@pytest.fixture
def many(tmp_path, monkeypatch):
    """Return a store with some committed txids, and limits so small that its compacted state has several files."""
    small(monkeypatch.setattr)
    store = open_store(tmp_path, create=True)
    for txid in range(1, LAST + 1):
        commit(store, txid, counts(txid))
    assert "state/counts" in keep_up(store, ("state",))
    return store


def test_files_are_split_by_key_group_and_only_changed_files_are_rewritten(tmp_path, many):
    handle = DeltaHandle.open(tmp_path / "state/counts")
    before = {file.path for file in handle.files()}
    assert len(before) > 3
    bounds = sorted(zip(*(handle.actions("_kg")[f"{side}._kg"].to_pylist() for side in ("min", "max")), strict=True))
    assert all(one[1] < later[0] for one, later in pairwise(bounds))
    assert plain_words(tmp_path) == expected(LAST)
    commit(many, LAST + 1, {"w7": 1, "new": 5})
    keep_up(many, ("state",))
    after = {file.path for file in files(tmp_path)}
    assert 0 < len(before - after) < len(before)
    assert plain_words(tmp_path) == {**expected(LAST), "w7": expected(LAST).get("w7", 0) + 1, "new": 5}


def test_compaction_is_as_of_its_first_txid_despite_concurrent_commits(tmp_path, many):
    for txid in range(LAST + 1, LAST + 4):
        commit(many, txid, counts(txid))
    work = many.upkeep.begin("state/counts", 1)
    for txid, _ in enumerate(work.steps(), start=LAST + 4):
        commit(many, txid, counts(txid))
        assert plain_words(tmp_path) == expected(LAST)
    assert many.upkeep.finish(work, 1)
    assert plain_words(tmp_path) == expected(LAST + 3)
    assert infos(tmp_path)[0]["as_of"] == LAST + 3
    assert words_read(tmp_path) == expected(txid)


def test_any_history_of_compactions_gives_the_state(tmp_path, monkeypatch):
    draw = seeded()
    small(monkeypatch.setattr)
    store = open_store(tmp_path, create=True)
    for txid in range(1, 13):
        commit(store, txid, counts(txid))
        if draw.random() < 0.3:
            keep_up(store)
            assert plain_words(tmp_path) == expected(txid)
    for txid in (0, 4, 8, 12):
        assert words_read(tmp_path, txid) == expected(txid)


def test_a_first_compaction_of_many_rows_writes_several_files(tmp_path, monkeypatch):
    small(monkeypatch.setattr)
    store = open_store(tmp_path, create=True)
    commit(store, 1, {f"w{i}": i for i in range(100)})
    work = store.upkeep.begin("state/counts", 1)
    assert len(list(work.steps())) == 13
    assert store.upkeep.finish(work, 1)
    assert plain_words(tmp_path) == {f"w{i}": i for i in range(100)}


def test_a_table_with_files_without_bounds_is_rewritten_completely(tmp_path, many):
    table = state_table(tmp_path)
    old = table.handle.files()
    bare = [DataFile(file.path.replace("compact-", "compact-0"), file.size) for file in old]
    for file, copy in zip(old, bare, strict=True):
        shutil.copy(table.path / file.path, table.path / copy.path)
    table.exchange(RewriteFiles(bare, [file.path for file in old], 0), 1)
    commit(many, LAST + 1, {"w7": 1})
    keep_up(many, ("state",))
    assert plain_words(tmp_path) == {**expected(LAST), "w7": expected(LAST).get("w7", 0) + 1}
    after = {file.path for file in files(tmp_path)}
    assert after.isdisjoint(file.path for file in bare)


def test_a_full_disk_leaves_the_table_unchanged(tmp_path, many):
    commit(many, LAST + 1, counts(LAST + 1))
    work = many.upkeep.begin("state/counts", 1)
    with full_disk(), pytest.raises(OSError, match="compact"):
        list(work.steps())
    work.give_up()
    assert plain_words(tmp_path) == expected(LAST)
    keep_up(many, ("state",))
    assert plain_words(tmp_path) == expected(LAST + 1)
    assert many.sweep([]) == []


@pytest.mark.parametrize("fault", ["compact.staged:kill:3", "compact.after:kill:5", "gather.staged:kill:2"])
def test_killed_during_upkeep_and_restarted(tmp_path, fault):
    killed(fault, tmp_path, scenario="upkeep")
    ends(tmp_path, scenario="upkeep")
    assert plain_words(tmp_path) == expected(LAST)
    assert sorted({txid for *_, txid in plain(tmp_path, "changes/counts")}) == list(range(1, LAST + 1))
    open_store(tmp_path, epoch=9).sweep([])
    kept = DeltaHandle.open(tmp_path / "state/counts").logged_paths()
    assert {f"_txstorm/staged/{file.name}" for file in (tmp_path / "state/counts/_txstorm/staged").iterdir()} <= kept


def test_changes_of_a_new_state_wait_for_half_of_the_lag_and_others_are_due_at_once():
    growth = Growth(0, 0, Recent(0))
    assert growth.overdue(100.0, 10.0) is None
    growth.add(5, 1, None, 100.0)
    growth.add(5, 2, None, 104.0)
    assert growth.overdue(104.9, 10.0) is None
    assert growth.overdue(105.5, 10.0) == pytest.approx(0.5)
    growth = Growth(3, 7, Recent(0))  # a start finds changes
    growth.add(5, 1, None, 100.0)
    assert growth.overdue(100.0, 10.0) == 10.0
    growth = Growth(3, 7, Recent(0))  # a long pause
    growth.begin(50.0, whole=True)
    growth.end(10, 1)
    growth.add(5, 2, None, 100.0)
    assert growth.overdue(100.0, 10.0) == pytest.approx(45.0)
    growth = Growth(0, 0, Recent(0))  # as many changes as rows
    growth.add(LEAST_ROWS, 1, None, 100.0)
    assert growth.overdue(100.0, None) == float("inf")
