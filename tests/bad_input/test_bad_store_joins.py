"""Bad input of external store joins: one clear error each, at the call or at the build; nothing is lost."""

import re
from datetime import timedelta

import pytest
from helpers.store_joins import BOTH, FIELDS, LEFT, RIGHT, Counting, commit, joiner, net, spout

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.errors import InputError, StateError, TopologyError, TopologyFailed
from txstorm.joins import DataDelaySync, JoinStore, MemoryStore, Side, StoreFeed, StoreJoin, StoreRow
from txstorm.testing import FeedSpout, TopologyTestDriver

STORE = MemoryStore()
AT_SYNC = Side("sync", key="key", time="ts")


def feed(**options):
    return StoreFeed(options.pop("right", RIGHT), options.pop("store", STORE), **{"retain": Duration(9), **options})


def match(**options):
    return StoreJoin(options.pop("left", AT_SYNC), options.pop("store", STORE), **{"before": Duration(9), **options})


CALLS = [
    (lambda: feed(right="r"), "StoreFeed: the right side: expected a Side, got 'r'"),
    (lambda: feed(store=MemoryStore), "StoreFeed: store: expected a JoinStore, got the class MemoryStore"),
    (lambda: feed(store={}), "StoreFeed: store: expected a JoinStore, got an object of type dict"),
    (lambda: StoreFeed(RIGHT, STORE), r"StoreFeed: retain is missing; .*retain=Duration.hours\(2\)"),
    (lambda: feed(retain=10), "StoreFeed: retain: expected a Duration or a timedelta, got 10"),
    (lambda: feed(retain=timedelta(-1)), "StoreFeed: retain: expected a duration of at least 0"),
    (lambda: feed(batch_size=0), "StoreFeed: batch_size: expected a whole number, at least 1, got 0"),
    (lambda: feed(batch_size=True), "StoreFeed: batch_size: expected a whole number, at least 1, got True"),
    (lambda: match(batch_size=0), "StoreJoin: batch_size: expected a whole number, at least 1, got 0"),
    (lambda: match(how="right"), "only IntervalJoin knows unmatched right rows"),
    (lambda: match(how="full_outer"), "only IntervalJoin knows unmatched right rows"),
    (lambda: match(how="innner"), "StoreJoin: how: expected one of inner, left, semi, anti, got 'innner'"),
    (lambda: StoreJoin(AT_SYNC, STORE), "StoreJoin: before is missing; say how much older"),
    (lambda: match(before=10), "StoreJoin: before: expected a Duration or a timedelta, got 10"),
    (lambda: match(before=timedelta(0), after=timedelta(seconds=-1)), r"expected before \+ after >= 0"),
    (lambda: match(select="left:id"), "StoreJoin: select: expected a list of 'stream:field', got 'left:id'"),
    (lambda: match(select=[]), "StoreJoin: select: expected a list"),
    (lambda: DataDelaySync("l"), "DataDelaySync: the left side: expected a Side, got 'l'"),
    (lambda: DataDelaySync(LEFT, report=5), "DataDelaySync: report: expected a function"),
    (lambda: DataDelaySync(LEFT, refresh=5), "DataDelaySync: refresh: expected a Duration or a timedelta, got 5"),
    (lambda: DataDelaySync(LEFT, after=5), "DataDelaySync: after: expected a Duration or a timedelta, got 5"),
]


@pytest.mark.parametrize(("make", "said"), CALLS)
def test_wrong_arguments(make, said):
    with pytest.raises(InputError, match=said):
        make()


def build(*, bolts=(), **options):
    """Build a topology whose bolts are as given, each (id, bolt, function of its declarer)."""
    builder = TransactionalTopologyBuilder("bad", "feed", spout())
    for name, bolt, subscribe in bolts:
        subscribe(builder.set_bolt(name, bolt, **options))
    return builder.build_topology()


def by_key(component, stream="default"):
    return lambda declarer: declarer.fields_grouping(component, stream, ["key"])


def reads_both(declarer):
    by_key("feed", "l")(declarer).all_grouping("fill", "position")


FILL = ("fill", feed(), by_key("feed", "r"))
SYNC = ("sync", DataDelaySync(LEFT), reads_both)


def filled(**right):
    side = Side("feed", "r", **{"key": "key", "time": "ts", "id": "id", **right})
    return [("fill", feed(right=side), by_key("feed", "r"))]


def matched(**options):
    return [FILL, SYNC, ("match", match(**options), by_key("sync"))]


