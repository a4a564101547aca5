"""Retention: keep all rows that history, savepoints, intents and readers need; permanently remove all others."""

import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from seeded import seeded
from store_cases import COUNTS, INCARNATION, add, commit, intent_of, open_store, record, staged_files, tidy
from table_steps import counted, decided, history_row, interrupted, words_read

from txstorm.books.savepoint import SavedTable
from txstorm.clients.delta import archive as delta_archive
from txstorm.clients.delta import log as delta_log
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import FencedError, StateError
from txstorm.lanes import Inline
from txstorm.recovery.take_over import roll_forward
from txstorm.results.read import read_changes, read_sink
from txstorm.runtime.batches.wall_clock import StampClock
from txstorm.runtime.maintenance import Retention
from txstorm.state.index.index import Bounds
from txstorm.storage.tables.history import append_history, read_history
from txstorm.storage.upkeep.read_guard import reading
from txstorm.topology.settings import Settings

KEPT = 4
"""Seconds, and so txids: the stamp of txid N is N seconds."""
BOTH = {"count": [replace(COUNTS, layout="merge"), replace(COUNTS, name="other")]}


@pytest.fixture(autouse=True)
def short_logs(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a `World` with sixteen committed txids, all of which are still retained."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        world = World(tmp_path_factory.mktemp("retention") / "data").go_on(16, every=99)
        world.store.upkeep.compact(stays=True)
    return world


@pytest.fixture
def world(made, tmp_path):
    return World(tmp_path / "data", made)


def shorten(patch):
    patch.setattr(delta_archive, "KEPT_VERSIONS", 4)
    patch.setattr(delta_archive, "CHECKPOINT_SECONDS", 0.0)
    patch.setattr(delta_archive, "log_retention", lambda _: 0.0)
    patch.setattr(delta_log, "CHECKPOINT_EVERY", 2)
    patch.setattr(delta_log, "CHECKPOINT_MOST", 2)


class Ledger:
    """A fake ledger with only the methods of the books that retention uses."""

    def __init__(self):
        self.epoch, self.first, self.points, self.live = 1, 0, {}, []

    def kept(self):
        return self.first

    def write_kept(self, txid):
        self.first = txid

    def savepoints(self):
        return self.points

    def intents(self):
        return self.live


class World:
    """A store with a sink and two states with the same rows, one of each layout; every txid is its own group."""

    def __init__(self, data_dir, before=None, **options):
        """Create an empty world, or a copy of the world `before` in `data_dir`."""
        self.data_dir, self.ledger, self.last, self.words = data_dir, Ledger(), 0, {0: {}}
        if before is not None:
            shutil.copytree(before.data_dir, data_dir)
            self.last, self.words = before.last, dict(before.words)
        self.store = open_store(data_dir, create=before is None, states=BOTH, **options)

    def go_on(self, txids, every=3):
        for _ in range(txids):
            self.last += 1
            n = self.last
            counts = {f"w{n % 5}": 1, f"w{n % 7}": 1, f"w{n % 11}": None}
            group = self.store.group(n)
            count(group, n, counts)
            intent = intent_of(group, [record(n)])
            self.store.publish(intent, 1)
            group.apply(n)
            tidy(self.store)
            self.store.forget(n)
            self.ledger.live = [intent]
            self.words[n] = counted(counts, before=self.words[n - 1])
            append_history(self.data_dir, [history_row(n)])
            if n % every == 0:
                self.retain()
        return self

    def retention(self):
        lanes = Inline(lambda: self.last * 1_000_000, lambda: 0.0)
        clock = StampClock(lanes, Settings(), "t", ())
        return Retention(self.store.upkeep, self.ledger, 0, KEPT, lanes, clock)

    def retain(self):
        self.store.upkeep.compact(stays=True)
        return [*self.retention().steps()]

    def check(self):
        """Check the rows that both layouts, the changes, the sink and the history return for all retained txids."""
        first = self.ledger.first
        for txid in range(first, self.last + 1):
            assert self.read("counts", txid) == self.read("other", txid) == self.words[txid], txid
        rows = read_changes(self.data_dir, "other", first + 1, self.last, self.last)
        changed = {txid for txid in range(first + 1, self.last + 1) if self.words[txid] != self.words[txid - 1]}
        assert set(rows["_txid"].to_pylist()) == changed
        assert len(set(read_sink(self.data_dir, "out")["_txid"].to_pylist())) == self.last
        assert read_history(self.data_dir)["txid"].to_pylist()[-KEPT - 1 :] == [*range(self.last - KEPT, self.last + 1)]

    def read(self, name, txid=None):
        return words_read(self.data_dir, txid, name)

    def files(self):
        """Return the number of files in the data directory, without the sink's data files: those are never removed."""
        found = [path for path in self.data_dir.rglob("*") if path.is_file()]
        return len([path for path in found if "sinks/out/_txstorm/staged" not in str(path)])


def count(group, txid, counts):
    """Write one txid to the group: `counts` to both states (None: remove the word), and the txid to the sink."""
    resources = group.begin_txid(txid)
    group.activate(True)
    for name in ("counts", "other"):
        words = resources.state("count", 0, name)
        words.remove_many([word for word, n in counts.items() if n is None])
        words.update_many({word: n for word, n in counts.items() if n is not None}, lambda old, n: (old or 0) + n)
    resources.sink("count", 0, "out").append("txid", txid)
    group.end_txid(txid)


def test_disk_usage_is_bounded_and_retained_txids_can_be_read(tmp_path):
    world, files = World(tmp_path), []
    for _ in range(5):
        world.go_on(6)
        files.append(world.files())
    world.check()
    assert max(files[3:]) <= max(files[:3]) * 1.1, files
    assert world.ledger.first == world.last - KEPT
    older = r"state 'other': txid 4 is older than what is kept.* ask for txid \d+ or later"
    with pytest.raises(StateError, match=older):
        world.read("other", 4)
    with pytest.raises(StateError, match=r"up to txid \d+ are no longer kept .history_retention., got from txid 1"):
        read_changes(tmp_path, "other", 1, 4, world.last)
    with pytest.raises(StateError, match="state 'counts': txid 4 is older"):
        world.read("counts", 4)


def test_everything_is_kept_without_retention_and_files_in_use_by_a_reader_with_it(world):
    world.check()
    assert [world.read("other", txid) for txid in range(17)] == [world.words[txid] for txid in range(17)]

    def files():
        """Return the files except for log entries, which retention may move into the archive."""
        found = [path for path in world.data_dir.rglob("*") if path.is_file()]
        return {path for path in found if path.parent.name != "_delta_log"}

    with reading(world.data_dir):
        before = files()
        world.retain()
        assert before <= files()
    world.retain()
    assert len(before - files()) > 20


def test_versions_of_savepoints_are_kept_until_the_savepoints_are_deleted(world):
    saved = {ref.uri: SavedTable(table.version) for ref, table in world.store.tables.items()}
    rows = {uri: DeltaHandle.open(world.data_dir / uri).read().num_rows for uri in saved}
    world.ledger.points = {"sixteen": SimpleNamespace(tables=saved)}
    world.go_on(12, every=6).check()
    for uri, one in saved.items():
        assert DeltaHandle.open(world.data_dir / uri, one.version).read().num_rows == rows[uri], uri
    before = world.files()
    world.ledger.points = {}
    world.retain()
    assert world.files() < before - 16


@pytest.mark.parametrize("point", ["announced", "pruned", "log", "files", "history"])
def test_retention_interrupted_at_any_step_continues_the_next_time(world, point):
    world.last += KEPT  # now all versions are older than the retention period
    with interrupted(f"retain.{point}"):
        list(world.retention().steps())
    world.last -= KEPT
    assert world.read("counts") == world.read("other") == world.words[16]
    world.store.close()
    world.store = open_store(world.data_dir, states=BOTH)
    world.last += KEPT
    list(world.retention().steps())
    world.last -= KEPT
    world.go_on(6)
    assert world.read("counts") == world.read("other") == world.words[22]
    assert read_changes(world.data_dir, "other", 20, 22, 22).num_rows > 0
    assert read_history(world.data_dir)["txid"].to_pylist()[0] >= 16


def test_files_of_a_live_intent_are_kept_beyond_the_retention_period(tmp_path):
    world = World(tmp_path).go_on(8)
    group = world.store.group(9)
    count(group, 9, {"late": 1})
    intent = intent_of(group, [record(9)])
    world.ledger.live = [intent]
    world.last = 1000
    world.retain()
    again = open_store(tmp_path, states=BOTH, epoch=2)
    again.sweep([intent])
    assert set(roll_forward(tmp_path, intent, 2)) == {"state/counts", "changes/other", "sinks/out"}
    assert world.read("counts", 9) == {**world.words[8], "late": 1}


def test_commits_between_the_steps_of_retention_are_safe(world):
    chance = seeded()
    for _ in world.retention().steps():
        if chance.random() < 0.2:
            world.go_on(1, every=99)
    world.check()


def test_an_index_older_than_the_retained_changes_is_rebuilt(tmp_path):
    bounds = Bounds(memory=1, kept_from=1, behind=1)
    world = World(tmp_path, bounds=bounds).go_on(6)
    world.store.close()
    shutil.copytree(tmp_path / "index", tmp_path / "old")
    world.store = open_store(tmp_path, states=BOTH, bounds=bounds)
    world.go_on(12)
    world.store.close()
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "old").rename(tmp_path / "index")
    world.store = open_store(tmp_path, states=BOTH, bounds=bounds)
    world.go_on(2).check()
    world.store.close()


def test_a_fenced_coordinator_removes_nothing_from_a_table(world):
    open_store(world.data_dir, states=BOTH, epoch=2)
    world.last += KEPT
    with pytest.raises(FencedError):
        list(world.retention().steps())
    assert read_changes(world.data_dir, "other", 5, 5, 16).num_rows > 0
    assert DeltaHandle.open(world.data_dir / "changes/other").properties["txstorm.incarnation"] == INCARNATION


def test_the_retention_horizon_depends_on_stamps_only(tmp_path):
    world = World(tmp_path).go_on(5)
    world.last = KEPT
    world.retain()
    assert (world.ledger.first, read_history(tmp_path)["txid"].to_pylist()) == (0, [*range(1, 6)])
    world.last = KEPT + 3
    world.retain()
    assert (world.ledger.first, read_history(tmp_path)["txid"].to_pylist()) == (3, [3, 4, 5])


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
