"""Windowed bolts in the test driver: the worked examples, time, late tuples, keys, state and failures."""

import logging
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from fed import fed_bolt
from window_bolts import Emitting
from window_cases import EPOCH, WORKED_EXAMPLES, Report, at, clock, committed, contents, driver, ids, shown, topology

from txstorm import Count, Duration, KeyedState, TopPerWindow, WindowAggregate, WindowedBolt
from txstorm.errors import InputError, StateError
from txstorm.joins import IntervalJoin, JoinBolt, Side
from txstorm.results.views import DeadLettersView
from txstorm.results.windowed_components import component_windows
from txstorm.testing import FeedSpout

WINDOWS = [
    ("5:59:50", "6:00:10", ["e1", "e2", "e3"], ["e1", "e2", "e3"], []),
    ("6:00:00", "6:00:20", ["e1", "e2", "e3", "e4"], ["e4"], []),
    ("6:00:10", "6:00:30", ["e4", "e5"], ["e5"], ["e1", "e2", "e3"]),
    ("6:00:20", "6:00:40", ["e5", "e6"], ["e6"], ["e4"]),
    ("6:00:30", "6:00:50", ["e6"], [], ["e5"]),
    ("8:00:10", "8:00:30", ["e7", "e8", "e9"], ["e7", "e8", "e9"], ["e6"]),
]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("cut", ["one batch", "two batches", "one tuple per batch"])
def test_the_worked_examples_fire_the_same_windows_in_all_cuts(cut, parallelism):
    """W20, W21, W22."""
    every = [(id, clock(text)) for id, text in WORKED_EXAMPLES]
    batches = {"one batch": [every], "two batches": [every[:6], every[6:]]}.get(cut, [[row] for row in every])
    bolt = Report().with_window(Duration.seconds(20), Duration.seconds(10)).with_timestamp_field("ts", unit="s")
    with driver(topology(bolt.with_lag(Duration.seconds(5)), parallelism=parallelism)) as running:
        assert [one for batch in batches for one in committed(running, batch)] == WINDOWS
        assert running.watermark("w") == at(clock("8:00:34"))
        kept = [one["values"]["id"] for one in running.buffered("w")]
        assert sorted(kept, key=lambda id: int(id[1:])) == ["e7", "e8", "e9", "e10"]
        assert [one["time"] for one in running.buffered("w", at(clock("8:00:50")))] == [at(clock("8:00:39"))]
        running.commit(running.end_of_input())
        assert running.emitted("w", len(batches) + 1) == [
            ("8:00:20", "8:00:40", ["e7", "e8", "e9", "e10"], ["e10"], []),
            ("8:00:30", "8:00:50", ["e10"], [], ["e7", "e8", "e9"]),
        ]
        assert running.watermark("w") == datetime.max.replace(tzinfo=UTC)


PICTURE = [("e1", 1), ("e2", 4), ("e3", 6), ("e4", 7), ("e5", 8), ("e6", 9), ("e7", 11), ("e8", 13), ("e9", 15)]
PICTURES = {
    "sliding": (Duration.seconds(10), Duration.seconds(5), ["23:59:55 0:00:05 12", "0:00:00 0:00:10 123456"]),
    "tumbling": (Duration.seconds(5), Duration.seconds(5), ["0:00:00 0:00:05 12", "0:00:05 0:00:10 3456"]),
    "counts": (Count(4), Count(2), ["None 0:00:04 12", "None 0:00:07 1234", "None 0:00:09 3456"]),
}


@pytest.mark.parametrize("take", [1, 2, 9])
@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_fire_the_same_windows_in_all_cuts(name, take):
    """W2, W3, W12, W13."""
    length, slide, expected = PICTURES[name]
    bolt = Report().with_window(length, slide).with_timestamp_field("ts", unit="s").with_lag(Duration.seconds(5))
    with driver(topology(bolt)) as running:
        found = [row for first in range(0, 9, take) for row in committed(running, PICTURE[first : first + take])]
    assert [f"{start} {end} {''.join(one[1:] for one in ids)}" for start, end, ids, *_ in found] == expected


