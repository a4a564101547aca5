"""Windows that Storm does not have, rows U1 to U26 of the conformance page: on both engines, and in the test driver."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from window_cases import Report, at, committed, driver, ids, topology

from txstorm import Count, Duration, SinkTable, TransactionalTopologyBuilder, WindowAggregate, WindowedBolt, run
from txstorm.api.composite import CompositeSpout
from txstorm.errors import TopologyError, TxstormError
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout

SECONDS = Duration.seconds
EVENTS = [(f"e{n}", n) for n in range(1, 41)]
QUIET = [("q", 2)]
BURSTS = [("a", 0, 2), ("b", 1, 2), ("c", 9, 2), ("d", 10, 3), ("e", 40, 1), ("f", 12, 30)]
"""Ids, times, and the gap that follows; the last one connects those of the second burst with ``e``."""


class Log(WindowedBolt):
    """Appends the ids of each window to a sink."""

    sink = SinkTable("log", {"ids": str, "final": bool})

    def prepare(self, context, collector):
        self.log = context.sink("log")

    def execute(self, window):
        self.log.append(" ".join(ids(window.get())), window.final)


def tumbling(seconds):
    return Log().with_tumbling_window(SECONDS(seconds)).with_timestamp_field("ts", unit="s")


def groups(size):
    return [" ".join(name for name, _ in EVENTS[first : first + size]) for first in range(0, len(EVENTS), size)]


def connected():
    return Log().with_session_window(lambda one: SECONDS(one["gap"])).with_timestamp_field("ts", unit="s")


CASES = {
    "U1": (lambda: tumbling(10).with_idle_timeout(Duration(1)), {"a": EVENTS, "b": []}, groups(10)),
    "U2": (lambda: tumbling(10).with_watermark_policy("max"), {"a": EVENTS, "b": QUIET}, None),
    "U3": (lambda: connected().with_lag(SECONDS(60)), {"a": BURSTS}, ["a b", "c d f e"]),
    "U4": (
        lambda: (
            Log()
            .with_window(Count(10), lambda one: one["id"].endswith("0"))
            .with_evictor(lambda tuples: tuples[-2:])
            .with_timestamp_field("ts", unit="s")
        ),
        {"a": EVENTS},
        ["e9 e10", "e19 e20", "e29 e30", "e39 e40"],
    ),
    "U23": (lambda: tumbling(20).with_max_events_in_memory(3), {"a": EVENTS}, groups(20)),
}
"""Row → bolt, the tuples of each source, and the windows; None: those of U1, with the tuple of the other input."""


@pytest.mark.parametrize("row", CASES)
def test_windows_on_engines(make_engine, tmp_path, row):
    """U1, U2, U3, U4, U23."""
    make, sources, expected = CASES[row]
    fields = ("id", "ts", "gap") if row == "U3" else ("id", "ts")
    spouts = {name: MemoryTransactionalSpout([rows], fields, 4) for name, rows in sources.items()}
    builder = TransactionalTopologyBuilder("beyond", "events", CompositeSpout(spouts))
    declared = builder.set_bolt("w", make())
    for name in sources:
        declared.global_grouping("events", name)
    made = builder.set_settings({"min_interval": 0.01}).build_topology()
    how = {"end_of_input": True} if row == "U3" else {"available_now": True}
    handle = run(made, engine=make_engine(), data_dir=tmp_path / "data", **how)
    handle.awaitTermination()
    found = [one["ids"] for one in handle.sink("log").to_pylist()]
    wanted = expected if expected is not None else ["e1 e2 q " + groups(10)[0][6:], *groups(10)[1:]]
    assert found == wanted


@pytest.mark.parametrize("milliseconds", [1, 7])
def test_windows_of_real_time_lose_nothing_and_repeat_nothing(make_engine, tmp_path, milliseconds):
    """U26: windows close by timers of the running system, on stamps of a real clock."""
    builder = TransactionalTopologyBuilder("real", "events", MemoryTransactionalSpout([EVENTS], ("id", "ts"), 3))
    builder.set_bolt("w", Log().with_tumbling_window(Duration(milliseconds))).global_grouping("events")
    made = builder.set_settings({"min_interval": 0.005}).build_topology()
    handle = run(made, engine=make_engine(), data_dir=tmp_path / "data", end_of_input=True)
    handle.awaitTermination()
    found = [name for one in handle.sink("log").to_pylist() for name in one["ids"].split()]
    assert found == [name for name, _ in EVENTS]


def test_idle_partitions_and_inputs_are_left_out_until_they_have_data_again():
    """U1: those with the latest data are never left out, so that the watermark does not run ahead of all data."""
    bolt = Report().with_tumbling_window(SECONDS(1)).with_timestamp_field("ts").with_partition_field("p")
    bolt.with_idle_timeout(SECONDS(5))
    with driver(topology(bolt, fields=("id", "ts", "p"))) as running:
        committed(running, [("a", 1500, "x"), ("b", 500, "y")], 0)
        committed(running, [("a", 2500, "x")], 4.999)
        assert running.watermark("w") == at(0.5)
        committed(running, [], 5)
        assert running.watermark("w") == at(2.5)
        committed(running, [("b", 2600, "y")], 6)
        committed(running, [("a", 9000, "x")], 7)
        assert running.watermark("w") == at(2.6)
        committed(running, [], 60)
        assert running.watermark("w") == at(9)


def test_the_policy_is_stored_and_another_one_refused(tmp_path):
    """U2."""
    streams = ("s1", "s2")
    bolt = Report().with_tumbling_window(SECONDS(1)).with_timestamp_field("ts")
    spout = FeedSpout(dict.fromkeys(streams, ("id", "ts")))

    def made(policy):
        builder = TransactionalTopologyBuilder("t", "feed", spout)
        declared = builder.set_bolt("w", bolt.with_watermark_policy(policy))
        for name in streams:
            declared.global_grouping("feed", name)
        return builder.build_topology()

    with driver(made("max"), data_dir=tmp_path / "data") as running:
        running.commit(running.feed({"s1": [("a", 1500)], "s2": [("b", 300)]}))
        assert running.watermark("w") == at(1.5)
        running.commit(running.feed({"s1": [("c", 2500)], "s2": [("d", 300)]}))
        assert [row[4] for row in running.late("w")] == [("d", 300)]
    with pytest.raises(TxstormError, match="policy"):
        with driver(made("min"), data_dir=tmp_path / "data") as running:
            running.commit(running.feed({"s1": [("e", 4000)], "s2": []}))


def test_early_results_of_windows_that_got_tuples():
    """U4: at most every second of stamps, by a timer if nothing comes; what is new and expired stays the same."""

    class Finals(Report):
        fields = ("content", "new", "expired", "final")

        def execute(self, window):
            parts = (ids(window.get()), ids(window.get_new()), ids(window.get_expired()))
            self.collector.emit(*parts, window.final)

    bolt = Finals().with_window(SECONDS(20), SECONDS(10)).with_timestamp_field("ts").with_early_results(SECONDS(1))
    with driver(topology(bolt)) as running:
        assert committed(running, [("a", 5000)], 0) == []
        assert committed(running, [("b", 12000)], 1) == [
            (["a"], ["a"], [], True),
            (["a", "b"], ["b"], [], False),
            (["b"], ["b"], ["a"], False),
        ]
        running.advance(5)
        assert running.active == {}
        committed(running, [("c", 13000)])
        assert running.emitted("w", 3) == [
            (["a", "b", "c"], ["b", "c"], [], False),
            (["b", "c"], ["b", "c"], ["a"], False),
        ]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_late_tuples_are_usable_counted_and_change_results_within_the_allowed_lateness(parallelism):
    """U5."""
    bolt = Report().with_tumbling_window(SECONDS(1)).with_timestamp_field("ts").with_late_tuple_stream("late")
    with driver(topology(bolt, parallelism=parallelism, group="id")) as running:
        committed(running, [("a", 1500)])
        txid = running.feed({"s1": [("b", 100), ("c", 1500), ("d", 1499)]})
        running.commit(txid)
        assert Counter(running.emitted("w", txid, stream="late")) == Counter([("b", 100), ("d", 1499)])
        assert Counter(row[4] for row in running.late("w")) == Counter([("b", 100), ("d", 1499)])
    sums = WindowAggregate("id", table="sums", retractions=True, ttl=timedelta(days=1), n="count", total=("v", "sum"))
    sums.with_tumbling_window(SECONDS(1)).with_timestamp_field("ts").with_allowed_lateness(SECONDS(2))
    with driver(topology(sums, parallelism=parallelism, group="id", fields=("id", "ts", "v"))) as running:
        assert committed(running, [("a", 500, 1), ("a", 1500, 1)]) == [("a", at(0), at(1), 1, 1)]
        assert committed(running, [("a", 600, 2)]) == [("a", at(0), at(1), 2, 3)]
        assert running.emitted("w", 2, stream="retractions") == [("a", at(0), at(1), 1, 1)]
        committed(running, [("a", 3000, 1)])
        assert committed(running, [("a", 700, 4)]) == []


def test_declarations_that_would_keep_everything_are_warned_about_and_contradictions_refused():
    """U8."""

    def counts(**ttl):
        return WindowAggregate("id", table="counts", n="count", **ttl).with_timestamp_field("ts")

    made = topology(counts().with_tumbling_window(SECONDS(1)))
    assert any("ttl" in warning for warning in made.warnings)
    assert not topology(counts(ttl=timedelta(days=1)).with_tumbling_window(SECONDS(1))).warnings
    with pytest.raises(TopologyError, match="allowed lateness"):
        topology(counts().with_tumbling_window(Count(2)).with_allowed_lateness(SECONDS(1)))
    with pytest.raises(TopologyError, match=r"two tasks may get tuples of one key; use fields_grouping"):
        topology(
            Report().with_tumbling_window(SECONDS(1)).with_key("id").with_timestamp_field("ts"),
            parallelism=2,
            group="ts",
        )
