"""States with a time to live, and collections, under random schedules of writes, failures, restarts and compaction."""

import shutil

import pytest
from handle_cases import Bench
from keyed_cases import SECOND, Shown, begun, check, check_read, opened, play, publish
from seeded import seeded

from txstorm.api.state import KeyedState
from txstorm.state.index.index import StateIndex


class Schedule:
    """A random schedule over real tables; `after[n]` is the expected content after txid n, `stamps[n]` is its stamp."""

    def __init__(self, draw, path):
        self.draw, self.path, self.epoch = draw, path, 1
        self.after, self.stamps, self.published = [Shown()], {0: 0}, 0
        self.store = opened(path, create=True)
        self.group = None

    @property
    def last(self):
        return len(self.after) - 1

    def finish(self):
        """Play and finish the next txid; the replay of a failed txid has other content and possibly another stamp."""
        txid = self.last + 1
        self.group = self.group or self.store.group(txid)
        stamp = self.stamps[txid - 1] + self.draw.choice([0, 1, 3 * SECOND, 6 * SECOND])
        now = self.after[-1].copy()
        resources = begun(self.group, txid, stamp)
        check(resources, now, stamp)
        play(self.draw, resources, now, stamp)
        self.group.end_txid(txid)
        self.after.append(now)
        self.stamps[txid] = stamp

    def fail(self):
        """Fail a random undecided txid and all later ones; they are replayed later."""
        first = self.draw.randint(self.published + 1, self.last + 1)
        if self.group is not None:
            self.group.drop_from(first)
        del self.after[first:]

    def publish(self):
        if self.last > self.published:
            stamps = {txid: self.stamps[txid] for txid in range(self.published + 1, self.last + 1)}
            publish(self.store, self.group, stamps, self.epoch)
            self.published = self.last
        self.group = None

    def compact(self):
        self.publish()
        self.store.upkeep.compact()

    def gather(self):
        """Merge the small files of the changes of collections."""
        self.publish()
        for uri in ("changes/events", "changes/recent"):
            work = self.store.upkeep.begin(uri, 1)
            if work is not None:
                assert all(step is None for step in work.steps())
                assert self.store.upkeep.finish(work, 1) in (True, False)

    def restart(self):
        """Restart after a stop or a crash: unpublished rows are lost, and the index may be lost or damaged."""
        del self.after[self.published + 1 :]
        self.group = None
        how = self.draw.choice(["stopped", "killed", "lost", "damaged"])
        if how == "stopped":
            self.store.close()
        else:
            for index in self.store._indexes.values():
                if getattr(index, "_disk", None) is not None:
                    index._disk._store.close()
        if how == "lost":
            shutil.rmtree(self.path / "index", ignore_errors=True)
        if how == "damaged":
            for file in self.path.glob("index/*/*/*.sst"):
                file.write_bytes(b"\0" * file.stat().st_size)
        self.epoch += 1
        self.store = opened(self.path, epoch=self.epoch, committed=self.published)
        self.store.load()

    def play(self, steps):
        actions = [self.finish] * 5 + [self.fail, self.publish, self.publish, self.compact, self.gather, self.restart]
        for _ in range(steps):
            self.draw.choice(actions)()
        self.publish()
        for txid in range(self.published + 1):
            check_read(self.path, txid, self.after[txid], self.stamps[txid])
        self.store.close()


@pytest.fixture(params=["usual", "small"])
def bounds(request, monkeypatch):
    """Make files, row groups and blocks of collections so small that little data fills several of them."""
    small = {
        "txstorm.state.index.row_groups.SMALL": 2,
        "txstorm.state.index.row_groups.TOGETHER": 4,
        "txstorm.state.index.collection_index._MERGED_ROWS": 4,
        "txstorm.state.index.layers._FIRST_ROWS": 1,
        "txstorm.storage.tables.staging.PLACED_ROWS": 3,
        "txstorm.storage.upkeep.collection_rewrite.FILE_ROWS": 6,
        "txstorm.storage.upkeep.compaction.BATCH_ROWS": 4,
        "txstorm.storage.upkeep.small_files.LEAST_FILES": 3,
        "txstorm.storage.upkeep.small_files.NEWEST": 1,
    }
    for name, value in small.items() if request.param == "small" else ():
        monkeypatch.setattr(name, value)


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize("run", range(3))
def test_any_schedule_shows_the_state_of_the_surviving_txids(tmp_path, run):
    Schedule(seeded(), tmp_path).play(24)


STATE = KeyedState("s", key={"site": str, "n": int}, value={"v": int})
KEYS = [(site, n) for site in ("a", "b", None) for n in (0, 1, None)]


class PlainModel:
    """Reference model: the state after every txid, as plain dictionaries."""

    def __init__(self):
        self.after = [{}]

    def play(self, draw, handle, task, now):
        """Apply random writes of one task to its own keys, on both `handle` and the dictionary `now`; compare reads."""
        own = [key for i, key in enumerate(KEYS) if i % 2 == task]
        before = dict(self.after[-1])
        for _ in range(draw.randrange(6)):
            key = draw.choice(own)
            action = draw.choice(["put", "update", "remove", "read"])
            if action == "put":
                now[key] = draw.choice([None, draw.randrange(100)])
                handle.put(key, now[key])
            elif action == "update":
                step = draw.randrange(5)
                now[key] = (now.get(key) or 0) + step
                assert handle.update(key, lambda old, step=step: (old or 0) + step) == now[key]
            elif action == "remove":
                now.pop(key, None)
                handle.remove(key)
            assert handle.get_many(own) == {key: now[key] for key in own if key in now}
            assert handle.previous(key) == before.get(key)


def test_any_schedule_gives_the_state_of_the_surviving_txids():
    draw = seeded()
    for _ in range(60):
        bench, model, published = Bench(STATE), PlainModel(), 0
        from_changes = StateIndex(STATE)
        for _ in range(25):
            txid = len(model.after)
            now = dict(model.after[-1])
            for task in draw.sample([0, 1], 2):
                model.play(draw, bench.open(txid, task), task, now)
            bench.group.end_txid(txid)
            model.after.append(now)
            chance = draw.random()
            if chance < 0.2:  # a failure: some undecided txids are replayed
                first = draw.randint(published + 1, txid)
                bench.group.drop_from(first)
                del model.after[first:]
            elif chance < 0.5:  # a group is published
                last = draw.randint(published + 1, txid)
                table = bench.group.changes(published + 1, last)
                if table is not None:
                    from_changes.load(table)
                bench.group.apply(last)
                published = last
            rows = zip(KEYS, bench.index.rows(KEYS), strict=True)
            assert {key: row[0][0] for key, row in rows if row is not None} == model.after[published]
            assert from_changes.rows(KEYS) == bench.index.rows(KEYS)
            assert bench.open(len(model.after)).get_many(KEYS) == model.after[-1]
