"""Stateful windowed bolts in topologies: Storm's example, repeated tuples, states of providers, restarts."""

import pytest
from fed import fed_bolt
from stateful_nets import CALLS, RunningSum
from test_stateful_topologies import KEPT, KeptProvider

from txstorm import Count, Duration, TransactionalTopologyBuilder
from txstorm.errors import InputError, StateError, TopologyError
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.stateful import MemoryStateProvider
from txstorm.testing import TopologyTestDriver
from txstorm.topology.rebalance import rebalanced, rebalanced_before


@pytest.fixture(autouse=True)
def _fresh():
    CALLS.clear()
    KeptProvider.kept = MemoryStateProvider()


def topology(bolt, spout=None, **settings):
    builder = fed_bolt("sum", bolt, {"default": ("value", "id")}, spout=spout)
    return builder.set_settings({"retry_backoff": 0, **settings}).build_topology()


def windowed():
    return RunningSum().with_window(Count(5), Count(3))


def rows(first, last):
    return {"default": [(n, n) for n in range(first, last + 1)]}


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_the_example_of_storm_across_restarts_and_failures(settings):
    """Row W42."""
    made = topology(windowed().with_persistence(), **settings)
    with TopologyTestDriver(made, pending=2) as driver:
        driver.commit(driver.feed(rows(1, 4)))
        driver.restart(topology(windowed().with_persistence(), **settings))
        second = driver.feed(rows(5, 7))
        driver.ack(second)
        driver.fail(second)
        driver.commit(second)
        driver.commit(driver.feed(rows(8, 12)))
        driver.commit(driver.feed({"default": []}))
        sums = [one for txid in range(1, 5) for (one,) in driver.emitted("sum", txid)]
        if settings:
            assert dict(KeptProvider.kept.new_state("sum-0", {}, None)) == {"sum": 78}
        else:
            assert [row["value"] for row in driver.state("sum").to_pylist()] == ["78"]
    assert sums == [6, 21, 45, 78]
    assert [txid for call, txid in CALLS if call == "pre_commit"] == [1, 2, 3, 4]


def test_tuples_with_known_ids_are_dropped_and_counted():
    """Row W40."""
    with TopologyTestDriver(topology(windowed().with_message_id_field("id"))) as driver:
        for first, last in [(1, 4), (2, 7), (1, 7), (6, 12)]:
            driver.commit(driver.feed(rows(first, last)))
        assert [one for txid in range(1, 5) for (one,) in driver.emitted("sum", txid)] == [6, 21, 45, 78]
        (ids,) = driver.state("sum-ids").to_pylist()
    assert ids == {
        **{"task": 0, "source": "feed/default", "source_task": 0},
        **{"newest": 12, "evaluated": 12, "expired": 7, "dropped": 3 + 7 + 2},
    }


def test_known_ids_are_those_of_a_number_of_tasks(tmp_path):
    def of_tasks(tasks):
        spout = MemoryTransactionalSpout({0: [(1, 1)], 1: [(2, 9)]}, ["value", "id"])
        builder = TransactionalTopologyBuilder("sums", "feed", spout, tasks)
        builder.set_bolt("sum", windowed().with_message_id_field("id")).all_grouping("feed")
        return builder.build_topology()

    with TopologyTestDriver(of_tasks(2), data_dir=tmp_path) as driver:
        driver.commit(1)
    with pytest.raises(StateError, match=r"component 'sum'.*written with tasks of 'feed': 2; the code has .* 3"):
        TopologyTestDriver(of_tasks(3), data_dir=tmp_path)
    with pytest.raises(InputError, match=r"'feed' cannot go from 2 tasks to 1: 'sum' knows the message ids"):
        rebalanced(of_tasks(2), {"feed": 1})
    before = {"feed": {"declared": 2, "chosen": 1}}  # by a txstorm that allowed it
    assert rebalanced_before(of_tasks(2), before).spout.parallelism == 1


def test_the_newest_id_evaluated_is_not_that_of_the_newest_tuple():
    bolt = RunningSum().with_tumbling_window(Duration.seconds(10)).with_timestamp_field("value", unit="s")
    with TopologyTestDriver(topology(bolt.with_message_id_field("id"))) as driver:
        driver.commit(driver.feed({"default": [(5, 1), (3, 2), (15, 3)]}))
        (ids,) = driver.state("sum-ids").to_pylist()
    assert (ids["newest"], ids["evaluated"]) == (3, 2)


def test_how_windows_survive_must_be_stated():
    message = "RunningSum does not state how its windows survive a crash; call with_pers"
    with pytest.raises(TopologyError, match=message):
        topology(windowed())
    with pytest.raises(TopologyError, match=r"with_message_id_field: .* has no field 'number'"):
        topology(windowed().with_message_id_field("number"))


@pytest.mark.parametrize("id", ["x", 2**63])
def test_an_id_that_is_no_int_is_an_error(id):
    with (
        TopologyTestDriver(topology(windowed().with_message_id_field("id"))) as driver,
        pytest.raises(Exception, match=f"the message id 'id' of a tuple is {id!r}, expected an int of 64 bits"),
    ):
        driver.commit(driver.feed({"default": [(1, id)]}))


class Sets(RunningSum):
    def execute(self, window):
        self.total = 1


def test_an_attribute_that_execute_sets_is_an_error():
    bolt = Sets().with_window(Count(1)).with_persistence()
    with TopologyTestDriver(topology(bolt)) as driver, pytest.raises(StateError, match=r"execute has set self\.total"):
        driver.commit(driver.feed(rows(1, 1)))