def test_no_window_is_evaluated_again_after_a_crash():
    """W42, W43: five minutes that slide every minute, and a crash after the second window."""
    bolt = Report().with_window(Duration.minutes(5), Duration.minutes(1)).with_timestamp_field("ts", unit="s")
    with driver(topology(bolt)) as running:
        first = committed(running, [("e1", 10), ("e2", 50), ("e3", 70), ("e4", 119), ("e5", 130)])
        assert contents(first) == [["e1", "e2"], ["e1", "e2", "e3", "e4"]]
        txid = running.feed({"s1": [("e6", 170), ("e7", 190)]})
        running.restart()
        running.commit(txid)
        six = [f"e{n}" for n in range(1, 7)]
        assert running.emitted("w", txid) == [("23:58:00", "0:03:00", six, ["e5", "e6"], [])]


def test_heartbeats_close_windows_of_processing_time_while_the_source_is_silent():
    """W14."""
    with driver(topology(Report().with_tumbling_window(Duration.seconds(10)))) as running:
        assert committed(running, [("a", 0), ("b", 0)], 3) == []
        running.advance(6)
        assert running.active == {}
        running.advance(1)
        running.commit(2)
        assert contents(running.emitted("w", 2)) == [["a", "b"]]
        running.advance(30)
        assert running.active == {}


def test_a_heartbeat_writes_to_the_buffer_only_when_tuples_expire():
    """W14: windows that slide over the same tuples leave the buffer as it is."""
    with driver(topology(Report().with_window(Duration.seconds(30), Duration.seconds(10)))) as running:
        committed(running, [("a", 0), ("b", 0)], 3)
        fired, wrote = {}, {}
        for second in (10, 20, 30, 40):
            txid = running.heartbeat(at(second))
            running.commit(txid)
            fired[second] = contents(running.emitted("w", txid))
            wrote[second] = bool(running.state("w-tuples").changes(txid, txid).num_rows)
        assert fired == {10: [["a", "b"]], 20: [["a", "b"]], 30: [["a", "b"]], 40: []}
        assert not any(wrote[second] for second in (10, 20, 30))
        committed(running, [("c", 0)], 45)
        txid = running.heartbeat(at(50))
        running.commit(txid)
        assert contents(running.emitted("w", txid)) == [["c"]]
        assert running.state("w-tuples").to_arrow().num_rows == 1


def test_timers_survive_a_restart():
    with driver(topology(Report().with_tumbling_window(Duration.seconds(10)))) as running:
        committed(running, [("a", 0)], 3)
        running.restart()
        running.advance(0)
        running.commit(2)  # the heartbeat that is due after a start
        running.advance(7)
        running.commit(3)
        assert contents(running.emitted("w", 3)) == [["a"]]


def test_the_watermark_waits_for_every_input_unless_it_is_idle():
    """W18, U1."""
    bolt = Report().with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts", unit="s")
    with driver(topology(bolt.with_idle_timeout(Duration.seconds(60)), ("s1", "s2"))) as running:
        assert committed(running, [("a", 5), ("b", 25)], 100) == []
        assert running.watermark("w") is None
        assert contents(committed(running, [("c", 7), ("d", 12)], 101, "s2")) == [["a", "c"]]
        running.advance(59.5)
        running.advance(1)
        running.commit(3)
        assert running.watermark("w") == at(12)  # both have been silent; the second had data last
        assert contents(committed(running, [("e", 31)], 162)) == [["d"], ["b"]]


