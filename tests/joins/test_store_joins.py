"""External store joins in one topology or in two: feed, hold, look-up; as with a state; A10, A12 to A14, A16 to A20."""

import logging
import os
import random
from collections import Counter as Multiset

import pytest
from helpers.store_joins import BOTH, LEFT, RIGHT, Counting, commit, end, feeder, joiner, net, spout
from servers.running import start_redis

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.errors import BlockedError, StateError
from txstorm.joins import DataDelaySync, IntervalJoin, MemoryStore, RedisStore, Side, StoreFeed, StoreJoin, StoreRow
from txstorm.operations.rewind import rewind
from txstorm.operations.rewind_target import rewind_target
from txstorm.testing import TopologyTestDriver
from txstorm.windows.records import COMPONENT, ComponentRecord
from txstorm.windows.rules.event_time import instant


def test_left_rows_wait_until_the_right_side_is_consumed_past_them_and_are_then_final():
    """A16, A17, A20: strictly past them, by the slowest right partition."""
    store = Counting()
    with TopologyTestDriver(net(store)) as driver:
        commit(driver, {"l": [("a", 100, "l1", "l0"), ("b", 101, "l2", "l0")], "r": [("a", 95, "r1", "r0")]})
        assert driver.emitted("fill", stream="position") == [(None,)]  # nothing of r1
        commit(driver, {"l": [("c", 100, "l3", "l0")], "r": [("a", 100, "r2", "r1"), ("a", 300, "r3", "r0")]})
        assert driver.emitted("fill", 2, stream="position") == [(100_000,)]
        assert driver.emitted("match") == []  # more right rows of 100 may follow
        rows = driver.state("sync-left").to_pylist()
        held = sorted((one["key"], one["time"], one["id"], one["partition"]) for one in rows)
        assert held == [("a", 100_000, "l1", "l0"), ("b", 101_000, "l2", "l0"), ("c", 100_000, "l3", "l0")]
        commit(driver, {"r": [("a", 102, "r4", "r1")]})
        assert driver.emitted("sync", 3) == [("a", 100, "l1", "l0"), ("c", 100, "l3", "l0"), ("b", 101, "l2", "l0")]
        assert driver.emitted("match", 3) == [("l1", "r1"), ("l1", "r2"), ("l3", None), ("l2", None)]
        assert driver.emitted("match", stream="unmatched_left") == [("c", 100, "l3", "l0"), ("b", 101, "l2", "l0")]
        assert driver.state("sync-left").to_pylist() == []


def test_stored_rows_have_all_fields_of_their_tuples():
    """A10: any data by key."""
    store = MemoryStore()
    with TopologyTestDriver(net(store)) as driver:
        commit(driver, {"r": [("a", 100, "r1", "r0"), (None, 100, "r2", "r0")]})
    value = {"key": "a", "ts": 100, "id": "r1", "part": "r0"}
    assert store.get_many(["a"], None, None) == {"a": [StoreRow("a", "r1", 100_000, value)]}


def test_nothing_is_put_or_expired_before_the_decision():
    """A failed attempt leaves nothing behind, in either phase."""
    store = Counting()
    with TopologyTestDriver(net(store)) as driver:
        driver.feed({"r": [("a", 500, "r1", "r0"), ("a", 500, "r2", "r1")]})
        driver.fail(1)
        driver.ack(1)
        assert (store.puts, store.expired) == ([], [])
        driver.fail(1)
        assert (store.puts, store.expired) == ([], [])
        driver.advance(60)
        driver.commit()
        assert [len(one) for one in store.puts] == [2]
        assert store.expired == [400_000]


def test_look_ups_see_staged_rows_and_the_first_row_of_an_id():
    """The right rows of the same transaction match; a row that comes again does not replace the first one."""
    store = MemoryStore()
    with TopologyTestDriver(net(store, select=["left:id", "right:id", "right:ts"])) as driver:
        first = [*[("a", 95, "r1", "r0")] * 2, ("a", 95, "r2", "r0"), ("a", 200, "r9", "r1")]
        commit(driver, {"r": first})
        rows = [("a", 99, "r1", "r0"), ("a", 200, "r4", "r0"), ("a", 100, "r3", "r1"), ("a", 200, "r5", "r1")]
        commit(driver, {"l": [("a", 100, "l1", "l0")], "r": rows})
        assert driver.emitted("match") == [("l1", "r1", 95), ("l1", "r2", 95), ("l1", "r3", 100)]


