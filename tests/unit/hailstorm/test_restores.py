"""New directories that begin with a store's snapshots: which one, what is read behind it, and what is refused."""

import json
import logging
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from snapshot_runs import TAGS, Restoring, counted, donate, plain, save, tags

from txstorm import Clock, CompositeSpout, Monoid, MonoidBolt, TransactionalTopologyBuilder, faults, run
from txstorm.engine.local import LocalEngine
from txstorm.errors import InputError, SpoutError
from txstorm.faults import InjectedFault
from txstorm.hailstorm import SnapshotStore, open_store
from txstorm.hailstorm.saving import Saver, beginning
from txstorm.lanes import Inline
from txstorm.monoids import Count, HyperLogLog, Max, Mean, SetUnion, Sum
from txstorm.monoids.ready_made import restored
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.rewind import rewind
from txstorm.replay.audit import audit
from txstorm.replay.backfill import check_into
from txstorm.replay.recording import Recording, span_of
from txstorm.results.views import read_clock
from txstorm.runtime.snapshots import ClockSnapshot
from txstorm.spouts import FileSpout, MemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver

WORDS = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=6), min_size=1, max_size=3)
TASKS = st.integers(1, 3)


def best(driver):
    """Return the tags in the best two of any task, with their greatest counts."""
    found = {}
    for row in driver.state("best").to_pylist():
        for one in row["state"]:
            found[one["key"]] = max(one["count"], found.get(one["key"], 0))
    return found


@settings(max_examples=6, deadline=None, phases=[Phase.generate])
@given(partitions=WORDS, tasks=st.tuples(TASKS, TASKS), takes=st.tuples(TASKS, TASKS), at=st.integers(1, 4))
def test_exactly_the_records_behind_the_snapshot_are_read(partitions, tasks, takes, at, tmp_path_factory):
    place = tmp_path_factory.mktemp("restored")
    store = open_store(f"memory:{place}")
    with TopologyTestDriver(made := tags(None, partitions, tasks[0], takes[0]), data_dir=place / "a") as driver:
        driver.commit(at)
        clock, then = Clock(json.loads(str(driver.source_clock()))), best(driver)
        assert save(store, made, place / "a", at, clock) == clock
    with TopologyTestDriver(tags(store, partitions, tasks[1], takes[1]), data_dir=place / "b") as driver:
        assert driver.source_clock() == clock
        driver.commit(1)
        taken = {name: min(offset + takes[1], len(partitions[int(name)]) - 1) for name, offset in clock.items()}
        assert counted(place / "b") == plain(partitions, taken)
        assert {row["instance"] for row in driver.state("best").to_pylist()} == set(range(tasks[1]))
        changed = {tag for tag, _ in driver.emitted("counts", 1)}
        assert changed == {
            tag for tag, n in plain(partitions, taken).items() if n > plain(partitions, clock).get(tag, 0)
        }
        now = best(driver)  # two others may displace a tag, which then has an older count elsewhere
        assert all(now.get(tag, 0) >= n or sorted(now.values())[-2] >= n for tag, n in then.items())
        driver.commit(6)
        assert counted(place / "b") == plain(partitions)
    with TopologyTestDriver(tags(None, partitions, tasks[1]), data_dir=place / "b") as driver:
        assert driver.committed == 6  # it goes on, with or without a store


