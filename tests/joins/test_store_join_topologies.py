"""Feeder and joiner as two topologies, with a reported consumed time; rows A14, A16, A17."""

import logging

import pytest
from helpers.store_joins import BOTH, LEFT, RIGHT, Counting, commit, feeder, joiner, spout

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.errors import StateError
from txstorm.joins import DataDelaySync, MemoryStore, Side, StoreFeed, StoreJoin
from txstorm.testing import TopologyTestDriver
from txstorm.windows.records import COMPONENT, ComponentRecord


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