def test_late_tuples_enter_no_window_and_are_reported(caplog):
    """W17, U5."""
    bolt = Report().with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts", unit="s")
    with driver(topology(bolt.with_late_tuple_stream("late"))) as running, caplog.at_level(logging.INFO, "txstorm"):
        assert contents(committed(running, [("a", 5), ("b", 25), ("c", 3)])) == [["c", "a"]]
        assert contents(committed(running, [("d", 24), ("e", 9), ("f", 25), ("g", 31)])) == [["b", "f"]]
        assert running.emitted("w", 2, stream="late") == [("d", 24), ("e", 9)]
        assert running.late("w") == [
            (2, ("feed", "s1"), at(24), at(25), ("d", 24)),
            (2, ("feed", "s1"), at(9), at(25), ("e", 9)),
        ]
        [line] = [record.getMessage() for record in caplog.records if "late" in record.getMessage()]
        assert line.startswith("w[0], txid 2: 2 late tuples behind the watermark 1970-01-01 00:00:25+00:00")


def test_late_tuples_of_a_failed_attempt_are_not_reported():
    bolt = Report().with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts", unit="s")
    with driver(topology(bolt, opaque=True)) as running:
        committed(running, [("a", 25)])
        running.ack(running.feed({"s1": [("b", 99), ("c", 1)]}))
        running.fail(2)
        assert committed(running, [("d", 26), ("e", 2)]) == []
        assert running.watermark("w") == at(26)
        assert [row[-1] for row in running.late("w")] == [("e", 2)]


def test_inputs_with_different_fields_are_told_apart_and_late_ones_have_all_fields():
    """W10."""
    origins = lambda window: [[f"{one.source_component}/{one.source_stream}:{one['id']}" for one in window]]  # noqa: E731
    bolt = Emitting("rows", origins).with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts", unit="s")
    streams = {"s1": ("id", "ts"), "s2": ("ts", "price", "id")}
    builder = fed_bolt("w", bolt.with_late_tuple_stream("late"), streams)
    with driver(builder.build_topology()) as running:
        running.commit(running.feed({"s1": [("a", 3), ("b", 19)], "s2": [(4, 1.5, "c"), (19, 2, "d")]}))
        assert running.emitted("w", 1) == [(["feed/s1:a", "feed/s2:c"],)]
        running.commit(running.feed({"s1": [("e", 1)], "s2": [(2, 9.5, "f")]}))
        assert running.emitted("w", 2, stream="late") == [("e", 1, None), ("f", 2, 9.5)]


def test_aware_datetimes_and_extractors_give_timestamps():
    """W15."""
    for bolt in (
        Report().with_timestamp_field("ts"),
        Report().with_timestamp_extractor(lambda one: one["ts"]),
        Report().with_timestamp_extractor(lambda one: int(one["ts"].timestamp() * 1000)),
    ):
        with driver(topology(bolt.with_tumbling_window(timedelta(seconds=10)))) as running:
            assert contents(committed(running, [("a", at(4)), ("b", at(10.5))])) == [["a"]]


def test_an_aggregate_has_no_buffered_tuples_to_show():
    bolt = WindowAggregate("id", n="count").with_timestamp_field("ts", unit="s")
    with driver(topology(bolt.with_tumbling_window(Duration.seconds(10)), group="id")) as running:
        committed(running, [("a", 4)])
        for end in (None, at(10)):
            with pytest.raises(InputError, match=r"w: an aggregate keeps no tuples.* txstorm windows"):
                running.buffered("w", end)


def far(kind, year, **clock):
    """Return a topology with windows of ten seconds that count tuples, and a time of that year in seconds."""
    bolt = Emitting("end n", lambda window: (window.end, len(window.get())))
    bolt = WindowAggregate("id", n="count") if kind == "aggregate" else bolt
    bolt.with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts", unit="s")
    for name, most in clock.items():
        getattr(bolt, name)(most)
    start = (datetime(year, 6, 1, tzinfo=UTC) - EPOCH) // timedelta(seconds=1)
    return topology(bolt, parallelism=2, group="id", settings={"on_error": "dead_letter"}), start


def at_the_end(running):
    """Return the number of tuples in all windows of each minute, after the end of input."""
    running.commit(running.end_of_input())
    found = {}
    for *_, end, n in running.emitted("w"):
        found[shown(end)] = found.get(shown(end), 0) + n
    return found


