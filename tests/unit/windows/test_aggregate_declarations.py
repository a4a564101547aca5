"""Wrong declarations of window aggregates (U8): one clear error each, at the call or when the topology is built."""

from datetime import timedelta
from decimal import Decimal

import pytest
from runs import ended

from txstorm import Count, Duration, TopPerWindow, TransactionalTopologyBuilder, WindowAggregate
from txstorm.errors import InputError, TopologyError, TopologyFailed
from txstorm.spouts import FileSpout
from txstorm.testing import FeedSpout, TopologyTestDriver

SECOND = Duration.seconds(1)
WEEK = timedelta(days=7)


def made(**aggregates):
    return WindowAggregate("k", table="r", ttl=WEEK, **(aggregates or {"n": "count"}))


def tumbling(**aggregates):
    return made(**aggregates).with_tumbling_window(SECOND).with_timestamp_field("ts")


CALLS = {
    "no key": (lambda: WindowAggregate([], table="r", n="count"), "expected at least one field as the key"),
    "a key of another kind": (lambda: WindowAggregate(1, table="r", n="count"), "key: expected a field"),
    "a key field twice": (lambda: WindowAggregate(["a", "a"], table="r", n="count"), "expected different fields"),
    "a float as key": (lambda: WindowAggregate({"a": float}, table="r", n="count"), "key field 'a' cannot be double"),
    "an unknown type": (lambda: WindowAggregate({"a": object}, table="r", n="count"), "unknown type <class 'object'>"),
    "a bad table": (lambda: WindowAggregate("k", table="1", n="count"), "WindowAggregate: table '1'"),
    "a ttl without a table": (lambda: WindowAggregate("k", ttl=WEEK, n="count"), "ttl is for stored results"),
    "retractions without a table": (lambda: WindowAggregate("k", retractions=True, n="count"), "retractions is for"),
    "no aggregate": (lambda: WindowAggregate("k", table="r"), "expected at least one aggregate"),
    "a ttl of 0": (lambda: WindowAggregate("k", table="r", ttl=timedelta(0), n="count"), "ttl: expected a positive"),
    "an unknown way": (lambda: made(n=("v", "median")), r"n=\('v', 'median'\): expected 'count', \(field, way\)"),
    "a way without a field": (lambda: made(n="sum"), "n='sum': expected 'count'"),
    "argmax of one field": (lambda: made(n=("v", "argmax")), "expected 'count'"),
    "a sum of three": (lambda: made(n=("v", "sum", "w")), "expected 'count'"),
    "no field": (lambda: made(n=(1, "sum")), "n: expected one field, a name or {name: type}, got 1"),
    "two fields": (lambda: made(n=({"a": int, "b": int}, "sum")), "n: expected one field"),
    "a sum of text": (lambda: made(n=({"v": str}, "sum")), "string values have no sum; declare a number"),
    "the output field start": (lambda: made(start="count"), "the output has two fields 'start'"),
    "an output like the key": (lambda: made(k="count"), "the output has two fields 'k'"),
    "a reserved name": (lambda: made(window_n="count"), "'window_n' starts with 'window_'"),
    "a lateness that is a number": (lambda: made().with_allowed_lateness(5), "with_allowed_lateness: expected a Durat"),
    "a top of 0": (lambda: TopPerWindow(0, "n"), "TopPerWindow: expected a number of ranks, .* got 0"),
    "a top by the end": (lambda: TopPerWindow(1, "end"), "TopPerWindow: expected the name of a field"),
    "names as an aggregate": (lambda: made(n="count", names="count"), "names: expected a mapping .*, got 'count'"),
    "a name of another column": (lambda: made(n="count", names={"ends": "e"}), "got 'ends' .did you mean 'end'"),
    "a name like the key": (lambda: made(n="count", names={"end": "k"}), "two fields 'k'; .* start and end with names"),
    "both names alike": (lambda: made(n="count", names={"end": "start"}), "start and end are both called 'start'"),
    "a name that is none": (lambda: TopPerWindow(1, "n", names={"end": ""}), "names: field '' is not a non-empty"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_at_the_call(name):
    call, message = CALLS[name]
    with pytest.raises(InputError, match=message):
        call()


def built(bolt, *, group=("k",), tasks=1, top=None, streams=("s1",)):
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout(dict.fromkeys(streams, ("k", "j", "v", "ts"))))
    declarer = builder.set_bolt("w", bolt, tasks)
    for number, stream in enumerate(streams):
        if group is None:
            declarer.shuffle_grouping("feed", stream)
        else:
            declarer.fields_grouping("feed", stream, [group[number % len(group)]])
    if top is not None:
        builder.set_bolt("top", top, tasks).fields_grouping("w", ["k"])
    return builder.build_topology()


def two_keys():
    return WindowAggregate(["k", "j"], table="r", ttl=WEEK, n="count").with_tumbling_window(SECOND)


BUILDS = {
    "no windows": (lambda: built(made()), "it declares no windows"),
    "windows of a number of tuples": (
        lambda: built(made().with_tumbling_window(Count(3))),
        "WindowAggregate needs a duration for length and slide, or sessions",
    ),
    "lateness with counts": (
        lambda: built(made().with_window(Count(3), SECOND).with_timestamp_field("ts").with_allowed_lateness(SECOND)),
        "so it cannot have an allowed lateness either",
    ),
    "lateness without timestamps": (
        lambda: built(made().with_tumbling_window(SECOND).with_allowed_lateness(SECOND)),
        "with_allowed_lateness needs timestamps",
    ),
    "lateness without a table": (
        lambda: built(
            WindowAggregate("k", n="count")
            .with_tumbling_window(SECOND)
            .with_timestamp_field("ts")
            .with_allowed_lateness(SECOND)
        ),
        "results that change are replaced where they are stored; give a table",
    ),
    "a late stream without timestamps": (
        lambda: built(made().with_tumbling_window(SECOND).with_late_tuple_stream("late")),
        "with_late_tuple_stream needs timestamps",
    ),
    "a second key": (lambda: built(tumbling().with_key("k")), "with_key is not for a WindowAggregate: the key is the"),
    "early results": (lambda: built(tumbling().with_early_results(SECOND)), "with_early_results is not for"),
    "a late stream that has results": (
        lambda: built(tumbling().with_late_tuple_stream("retractions")),
        "the stream 'retractions' has results",
    ),
    "an unknown field": (lambda: built(tumbling(s=("w", "sum"))), "s: stream 's1' of 'feed' has no field 'w'"),
    "an unknown key": (
        lambda: built(WindowAggregate("key", table="r", n="count").with_tumbling_window(SECOND)),
        "key: stream 's1' of 'feed' has no field 'key'",
    ),
    "a key in two tasks": (
        lambda: built(tumbling(), group=None, tasks=2),
        "two tasks may get tuples of one key; use fields_grouping",
    ),
    "a key grouped by another field": (lambda: built(tumbling(), group=("v",), tasks=2), "is grouped by fields v, so"),
    "inputs grouped differently": (
        lambda: built(two_keys(), group=("k", "j"), tasks=2, streams=("s1", "s2")),
        "is grouped by fields j, another one by k",
    ),
    "a top by an unknown field": (lambda: built(tumbling(), top=TopPerWindow(1, "m")), "has no field 'm'"),
    "a top with other names": (
        lambda: built(tumbling(n="count", names={"end": "e"}), top=TopPerWindow(1, "n", {"end": "f"})),
        "names: its input calls the bounds of windows 'start' and 'e' itself",
    ),
    "a top by a renamed end": (
        lambda: built(tumbling(n="count", names={"end": "e"}), top=TopPerWindow(1, "e")),
        "'e' is a bound of the windows",
    ),
    "a top of a window in two tasks": (
        lambda: built(tumbling(), tasks=2, top=TopPerWindow(1, "n")),
        "two tasks may get results of one window",
    ),
    "a top of results that change": (
        lambda: built(tumbling().with_allowed_lateness(SECOND), top=TopPerWindow(1, "n")),
        "let it report which: WindowAggregate.…, retractions=True.",
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_wrong_declaration_is_refused_when_the_topology_is_built(name):
    build, message = BUILDS[name]
    with pytest.raises(TopologyError, match=message):
        build()


def test_results_without_a_time_to_live_are_a_warning():
    bolt = WindowAggregate("k", table="r", n="count").with_tumbling_window(SECOND).with_timestamp_field("ts")
    assert any("the results in 'r' are kept forever; give a ttl" in warning for warning in built(bolt).warnings)
    assert not built(tumbling()).warnings


@pytest.mark.parametrize(
    ("ts", "message"), [(None, "got None"), ("now", "got str 'now'"), (1 << 60, "outside the years")]
)
def test_a_bad_timestamp_names_component_and_tuple(ts, message):
    with TopologyTestDriver(built(tumbling())) as driver, pytest.raises(TopologyFailed, match=f"'ts' of .*{message}"):
        driver.commit(driver.feed({"s1": [("a", "j", 1, ts)]}))


def test_a_bad_tuple_is_left_out_where_the_policy_says_so():
    with TopologyTestDriver(built(tumbling()), settings={"on_error": "dead_letter"}) as driver:
        driver.commit(driver.feed({"s1": [("a", "j", 1, 5), ("a", "j", 1, None), ("a", "j", 1, 6)]}))
        driver.commit(driver.end_of_input())
        assert [row[-1] for row in driver.emitted("w")] == [2]


@pytest.mark.parametrize("way", ["min", "max", "first", "last", "sum"])
def test_single_values_have_the_type_of_their_input_where_that_is_known(way, tmp_path):
    (tmp_path / "in.csv").write_text("k,v,ts\na,1.5,1000\n")

    def total(kind, field="v"):
        spout = FileSpout(tmp_path / "in.csv", types={"v": kind, "ts": int}, bounded=True)
        builder = TransactionalTopologyBuilder("t", "file", spout)
        builder.set_bolt("w", tumbling(a=(field, way))).fields_grouping("file", ["k"])
        handle = ended(builder.build_topology(), tmp_path / f"{kind}", end_of_input=True)
        return [row["a"] for row in handle.state("r").to_pylist()]

    if way == "sum":  # of a number, an int unless declared
        with pytest.raises(TopologyError, match="field 'v' of 'file' has the type double, but is taken as int64"):
            total(float)
        return
    assert (total(float), total(str), total(Decimal)) == ([1.5], ["1.5"], [Decimal("1.5")])
    with pytest.raises(TopologyError, match=r"but is taken as int64; declare it: \{'v': str\}"):
        total(str, {"v": int})
