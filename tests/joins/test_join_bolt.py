"""Joins per window: Storm's API on every form of windows, names, selected fields, restarts."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fed import fed_bolt

from txstorm import BasicBolt, Count, Duration, TransactionalTopologyBuilder, run
from txstorm.joins import JoinBolt
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import TopologyTestDriver
from txstorm.topology.graph import Topology

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROWS = {
    "a": [("a1", 1, 1), ("a2", 2, 2), ("a3", None, 3), ("a4", 1, 12)],
    "b": [("b1", 1, 1), ("b2", 1, 9), ("b3", None, 4), ("b4", 1, 13)],
}


def topology(bolt: JoinBolt, streams: Sequence[str] = ("a", "b"), tasks: int = 1, *, by: str = "k") -> Topology:
    return fed_bolt("j", bolt, dict.fromkeys(streams, ("id", "k", "ts")), [by], tasks).build_topology()


def joined(made: Topology, *batches: Mapping[str, Sequence[Any]]) -> list[tuple[Any, ...]]:
    with TopologyTestDriver(made) as driver:
        for batch in batches:
            driver.commit(driver.feed(batch))
        driver.commit(driver.end_of_input())
        return driver.emitted("j")


def ab() -> JoinBolt:
    return JoinBolt("a", "k").join("b", "k", "a").select("a:id, b:id").with_timestamp_field("ts")


def at(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


FORMS = {
    "tumbling": (lambda: ab().with_tumbling_window(Duration(10)), ["a1b1", "a1b2", "a4b4"]),
    "sliding": (lambda: ab().with_window(Duration(10), Duration(5)), ["a1b1", "a1b1", "a1b2", "a4b2", "a4b4", "a4b4"]),
    "a duration, slid by a count": (lambda: ab().with_window(Duration(10), Count(8)), ["a4b2", "a4b4"]),
    "a count": (lambda: ab().with_tumbling_window(Count(4)), ["a1b1", "a4b2", "a4b4"]),
    "a count, slid by a duration": (lambda: ab().with_window(Count(3), Duration(20)), ["a4b2", "a4b4"]),
    "sessions": (lambda: ab().with_session_window(Duration(2)), ["a1b1", "a4b4"]),
    "a trigger": (lambda: ab().with_window(Duration(10), lambda one: one["id"] == "b2"), ["a1b1", "a1b2"]),
    "per key": (lambda: ab().with_key("k").with_tumbling_window(Duration(10)), ["a1b1", "a1b2", "a4b4"]),
    "an evictor": (
        lambda: ab().with_tumbling_window(Duration(20)).with_evictor(lambda some: [x for x in some if x["id"] > "a1"]),
        ["a4b1", "a4b2", "a4b4"],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_windows_joins_its_content(name: str) -> None:
    """U10, U11: in sliding windows, a pair appears in each window that has both. None matches nothing."""
    make, expected = FORMS[name]
    batches = [{"a": ROWS["a"][:2], "b": ROWS["b"][1:3]}, {"a": ROWS["a"][2:], "b": [ROWS["b"][0], ROWS["b"][3]]}]
    whole = joined(topology(make()), ROWS)
    assert ["".join(row) for row in whole] == expected
    lagging = make().with_lag(Duration(20))
    assert ["".join(row) for row in joined(topology(lagging), *batches)] == expected


def test_processing_time_joins_what_comes_together() -> None:
    made = JoinBolt("a", "k").leftJoin("b", "k", "a").select("a:id", "b:id").withTumblingWindow(Duration(10))
    assert sorted(joined(topology(made), ROWS), key=str) == sorted(
        [("a1", "b1"), ("a1", "b2"), ("a1", "b4"), ("a2", None), ("a3", None),
         ("a4", "b1"), ("a4", "b2"), ("a4", "b4")], key=str
    )  # fmt: skip


def test_times_of_the_window_are_selected() -> None:
    bolt = JoinBolt("a", "k").join("b", "k", "a").select("a:id, window:start, window:end").with_timestamp_field("ts")
    found = joined(topology(bolt.with_tumbling_window(Duration(10))), ROWS)
    assert found == [("a1", at(0), at(10)), ("a1", at(0), at(10)), ("a4", at(10), at(20))]
    bolt = JoinBolt("a", "k").join("b", "k", "a").select("a:id, window:start, window:end").with_timestamp_field("ts")
    assert joined(topology(bolt.with_tumbling_window(Count(4))), ROWS)[0] == ("a1", None, at(3))


def output_fields(made: Topology, stream: str = "default") -> tuple[str, ...]:
    return made.component("j").streams[stream].fields


def test_a_name_that_occurs_twice_has_its_stream_before_it() -> None:
    assert output_fields(topology(ab().with_tumbling_window(Count(2)))) == ("a_id", "b_id")
    some = JoinBolt("a", "k").join("b", "k", "a").select("a:id,b:ts").with_tumbling_window(Count(2))
    assert output_fields(topology(some)) == ("id", "ts")
    everything = JoinBolt("a", "k").join("b", "k", "a").with_tumbling_window(Count(2))
    assert output_fields(topology(everything)) == ("a_id", "a_k", "a_ts", "b_id", "b_k", "b_ts")


def test_a_name_without_stream_is_that_of_the_first_stream_that_has_one() -> None:
    bolt = JoinBolt("s", "id").left_join("t", "who.id", "s").left_join("u", "who", "s")
    bolt.select("id, x, u:x, who.name, who.no.such, y.z, :ts")
    streams = {"s": ("id", "who", "ts"), "t": ("who", "x", "ts"), "u": ("who", "x", "y.z", "ts")}
    rows = {
        "s": [(1, {"name": "Ann"}, 1), (2, "text", 2)],
        "t": [({"id": 1, "name": "Bob"}, "t1", 1)],
        "u": [(1, "u1", "z1", 1), (2, "u2", "z2", 1)],
    }
    bolt.with_timestamp_field("ts").with_tumbling_window(Duration(10))
    made = fed_bolt("j", bolt, streams).build_topology()
    assert output_fields(made) == ("id", "t_x", "u_x", "who.name", "who.no.such", "y.z", "ts")
    assert joined(made, rows) == [(1, "t1", "u1", "Ann", None, "z1", 1), (2, "u2", "u2", None, None, "z2", 2)]


class Numbers(MemoryTransactionalSpout):
    def __init__(self) -> None:
        super().__init__([[(n, n % 3, n) for n in range(1, 7)]], ("n", "k", "ts"), take=2)


class Forward(BasicBolt):
    """Passes tuples on, to the default stream and to `even`, with other names."""

    fields = ("m", "key", "ts")
    streams = {"even": ("m", "key", "ts")}

    def execute(self, tuple: Any, collector: Any) -> None:
        collector.emit(*tuple.values)
        if tuple[0] % 2 == 0:
            collector.emit(*tuple.values, stream="even")


Selector = JoinBolt.Selector
SELECTED = {
    "names": (lambda: JoinBolt("numbers", "k").join("forward", "key", "numbers"), "default"),
    "a stream's name": (lambda: JoinBolt("numbers", "k").join("even", "key", "numbers"), "even"),
    "Selector.SOURCE": (lambda: JoinBolt(Selector.SOURCE, "numbers", "k").join("forward", "key", "numbers"), "even"),
    "Selector.STREAM": (lambda: JoinBolt(Selector.STREAM, "default", "k").join("even", "key", "default"), "even"),
}


def named_topology(bolt: JoinBolt, stream: str, output: str = "default") -> Topology:
    builder = TransactionalTopologyBuilder("names", "numbers", Numbers())
    builder.set_bolt("forward", Forward()).local_or_shuffle_grouping("numbers")
    bolt.select("n, m").with_timestamp_field("ts").with_tumbling_window(Duration(100))
    declarer = builder.set_bolt("j", bolt, 2).fields_grouping("numbers", ["k"])
    declarer.fields_grouping("forward", stream, ["key"])
    builder.set_bolt("keep", DeltaSink("rows", {"n": int, "m": int})).global_grouping("j", output)
    return builder.build_topology()


@pytest.mark.parametrize("name", SELECTED)
def test_names_are_those_of_streams_or_components(name: str, tmp_path: Path) -> None:
    make, stream = SELECTED[name]
    made = named_topology(make(), stream)
    run(made, engine="local", data_dir=tmp_path / "data", end_of_input=True).awaitTermination(120)
    rows = {(row["n"], row["m"]) for row in read_sink(tmp_path / "data", "rows").to_pylist()}
    right = range(2, 7, 2) if stream == "even" else range(1, 7)
    assert rows == {(n, m) for n in range(1, 7) for m in right if n % 3 == m % 3}


def test_both_engines_join_the_same_and_once(make_engine: Any, tmp_path: Path) -> None:
    """U10. The second run has nothing to add."""
    for _ in range(2):
        bolt = JoinBolt("numbers", "k").join("forward", "key", "numbers").withOutputStream("pairs")
        made = named_topology(bolt, "default", "pairs")
        run(made, engine=make_engine(), data_dir=tmp_path / "data", end_of_input=True).awaitTermination(120)
        rows = [(row["n"], row["m"]) for row in read_sink(tmp_path / "data", "rows").to_pylist()]
        assert sorted(rows) == [(n, m) for n in range(1, 7) for m in range(1, 7) if n % 3 == m % 3]


def test_a_window_that_is_open_at_a_restart_has_its_tuples() -> None:
    made = topology(ab().with_tumbling_window(Duration(10)), tasks=2)
    with TopologyTestDriver(made) as driver:
        driver.commit(driver.feed({"a": [("a1", 1, 1)], "b": [("b1", 2, 2)]}))
        driver.restart()
        driver.commit(driver.feed({"a": [("a2", 2, 4)], "b": [("b2", 1, 5)]}))
        txid = driver.feed({"a": [("a3", 1, 25)], "b": [("b3", 1, 26)]})
        driver.fail(txid)
        driver.advance(60)
        driver.restart()
        driver.commit(txid)
        assert sorted(driver.emitted("j", txid)) == [("a1", "b2"), ("a2", "b1")]