def test_look_ups_of_one_group_see_rows_that_are_staged_but_not_put():
    """Two transactions in flight: the second one's look-ups see the first one's rows."""
    store = Counting()
    with TopologyTestDriver(net(store), pending=2) as driver:
        driver.feed({"r": [("a", 95, "r1", "r0"), ("a", 120, "r2", "r1"), ("a", 120, "r3", "r0")]})
        driver.feed({"l": [("a", 100, "l1", "l0")]})
        driver.commit(2)
        assert driver.emitted("match") == [("l1", "r1")]


def test_the_end_of_input_passes_all_rows_and_expires_none():
    store = Counting()
    with TopologyTestDriver(net(store)) as driver:
        commit(driver, {"l": [("a", 100, "l1", "l0"), (None, 90, "l2", "l0")], "r": [("a", 95, "r1", "r0")]})
        end(driver)
        assert driver.emitted("match") == [("l2", None), ("l1", "r1")]
        assert driver.emitted("match", stream="unmatched_left") == [(None, 90, "l2", "l0")]
        assert store.expired == []


def test_all_fields_of_both_sides_by_default_and_doubles_are_named_after_their_streams():
    topology = net(MemoryStore(), select=None)
    names = ["sync_key", "sync_ts", "sync_id", "sync_part", "r_key", "r_ts", "r_id", "r_part"]
    assert list(topology.component("match").streams["default"].fields) == names


def test_rows_expire_behind_the_position_and_late_ones_are_not_put():
    """A17: the store holds `retain` of the right side, whatever the left side does."""
    store = MemoryStore()
    with TopologyTestDriver(net(store)) as driver:
        commit(driver, {"r": [("a", 100, "r1", "r0"), ("a", 100, "r2", "r1")]})
        commit(driver, {"r": [("a", 201, "r3", "r0"), ("a", 201, "r4", "r1")]})
        assert [one.id for one in store.get_many(["a"], None, None)["a"]] == ["r3", "r4"]
        commit(driver, {"r": [("a", 50, "r5", "r0"), ("a", 150, "r6", "r0")]})
        assert [one.id for one in store.get_many(["a"], None, None)["a"]] == ["r6", "r3", "r4"]


def test_rows_that_their_own_transaction_expires_are_seen_in_it_and_not_kept():
    """A17: after each transaction the store holds what is not older than the position by more than `retain`."""
    store = MemoryStore()
    with TopologyTestDriver(net(store)) as driver:
        rows = [("a", time, f"r{time}{part}", part) for time in (1, 400, 500) for part in ("r0", "r1")]
        commit(driver, {"l": [("a", 1, "l1", "l0")], "r": rows})
        assert [one.id for one in store.get_many(["a"], None, None)["a"]] == ["r400r0", "r400r1", "r500r0", "r500r1"]
        assert driver.emitted("match", 1) == [("l1", "r1r0"), ("l1", "r1r1")]


def test_keys_of_several_fields():
    """A key with None in it matches nothing."""
    sides = [Side("feed", one, key=["key", "part"], time="ts", id="id") for one in "lr"]
    with TopologyTestDriver(net(MemoryStore(), left=sides[0], right=sides[1], key=["key", "part"])) as driver:
        right_rows = [(1, 95, "r1", "p"), (2, 96, "r2", "p"), (1, 97, "r3", "q"), (1, 98, "r4", None)]
        commit(driver, {"l": [(1, 100, "l1", "p"), (1, 100, "l2", None), (1, 100, "l3", "q")], "r": right_rows})
        end(driver)
        assert driver.emitted("match") == [("l1", "r1"), ("l2", None), ("l3", "r3")]


def test_typed_keys_match_by_type():
    """Keys that Python takes for equal, such as 1 and True, are different ones."""
    with TopologyTestDriver(net(MemoryStore())) as driver:
        right_rows = [(1, 95, "r1", "r0"), (True, 96, "r2", "r0"), ("1", 97, "r3", "r1")]
        left_rows = [(1, 100, "l1", "l0"), (True, 100, "l2", "l0"), ("1", 100, "l3", "l0")]
        commit(driver, {"l": left_rows, "r": right_rows})
        end(driver)
        assert sorted(driver.emitted("match")) == [("l1", "r1"), ("l2", "r2"), ("l3", "r3")]


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_restart_continues_with_what_was_held_and_put(tasks):
    store = Counting()
    with TopologyTestDriver(net(store, tasks=tasks)) as driver:
        commit(driver, {"l": [("a", 100, "l1", "l0"), ("b", 100, "l2", "l0")], "r": [("a", 95, "r1", "r0")]})
        driver.restart(net(store, tasks=3 - tasks))
        commit(driver)
        commit(driver, {"r": [("b", 101, "r2", "r0"), ("b", 101, "r3", "r1")]})
        assert sorted(driver.emitted("match"), key=str) == [("l1", "r1"), ("l2", None)]