@pytest.mark.parametrize(
    ("monoid", "values"),
    [
        (Sum(float), [0.1, 0.2, 5.0]),
        (Max(), [3, None, 9]),
        (Count(), [1, 1, 1]),
        (Mean(), [1, 2, 7]),
        (SetUnion(), ["x", 1, True]),
        (HyperLogLog(), ["x", "y", "z"]),
    ],
)
@pytest.mark.parametrize("key", [(), {"k": int}, {"k": int, "name": str}])
def test_every_monoid_and_key_comes_back_as_it_was(monoid, values, key, tmp_path):
    rows = [(at % 2, f"n{at}", value) for at, value in enumerate(values)]

    def topology(store=None):
        builder = TransactionalTopologyBuilder("t", "s", MemoryTransactionalSpout([rows], ["k", "name", "v"], take=2))
        bolt = builder.set_bolt("b", MonoidBolt("b", monoid, key, to_state="v", emit=None), 2)
        bolt.fields_grouping("s", ["k"]) if key else bolt.shuffle_grouping("s")
        made = builder.build_topology()
        return made if store is None else replace(made, companion=lambda topology: Restoring(store, topology))

    def merged(rows):  # without a key, a record may go to another task
        return rows if key else reduce(monoid.merge, (restored(monoid, row["state"]) for row in rows))

    store = open_store(f"dir:{tmp_path / 'store'}")
    with TopologyTestDriver(topology(), data_dir=tmp_path / "a") as driver:
        driver.commit(1)
        assert save(store, topology(), tmp_path / "a", 1, {"0": 1}) == {"0": 1}
        before = driver.state("b").to_pylist()
        driver.commit(2)
        whole = driver.state("b").to_pylist()
    with TopologyTestDriver(topology(store), data_dir=tmp_path / "b") as driver:
        assert driver.state("b").to_pylist() == before
        driver.commit(1)
        assert merged(driver.state("b").to_pylist()) == merged(whole)


def test_rewinds_replays_and_lost_ledgers_of_a_directory_that_began_with_a_snapshot(tmp_path):
    donate(tmp_path / "a", store := open_store(f"memory:{tmp_path}"), 2)
    data_dir = tmp_path / "b"
    run(tags(store), engine="local", data_dir=data_dir, until_txid=3).awaitTermination()
    verdicts = []
    audit(tags(), recording := Recording(data_dir), span_of(recording, None, None), LocalEngine(), verdicts.append)
    assert [one.equal for one in verdicts] == [True] * 3
    with pytest.raises(InputError, match="began with the states of a snapshot"):
        check_into(recording, tmp_path / "c", span_of(recording, None, None))
    rewind(data_dir, to_clock={"0": 1, "1": 1})
    assert read_clock(data_dir) == {"0": 1, "1": 1}
    run(tags(), engine="local", data_dir=data_dir, until_txid=2).awaitTermination()
    for path in data_dir.glob("ledger.db*"):
        path.unlink()
    recover(data_dir)
    run(tags(), engine="local", data_dir=data_dir, until_txid=5).awaitTermination()
    assert counted(data_dir) == plain()
    assert counted(data_dir, 0) == plain(taken={"0": 1, "1": 1})


def test_states_of_a_start_that_ended_before_its_clock_was_recorded_count_nothing(tmp_path):
    donate(tmp_path / "a", store := open_store(f"memory:{tmp_path}"), 2)
    faults.arm("begin.filled:raise:1")
    with pytest.raises(InjectedFault):
        TopologyTestDriver(tags(store), data_dir=tmp_path / "b")
    faults.arm("")
    assert counted(tmp_path / "b") != {}
    with TopologyTestDriver(tags(), data_dir=tmp_path / "b") as driver:  # by code that has no store any more
        driver.commit(6)
        assert counted(tmp_path / "b") == plain()


def test_nothing_saved_or_from_the_beginning(tmp_path):
    store = open_store(f"memory:{tmp_path}")
    with TopologyTestDriver(tags(store), data_dir=tmp_path / "a") as driver:
        driver.commit(2)
        assert counted(tmp_path / "a") == plain(taken={"0": 1, "1": 1})
    store.save("counts", 0, {"love": 9}, Clock({"0": 0}))  # that of the other bolt is missing
    with pytest.raises(InputError, match=r"(?s)no clock is common .*counts\[0\]: {\"0\": 0}; best\[0\]: none.*--from"):
        TopologyTestDriver(tags(store), data_dir=tmp_path / "b")
    with TopologyTestDriver(tags(store, from_beginning=True), data_dir=tmp_path / "b") as driver:
        driver.commit(6)
        assert counted(tmp_path / "b") == plain()


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (({"a": "x"}, []), "the states of bolt 'counts' .* expected values of the type int64"),
        ((7, []), "an object with a state per key"),
        (({"a": 1}, {"a": 1}), "one state per instance"),
        (({"a": 1}, [{"key": 5}]), "the states of bolt 'best'"),
    ],
)
def test_states_that_do_not_fit_are_refused(saved, message, tmp_path):
    store = open_store(f"memory:{tmp_path}")
    for bolt, state in zip(("counts", "best"), saved, strict=True):
        store.save(bolt, 0, state, Clock({"0": 0}))
    with pytest.raises(InputError, match=message):
        TopologyTestDriver(tags(store), data_dir=tmp_path / "a")


