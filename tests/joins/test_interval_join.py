"""Interval joins in the test driver: results, state, restarts, timers, chains (A1, A2, A20, U6, U7, U9)."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fed import fed_bolt
from join_cases import EPOCH, FIELDS, driver, feed, ids, rows, side, topology
from runs import ended

from txstorm import CompositeSpout, Duration, WindowAggregate
from txstorm.errors import TopologyFailed
from txstorm.joins import IntervalJoin
from txstorm.joins.interval.interval_rows import JoinRows
from txstorm.results.joins import ComponentJoin
from txstorm.results.read import read_kept_changes
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout, TopologyTestDriver

PARTS = {"partition": "part"}


def build(tasks: int = 1, left: Any = (), right: Any = (), **options: Any) -> Any:
    return topology(tasks=tasks, left={**PARTS, **dict(left)}, right={**PARTS, **dict(right)}, **options)


def fed(running: TopologyTestDriver, left: Any = "", right: Any = "", **more: Any) -> tuple[list[Any], ...]:
    """Feed and commit a transaction; return results, unmatched left and unmatched right rows."""
    txid = feed(running, left, right, **more)
    running.commit(txid)
    return found(running, txid)


def found(running: TopologyTestDriver, txid: int) -> tuple[list[Any], ...]:
    streams = ("default", "unmatched_left", "unmatched_right")
    return tuple(running.emitted("join", txid, stream=stream) for stream in streams)


def records(running: TopologyTestDriver) -> dict[str, Any]:
    return {row["unit"]: json.loads(row["record"]) for row in running.state("join-progress").to_pylist()}


def test_all_fields_come_back_as_they_were() -> None:
    moment = EPOCH + timedelta(milliseconds=7)
    values = [1, "1", 2.5, "x", None, True, "null", '"q"', b"z", moment, "[1]", -3]
    with driver(build(select=None, how="left")) as running:
        left = [(value, value, 7 if i % 2 else moment, "p") for i, value in enumerate(values)]
        fed(running, left, [(value, value, 5, 0) for value in values])
        running.commit(running.end_of_input())
        found = running.emitted("join")
    assert running.topology.component("join").streams["default"].fields[:3] == ("l_id", "l_key", "l_ts")
    assert [type(row[0]) for row in found] == [type(value) for value in values]
    assert [row[:4] for row in found] == left
    assert [row[4] for row in found] == [None if value is None else value for value in values]


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_row_far_ahead_is_joined_and_holds_the_others_up_for_a_day_at_most(tasks: int) -> None:
    """Rows of 2031 on both sides; a given bound makes them errors, and None lets them move the positions."""
    far, day = 1_940_000_000_000, 86_400_000
    for clock, expected in (({}, ["a", "f"]), ({"max_ahead": None}, ["f"])):
        with driver(build(tasks, clock, clock)) as running:
            fed(running, f"f.f@{far}", f"g.f@{far - 1}")
            fed(running, "", f"b.a@{2 * day - 1}", at=2 * day)
            fed(running, f"a.a@{2 * day}")
            running.commit(running.end_of_input())
            assert sorted(row[0] for row in running.emitted("join")) == expected
    with driver(build(tasks, {"max_ahead": timedelta(hours=1)})) as running, pytest.raises(TopologyFailed, match="'f'"):
        feed(running, f"f.f@{far}", "")


def test_state_has_typed_columns_as_of_any_transaction() -> None:
    """A2: window and pending rows are state, readable per side as of any txid."""
    typed = {"columns": {"key": int, "id": int, "part": str}}
    with driver(build(left=typed, right=typed)) as running:
        fed(running, [(1, 7, 100, "p")], [(2, 7, 99, "q")])
        fed(running, [(3, 7, 200, "p")], [(4, 7, 199, "q")])
        [row] = running.state("join-right").as_of(1).to_pylist()
        assert (row["key"], row["time"], row["id"], row["partition"]) == (7, 99_000, 2, "q")
        assert ids(running.state("join-left").as_of(1)) == [1]
        assert [ids(running.state(f"join-{name}")) for name in ("left", "right")] == [[3], [4]]


@pytest.mark.parametrize("tasks", [(2, 3), (3, 1), (1, 2)])
def test_rows_move_to_other_tasks_when_the_parallelism_changes(tasks: tuple[int, int]) -> None:
    """A2: the state is by key group, so the number of tasks may change between starts."""
    keys = [f"k{i}" for i in range(12)]

    def at(name: str, time: int, some: list[str] = keys) -> str:
        return " ".join(f"{name}{key}.{key}@{time}/p" for key in some)

    with driver(build(tasks[0], how="full")) as running:
        fed(running, at("l", 100), at("r", 99))
        fed(running, at("m", 130, keys[:6]), at("s", 120))
        running.restart(build(tasks[1], how="full"))
        fed(running, "", at("t", 131))
        running.commit(running.end_of_input())
        pairs = [row for row in running.emitted("join") if None not in row]
        alone = [row for row in running.emitted("join") if None in row]
    expected = [(f"l{key}", f"r{key}") for key in keys] + [(f"m{key}", f"s{key}") for key in keys[:6]]
    assert sorted(pairs) == sorted(expected)
    assert sorted(right for _, right in alone) == sorted([f"s{key}" for key in keys[6:]] + [f"t{key}" for key in keys])


def test_joins_in_sequence_and_windows_after_them() -> None:
    """U10: a join reads the output of a join, with its frontier; so does a window aggregate."""
    ten = {"before": Duration(10), "how": "left"}
    first = IntervalJoin(side("l", PARTS), side("r", PARTS), select=["l:key", "l:ts", "l:id", "r:part"], **ten)
    builder = fed_bolt("join", first, "lr", ["key"], spout=FeedSpout(dict.fromkeys("lrx", FIELDS)))
    second = IntervalJoin(side("default", {"component": "join"}), side("x", PARTS), select=["join:id", "x:id"], **ten)
    builder.set_bolt("chain", second).fields_grouping("join", ["key"]).fields_grouping("feed", "x", ["key"])
    counts = WindowAggregate("key", n="count").with_tumbling_window(Duration(100)).with_timestamp_field("ts")
    builder.set_bolt("counts", counts).fields_grouping("join", ["key"])
    with driver(builder.build_topology()) as running:
        left, right = rows("l1.a@100/p l2.b@101/p"), rows("r1.a@99/p r2.z@104/p")
        running.feed({"l": left, "r": right, "x": rows("x1.a@98/p x2.b@101/p x3.z@105/p")})
        running.commit(1)
        assert running.emitted("chain", 1) == [("l1", "x1"), ("l2", "x2")]
        assert [(row[0], row[-1]) for row in running.emitted("counts", 1)] == [("a", 1)]
        running.feed({"l": rows("l3.a@350/p"), "r": rows("r3.z@340/p")})
        running.commit(2)
        assert [(row[0], row[-1]) for row in running.emitted("counts", 2)] == [("b", 1)]


def test_positions_are_recorded_by_partition() -> None:
    """U7: what a join waits for, and since when."""
    with driver(build(right={"partitions": ["p", "q"]})) as running:
        fed(running, "l1@100/p", "r1@95/p r2@96/q", at=100)
        fed(running, "", "r3@105/p", at=300)
        component = records(running)["component"]
    assert component["right"]["partitions"] == [["p", 105_000, 300_000], ["q", 96_000, 100_000]]
    assert component["right"]["position"] == 96_000
    assert component["released"] == 96_000


@pytest.mark.parametrize("read", [True, False])
def test_unmatched_rows_are_emitted_only_if_something_reads_them(tmp_path: Path, read: bool) -> None:
    """Right rows that expire when they come are counted, and stored nowhere, in either case."""
    old = [f"r{time}" for time in range(300)]
    given = {"l": "l1.a@900/p l2.b@1000/p", "r": " ".join(f"{one}.a@{one[1:]}/p" for one in old) + " r1.a@895/p"}
    sources = {name: MemoryTransactionalSpout([rows(some)], FIELDS, take=150) for name, some in given.items()}
    join = IntervalJoin(side("l", PARTS), side("r", PARTS), before=Duration(10), how="left", select=["l:id", "r:id"])
    builder = fed_bolt("join", join, sources, ["key"], spout=CompositeSpout(sources))
    if read:
        unmatched = builder.set_bolt("unmatched", DeltaSink("unmatched", dict.fromkeys(FIELDS, str) | {"ts": int}))
        unmatched.global_grouping("join", "unmatched_left").global_grouping("join", "unmatched_right")
    handle = ended(builder.build_topology(), tmp_path, end_of_input=True)
    counts = ComponentJoin(tmp_path, "join").to_json()
    assert [counts[name] for name in ("joined", "unmatched_left", "unmatched_right", "buffered")] == [1, 1, 300, 0]
    assert read_kept_changes(tmp_path, "join-right", 100, ["id"])[1]["id"].drop_null().to_pylist() == ["r1"]
    if read:
        assert sorted(handle.sink("unmatched").to_arrow()["id"].to_pylist()) == sorted(["l2", *old])


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_restart_loads_the_window_once_and_before_its_first_transaction(tasks, tmp_path, monkeypatch):
    """The first transaction after a start joins rows that were loaded while it was processed."""
    loads: list[int] = []
    load = JoinRows._loaded
    monkeypatch.setattr(JoinRows, "_loaded", lambda rows: loads.append(rows._txid) or load(rows))
    with driver(build(tasks), data_dir=tmp_path) as running:
        assert fed(running, "l1.a@6/p l2.b@9/p", "ra.a@5/p rb.b@5/p rc.c@5/p rd.d@5/p") == ([], [], [])
        loads.clear()
        running.restart()
        assert loads == [2] * tasks
        first, *_ = fed(running, "l3.c@7/p", "r.x@20/p")
        assert sorted(first) == [("l1", "ra"), ("l2", "rb"), ("l3", "rc")]
        assert loads == [2] * tasks
        running.restart(build(tasks + 1))  # rows move between tasks: each reads its own when it needs them
        assert loads == [2] * tasks
        second, *_ = fed(running, "l4.d@14/p", "s.x@30/p")
        assert second == [("l4", "rd")]
        assert loads == [2] * tasks + [3] * (tasks + 1)