@pytest.mark.parametrize("kind", ["bolt", "aggregate"])
@pytest.mark.parametrize("year", [2031, 9999])
def test_data_far_ahead_of_the_clock_is_complete_at_the_end_of_input(year, kind):
    """No tuple is late, whatever the order and the cuts, and none is lost."""
    for cut in (1, 2, 6):
        made, start = far(kind, year)
        given = [(f"e{n}", start + of) for n, of in enumerate((31, 2, 55, 3, 18, 1))]
        with driver(made) as running:
            for first in range(0, len(given), cut):
                assert committed(running, given[first : first + cut], first) == []
                running.restart()
            assert at_the_end(running) == {"0:00:10": 3, "0:00:20": 1, "0:00:40": 1, "0:01:00": 1}


@pytest.mark.parametrize("kind", ["bolt", "aggregate"])
def test_one_tuple_far_from_the_clock_leaves_the_others_in_their_windows(kind):
    """From a day later on, unless the declaration lets it move the watermark; it can also be an error, of it alone."""
    hours = Duration.hours(2)
    cases = {
        "ahead: stays": ({}, 1, {"10:00:10": 2, "0:00:10": 1}),
        "ahead: an error": ({"with_max_ahead": hours}, 1, {"10:00:10": 2}),
        "ahead: moves": ({"with_max_ahead": None}, 1, {"10:00:10": 1, "0:00:10": 1}),
        "behind: stays": ({}, 0, {"0:00:10": 1, "10:00:10": 2}),
        "behind: an error": ({"with_max_behind": hours}, 0, {"10:00:10": 2}),
    }
    for name, (declared, ahead, expected) in cases.items():
        made, start = far(kind, 2031, **declared)
        now, later = 10 * 3600, 58 * 3600
        with driver(made, now) as running:
            committed(running, [("a", now + 1), ("far", start + 1 if ahead else 1)], now + 2)
            committed(running, [("b", later + 3)], later + 4)
            assert at_the_end(running) == expected, name


class PerKey(Report):
    fields = ("key", "first", "content", "new", "expired")

    def execute(self, window):
        some = (ids(window.get()), ids(window.get_new()), ids(window.get_expired()))
        self.collector.emit(window.key, window.first, *some)


def keyed(bolt, **more):
    return topology(bolt, group="user", fields=("id", "ts", "user"), parallelism=2, **more)


def test_windows_per_key_are_dropped_when_an_end_finds_them_empty():
    """W26."""
    bolt = PerKey().with_window(Duration.seconds(20), Duration.seconds(10)).with_key("user")
    with driver(keyed(bolt.with_timestamp_field("ts", unit="s"))) as running:
        first = committed(running, [("a", 5, "x"), ("b", 15, "y"), ("c", 20, "x")])
        assert [row for row in first if row[0] == "x"] == [
            ("x", True, ["a"], ["a"], []),
            ("x", False, ["a", "c"], ["c"], []),
        ]
        assert [row for row in first if row[0] == "y"] == [("y", True, ["b"], ["b"], [])]
        second = committed(running, [("d", 61, "x")])
        assert sorted(second) == [("x", False, ["c"], [], ["a"]), ("y", False, ["b"], [], [])]
        running.commit(running.end_of_input())
        assert sorted(running.emitted("w", 3)) == [("x", False, ["d"], [], []), ("x", True, ["d"], ["d"], [])]


@pytest.mark.parametrize("tasks", [1, 3])
def test_keys_that_are_the_number_of_a_task_are_not_mistaken_for_it(tasks):
    """The late tuples of a task are counted beside its keys."""
    bolt = PerKey().with_tumbling_window(Duration.seconds(10)).with_key("user").with_timestamp_field("ts", unit="s")
    made = topology(bolt, group="user", fields=("id", "ts", "user"), parallelism=tasks)
    with driver(made) as running:
        committed(running, [("a", 15, key) for key in range(6)])
        committed(running, [("b", 3, key) for key in range(6)])  # late in all tasks
        fired = committed(running, [("c", 35, key) for key in range(6)])
        assert sorted(fired) == [(key, True, ["a"], ["a"], []) for key in range(6)]
        committed(running, [("d", 70, 0)])
        assert len(running.late("w")) == 6
        assert component_windows(running.data_dir, "w").late == 6


