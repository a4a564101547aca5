"""Windows that Storm does not have, rows U1 to U26 of the conformance page: on both engines, and in the test driver."""

from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from runs import ended
from window_bolts import Emitting
from window_cases import Report, at, committed, driver, ids, topology

from txstorm import Count, Duration, TransactionalTopologyBuilder, WindowAggregate, run
from txstorm.api.composite import CompositeSpout
from txstorm.errors import TopologyFailed
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout

SECONDS = Duration.seconds
EVENTS = [(f"e{n}", n) for n in range(1, 41)]
QUIET = [("q", 2)]
BURSTS = [("a", 0, 2), ("b", 1, 2), ("c", 9, 2), ("d", 10, 3), ("e", 40, 1), ("f", 12, 30)]
"""Ids, times, and the gap that follows; the last one connects those of the second burst with ``e``."""


Log = partial(Emitting, "ids", lambda window: [" ".join(ids(window.get()))])


def logged(builder):
    builder.set_bolt("log", DeltaSink("log", {"ids": str})).global_grouping("w")
    return builder


class LogOnce(Log.func):
    """Keeps its first failure to itself: the windows of ten minutes fail once in a process."""

    failed: list[int] = []
    transient = ("failed",)

    def execute(self, window):
        if window.end.minute == 10 and not self.failed:
            self.failed.append(1)
            raise RuntimeError("once")
        super().execute(window)


@pytest.mark.parametrize("way", ["available_now", "until_txid", "end_of_input", "process_all", "drain"])
def test_ends_that_wait_fire_before_a_run_is_over(tmp_path, way):
    """After a failure within them the next start goes on there, and one with another limit fires the same windows."""
    found = {}
    for limit in ("none", 100):
        spout = MemoryTransactionalSpout([[("a", 0), ("b", 900), ("a", 1000)]], ("id", "ts"), take=3)
        row = lambda window: [f"{window.end:%M:%S} {' '.join(ids(window.get()))}"]  # noqa: E731
        bolt = LogOnce("ids", row).with_window(Count(3), SECONDS(1)).with_timestamp_field("ts", unit="s")
        builder = TransactionalTopologyBuilder("t", "feed", spout).set_settings({"max_ends_per_txid": limit})
        builder.set_bolt("w", bolt, 2).fields_grouping("feed", ["id"])
        made, data_dir = logged(builder).build_topology(), tmp_path / str(limit)
        LogOnce.failed.clear()
        told = way in ("process_all", "drain")
        options = {"available_now": True} if told else {way: 40 if way == "until_txid" else True}
        with pytest.raises(TopologyFailed):
            run(made, engine="local", data_dir=data_dir, **options).awaitTermination(60)
        handle = run(made, engine="local", data_dir=data_dir, **({} if told else options))
        if way == "process_all":
            handle.processAllAvailable()
        if told:
            handle.stop(drain=True)
        assert handle.awaitTermination(60)
        found[limit] = read_sink(data_dir, "log").to_pylist()
    unlimited, limited = ([row["ids"] for row in sorted(some, key=lambda row: row["_txid"])] for some in found.values())
    assert len(limited) == len(unlimited) > 1000
    assert sorted(limited) == sorted(unlimited)
    assert max(Counter(row["_txid"] for row in found[100]).values()) <= 200  # of two tasks


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
    made = logged(builder).set_settings({"min_interval": 0.01}).build_topology()
    how = {"end_of_input": True} if row == "U3" else {}
    handle = ended(made, tmp_path / "data", make_engine(), **how)
    found = [one["ids"] for one in handle.sink("log").to_pylist()]
    wanted = expected if expected is not None else ["e1 e2 q " + groups(10)[0][6:], *groups(10)[1:]]
    assert found == wanted


@pytest.mark.parametrize("milliseconds", [1, 7])
def test_windows_of_real_time_lose_nothing_and_repeat_nothing(make_engine, tmp_path, milliseconds):
    """U26: windows close by timers of the running system, on stamps of a real clock."""
    builder = TransactionalTopologyBuilder("real", "events", MemoryTransactionalSpout([EVENTS], ("id", "ts"), 3))
    builder.set_bolt("w", Log().with_tumbling_window(Duration(milliseconds))).global_grouping("events")
    made = logged(builder).set_settings({"min_interval": 0.005}).build_topology()
    handle = ended(made, tmp_path / "data", make_engine(), end_of_input=True)
    found = [name for one in handle.sink("log").to_pylist() for name in one["ids"].split()]
    assert found == [name for name, _ in EVENTS]


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