def test_a_put_that_fails_after_the_decision_is_made_by_the_next_start():
    store = Counting()
    with TopologyTestDriver(net(store)) as driver:
        store.away = 8  # as often as a put is tried
        driver.feed({"r": [("a", 95, "r1", "r0"), ("a", 300, "r2", "r1"), ("a", 300, "r3", "r0")]})
        with pytest.raises(BlockedError, match="store of 'fill': cannot put txids 1-1: ConnectionError"):
            driver.commit()
        assert store.puts == []
        driver.restart()
        assert [[one.id for one in rows] for rows in store.puts] == [["r1", "r2", "r3"]]


def test_a_look_up_that_fails_replays_the_batch():
    store = Counting()
    with TopologyTestDriver(net(store)) as driver:
        commit(driver, {"r": [("a", 95, "r1", "r0"), ("a", 120, "r2", "r1"), ("a", 120, "r3", "r0")]})
        driver.feed({"l": [("a", 100, "l1", "l0")]})
        store.away = 1
        driver.ack(2)
        assert driver.committed == 1
        driver.commit(2)
        assert driver.emitted("match", 2) == [("l1", "r1")]
        assert driver.emitted("match", 2, stream="unmatched_left") == []


def test_a_rewind_leaves_the_store_as_it_is_and_has_to_say_so(tmp_path):
    def feed_each(driver, *numbers):
        for number in numbers:
            time = 100 + 20 * number
            rows = [("a", time - 5, f"r{number}", "r0"), ("a", time + 5, f"s{number}", "r1")]
            commit(driver, {"l": [("a", time, f"l{number}", "l0")], "r": [*rows, ("a", time + 5, f"t{number}", "r0")]})

    store = Counting()
    with TopologyTestDriver(net(store), data_dir=tmp_path) as driver:
        feed_each(driver, 0, 1, 2)
        first = driver.emitted("match")
        spout = driver.topology.spout.object
    target = rewind_target(tmp_path, instant(106_000))
    assert target.txid == 1
    assert [(one.component, one.source, one.stream, one.partition, one.time) for one in target.inputs] == [
        ("fill", "feed", "r", "r0", 105_000),
        ("fill", "feed", "r", "r1", 105_000),
        ("sync", "feed", "l", "l0", 100_000),
    ]
    with pytest.raises(Exception, match="--keep fill"):
        rewind(tmp_path, 1)
    assert rewind(tmp_path, 1, keep=["fill"])["kept"] == ["stores/fill"]
    before = sorted(one.id for one in store.inner.get_many(["a"], None, None)["a"])
    again = net(store)
    again.spout.object.adopt(spout)
    with TopologyTestDriver(again, data_dir=tmp_path) as driver:
        driver.next_tuple()
        feed_each(driver, 1, 2)
        assert [one for one in first if one[0] != "l0"] == driver.emitted("match")
        assert sorted(one.id for one in store.inner.get_many(["a"], None, None)["a"]) == before


def test_a_store_that_was_emptied_or_is_another_topologys_is_refused():
    store = Counting()
    with TopologyTestDriver(net(store)) as driver:
        commit(driver, {"r": [("a", 95, "r1", "r0")]})
        full, store.inner = store.inner, MemoryStore()
        with pytest.raises(StateError, match="lost rows"):
            driver.restart()
        store.inner = full
        driver.restart()
        with pytest.raises(StateError, match="belongs to topology 'whole'"):
            TopologyTestDriver(net(store, topology="other"))


def test_a_store_from_an_older_copy_is_refused_at_the_next_put():
    store = Counting()
    with TopologyTestDriver(net(store)) as driver:
        commit(driver, {"r": [("a", 95, "r1", "r0")]})
        old = store.inner.mark()
        commit(driver, {"r": [("a", 96, "r2", "r0")]})
        store.inner._mark = old
        driver.feed({"r": [("a", 97, "r3", "r0")]})
        with pytest.raises(StateError, match="lost rows"):
            driver.commit()


