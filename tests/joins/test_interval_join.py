"""Interval joins in the test driver: results, state, restarts, timers, chains (A1, A2, A20, U6, U7, U9)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from join_cases import driver

from txstorm import CompositeSpout, Duration, TransactionalTopologyBuilder, WindowAggregate, run
from txstorm.errors import StateError
from txstorm.joins import IntervalJoin, Side
from txstorm.joins.interval.interval_rows import JoinRows
from txstorm.results.joins import ComponentJoin
from txstorm.results.read import read_kept_changes
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout, TopologyTestDriver

FIELDS = ("key", "ts", "id", "part")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
IDS = ["l:id", "r:id"]


def side(stream: str, **more: Any) -> Side:
    return Side("feed", stream, **{"key": "key", "time": "ts", "id": "id", "partition": "part", **more})


def build(tasks: int = 1, left: Any = None, right: Any = None, settings: Any = None, **options: Any) -> Any:
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": FIELDS, "r": FIELDS}))
    builder.set_settings(settings or {})
    sides = side("l", **(left or {})), side("r", **(right or {}))
    join = IntervalJoin(*sides, **{"before": Duration(10), "select": IDS, **options})
    keys = [list(one.key) for one in sides]
    builder.set_bolt("join", join, tasks).fields_grouping("feed", "l", keys[0]).fields_grouping("feed", "r", keys[1])
    return builder.build_topology()


def fed(running: TopologyTestDriver, left: Any = (), right: Any = (), **more: Any) -> tuple[list[Any], ...]:
    """Feed and commit a transaction; return results, unmatched left and unmatched right rows."""
    txid = running.feed({"l": left, "r": right}, **more)
    running.commit(txid)
    return found(running, txid)


def found(running: TopologyTestDriver, txid: int) -> tuple[list[Any], ...]:
    streams = ("default", "unmatched_left", "unmatched_right")
    return tuple(running.emitted("join", txid, stream=stream) for stream in streams)


def ids(running: TopologyTestDriver, name: str) -> list[Any]:
    return sorted(row["id"] for row in running.state(f"join-{name}").to_pylist())


def records(running: TopologyTestDriver) -> dict[str, Any]:
    return {row["unit"]: json.loads(row["record"]) for row in running.state("join-progress").to_pylist()}


ROWS = [("a", 100, "l1", "p"), ("b", 101, "l2", "p")], [("a", 95, "r1", "p"), ("a", 99, "r2", "q")]


def test_all_fields_come_back_as_they_were() -> None:
    moment = EPOCH + timedelta(milliseconds=7)
    values = [1, "1", 2.5, "x", None, True, "null", '"q"', b"z", moment, "[1]", -3]
    with driver(build(select=None, how="left")) as running:
        left = [(value, 7 if i % 2 else moment, value, "p") for i, value in enumerate(values)]
        fed(running, left, [(value, 5, value, 0) for value in values])
        running.commit(running.end_of_input())
        rows = running.emitted("join")
    assert running.topology.component("join").streams["default"].fields[:2] == ("l_key", "l_ts")
    assert [type(row[0]) for row in rows] == [type(value) for value in values]
    assert [row[:4] for row in rows] == left
    assert [row[6] for row in rows] == [None if value is None else value for value in values]


def test_keys_of_several_fields_and_types_of_columns() -> None:
    """A1: rows match if all fields of their keys are equal, and none of them is None."""
    several = {"key": ["key", "part"], "partition": None, "columns": {"id": int, "ts": int}}
    with driver(build(left=several, right={**several, "id": None}, select=["l:id", "r:id"])) as running:
        right = [("a", 9, 21, "x"), ("a", 9, 22, "y"), (None, 9, 23, "x"), ("a", 9, 24, None)]
        fed(running, [("a", 10, 11, "x"), (None, 10, 12, "x"), ("a", 10, 13, None)], right)
        assert ids(running, "right") == ["1/3", "1/4", "1/5", "1/6"]
        running.commit(running.end_of_input())
        results, left, unmatched = found(running, 2)
    assert results == [(11, 21)]
    assert [row[2] for row in left] == [12, 13]
    assert [row[2] for row in unmatched] == [22, 23, 24]


def test_state_has_typed_columns_as_of_any_transaction() -> None:
    """A2: window and pending rows are state, readable per side as of any txid."""
    typed = {"columns": {"key": int, "id": int, "part": str}}
    with driver(build(left=typed, right=typed)) as running:
        fed(running, [(7, 100, 1, "p")], [(7, 99, 2, "q")])
        fed(running, [(7, 200, 3, "p")], [(7, 199, 4, "q")])
        [row] = running.state("join-right").as_of(1).to_pylist()
        assert (row["key"], row["time"], row["id"], row["partition"]) == (7, 99_000, 2, "q")
        assert [row["id"] for row in running.state("join-left").as_of(1).to_pylist()] == [1]
        assert (ids(running, "left"), ids(running, "right")) == ([3], [4])


def test_rows_that_came_late_are_counted() -> None:
    """A5: a right row that comes after its left row is counted, and still matches later left rows."""
    with driver(build()) as running:
        fed(running, [("a", 100, "l1", "p")], [("a", 105, "r1", "p")])
        assert fed(running, [("a", 101, "l2", "p")], [("a", 98, "r2", "p")])[0] == [("l2", "r2")]
        task = records(running)["[0]"]
        assert (task["stragglers"], task["late"], task["released"], task["joined"]) == (1, 0, 2, 1)
        fed(running, [("a", 150, "l3", "p"), ("a", 99, "l4", "p")], [("a", 149, "r3", "p")])
        fed(running, [("a", 120, "l5", "p")])
        assert records(running)["[0]"]["late"] == 2


@pytest.mark.parametrize("tasks", [(2, 3), (3, 1), (1, 2)])
def test_rows_move_to_other_tasks_when_the_parallelism_changes(tasks: tuple[int, int]) -> None:
    """A2: the state is by key group, so the number of tasks may change between starts."""
    keys = [f"k{i}" for i in range(12)]
    with driver(build(tasks[0], how="full")) as running:
        fed(running, [(key, 100, f"l{key}", "p") for key in keys], [(key, 99, f"r{key}", "p") for key in keys])
        fed(running, [(key, 130, f"m{key}", "p") for key in keys[:6]], [(key, 120, f"s{key}", "p") for key in keys])
        running.restart(build(tasks[1], how="full"))
        fed(running, [], [(key, 131, f"t{key}", "p") for key in keys])
        running.commit(running.end_of_input())
        pairs = [row for row in running.emitted("join") if None not in row]
        alone = [row for row in running.emitted("join") if None in row]
    expected = [(f"l{key}", f"r{key}") for key in keys] + [(f"m{key}", f"s{key}") for key in keys[:6]]
    assert sorted(pairs) == sorted(expected)
    assert sorted(right for _, right in alone) == sorted(
        [*(f"s{key}" for key in keys[6:]), *(f"t{key}" for key in keys)]
    )


CHANGED = {
    "a bound": ({"before": Duration(11)}, "before: 10 ms; the code has before: 11 ms"),
    "the other bound": ({"after": Duration(1)}, "join"),
    "another id": ({"left": {"id": None}}, "join"),
    "partitions": ({"right": {"partition": None}}, "join"),
    "type": ({"how": "left"}, "join: inner; the code has join: left"),
    "unit": ({"right": {"unit": "s"}}, "right time"),
    "key": ({"left": {"key": "id"}, "right": {"key": "id"}}, "left key: key, .*the code has left key: id"),
    "columns": ({"left": {"columns": {"id": str, "ts": int}}}, "left columns"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_another_declaration_is_refused_at_the_start(name: str) -> None:
    """U8: rows that were stored under other rules would be joined wrongly."""
    options, message = CHANGED[name]
    with driver(build()) as running:
        fed(running, *ROWS)
        with pytest.raises(StateError, match=message):
            running.restart(build(**options))
        running.restart(build(left={"lag": Duration(3)}, select=["r:id"]))  # these may change
        assert ids(running, "left") == ["l1", "l2"]
        assert fed(running, [], [("z", 200, "r3", "p"), ("z", 200, "r4", "q")])[0] == [("r1",), ("r2",)]


def test_joins_in_sequence_and_windows_after_them() -> None:
    """U10: a join reads the output of a join, with its frontier; so does a window aggregate."""
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"l": FIELDS, "r": FIELDS, "x": FIELDS}))
    first = IntervalJoin(
        side("l"), side("r"), before=Duration(10), how="left", select=["l:key", "l:ts", "l:id", "r:part"]
    )
    builder.set_bolt("join", first).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    middle = Side("join", key="key", time="ts", id="id")
    second = IntervalJoin(middle, side("x"), before=Duration(10), how="left", select=["join:id", "x:id"])
    builder.set_bolt("chain", second).fields_grouping("join", ["key"]).fields_grouping("feed", "x", ["key"])
    counts = WindowAggregate("key", n="count").with_tumbling_window(Duration(100)).with_timestamp_field("ts")
    builder.set_bolt("counts", counts).fields_grouping("join", ["key"])
    with driver(builder.build_topology()) as running:
        rows = {"l": [("a", 100, "l1", "p"), ("b", 101, "l2", "p")], "r": [("a", 99, "r1", "p"), ("z", 104, "r2", "p")]}
        running.feed({**rows, "x": [("a", 98, "x1", "p"), ("b", 101, "x2", "p"), ("z", 105, "x3", "p")]})
        running.commit(1)
        assert running.emitted("chain", 1) == [("l1", "x1"), ("l2", "x2")]
        assert [(row[0], row[-1]) for row in running.emitted("counts", 1)] == [("a", 1)]
        running.feed({"l": [("a", 350, "l3", "p")], "r": [("z", 340, "r3", "p")]})
        running.commit(2)
        assert [(row[0], row[-1]) for row in running.emitted("counts", 2)] == [("b", 1)]


def test_positions_are_recorded_by_partition() -> None:
    """U7: what a join waits for, and since when."""
    with driver(build(right={"partitions": ["p", "q"]})) as running:
        fed(running, [("a", 100, "l1", "p")], [("a", 95, "r1", "p"), ("a", 96, "r2", "q")], at=100)
        fed(running, [], [("a", 105, "r3", "p")], at=300)
        component = records(running)["component"]
    assert component["right"]["partitions"] == [["p", 105_000, 300_000], ["q", 96_000, 100_000]]
    assert component["right"]["position"] == 96_000
    assert component["released"] == 96_000


@pytest.mark.parametrize("read", [True, False])
def test_unmatched_rows_are_emitted_only_if_something_reads_them(tmp_path: Path, read: bool) -> None:
    """Right rows that expire when they come are counted, and stored nowhere, in either case."""
    old = [("a", time, f"r{time}", "p") for time in range(300)]
    rows = {"l": [("a", 900, "l1", "p"), ("b", 1000, "l2", "p")], "r": [*old, ("a", 895, "r1", "p")]}
    spout = CompositeSpout({name: MemoryTransactionalSpout([some], FIELDS, take=150) for name, some in rows.items()})
    builder = TransactionalTopologyBuilder("t", "feed", spout)
    join = IntervalJoin(side("l"), side("r"), before=Duration(10), how="left", select=IDS)
    builder.set_bolt("join", join).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    if read:
        unmatched = builder.set_bolt("unmatched", DeltaSink("unmatched", dict.fromkeys(FIELDS, str) | {"ts": int}))
        unmatched.global_grouping("join", "unmatched_left").global_grouping("join", "unmatched_right")
    handle = run(builder.build_topology(), engine="local", data_dir=tmp_path, end_of_input=True)
    handle.awaitTermination(60)
    counts = ComponentJoin(tmp_path, "join").to_json()
    assert [counts[name] for name in ("joined", "unmatched_left", "unmatched_right", "buffered")] == [1, 1, 300, 0]
    assert read_kept_changes(tmp_path, "join-right", 100, ["id"])[1]["id"].drop_null().to_pylist() == ["r1"]
    if read:
        assert sorted(handle.sink("unmatched").to_arrow()["id"].to_pylist()) == sorted(["l2", *(one[2] for one in old)])


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_restart_loads_the_window_once_and_before_its_first_transaction(tasks, tmp_path, monkeypatch):
    """The first transaction after a start joins rows that were loaded while it was processed."""
    loads: list[int] = []
    load = JoinRows._loaded
    monkeypatch.setattr(JoinRows, "_loaded", lambda rows: loads.append(rows._txid) or load(rows))
    with driver(build(tasks), data_dir=tmp_path) as running:
        right = [(key, 5, f"r{key}", "p") for key in "abcd"]
        assert fed(running, [("a", 6, "l1", "p"), ("b", 9, "l2", "p")], right) == ([], [], [])
        loads.clear()
        running.restart()
        assert loads == [2] * tasks
        first, *_ = fed(running, [("c", 7, "l3", "p")], [("x", 20, "r", "p")])
        assert sorted(first) == [("l1", "ra"), ("l2", "rb"), ("l3", "rc")]
        assert loads == [2] * tasks
        running.restart(build(tasks + 1))  # rows move between tasks: each reads its own when it needs them
        assert loads == [2] * tasks
        second, *_ = fed(running, [("d", 14, "l4", "p")], [("x", 30, "s", "p")])
        assert second == [("l4", "rd")]
        assert loads == [2] * tasks + [3] * (tasks + 1)