TOPOLOGIES = [
    (filled(id=None), "StoreFeed: the right side has no id"),
    (filled(key="kee"), "key: stream 'r' of 'feed' has no field 'kee' (did you mean 'key'?)"),
    (filled(time="time"), "time: stream 'r' of 'feed' has no field 'time'"),
    ([("fill", feed(), by_key("feed", "l"))], "the right side is stream 'r' of 'feed', but the component reads 'feed'"),
    (filled(partitions=[]), "such a side never reports a position"),
    ([FILL, ("other", feed(), by_key("feed", "r"))], "fills the same store"),
    ([("sync", DataDelaySync(LEFT), by_key("feed", "l"))], "nothing tells how far the right side has been consumed"),
    (
        [FILL, ("sync", DataDelaySync(LEFT, report=lambda: None), reads_both)],
        "it has a report and reads the position of 'fill'; give one of the two",
    ),
    (
        [FILL, ("sync", DataDelaySync(LEFT), lambda one: by_key("feed", "l")(one).shuffle_grouping("feed", "r"))],
        "the component also reads stream 'r' of 'feed', which it does not use",
    ),
    (matched(select=["left:nr"]), "the side has no field 'nr'"),
    (matched(select=["r:nr"]), "the side has no field 'nr'"),
    (matched(select=["x:id"]), "'x:id' names no side of the join"),
    (matched(select=["id"]), "expected 'stream:field'"),
    (matched(select=["left:id", "left:id"]), "the results have two fields"),
    (matched(select=["right:id"], how="anti"), "the results have left fields only"),
    (matched(store=MemoryStore()), "the fields of the store's rows are not known"),
    (
        matched(left=Side("sync", key=["key", "part"], time="ts")),
        "different numbers of fields, so none match: ['key', 'part'] here, ['key'] in 'fill'",
    ),
]


@pytest.mark.parametrize(("bolts", "said"), TOPOLOGIES)
def test_wrong_topologies(bolts, said):
    with pytest.raises(TopologyError) as raised:
        build(bolts=bolts)
    assert re.search(re.escape(said), str(raised.value)), raised.value


def test_positions_must_reach_all_tasks():
    sync = ("sync", DataDelaySync(LEFT), lambda one: by_key("feed", "l")(one).shuffle_grouping("fill", "position"))
    with pytest.raises(TopologyError, match=r"use all_grouping\('fill', 'position'\)"):
        build(bolts=[FILL, sync], parallelism=2)


def test_settings_that_lose_matches_are_accepted_with_a_warning():
    options = {"before": Duration.seconds(20), "after": Duration.seconds(5)}
    topology = build(bolts=matched(**options))
    assert [one for one in topology.warnings if "component 'match'" in one] == [
        "component 'match': StoreJoin: after is 0:00:05, but 'sync' holds rows with an after of 0:00:00, so that later "
        "matches are missed; give both the same after",
        "component 'match': StoreJoin: before is 0:00:20, but 'fill' retains rows for 0:00:00.009000, so that earlier "
        "matches are missed; retain them for before, and as much as left rows may lag",
    ]
    assert not build(bolts=matched()).warnings


class Plain(JoinStore):
    """Store without a mark."""

    put_many, get_many, expire = map(staticmethod, (STORE.put_many, STORE.get_many, STORE.expire))


def test_a_store_without_a_mark_is_accepted_with_a_warning():
    topology = build(bolts=[("fill", feed(store=Plain()), by_key("feed", "r"))])
    assert any("Plain keeps no mark" in one for one in topology.warnings)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("a", 95, None, "r0"), "a row of a store cannot have the id None"),
        ((["a"], 95, "r1", "r0"), "a row of a store cannot have the key list"),
        (("a", None, "r1", "r0"), "expected an int or an aware datetime, got None"),
        (("a", 95, "r1", "r7"), "'r7'"),
        (("a" * 70_000, 95, "r1", "r0"), "has 70,001 bytes|bytes"),
    ],
)
def test_tuples_that_no_store_can_hold(row, said):
    """Nothing of the transaction is put; after the tuple is mended, all is."""
    store = Counting()
    with TopologyTestDriver(net(store, opaque=True), settings={"on_error": "fail_topology"}) as driver:
        with pytest.raises((TopologyFailed, StateError), match=said):
            commit(driver, {"r": [("a", 94, "r0", "r0"), row]})
        assert store.puts == []
        driver.restart()
        commit(driver, {"r": [("a", 94, "r0", "r0")]})
        assert [one.id for rows in store.puts for one in rows] == ["r0"]