def test_sessions_merge_and_fire_when_the_watermark_passes_their_end():
    """U3."""
    bolt = PerKey().with_session_window(Duration.seconds(10)).with_key("user")
    with driver(keyed(bolt.with_timestamp_field("ts", unit="s").with_lag(Duration.seconds(30)))) as running:
        assert committed(running, [("a", 0, "x"), ("c", 18, "x"), ("d", 39, "x")]) == []
        assert committed(running, [("b", 9, "x")]) == []  # connects the two
        assert committed(running, [("e", 57, "y")]) == []
        assert committed(running, [("f", 58, "y")]) == [("x", True, ["a", "b", "c"], ["a", "b", "c"], [])]


def test_tuples_of_a_stamp_at_which_a_window_has_fired_are_of_the_next_one():
    with driver(topology(Report().with_tumbling_window(Duration.seconds(10)))) as running:
        assert contents(committed(running, [("a", 0)], 10)) == [["a"]]
        assert committed(running, [("b", 0)], 10) == []
        assert contents(committed(running, [("c", 0)], 20)) == [["b", "c"]]


def test_tuples_of_one_time_from_two_inputs_have_places_of_their_own():
    bolt = Report().with_tumbling_window(Count(1)).with_timestamp_field("ts", unit="s")
    with driver(topology(bolt, ("s1", "s2"))) as running:
        running.commit(running.feed({"s1": [("a", 5)], "s2": [("b", 5)]}))
        running.commit(running.end_of_input())
        emitted = running.emitted("w", 1) + running.emitted("w", 2)
        assert sorted(contents(emitted)) == [["a"], ["b"]]


def test_a_key_lives_for_less_than_its_ttl_without_tuples():
    bolt = PerKey().with_window(Count(2), Count(1)).with_key("user", ttl=Duration.seconds(60))
    with driver(keyed(bolt.with_timestamp_field("ts", unit="s"))) as running:
        committed(running, [("a", 1, "x"), ("b", 1, "y")], 0)
        committed(running, [("c", 2, "x"), ("d", 2, "z")], 59)
        emitted = committed(running, [("e", 3, "x"), ("f", 3, "y"), ("g", 3, "z")], 60)
        running.commit(running.end_of_input())
        emitted += running.emitted("w", 4)
    assert {row[0]: row[2] for row in emitted} == {"x": ["c", "e"], "y": ["f"], "z": ["d", "g"]}


@pytest.mark.parametrize("form", ["tumbling", "session", "count"])
def test_a_weekend_off_drops_no_tuple_that_a_window_needs(form):
    """The time to live is over long before the watermark, which the second input holds back, reaches the tuple."""
    bolt = PerKey().with_key("user", ttl=Duration.minutes(30)).with_timestamp_field("ts", unit="s")
    ten = Duration.seconds(10)
    bolt = {"session": bolt.with_session_window}.get(form, bolt.with_tumbling_window)(
        Count(1) if form == "count" else ten
    )
    with driver(keyed(bolt, streams=("s1", "s2"))) as running:
        committed(running, [("a", 5, "x")], 10)
        running.restart()
        running.commit(running.heartbeat(at(3 * 86400)))
        fired = committed(running, [("b", 40, "y")], 3 * 86400 + 1, "s2")
        fired += committed(running, [("c", 40, "z")], 3 * 86400 + 2)
        assert fired[0] == ("x", True, ["a"], ["a"], [])