def test_the_newest_is_what_was_saved_last_and_former_instances_count_nothing(tmp_path):
    store = open_store(f"memory:{tmp_path}", 2)
    donate(tmp_path / "a", store, 2, 4, tasks=3)
    rewind(tmp_path / "a", 2)
    donate(tmp_path / "a", store, 3, tasks=1)
    assert store.clocks("counts", 0) == store.clocks("counts", 2) == [Clock({"0": at, "1": at}) for at in (2, 3)]
    assert store.restore("counts", 2)[0] == {} and store.restore("best", 2)[0] == []
    found = beginning(store, tags(None))
    assert found.clock == {"0": 2, "1": 2}
    assert dict(zip(*found.states["counts"].to_pydict().values(), strict=True)) == plain(taken=found.clock)


class Own(SnapshotStore):
    """A store of a user, in a dict of one state each; keys in several instances are merged."""

    def __init__(self):
        self.states = {}
        self.left = 99

    def save(self, bolt, instance, state, clock):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the shelf is full")
        self.states[bolt, instance] = (json.loads(json.dumps(state)), clock)

    def restore(self, bolt, instance, clock=None):
        found = self.states.get((bolt, instance))
        return found if found and clock in (None, found[1]) else None

    def clocks(self, bolt, instance):
        return [found[1] for found in [self.states.get((bolt, instance))] if found]


def test_a_store_of_your_own(tmp_path, caplog):
    donate(tmp_path / "a", store := Own(), 3)
    store.states["counts", 2] = ({"love": 10, "new": 1}, store.clocks("counts", 0)[0])
    with TopologyTestDriver(tags(store), data_dir=tmp_path / "b") as driver:
        assert counted(tmp_path / "b", 0) == {**plain(taken={"0": 2, "1": 2}), "love": 12, "new": 1}
        driver.commit(1)
    store.left = 1
    assert "RuntimeError('the shelf is full')" in save(store, tags(), tmp_path / "a", 3, {"0": 2, "1": 2})
    assert "the run goes on" in caplog.text


def test_while_one_is_saved_only_the_newest_of_the_others_waits(tmp_path):
    donate(tmp_path / "a", store := open_store(f"memory:{tmp_path}", 9), 1, 2, 3, 4)
    saved, own = [], Own()
    saver = Saver(own, tags(), tmp_path / "a", Inline(lambda: 0, lambda: 0.0))

    def save(bolt, instance, state, clock):
        if not saved:
            for txid in (2, 3, 4):
                saver.save(ClockSnapshot(txid, Clock({"0": txid - 1}), txid, "", 0))
        saved.append(dict(clock))
        Own.save(own, bolt, instance, state, clock)

    own.save = save
    saver.save(ClockSnapshot(1, Clock({"0": 0}), 1, "", 0))
    assert saved == [{"0": 0}] * 4 + [{"0": 3}] * 4
    assert own.restore("counts", 0)[0] == store.restore("counts", 0)[0]