def test_tuples_that_no_store_can_hold_may_become_dead_letters():
    """Only these tuples are left out, also if a key is too large or no key of any store."""
    store = Counting()
    with TopologyTestDriver(net(store), settings={"on_error": "dead_letter"}) as driver:
        bad = [(key, 95, f"bad{at}", "r0") for at, key in enumerate((("x",), "x" * 70_000, 2**64))]
        too_long = ("a", 95, "x" * 70_000, "r0")
        commit(driver, {"r": [("a", 94, "r0", "r0"), *bad, too_long, ("a", 96, "r2", "r1")]})
        assert [one.id for rows in store.puts for one in rows] == ["r0", "r2"]
        txid = driver.feed({"l": [("x" * 70_000, 90, "l1", "l0"), (2**64, 90, "l2", "l0"), ("a", 91, "l3", "l0")]})
        driver.commit()
        assert driver.emitted("match", txid) == [("l3", None)]


def test_keys_of_several_fields_that_are_too_large_together_may_become_dead_letters():
    store = Counting()
    side = Side("feed", "r", key=["key", "part"], time="ts", id="id")
    topology = net(store, right=side, left=Side("feed", "l", key="key", time="ts"), key=["key", "part"])
    with TopologyTestDriver(topology, settings={"on_error": "dead_letter"}) as driver:
        half = "x" * 40_000
        commit(driver, {"r": [(half, 94, "r0", half), (half, 95, "r1", "p"), (None, 96, "r2", "p")]})
        assert [one.id for rows in store.puts for one in rows] == ["r1"]


class Half(Counting):
    """Store that answers for half of the keys."""

    def get_many(self, keys, start, end):
        found = dict(super().get_many(keys, start, end))
        return {key: found[key] for key in sorted(found)[: len(found) // 2]}


def test_a_store_that_answers_half_a_batch_is_an_error():
    message = "get_many of Half gave nothing for key 'b'; expected its rows"
    with TopologyTestDriver(joiner(Half(), lambda: 500), settings={"on_error": "fail_topology"}) as driver:
        with pytest.raises((TopologyFailed, StateError), match=message):
            commit(driver, {"l": [("a", 100, "l1", "l0"), ("b", 100, "l2", "l0")]})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (5, "get_many of Answers gave nothing for key 'a'; expected its rows"),
        ({"a": "text"}, "get_many of Answers gave 'text' for key 'a'; expected its rows, as .*check_join_store checks"),
        ({"a": [(1, 2)]}, r"get_many of Answers gave \[\(1, 2\)\] for key 'a'"),
        ({"a": [StoreRow("a", "r1", 95_000, "text")]}, "'r1' of key 'a' in the store has the value 'text', expected"),
    ],
)
def test_a_store_that_answers_garbage_is_an_error(answer, said):
    class Answers(Counting):
        def get_many(self, keys, start, end):
            return answer

    with TopologyTestDriver(joiner(Answers(), lambda: 500), settings={"on_error": "fail_topology"}) as driver:
        with pytest.raises(StateError, match=said):
            commit(driver, {"l": [("a", 100, "l1", "l0")]})


def test_another_key_or_id_than_at_the_last_start_is_refused(tmp_path):
    store = Counting()
    with TopologyTestDriver(net(store), data_dir=tmp_path) as driver:
        commit(driver, {"r": [("a", 95, "r1", "r0")]})
    other = Side("feed", "r", key="key", time="ts", id="ts", partition="part", partitions=["r0", "r1"])
    with pytest.raises(StateError, match="id: 'id'"):
        TopologyTestDriver(net(store, right=other), data_dir=tmp_path)


def test_a_feed_that_the_code_no_longer_has_must_be_dropped_by_name(tmp_path):
    store = Counting()
    with TopologyTestDriver(net(store), data_dir=tmp_path) as driver:
        commit(driver, {"r": [("a", 95, "r1", "r0")]})
    builder = TransactionalTopologyBuilder("whole", "feed", FeedSpout({"l": FIELDS, "r": FIELDS}))
    builder.set_bolt("sync", DataDelaySync(LEFT, report=lambda: None)).fields_grouping("feed", "l", ["key"])
    builder.set_bolt("match", match(store=store, select=BOTH)).fields_grouping("sync", ["key"])
    with pytest.raises(StateError, match="--drop"):
        TopologyTestDriver(builder.build_topology(), data_dir=tmp_path)