def test_an_evictor_chooses_the_content_and_changes_nothing_else():
    """U4."""
    bolt = (
        Report().with_window(Count(3), Count(2)).with_evictor(lambda tuples: [one for one in tuples if one["ts"] > 1])
    )
    with driver(topology(bolt)) as running:
        assert committed(running, [("a", 1), ("b", 2), ("c", 1), ("d", 5)]) == [
            (None, "0:00:00", ["b"], ["a", "b"], []),
            (None, "0:00:00", ["b", "d"], ["c", "d"], ["a"]),
        ]


def test_early_results_show_open_windows_that_got_tuples():
    """U4."""
    bolt = Emitting("end content final", lambda window: (shown(window.end), ids(window), window.final))
    bolt = bolt.with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts", unit="s")
    with driver(topology(bolt.with_early_results(Duration.seconds(5)))) as running:
        assert committed(running, [("a", 1)], 100) == []
        running.advance(5)
        running.commit(2)
        assert running.emitted("w", 2) == [("0:00:10", ["a"], False)]
        running.advance(20)
        assert running.active == {}
        assert committed(running, [("b", 12)], 126) == [("0:00:10", ["a"], True), ("0:00:20", ["b"], False)]


@pytest.mark.parametrize(
    ("length", "slide"), [(Duration.hours(1), Duration.days(1)), (Duration(0.001), Duration(0.01))]
)
def test_early_results_that_are_due_at_the_end_of_input_show_nothing(length, slide):
    bolt = Report().with_window(length, slide).with_timestamp_field("ts", unit="s")
    with driver(topology(bolt.with_early_results(Duration.seconds(5)))) as running:
        committed(running, [("a", 0)], 100)
        running.commit(running.end_of_input(at=at(200)))
        assert contents(running.emitted("w")) == [["a"]]


class Rebinding(WindowedBolt):
    transient = ("allowed",)

    def prepare(self, context, collector):
        self.sum = self.allowed = 0

    def execute(self, window):
        self.allowed = 1
        self.sum += sum(one["ts"] for one in window)


def test_an_attribute_that_execute_rebinds_is_an_error():
    with driver(topology(Rebinding().with_tumbling_window(Count(1)))) as running:
        txid = running.feed({"s1": [("a", 7)]})
        with pytest.raises(StateError, match=r"execute has set self.sum at .*KeyedState") as error:
            running.ack(txid)
        assert "self.allowed" not in str(error.value)


class Fragile(Report):
    fields = ("content",)
    seen = KeyedState("seen", {"id": str}, {"n": int})

    def prepare(self, context, collector):
        self.collector, self.handle = collector, context.state("seen")

    def execute(self, window):
        for one in window:
            self.handle.put(one["id"], 1)
        self.collector.emit(ids(window))
        if "bad" in ids(window):
            raise ValueError("broken")


def test_a_window_whose_evaluation_fails_becomes_a_dead_letter():
    bolt = Fragile().with_tumbling_window(Count(2))
    with driver(topology(bolt, settings={"on_error": "dead_letter"})) as running:
        txid = running.feed({"s1": [("a", 1), ("b", 1), ("bad", 1), ("c", 1), ("d", 1), ("e", 1)]})
        running.commit(txid)
        assert running.emitted("w", txid) == [(["a", "b"],), (["d", "e"],)]
        assert sorted(row["id"] for row in running.state("seen").to_pylist()) == ["a", "b", "d", "e"]
        [letter] = DeadLettersView(running.data_dir).to_pylist()
        assert letter["component"] == "w" and '"tuples": 2' in letter["record"] and '"key": "[0]"' in letter["record"]
        assert "broken" in letter["message"]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_values_of_any_type_are_buffered(parallelism):
    values = [1, "1", 1.5, (1, "x"), {"a": [None]}, None, b"x", EPOCH]
    bolt = Emitting("values", lambda window: [[repr(one["value"]) for one in window]])
    made = topology(bolt.with_tumbling_window(Count(8)), fields=("value",), parallelism=parallelism)
    with driver(made) as running:
        assert committed(running, [(value,) for value in values[:4]]) == []
        assert committed(running, [(value,) for value in values[4:]]) == [(list(map(repr, values)),)]


