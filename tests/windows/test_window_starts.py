"""Starts with another declaration of windows: refused before anything is changed, and the former one goes on."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fed import fed_bolt
from runs import ended
from window_bolts import Emitting
from window_cases import Report, at, driver
from window_cases import topology as fed

from txstorm import Duration, TransactionalTopologyBuilder, WindowAggregate, run
from txstorm.errors import InputError, StateError
from txstorm.operations.lifecycle import rebalance
from txstorm.results.read import rows_json
from txstorm.results.views import StateView
from txstorm.results.windowed_components import component_windows
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout
from txstorm.topology.graph import Topology
from txstorm.topology.rebalance import rebalanced

ROWS = [("a", 1), ("b", 8), ("a", 12), ("b", 25), ("c", 33), ("a", 47), ("b", 48), ("c", 71)]
TEN, TWENTY = Duration.seconds(10), Duration.seconds(20)


def topology(bolt: Any, tasks: int = 2, group: str = "id", **settings: Any) -> Topology:
    spout = MemoryTransactionalSpout([ROWS], ("id", "ts"), take=2)
    builder = TransactionalTopologyBuilder("t", "feed", spout).set_settings(settings)
    builder.set_bolt("w", bolt, tasks).fields_grouping("feed", [group])
    return builder.build_topology()


def report(length: Any = TEN, unit: str = "s") -> Any:
    return Report().with_tumbling_window(length).with_timestamp_field("ts", unit)


def means(length: Any = TEN, **more: Any) -> Any:
    made = WindowAggregate("id", table="means", ttl=timedelta(days=1), **(more or {"n": "count"}))
    return made.with_tumbling_window(length).with_timestamp_field("ts", "s")


def test_before_the_first_commit_the_declaration_may_change() -> None:
    with driver(fed(report())) as running:
        running.feed({"s1": [("a", 1), ("b", 30)]})
        running.restart(fed(report(TWENTY)))
        running.commit(1)
        assert running.emitted("w", 1)
        with pytest.raises(StateError, match=r"with windows: length Duration.seconds\(20\)"):
            running.restart(fed(report()))


def test_windows_per_key_move_to_other_tasks(tmp_path: Path) -> None:
    """After a rebalance the tasks still agree on the watermark, and results are those of a run without one."""
    found = []
    for chosen in (1, 2, 3):
        data_dir = tmp_path / f"data-{chosen}"
        made = topology(means(), 2)
        ended(made, data_dir, until_txid=2)
        moved = made if chosen == 2 else rebalanced(made, {"w": chosen})
        ended(moved, data_dir, end_of_input=True)
        found.append(rows_json(StateView(data_dir, "means").to_arrow()))
    assert found[0] == found[1] == found[2]
    made = rebalanced(topology(report().with_key("id"), 1), {"w": 3}).component("w")
    assert (made.parallelism, made.object.plan.parallelism) == (3, 3)


@pytest.mark.parametrize(("tasks", "chosen"), [(1, 3), (2, 3), (3, 1)])
def test_a_rebalance_of_a_run_counts_for_this_run_and_the_next(tmp_path: Path, tasks: int, chosen: int) -> None:
    """Map-side stages come and go, and a record of the parallelism leads to the same plan at the next start."""
    found = []
    for name in ("kept", "rebalanced"):
        made, data_dir = topology(means(), tasks), tmp_path / name
        ended(made, data_dir, until_txid=1)
        if name == "rebalanced":
            handle = run(made, engine="local", data_dir=data_dir)
            rebalance(data_dir, {"w": chosen})
            handle.processAllAvailable()
            handle.stop()
        ended(made, data_dir, end_of_input=True)
        found.append([(row["id"], row["end"], row["n"]) for row in StateView(data_dir, "means").to_pylist()])
        records = {row["unit"]: json.loads(row["record"]) for row in StateView(data_dir, "w-progress").to_pylist()}
        assert records["component"]["tasks"] == (tasks if name == "kept" else chosen)
    assert found[0] == found[1]


def test_windows_that_cannot_move_are_not_rebalanced() -> None:
    with pytest.raises(InputError, match="its windows belong to its tasks; declare windows with_key"):
        rebalanced(topology(report(), 2), {"w": 3})
    shuffled = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([ROWS], ("id", "ts"), take=2))
    shuffled.set_bolt("w", means()).shuffle_grouping("feed")
    with pytest.raises(InputError, match="'feed' is grouped by shuffle, so two tasks may get tuples of one key"):
        rebalanced(shuffled.build_topology(), {"w": 2})


def of_streams(bolt: Any = None, **streams: tuple[str, ...]) -> Topology:
    """Return a topology whose bolt by default emits stream and id of each tuple."""
    row = lambda window: [" ".join(f"{one.source_stream}:{one['id']}" for one in window.get())]  # noqa: E731
    bolt = (bolt or Emitting("content", row)).with_tumbling_window(TEN).with_timestamp_field("ts", "s")
    spout = FeedSpout({**dict.fromkeys("abc", PLAIN), **streams})
    return fed_bolt("w", bolt, streams, spout=spout).build_topology()


PLAIN = ("id", "ts")
INPUTS = {
    "in another order": {"b": PLAIN, "a": PLAIN},
    "with one more": {"c": PLAIN, "a": PLAIN, "b": PLAIN},
    "without the first": {"b": PLAIN},
    "with other fields": {"a": ("ts", "more", "id"), "b": PLAIN},
}


@pytest.mark.parametrize("name", INPUTS)
def test_stored_tuples_stay_those_of_their_input(name: str) -> None:
    """A start may have its inputs in another order, with other fields, or have others; and a later one again."""
    streams = INPUTS[name]
    with driver(of_streams(a=PLAIN, b=PLAIN)) as running:
        running.commit(running.feed({"a": [("a1", 1)], "b": [("b1", 2)]}))
        running.restart(of_streams(**streams))
        given = {field: {"id": f"{field}2", "ts": 3, "more": 0} for field in streams}
        running.commit(
            running.feed({one: [tuple(given[one][field] for field in fields)] for one, fields in streams.items()})
        )
        newest = {(one["stream"], one["newest"][-8:-6]) for one in component_windows(running.data_dir, "w").inputs()}
        assert newest == {(one, "03") for one in streams}
        running.restart(of_streams(a=PLAIN, b=PLAIN))
        running.commit(running.end_of_input())
        assert running.emitted("w") == [("a:a1 b:b1 " + " ".join(f"{one}:{one}2" for one in streams),)]


def test_late_tuples_are_counted_for_their_input_whatever_its_number() -> None:
    with driver(of_streams(a=PLAIN, b=PLAIN)) as running:
        running.commit(running.feed({"a": [("a1", 31)], "b": [("b1", 31)]}))
        running.restart(of_streams(b=PLAIN, a=PLAIN))
        running.commit(running.feed({"b": [("b2", 1)]}))
        found = {one["stream"]: one["late"] for one in component_windows(running.data_dir, "w").inputs()}
        assert found == {"a": 0, "b": 1}


def test_an_aggregate_keeps_the_newest_time_of_each_input() -> None:
    with driver(of_streams(WindowAggregate("id", n="count"), a=PLAIN, b=PLAIN)) as running:
        running.commit(running.feed({"a": [("x", 1)], "b": [("x", 29)]}))
        running.restart(of_streams(WindowAggregate("id", n="count"), b=PLAIN, a=PLAIN))
        running.commit(running.feed({"a": [("x", 2)], "b": []}))
        assert running.watermark("w") == at(2)