def test_sources_begin_at_a_clock(tmp_path):
    def topology(store, **sources):
        spout = CompositeSpout(sources)
        builder = TransactionalTopologyBuilder("two", "tags", spout)
        bolt = builder.set_bolt("counts", MonoidBolt("counts", Count(), "tag"))
        for name in sources:
            bolt.global_grouping("tags", name)
        return replace(builder.build_topology(), companion=lambda topology: Restoring(store, topology))

    def memory(rows=TAGS):
        return MemoryTransactionalSpout(rows, "tag", take=9)

    store = open_store(f"memory:{tmp_path}")
    store.save("counts", 0, {"love": 2}, Clock({"a/0": 4, "a/1": 3, "b/0": 5}))
    with TopologyTestDriver(topology(store, a=memory(), b=memory([TAGS[0]])), data_dir=tmp_path / "a") as driver:
        driver.commit(1)
        assert counted(tmp_path / "a") == {"love": 2, "joy": 1}
    with TopologyTestDriver(topology(store, a=memory(), b=memory(), c=memory([["x"]])), data_dir=tmp_path / "b") as new:
        new.commit(1)  # a source and a partition that the clock lacks are new
        assert counted(tmp_path / "b") == {"love": 2, "joy": 2, "kiss": 2, "fun": 1, "x": 1}
    with pytest.raises(SpoutError, match="the clock is of source 'b', too"):
        TopologyTestDriver(topology(store, a=memory()), data_dir=tmp_path / "c")
    (tmp_path / "lines").write_text("a\n")
    builder = TransactionalTopologyBuilder("two", "lines", FileSpout(tmp_path / "lines"))
    builder.set_bolt("counts", MonoidBolt("counts", Count(), "line")).global_grouping("lines")
    files = replace(builder.build_topology(), companion=lambda topology: Restoring(store, topology))
    with pytest.raises(SpoutError, match="has no clocks, so it cannot begin at one"):
        TopologyTestDriver(files, data_dir=tmp_path / "d")


def test_records_that_are_gone_are_missed(tmp_path):
    donate(tmp_path / "a", store := open_store(f"memory:{tmp_path}"), 4)
    with pytest.raises(SpoutError, match="was read up to tuple 4 but holds only 2 now"):
        TopologyTestDriver(tags(store, [TAGS[0][:2], TAGS[1]]), data_dir=tmp_path / "b")


def test_a_directory_that_has_begun_does_not_ask(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    donate(tmp_path / "a", store := open_store(f"memory:{tmp_path}"), 2)
    asked = []
    made = replace(tags(), companion=lambda topology: asked.append(Restoring(store, topology)) or asked[-1])
    short = replace(tags(None, [rows[:2] for rows in TAGS]), companion=made.companion)
    run(short, engine="local", data_dir=tmp_path / "b", available_now=True).awaitTermination()
    assert read_clock(tmp_path / "b") == {"0": 1, "1": 1}  # there was nothing behind it
    with TopologyTestDriver(made, data_dir=tmp_path / "b"):
        donate(tmp_path / "a", store, 3)
    for path in (tmp_path / "b").glob("ledger.db*"):
        path.unlink()
    recover(tmp_path / "b")
    with TopologyTestDriver(made, data_dir=tmp_path / "b") as driver:
        driver.commit(6)
        assert counted(tmp_path / "b") == plain()
    assert [one.begun for one in asked] == [1, 0, 0]
    assert caplog.text.count("begins with the snapshot at") == 1


class Broken(Monoid):
    column = int

    def empty(self):
        return 0

    def merge(self, a, b):
        return a + b

    def load(self, stored):
        raise ValueError("no state")


def test_states_that_the_monoid_cannot_load_are_refused(tmp_path):
    store = open_store(f"memory:{tmp_path}")
    store.save("b", 0, {"a": 1}, Clock({"0": 0}))
    builder = TransactionalTopologyBuilder("t", "s", MemoryTransactionalSpout([["a"]], "k"))
    builder.set_bolt("b", MonoidBolt("b", Broken(), "k", to_state=lambda row: 1)).fields_grouping("s", ["k"])
    with pytest.raises(InputError, match="none of Broken: ValueError"):
        beginning(store, builder.build_topology())
