"""Feed spout and test driver: one transaction at a time with given tuples, heartbeats and the end of input."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from watched import Gathering

from txstorm import BatchBolt, Committer, Duration, KeyedState, Topology, TransactionalTopologyBuilder
from txstorm.errors import InputError, StateError, TopologyFailed
from txstorm.joins import MemoryStore, Side, StoreFeed
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Witness(Gathering, Committer):
    """Emits what it saw of each transaction, and asks to be called five seconds later."""

    fields = ("kind", "stamp", "values")
    takes = "id"
    timers = True
    state = KeyedState("count", key={"key": str}, value={"n": int})

    def execute(self, tuple: Any) -> None:
        if tuple["id"] == "bad":
            msg = "a bad tuple"
            raise ValueError(msg)
        super().execute(tuple)

    def finish_batch(self) -> None:
        context = self.context
        context.state("count").update_many({"all": len(self.taken)}, lambda old, n: (old or 0) + n)
        kind = "end" if context.end_of_input else "heartbeat" if context.heartbeat else "data"
        self.collector.emit(kind, context.stamp, list(self.taken))
        context.wake_at(context.stamp + 5_000_000)


def topology(spout: Any, bolt: BatchBolt | None = None) -> Topology:
    builder = TransactionalTopologyBuilder("fed", "feed", spout)
    builder.set_committer_bolt("witness", bolt or Witness()).global_grouping("feed", "s1").global_grouping("feed", "s2")
    return builder.build_topology()


def feeds(*, opaque: bool = False) -> FeedSpout:
    return FeedSpout({"s1": ("id", "ts"), "s2": ("id", "ts")}, opaque=opaque)


@pytest.fixture(params=[False, True], ids=["transactional", "opaque"])
def opaque(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def driver(opaque: bool) -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(topology(feeds(opaque=opaque)), clock=ManualClock(EPOCH)) as made:
        yield made


def seen(driver: TopologyTestDriver, txid: int) -> Any:
    (one,) = driver.emitted("witness", txid)
    return one


def test_a_transaction_has_exactly_the_tuples_fed_in_their_order(driver):
    txid = driver.feed({"s1": [("b", 2), ("a", 1)], "s2": [("c", 3)]}, at=1000)
    assert driver.active == {txid: "processing"}
    driver.commit(txid)
    assert seen(driver, txid) == ("data", 1_000_000, ["b", "a", "c"])
    assert driver.active == {}
    following = driver.feed({"s2": []}, at=datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC))
    driver.commit(following)
    assert (following, seen(driver, following)) == (2, ("data", 2_000_000, []))


@pytest.mark.parametrize("restarts", [False, True], ids=["fails", "restarts"])
def test_an_undecided_feed_is_repeated_or_awaits_the_next_one(driver, opaque, restarts):
    driver.commit(driver.feed({"s1": [("a", 1)]}))
    txid = driver.feed({"s1": [("b", 1)]}, at=1000)
    if restarts:
        driver.restart(topology(feeds(opaque=opaque)))
    else:
        driver.fail(txid)
    if opaque:
        driver.advance(60)  # a restart owes a heartbeat, which comes later
        assert driver.active == {}
        assert driver.feed({"s1": [("c", 1)]}) == txid
    driver.commit(txid)
    assert seen(driver, txid)[2] == (["c"] if opaque else ["b"])
    assert driver.state("count").to_pylist() == [{"key": "all", "n": 2}]


def test_failed_transactions_of_an_opaque_feed_are_fed_again_from_the_lowest():
    with TopologyTestDriver(topology(feeds(opaque=True)), pending=3, clock=ManualClock(EPOCH)) as driver:
        txids = [driver.feed({"s1": [(name, 1)]}) for name in "abc"]
        assert txids == [1, 2, 3]
        with pytest.raises(InputError, match=r"3 transactions are in flight .* expected fewer than pending=3"):
            driver.feed({"s1": []})
        driver.fail(2)
        assert driver.active == {1: "committing"} or driver.active == {1: "processing"}
        assert [driver.feed({"s1": [(name, 1)]}) for name in "de"] == [2, 3]
        driver.commit(3)
        assert [seen(driver, txid)[2] for txid in txids] == [["a"], ["d"], ["e"]]


def test_a_heartbeat_calls_every_task_and_no_source(driver):
    driver.commit(driver.feed({"s1": [("a", 1)]}, at=1000))
    txid = driver.heartbeat(at=1500)
    driver.commit(txid)
    assert seen(driver, txid) == ("heartbeat", 1_500_000, [])
    following = driver.feed({"s1": [("b", 1)]})
    driver.commit(following)
    assert seen(driver, following)[2] == ["b"]


def test_a_failed_heartbeat_is_repeated_or_awaits_the_next_call(driver, opaque):
    driver.commit(driver.feed({"s1": [("a", 1)]}, at=1000))
    txid = driver.heartbeat(at=1500)
    driver.fail(txid)
    if opaque:
        assert driver.active == {}
        assert driver.feed({"s1": [("b", 1)]}) == txid
    driver.commit(txid)
    assert seen(driver, txid) == (("data", 1_500_000, ["b"]) if opaque else ("heartbeat", 1_500_000, []))


def test_timers_fire_when_time_passes_and_only_then(driver):
    driver.commit(driver.feed({"s1": [("a", 1)]}, at=1000))
    driver.commit(driver.feed({"s1": [("a", 1)]}, at=20_000))
    assert driver.active == {}  # the timer at 6 s is due, but a feed plans nothing else
    driver.advance(4.9)
    assert driver.active == {}
    driver.advance(0.1)
    assert driver.active == {3: "processing"}
    driver.commit()
    assert seen(driver, 3) == ("heartbeat", 25_000_000, [])


def test_one_heartbeat_is_due_after_a_start_that_finds_committed_transactions(driver):
    driver.restart()
    driver.advance(10)
    assert driver.active == {}
    driver.commit(driver.feed({"s1": [("a", 1)]}))
    driver.restart()
    assert driver.active == {}
    driver.advance(0)
    assert driver.active == {2: "processing"}


def test_nothing_follows_the_end_of_input_until_a_rewind(driver, opaque):
    driver.commit(driver.feed({"s1": [("a", 1)]}, at=1000))
    txid = driver.end_of_input(at=2000)
    driver.commit(txid)
    assert seen(driver, txid) == ("end", 2_000_000, [])
    for call in (lambda: driver.feed({"s1": []}), driver.heartbeat, driver.end_of_input):
        with pytest.raises(InputError, match=f"the input ended with txid {txid}"):
            call()
    driver.restart()
    driver.advance(100)
    assert driver.active == {}


def test_source_facts_are_those_of_the_plan():
    class Facts(Witness):
        def finish_batch(self) -> None:
            sources = {name: one.caught_up for name, one in self.context.sources.items()}
            self.collector.emit(str(sources), 0, [])

    with TopologyTestDriver(topology(feeds(), Facts()), clock=ManualClock(EPOCH)) as driver:
        txid = driver.feed({"s1": [("a", 1)]}, caught_up=["s2"])
        driver.fail(txid)
        driver.commit(txid)
        assert seen(driver, txid)[0] == "{'s1': False, 's2': True}"


def test_a_tuple_that_is_an_error_is_raised_by_the_call_that_processes_it(driver):
    driver.feed({"s1": [("bad", 1)]})
    with pytest.raises(TopologyFailed, match="a bad tuple"):
        driver.ack(1)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda driver: driver.feed({"s3": []}), "unknown stream 's3'"),
        (lambda driver: driver.feed({"s1": []}, caught_up=["x"]), "unknown stream 'x'"),
        (lambda driver: driver.feed({"s1": [("a",)]}), r"has the fields \['id', 'ts'\].* got \('a',\)"),
        (lambda driver: driver.feed({"s1": []}, at=-1), "is before the present time"),
        (lambda driver: driver.feed({"s1": []}, at=datetime(1980, 1, 1)), "expected an aware datetime"),  # noqa: DTZ001
        (lambda driver: driver.heartbeat(at="now"), "expected an aware datetime"),
    ],
)
def test_bad_arguments_plan_nothing(driver, call, match):
    with pytest.raises(InputError, match=match):
        call(driver)
    assert driver.active == {}


def test_only_a_feed_spout_with_streams_of_fields_can_be_fed_and_wake_at_needs_timers():
    builder = TransactionalTopologyBuilder("fed", "feed", MemoryTransactionalSpout([[]], "id"))
    builder.set_committer_bolt("witness", Witness()).global_grouping("feed")
    with (
        TopologyTestDriver(builder.build_topology()) as driver,
        pytest.raises(InputError, match="feed needs a FeedSpout, got MemoryTransactionalSpout"),
    ):
        driver.feed({"s1": []})
    for streams in ({}, ["id"]):
        with pytest.raises(InputError, match="expected stream → fields"):
            FeedSpout(streams)
    silent = type("Silent", (Witness,), {"timers": False})()
    with TopologyTestDriver(topology(feeds(), silent)) as driver:
        driver.feed({"s1": []})
        with pytest.raises(StateError, match="set timers = True"):
            driver.ack(1)


def test_a_put_that_fails_is_repeated():
    class Away(MemoryStore):
        puts = 0

        def put_many(self, rows):
            self.puts += 1
            if self.puts < 3:
                raise ConnectionError("away")
            super().put_many(rows)

    store = Away()
    builder = TransactionalTopologyBuilder("t", "feed", feeds())
    side = Side("feed", "s1", key="id", time="ts", id="id")
    builder.set_bolt("store", StoreFeed(side, store, retain=Duration.hours(1))).fields_grouping("feed", "s1", ["id"])
    with TopologyTestDriver(builder.build_topology(), clock=ManualClock(EPOCH)) as driver:
        driver.commit(driver.feed({"s1": [("a", 1)]}))
        assert (driver.committed, store.puts) == (1, 3)
