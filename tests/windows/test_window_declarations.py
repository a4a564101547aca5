"""Wrong declarations of windows: one clear error each, at the call or when the topology is built."""

from datetime import timedelta

import pytest
from window_cases import Report, topology

from txstorm import Count, Duration, TransactionalTopologyBuilder, WindowAggregate, WindowedBolt, explain, run
from txstorm.errors import InputError, TopologyError
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout

SECOND = Duration.seconds(1)

CALLS = {
    "length 0": (lambda: Report().with_window(Duration(0)), "the window's length: expected a duration longer than 0"),
    "slide 0": (lambda: Report().with_window(SECOND, timedelta(0)), "the window's slide: expected a duration longer"),
    "a negative length": (lambda: Report().with_window(Duration.seconds(-1)), "Duration.seconds.-1.: expected"),
    "a negative timedelta": (
        lambda: Report().with_window(timedelta(seconds=-1)),
        "the window's length: expected a duration longer than 0",
    ),
    "a negative slide": (lambda: Report().with_window(SECOND, Count(-1)), "Count.-1.: expected a whole number"),
    "a count of 0": (lambda: Report().with_tumbling_window(Count(0)), "Count.0.: expected a whole number"),
    "no length": (lambda: Report().with_window(None), "the window's length: expected a Duration.*write for example"),
    "a number as length": (lambda: Report().with_window(10), "the window's length: expected a Duration.*got 10"),
    "a slide that is no extent": (lambda: Report().with_window(SECOND, "x"), "the window's slide: expected"),
    "no side": (lambda: Report().with_window(SECOND, SECOND, closed="both"), "closed: expected 'right', .*got 'both'"),
    "a gap of 0": (lambda: Report().with_session_window(Duration(0)), "the gap between sessions"),
    "text as duration": (lambda: Duration.seconds("1"), "Duration.seconds.'1'.: expected a number"),
    "NaN as duration": (lambda: Duration(float("nan")), "expected a number"),
    "two forms": (lambda: Report().with_window(SECOND).with_tumbling_window(SECOND), "declared twice"),
    "two timestamps": (
        lambda: Report().with_timestamp_field("a").with_timestamp_extractor(len),
        "a second timestamp; give one field or one extractor",
    ),
    "an unknown unit": (lambda: Report().with_timestamp_field("a", "h"), "expected the unit 's', 'ms', 'us', got 'h'"),
    "no extractor": (lambda: Report().with_timestamp_extractor("a"), "expected a function"),
    "an unknown policy": (lambda: Report().with_watermark_policy("avg"), "expected 'min' or 'max'"),
    "a bad stream name": (lambda: Report().with_late_tuple_stream("1st"), "with_late_tuple_stream: stream '1st'"),
    "a lag that is a number": (lambda: Report().with_lag(5), "with_lag: expected a Duration"),
    "a key field twice": (lambda: Report().with_key("a", "a"), "with_key: expected the names of different fields"),
    "no evictor": (lambda: Report().with_evictor(1), "with_evictor: expected a function"),
    "no columns": (lambda: Report().with_columns({}), "with_columns: expected field"),
    "no memory": (lambda: Report().with_max_events_in_memory(0), "with_max_events_in_memory: expected a whole number"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_at_the_call(name):
    call, message = CALLS[name]
    with pytest.raises(InputError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)


class NoExecute(WindowedBolt):
    pass


def tumbling(bolt=None):
    return (bolt or Report()).with_tumbling_window(SECOND)


BUILDS = {
    "no windows": (lambda: Report(), "'w': it declares no windows; call with_window"),
    "no execute": (lambda: tumbling(NoExecute()), "NoExecute does not override execute"),
    "a late stream without timestamp": (
        lambda: tumbling().with_late_tuple_stream("late"),
        "'w': with_late_tuple_stream needs timestamps; call with_timestamp_field",
    ),
    "a lag without timestamp": (lambda: tumbling().with_lag(SECOND), "with_lag needs timestamps"),
    "an unknown time field": (lambda: tumbling().with_timestamp_field("tss"), "has no field 'tss' .did you mean 'ts'"),
    "an unknown partition field": (
        lambda: tumbling().with_timestamp_field("ts").with_partition_field("p"),
        "with_partition_field: stream 's1' of 'feed' has no field 'p'",
    ),
    "an unknown key": (lambda: tumbling().with_key("user"), "with_key: stream 's1' of 'feed' has no field 'user'"),
    "a key that two tasks may get": (
        lambda: tumbling().with_key("id"),
        "'w': with_key: its input 'feed' is grouped by .*, so two tasks may get tuples of one key; use fields_",
    ),
    "allowed lateness with counts": (
        lambda: WindowAggregate("id", table="r", n="count").with_window(Count(2)).with_allowed_lateness(SECOND),
        "'w': WindowAggregate needs a duration .*cannot have an allowed lateness.*use a WindowedBolt",
    ),
    "a left side of counts": (
        lambda: Report().with_window(SECOND, Count(2), closed="left"),
        "'w': closed='left': a window of a count slide or a trigger ends at the tuple that fires it",
    ),
    "a left side of a trigger": (lambda: Report().with_window(SECOND, len, closed="left"), "'w': closed='left': a win"),
    "early counts": (lambda: Report().with_window(Count(2)).with_early_results(SECOND), "early results need"),
    "a field without a type": (lambda: tumbling().with_columns({"id": int}), "no type for field 'ts'"),
    "a type too many": (lambda: tumbling().with_columns({"id": int, "ts": int, "t": int}), "no input has a field 't'"),
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_wrong_declaration_is_refused_when_the_topology_is_built(name):
    make, message = BUILDS[name]
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"s1": ("id", "ts")}))
    builder.set_bolt("w", make(), 2).shuffle_grouping("feed", "s1")
    with pytest.raises(TopologyError, match=message):
        builder.build_topology()


