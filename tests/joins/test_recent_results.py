"""Recent results of a deduplicator: ids out of sinks and states, of other topologies and of its own."""

import pytest
from fed import fed_bolt

from txstorm import Duration, TransactionalTopologyBuilder, recent_in_sink, recent_in_state, recent_in_topic
from txstorm.bolts import CountBy, SumByKey
from txstorm.errors import InputError, StateError
from txstorm.joins import Deduplicator
from txstorm.sinks import DeltaSink
from txstorm.testing import FeedSpout, TopologyTestDriver


@pytest.fixture
def results(tmp_path):
    """Return a directory with three transactions: a sink with the ids 1 to 6, and a state by id and user."""
    builder = TransactionalTopologyBuilder("old", "feed", FeedSpout({"s": ("id", "user")}))
    builder.set_committer_bolt("rows", DeltaSink("results", {"id": int, "user": str})).global_grouping("feed", "s")
    builder.set_bolt("count", CountBy("id", "user")).fields_grouping("feed", "s", ["id", "user"])
    sums = SumByKey({"id": int, "user": str}, "n", "sums")
    builder.set_committer_bolt("sums", sums).fields_grouping("count", ["id", "user"])
    with TopologyTestDriver(builder.build_topology(), data_dir=tmp_path / "old") as driver:
        for first in (1, 3, 5):
            driver.commit(driver.feed({"s": [(first, "ann"), (first + 1, "bob")]}))
    return tmp_path / "old"


def test_ids_in_a_sink(results):
    """A8: recent results come from the last transactions of a sink."""
    assert recent_in_sink(results, "results", "id")() == [1, 2, 3, 4, 5, 6]
    assert recent_in_sink(results, "results", "id", txids=2)() == [3, 4, 5, 6]
    assert recent_in_sink(results, "results", ["user", "id"], txids=1)() == [("ann", 5), ("bob", 6)]


def test_ids_in_a_state(results):
    assert sorted(recent_in_state(results, "sums", "id")()) == [1, 2, 3, 4, 5, 6]
    assert ("ann", 5) in recent_in_state(results, "sums", ["user", "id"])()


def test_a_directory_without_transactions_has_no_recent_results(tmp_path):
    assert recent_in_sink(tmp_path, "results", "id")() == []
    assert recent_in_state(tmp_path / "new", "sums", "id")() == []


def test_wrong_names_and_numbers(results):
    with pytest.raises(StateError, match="no sink 'reslts'"):
        recent_in_sink(results, "reslts", "id")()
    with pytest.raises(InputError, match=r"sink 'results' has no column 'idd'.*did you mean 'id'"):
        recent_in_sink(results, "results", "idd")()
    with pytest.raises(StateError, match="no state 'sum'"):
        recent_in_state(results, "sum", "id")()
    with pytest.raises(InputError, match="txids: expected an int of at least 1, got 0"):
        recent_in_sink(results, "results", "id", txids=0)
    with pytest.raises(InputError, match="records: expected an int of at least 1, got None"):
        recent_in_topic("results", "nowhere:9092", "id", records=None)


def test_a_new_topology_drops_what_an_old_one_has_given(results, tmp_path):
    """A7, A8: a redeployed topology reads input again, and drops the results that the former one has written."""
    recent = recent_in_sink(results, "results", ["user", "id"])
    once = Deduplicator(["user", "id"], quiet=Duration.minutes(10), recent=recent)
    made = fed_bolt("once", once, {"s": ("id", "user")}, ["user"], 2).build_topology()
    with TopologyTestDriver(made) as driver:
        driver.commit(driver.feed({"s": [(5, "ann"), (5, "bob"), (6, "bob"), (7, "ann")]}))
        assert sorted(driver.emitted("once", stream="s")) == [(5, "bob"), (7, "ann")]


def test_a_topology_that_reads_its_own_sink(tmp_path):
    """A8: from its second start on, a topology knows the results in its own sink."""
    recent = recent_in_sink(tmp_path / "own", "results", "id")
    once = Deduplicator("id", quiet=Duration.seconds(1), recent=recent)
    builder = fed_bolt("once", once, {"s": ("id",)}, ["id"])
    builder.set_committer_bolt("rows", DeltaSink("results", {"id": str})).global_grouping("once", "s")
    with TopologyTestDriver(builder.build_topology(), data_dir=tmp_path / "own") as driver:
        driver.commit(driver.feed({"s": [("a",), ("b",)]}))
        driver.advance(5)
        driver.commit(driver.feed({"s": [("a",)]}))
        assert driver.emitted("once", 2, stream="s") == [("a",)]  # it is off, and has forgotten the ids
        driver.restart()
        driver.commit(driver.feed({"s": [("a",), ("c",)]}))
        assert driver.emitted("once", 3, stream="s") == [("c",)]
