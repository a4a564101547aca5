"""Thinning: superseded versions of a state are removed from disk, and history queries give the same results."""

import random
import sys
from pathlib import Path

import pytest
from commands import run_program
from seeded import seeded
from store_cases import INCARNATION, TOPOLOGY, commit, open_store
from table_steps import counted, plain_words, upkeep_done, words_read

from txstorm.books.rewind import Rewind
from txstorm.books.savepoint import SavedTable, Savepoint
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import TableCorrupt
from txstorm.recovery.clone import saved_rows
from txstorm.recovery.rewind import plan_table, restore_table
from txstorm.results import read
from txstorm.results.read import state_parts
from txstorm.storage.tables.as_of import staying
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.upkeep import thinning as versions
from txstorm.storage.upkeep.read_guard import reading
from txstorm.storage.upkeep.sweep import remove_own

MINUTE = 60_000
STATE = TableRef("state", "counts")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Lower the limits so that a version is retained for every 40 change rows."""
    monkeypatch.setattr(versions, "LEAST_ROWS", 40)


class World:
    """A store whose states are compacted once a minute, and the expected words after every txid."""

    def __init__(self, data_dir: Path, chance: random.Random) -> None:
        self.data_dir, self.chance = data_dir, chance
        self.now, self.last, self.words = 0, 0, {0: {}}
        self.epoch = 1
        self.store = open_store(data_dir, create=True)

    def commit(self):
        self.last += 1
        counts = {f"w{self.chance.randrange(12)}": self.chance.choice([1, 2, 3, None]) for _ in range(4)}
        commit(self.store, self.last, counts, epoch=self.epoch)
        self.words[self.last] = counted(counts, before=self.words[self.last - 1])

    def compact(self, *, thin=True):
        self.now += MINUTE
        work = self.store.upkeep.begin(STATE.uri, self.now)
        if work is not None:
            for _ in work.steps():
                pass
            assert self.store.upkeep.finish(work, self.now)
            assert plain_words(self.data_dir) == self.words[self.last]
        if thin:
            list(self.store.upkeep.thin(self.now))

    def turns(self, count, **compaction):
        for _ in range(count):
            self.commit()
            self.compact(**compaction)

    def start_again(self):
        self.epoch += 1
        self.store.close()
        self.store = open_store(self.data_dir, epoch=self.epoch)
        self.store.load()

    def check(self, share=1.0):
        """Check rows, savepoints and rewinds for every txid, or for a random share of the txids (0 to 1)."""
        for txid in range(self.last + 1):
            if self.chance.random() > share:
                continue
            assert self.read(txid) == self.words[txid], txid
            parts = state_parts(self.data_dir, "counts", txid, stays=True)
            where = {
                "state/counts": SavedTable(parts.base.version, parts.as_of),
                "changes/counts": SavedTable(parts.changes.version),
            }
            point = Savepoint("s", TOPOLOGY, INCARNATION, 0, txid, None, 0, 0, where)
            rows = saved_rows(self.data_dir, point, STATE).to_pylist()
            assert {row["word"]: row["n"] for row in rows} == self.words[txid], txid
            plan_table(Directory(self.data_dir), self.store.tables[STATE].owner, STATE, txid, self.epoch, self.now)

    def read(self, txid=None):
        return words_read(self.data_dir, txid)

    def files(self):
        return {str(path.relative_to(self.data_dir / STATE.uri)) for path in staged(self.data_dir)}

    def superseded(self):
        """Return the files that belong neither to the newest version nor to a retained one."""
        handle = DeltaHandle.open(self.data_dir / STATE.uri)
        kept = {file.path for file in handle.files()}
        for entry, _ in staying(handle):
            kept |= {file.path for file in DeltaHandle.open(handle.path, entry.version).files()}
        return self.files() - kept


def staged(data_dir):
    return (data_dir / STATE.uri / "_txstorm/staged").glob("*.parquet")


def test_every_txid_stays_readable_and_disk_usage_is_bounded(tmp_path):
    world, files = World(tmp_path / "data", seeded()), []
    for _ in range(30):
        for _ in range(world.chance.randrange(3)):
            world.commit()
        world.compact(thin=world.chance.random() < 0.8)
        if world.chance.random() < 0.05:
            world.start_again()
        files.append(len(world.superseded()))
    world.compact()
    world.check(0.3)
    assert max(files) <= 16, files  # those of the last ten minutes, and of some rounds without thinning
    assert world.files() - world.superseded(), "some versions stay"
    many = sum(1 for _ in DeltaHandle.open(tmp_path / "data" / STATE.uri).history())
    assert len(world.files()) < many / 2

    for _ in range(2):  # repeatedly, to a txid without a retained version
        txid = world.chance.randrange(world.last)
        rewound(world, txid)
        world.turns(8)
        world.check(0.2)


def rewound(world, txid):
    """Rewind all tables of the store to `txid`, starting the next timeline."""
    owner = world.store.tables[STATE].owner
    refs = list(world.store.tables)
    todo = tuple(plan_table(Directory(world.data_dir), owner, ref, txid, world.epoch, world.now) for ref in refs)
    for _ in world.store.upkeep.thin(world.now + 60 * MINUTE):  # a stale leader resumes after the rewind is decided
        pass
    rewind = Rewind(TOPOLOGY, INCARNATION, owner.timeline + 1, world.epoch, txid, None, todo)
    for one in todo:
        restore_table(world.data_dir, rewind, one, world.epoch, world.now)
    world.store.close()
    world.epoch += 1
    world.last, world.words = txid, {one: words for one, words in world.words.items() if one <= txid}
    world.store = open_store(world.data_dir, epoch=world.epoch, timeline=owner.timeline + 1)
    world.store.load()


def test_a_version_is_retained_after_enough_changes_or_half_a_day(tmp_path):
    world = World(tmp_path / "data", random.Random(1))
    for hours in (0, 0, 13, 0):
        world.now += hours * 60 * MINUTE
        world.turns(1)
    stays = [entry.version for entry, _ in staying(DeltaHandle.open(world.data_dir / STATE.uri))]
    infos = {entry.version: entry.info for entry in DeltaHandle.open(world.data_dir / STATE.uri).history()}
    made = [version for version in sorted(infos) if infos[version].get("kind") == "compact"]
    assert [version in stays for version in made] == [False, False, True, False]


def test_versions_of_an_earlier_txstorm_are_kept_as_bases(tmp_path, monkeypatch):
    world = World(tmp_path / "data", random.Random(2))
    with monkeypatch.context() as patch:
        patch.setattr(versions.Versions, "decide", lambda *_, **__: {})
        patch.setattr(versions.Versions, "made", lambda *_: None)
        world.turns(5)
    before = world.files()
    world.start_again()
    world.turns(25)
    assert before <= world.files()
    assert len(world.files()) < 22
    world.check(0.3)


def test_files_being_read_in_this_process_are_not_removed(tmp_path):
    world = World(tmp_path / "data", random.Random(3))
    world.turns(5, thin=False)
    world.now += 20 * MINUTE
    with reading(world.data_dir):
        assert list(world.store.upkeep.thin(world.now)) == []
    assert len(world.files()) == 5
    assert world.store.upkeep.has_superseded(world.now)
    list(world.store.upkeep.thin(world.now))
    assert len(world.files()) == 1
    assert not world.store.upkeep.has_superseded(world.now)


def test_a_slow_reader_whose_version_was_removed_reads_again(tmp_path, monkeypatch):
    """A slow reader whose version has been removed meanwhile reads again; if a current file is missing, it fails."""
    world = World(tmp_path / "data", random.Random(5))
    world.turns(1)
    opened = read.state_parts

    def slow(*args, **kwargs):
        parts = opened(*args, **kwargs)
        if len(world.files()) == 1:
            world.turns(1)
            remove_own(world.store.tables[STATE].path, sorted(world.superseded()))
        return parts

    monkeypatch.setattr(read, "state_parts", slow)
    before = dict(world.words[1])
    assert world.read() == before
    with monkeypatch.context() as patch:
        patch.setattr(read, "state_parts", opened)
        (path,) = world.files()
        (world.data_dir / STATE.uri / path).unlink()
        with pytest.raises(TableCorrupt, match="cannot be read"):
            world.read()


def test_killed_during_removal_and_restarted(tmp_path):
    world = World(tmp_path / "data", random.Random(4))
    world.turns(6, thin=False)
    world.store.close()
    script = f"import sys; sys.path[:0] = {sys.path!r}; from test_versions import thin; thin({str(world.data_dir)!r})"
    assert run_program("-c", script, env={"TXSTORM_FAULT": "thin.removed:kill:2"}).returncode == -9
    assert len(world.files()) == 5, "killed in the middle"
    world.last, world.words[7] = 7, counted({"w1": 1}, before=world.words[6])
    world.epoch += 1
    world.start_again()
    world.commit()
    world.now = 30 * MINUTE
    world.compact()
    world.now += 20 * MINUTE
    list(world.store.upkeep.thin(world.now))
    assert len(world.files()) == 1
    world.check()


def thin(data_dir):
    """Commit, compact the state and remove superseded files, in a process that the test kills."""
    store = open_store(Path(data_dir), epoch=2)
    commit(store, 7, {"w1": 1}, epoch=2)
    upkeep_done(store, STATE.uri, 30 * MINUTE)
    list(store.upkeep.thin(30 * MINUTE))