def timed(bolt):
    return bolt.with_timestamp_field("ts")


KEPT_FOREVER = {
    "counts": (lambda: Report().with_window(Count(2)), "keep the last tuples of every key forever"),
    "a length, fired by counts": (lambda: timed(Report().with_window(SECOND, Count(2))), "of every key forever"),
    "times": (lambda: timed(tumbling()), "only dropped by the watermark, and kept while it does not advance"),
    "sessions": (
        lambda: timed(Report().with_session_window(SECOND)),
        "only dropped by the watermark, and kept while it does not advance",
    ),
}


@pytest.mark.parametrize("name", KEPT_FOREVER)
def test_windows_per_key_without_ttl_are_warned_about(name):
    make, message = KEPT_FOREVER[name]
    (warning,) = topology(make().with_key("id")).warnings
    assert warning.startswith("component 'w': its ")
    assert f"{message}; give with_key a ttl after which keys without tuples are dropped" in warning
    assert not topology(make().with_key("id", ttl=Duration.days(1))).warnings
    assert not topology(make()).warnings


def test_a_warning_is_one_line_at_the_start_and_in_the_plan(tmp_path, caplog):
    builder = TransactionalTopologyBuilder("t", "numbers", MemoryTransactionalSpout([[]], ("id", "ts")))
    builder.set_bolt("w", Report().with_window(Count(2)).with_key("id")).global_grouping("numbers")
    made = builder.build_topology()
    run(made, engine="local", data_dir=tmp_path / "data", available_now=True).awaitTermination(60)
    logged = [record.getMessage() for record in caplog.records if "give with_key a ttl" in record.getMessage()]
    assert logged == [f"topology t: {made.warnings[0]}"]
    assert explain(made).splitlines()[-1] == f"warning: {made.warnings[0]}"


SECONDS_20 = (Duration.seconds(20), Duration.seconds(10))
RETENTION = {
    "w-tuples": {
        "evicted when 0:00:30 (length and slide) behind the watermark": lambda: timed(
            Report().with_window(*SECONDS_20)
        ),
        "evicted when their session has fired": lambda: Report().with_session_window(SECOND),
        "evicted but for the last 3 that a window of the task had": lambda: Report().with_window(Count(3)),
        "evicted when the next window of the task has fired without them": (
            lambda: Report().with_window(SECOND, Count(2))
        ),
        "evicted but for the last 3 that a window of the key had, keys kept forever (no ttl)": (
            lambda: Report().with_window(Count(3)).with_key("id")
        ),
        "evicted when 0:00:02 (length and slide) behind the watermark, keys dropped after 1 day without tuples": (
            lambda: tumbling().with_key("id", ttl=Duration.days(1))
        ),
        "evicted when 0:00:02 (length and slide) behind the watermark, keys dropped when no window has tuples of them": (
            lambda: tumbling().with_key("id")
        ),
    },
    "w-progress": {
        "one row per task": lambda: tumbling(),
        "one row per key, keys dropped after 1 day without tuples": (
            lambda: tumbling().with_key("id", ttl=Duration.days(1))
        ),
    },
    "r": {
        "kept forever (no ttl)": lambda: tumbling(WindowAggregate("id", table="r", n="count")),
        "kept for 2 days": lambda: tumbling(WindowAggregate("id", table="r", ttl=timedelta(days=2), n="count")),
    },
    "w-panes": {
        "evicted when 0:00:01 (length) behind the watermark": (
            lambda: tumbling(WindowAggregate("id", table="r", n="count"))
        ),
        "evicted when 0:00:11 (length and allowed lateness) behind the watermark": (
            lambda: timed(tumbling(WindowAggregate("id", table="r", n="count"))).with_allowed_lateness(
                Duration.seconds(10)
            )
        ),
    },
}


@pytest.mark.parametrize(("state", "kept"), [(state, kept) for state in RETENTION for kept in RETENTION[state]])
def test_the_plan_shows_how_long_each_state_is_kept(state, kept):
    lines = explain(topology(RETENTION[state][kept]())).splitlines()
    (line,) = [one for one in lines if f"state {state}: " in one]
    assert line.endswith(f", {kept}")


@pytest.mark.parametrize(("timestamps", "warned"), [(False, True), (True, False)])
def test_windows_of_processing_time_in_a_run_that_ends_by_itself_are_warned_about(tmp_path, caplog, timestamps, warned):
    bolt = Report().with_tumbling_window(Duration.seconds(1))
    if timestamps:
        bolt.with_timestamp_field("ts")
    builder = TransactionalTopologyBuilder("t", "numbers", MemoryTransactionalSpout([[]], ("id", "ts")))
    builder.set_bolt("w", bolt).global_grouping("numbers")
    run(builder.build_topology(), engine="local", data_dir=tmp_path, available_now=True).awaitTermination(60)
    assert ("w has processing-time windows" in caplog.text) is warned


def test_durations_show_themselves_as_they_are_written():
    shown = [Duration(1500), Duration.seconds(90), Duration.minutes(2), Duration.of(timedelta(days=2)), Count.of(3)]
    assert str(shown) == "[Duration(1500), Duration.seconds(90), Duration.minutes(2), Duration.days(2), Count(3)]"
    assert Duration.hours(24) == Duration.days(1) and Duration.milliseconds(5) == Duration(timedelta(milliseconds=5))