class Reports:
    """Report that a test sets, and that counts its calls."""

    def __init__(self, value=None):
        self.value = value
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_a_report_is_pinned_so_a_replay_has_the_same_one():
    store, report = Counting(), Reports(101)
    with TopologyTestDriver(joiner(store, report)) as left:
        left.feed({"l": [("a", 100, "l1", "l0"), ("a", 110, "l2", "l0")]})
        report.value = 500
        left.fail(1)
        left.restart()
        left.ack(1)
        left.ack(1)
        assert left.emitted("match", 1) == [("l1", None)]
        assert report.calls == 1


def test_a_report_is_asked_again_after_refresh():
    report = Reports(50)
    with TopologyTestDriver(joiner(MemoryStore(), report, refresh=Duration(1000))) as left:
        start = left.clock.now() // 1000
        for number, calls in enumerate((1, 1, 1, 2, 2)):
            commit(left, {"l": [("a", 100 + number, f"l{number}", "l0")]}, at=start + 400 * number)
            assert report.calls == calls


def test_a_report_is_asked_again_without_data_while_rows_are_held():
    report = Reports(50)
    with TopologyTestDriver(joiner(MemoryStore(), report, refresh=Duration(1000))) as left:
        commit(left, {"l": [("a", 100, "l1", "l0")]})
        report.value = 200
        left.advance(0.9)
        assert left.active == {}
        left.advance(0.2)
        left.commit()
        assert left.emitted("match") == [("l1", None)]
        left.advance(10)
        assert left.active == {}  # nothing is held


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("soon", "returned no time: expected an int or an aware datetime, got str 'soon'"),
        (1.5, "returned no time"),
        (10**18, "outside the years 1 to 9999"),
        (50, "went back from 1970-01-01T00:00:00.101000+00:00"),
        (RuntimeError("no API"), "no API"),
    ],
)
def test_a_report_that_is_garbage_or_goes_backwards_is_logged_once_and_nothing_is_lost(caplog, answer, said):
    """A14: the consumed time stays."""
    report = Reports(101)
    with TopologyTestDriver(joiner(MemoryStore(), report)) as left:
        commit(left, {"l": [("a", 100, "l1", "l0"), ("a", 110, "l2", "l0")]})
        report.value = answer
        with caplog.at_level(logging.WARNING):
            for number in (3, 4):
                commit(left, {"l": [("a", 100, f"l{number}", "l0")]})
        assert len([one.getMessage() for one in caplog.records if said in one.getMessage()]) == 1
        assert left.emitted("match") == [("l1", None), ("l3", None), ("l4", None)]
        report.value = 111
        commit(left)
        assert left.emitted("match")[3:] == [("l2", None)]


def test_a_joiner_leaves_the_mark_to_the_feeder():
    """Whoever only reads may read any topology's store; the feeder notices what was lost."""
    store = Counting()
    with TopologyTestDriver(feeder(store)) as right:
        commit(right, {"r": [("a", 95, "r1", "r0")]})
        mark = store.mark()
        with TopologyTestDriver(joiner(store, Reports(200))) as left:
            commit(left, {"l": [("a", 100, "l1", "l0")]})
            assert left.emitted("match") == [("l1", "r1")]
        assert store.mark() == mark
        store.inner = MemoryStore()
        with TopologyTestDriver(joiner(store, Reports(200))) as left:
            commit(left, {"l": [("a", 100, "l1", "l0")]})
            assert left.emitted("match") == [("l1", None)]
        with pytest.raises(StateError, match="lost rows"):
            right.restart()


def test_look_ups_in_the_feeds_topology_see_the_rows_of_their_transaction_without_its_position():
    """The feed comes first in the commit phase, even if it is declared last and nothing connects it to the look-up."""
    store = MemoryStore()
    builder = TransactionalTopologyBuilder("one", "feed", spout())
    sync = DataDelaySync(LEFT, report=lambda: 200, refresh=Duration(0))
    builder.set_bolt("sync", sync).fields_grouping("feed", "l", ["key"])
    match = StoreJoin(Side("sync", key="key", time="ts"), store, before=Duration(10), select=BOTH)
    builder.set_bolt("match", match).fields_grouping("sync", ["key"])
    builder.set_bolt("fill", StoreFeed(RIGHT, store, retain=Duration(100))).fields_grouping("feed", "r", ["key"])
    with TopologyTestDriver(builder.build_topology()) as driver:
        commit(driver, {"l": [("a", 100, "l1", "l0")], "r": [("a", 95, "r1", "r0")]})
        assert driver.emitted("match") == [("l1", "r1")]
        commit(driver, {"l": [("a", 1 << 42, "far", "l0")], "r": [("b", 1 << 42, "far", "r0")]})
        for name in ("sync", "fill"):
            texts = {row["unit"]: row["record"] for row in driver.state(f"{name}-progress").to_pylist()}
            assert list(ComponentRecord.read(texts[COMPONENT]).ahead.values()) == [1], name