def slices(window):
    content = window.get()
    ends = [content[0]["id"], content[-1]["id"]]
    return len(content), ends, ids(window), ids(window.get_new()), ids(content[5:1:-2])


@pytest.mark.parametrize("number", [1, 3, 1000])
def test_windows_beyond_the_memory_limit_are_read_in_pages(number, monkeypatch):
    """W44, U23."""
    monkeypatch.setattr("txstorm.windows.buffer.PAGE", 4)
    bolt = (
        Emitting("size ends all new some", slices)
        .with_window(Duration.seconds(20), Duration.seconds(10))
        .with_timestamp_field("ts", unit="s")
    )
    every = [(i, i // 3 + 1) for i in range(60)]
    with driver(topology(bolt.with_persistence().with_max_events_in_memory(number))) as running:
        assert committed(running, every[:40]) == [(30, [0, 29], list(range(30)), list(range(30)), [5, 3])]
        assert committed(running, every[40:]) == [(60, [0, 59], list(range(60)), list(range(30, 60)), [5, 3])]


def ends_of(window):
    return [
        (window.end - EPOCH).seconds,
        [(one["until" if "until" in one else "end"] - EPOCH).seconds for one in window],
    ]


@pytest.mark.parametrize("sides", list(product(("right", "left"), repeat=2)), ids="-".join)
def test_windows_over_windows_have_those_within_them(sides):
    """An end counts as 1 µs before if windows do not hold it: 30 s have the results of three times 10 s (U29)."""
    up, down = sides
    name_of_end = "until" if up == "left" else "end"
    names = {"end": name_of_end}
    counts = WindowAggregate("id", table="counts", ttl=timedelta(days=1), names=names, n="count")
    pairs = JoinBolt("s", "id", names=names).join("t", "id", "s").select("s:id, window:end")
    for bolt in (counts, pairs):
        bolt.with_tumbling_window(Duration.seconds(10), closed=up).with_timestamp_field("ts", unit="s")
    left, right = Side("counts", key="id", time=name_of_end), Side("feed", "t", key="id", time="ts", unit="s")
    builder = fed_bolt("counts", counts, "s", ["id"], 2, spout=FeedSpout(dict.fromkeys("st", ("id", "ts"))))
    builder.set_bolt("top", TopPerWindow(1, "n")).global_grouping("counts")
    builder.set_bolt("pairs", pairs).global_grouping("feed", "s").global_grouping("feed", "t")
    join = builder.set_bolt("join", IntervalJoin(left, right, before=Duration.seconds(9), how="inner"))
    join.global_grouping("counts").global_grouping("feed", "t")
    over = ("counts", "top", "pairs", "join")
    for name in over:
        bolt = Emitting("end ends", ends_of).with_tumbling_window(Duration.seconds(30), closed=down)
        builder.set_bolt(f"over-{name}", bolt.with_timestamp_field(name_of_end)).global_grouping(name)
    rows = [("a", second) for second in range(0, 60, 5)]
    with driver(builder.build_topology()) as running:
        for some in (rows, [("a", 60)]):
            running.commit(running.feed(dict.fromkeys("st", some)))
        assert running.emitted("over-counts")[-1][0] == (30 if sides == ("left", "right") else 60)
        running.commit(running.end_of_input())
        for name in over:
            at_end = running.topology.component(name).streams["default"].fields.index(name_of_end)
            ends = [(row[at_end] - EPOCH).seconds for row in running.emitted(name)]
            found = [(end, one) for end, some in running.emitted(f"over-{name}") for one in some]
            assert sorted(found) == sorted((-(-end // 30) * 30, end) for end in ends), name
        shift = (up == "left") / 10**6
        ends = {(end - EPOCH).seconds for _, _, end, _ in running.emitted("counts")}
        joined = {((row[2] - EPOCH).seconds, row[-1]) for row in running.emitted("join")}
        assert joined == {
            (end, time) for end in ends for _, time in [*rows, ("a", 60)] if -9 <= time - end + shift <= 0
        }