SCHEDULES = int(os.environ.get("TXSTORM_STORE_SCHEDULES", "10"))
LAG = 8
"""How much the sides are out of order at most, in milliseconds."""


def sides(rng):
    parts = rng.random() < 0.5
    common = {"key": "key", "time": "ts", "id": "id", "lag": Duration(LAG)}
    if not parts:
        return Side("feed", "l", **common), Side("feed", "r", **common)
    left = Side("feed", "l", partition="part", partitions=["p0"], **common)
    return left, Side("feed", "r", partition="part", partitions=["p0", "p1"], **common)


def schedule(rng):
    """Return what is fed: rows of both sides that drift apart, in batches; every partition has data at the end."""
    batches, newest, number = [], {"l": 1000, "r": 1000}, 0
    for _ in range(rng.randint(3, 9)):
        rows = {"l": [], "r": []}
        for stream in ("l", "r"):
            for _ in range(rng.choice((0, 0, 2, 5, 9))):
                number += 1
                newest[stream] += rng.choice((0, 0, 1, 3, 12))
                part = "p0" if stream == "l" else rng.choice(("p0", "p1"))
                key = rng.choice(("a", "b", "c", None))
                rows[stream].append((key, newest[stream] - rng.randint(0, LAG), f"{stream}{number}", part))
        batches.append(rows)
    return batches


def interval_net(left, right, how, bounds):
    builder = TransactionalTopologyBuilder("state", "feed", spout())
    join = IntervalJoin(
        left, right, how=how, select=["left:id", "right:id"] if how == "left" else ["left:id"], **bounds
    )
    builder.set_bolt("match", join).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    return builder.build_topology()


def results(topology, batches, *, ends, rng=None):
    """Feed the batches, with failures and restarts if there is a generator; return pairs and unmatched left rows."""
    with TopologyTestDriver(topology) as driver:
        for rows in batches:
            txid = driver.feed(rows)
            if rng is not None and rng.random() < 0.2:
                driver.fail(txid)
            if rng is not None and rng.random() < 0.2:
                driver.ack(txid)
                driver.fail(txid) if rng.random() < 0.5 else driver.restart()
                driver.advance(60)
            driver.commit(txid)
            if rng is not None and rng.random() < 0.15:
                driver.restart()
                driver.heartbeat()
                driver.commit()
        if ends:
            driver.end_of_input()
            driver.commit()
        return Multiset(driver.emitted("match")), Multiset(driver.emitted("match", stream="unmatched_left"))


def compare(store, seed):
    rng = random.Random(seed)
    left, right = sides(rng)
    before, after = rng.choice(((0, 0), (10, 0), (25, 5), (3, 20)))
    how, ends, batches = rng.choice(("left", "anti", "semi")), rng.random() < 0.5, schedule(rng)
    bounds = {"before": Duration(before), "after": Duration(after)}
    expected = results(interval_net(left, right, how, bounds), batches, ends=ends)
    select = ["left:id", "right:id"] if how == "left" else ["left:id"]
    options = {"left": left, "right": right, "how": how, "select": select, "batch_size": rng.randint(1, 5)}
    sync, feed = {"after": Duration(after)}, {"retain": Duration.hours(1), "batch_size": rng.randint(1, 5)}
    topology = net(store, sync=sync, feed=feed, tasks=rng.choice((1, 2)), **options, **bounds)
    assert results(topology, batches, ends=ends, rng=rng) == expected, f"seed {seed}: replay with compare(…, {seed})"


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_random_schedules_over_the_store_in_memory(seed):
    compare(MemoryStore(), seed)


@pytest.mark.integration
def test_random_schedules_over_redis(tmp_path):
    with start_redis(tmp_path) as redis:
        for seed in range(1000, 1000 + max(3, SCHEDULES // 5)):
            compare(RedisStore(f"redis://{redis.address()}/0", prefix=f"seed{seed}"), seed)
