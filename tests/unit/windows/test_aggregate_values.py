"""Values of window aggregates: types, nulls, NaN, ties, sums beyond 64 bits, and sessions of many keys at once."""

import json
import os
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from txstorm import Duration, TopPerWindow, TransactionalTopologyBuilder, WindowAggregate, snapshot
from txstorm.errors import TopologyFailed
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver
from txstorm.windows.aggregates.cells import TUPLES, Cells, aggregate_of, key_fields
from txstorm.windows.aggregates.panes import PANE, WINDOW_END, WINDOW_START, Panes
from txstorm.windows.aggregates.sessions import Sessions, live
from txstorm.windows.aggregates.top import window_ranks
from txstorm.windows.rules.forms import BOUNDS

FIRST = int(os.environ.get("SEED", "0"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEK = timedelta(days=7)


def aggregated(rows, key="k", **aggregates):
    """Return the values of each key, of rows (k, v, ts) in one window, fed as two transactions and closed by a third."""
    bolt = WindowAggregate(key, table="r", ttl=WEEK, **aggregates)
    bolt.with_tumbling_window(Duration(10)).with_timestamp_field("ts")
    with driver_of(bolt, ("k", "v", "ts")) as driver:
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            driver.commit(driver.feed({"s1": part}))
        txid = driver.end_of_input()
        driver.commit(txid)
        return {row[0]: row[3:] for row in driver.emitted("w", txid)}


def counts(key="k", *, timed=True, **options):
    """Return a bolt that counts the tuples of each key, with timestamps if `timed`."""
    bolt = WindowAggregate(key, **{"table": "r", "ttl": WEEK, "n": "count", **options})
    return bolt.with_timestamp_field("ts") if timed else bolt


def driver_of(bolt, fields=("k", "ts"), settings=None, **options):
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"s1": fields}))
    builder.set_bolt("w", bolt).fields_grouping("feed", "s1", ["k"])
    builder.set_settings({"retry_backoff": 0, **(settings or {})})
    return TopologyTestDriver(builder.build_topology(), clock=ManualClock(EPOCH), **options)


def numbers(driver):
    return [row[-1] for row in driver.emitted("w")]


TYPES = {
    "int": (int, [3, None, -5, 9], -5, 9),
    "float": (float, [1.5, float("nan"), None, -2.0], -2.0, 1.5),
    "str": (str, ["b", "aa", None, "b"], "aa", "b"),
    "bytes": (bytes, [b"x", None, b"", b"y"], b"", b"y"),
    "bool": (bool, [True, None, False, True], False, True),
    "date": (date, [date(2024, 1, 2), None, date(1999, 1, 1), date(2024, 1, 1)], date(1999, 1, 1), date(2024, 1, 2)),
    "datetime": (datetime, [EPOCH, None, EPOCH - WEEK, EPOCH], EPOCH - WEEK, EPOCH),
    "Decimal": (Decimal, [Decimal("1.10"), None, Decimal("-3"), Decimal("1.2")], Decimal(-3), Decimal("1.2")),
    "only None": (int, [None, None, None, None], None, None),
}


@pytest.mark.parametrize("name", TYPES)
def test_single_values_of_every_type(name):
    """Minimum and maximum ignore None and NaN; first and last are by time, and keep None."""
    kind, values, low, high = TYPES[name]
    rows = [("a", value, time) for time, value in enumerate(values, 1)]
    random.Random(1).shuffle(rows)
    found = aggregated(rows, **{way: ({"v": kind}, way) for way in ("min", "max", "first", "last")})
    assert found == {"a": (low, high, values[0], values[-1])}


def test_ties_and_nulls_are_decided_and_sums_and_means_exact():
    rows = [("a", value, 5) for value in (1, 2, 3, 4)]
    assert aggregated(rows, first=("v", "first"), last=("v", "last")) == {"a": (1, 4)}
    rows = [("a", 7, 9), ("a", 7, 2), ("b", None, 3), ("a", 7, 2), ("a", 1, 1)]
    bolt = aggregated(rows, top=({"ts": int}, "argmax", "v"), other=({"ts": int}, "argmax", {"v": int}))
    assert bolt == {"a": (2, 2), "b": (None, None)}
    zeros = [("a", 0.0, 3), ("a", -0.0, 2), ("a", -1.0, 1), ("a", -1.0, 1)]
    assert aggregated(zeros, top=({"ts": int}, "argmax", {"v": float})) == {"a": (2,)}
    table = pa.table({"start": [0, 0, 0], "end": [1, 1, 1], "v": [-0.0, 0.0, -1.0]})
    assert window_ranks(table, "v", BOUNDS).tolist() == [1, 1, 3]
    rows = [("a", Decimal("0.1"), 1), ("a", Decimal("0.2"), 2), ("a", None, 3), ("b", None, 3)]
    found = aggregated(rows, total=({"v": Decimal}, "sum"), mean=({"v": Decimal}, "mean"), n="count")
    assert found == {"a": (Decimal("0.3"), pytest.approx(0.15), 3), "b": (None, None, 1)}
    rows = [("a", (1 << 53) + 1, 1), ("a", 1, 2), ("a", -(1 << 62), 3), ("a", 1 << 62, 4)]
    assert aggregated(rows, total=("v", "sum")) == {"a": ((1 << 53) + 2,)}


MOST = (1 << 63) - 1
EXACT_SUMS = {
    "an int in between beyond 64 bits": (int, [MOST, 1, -5, MOST, -MOST], "sum", MOST - 4),
    "a decimal beyond 38 digits": (Decimal, [Decimal("9e19")] * 3 + [Decimal("-9e19")] * 2, "sum", Decimal("9e19")),
    "small ints": (pa.int8(), [100, 100, -100, 27], "sum", 127),
    "mean of whole floats": (float, [2.0**53, 1.0, 1.0], "mean", ((1 << 53) + 2) / 3),
    "mean of a sum that is no float": (float, [2.0**53 - 1, 1.0, 1.0], "mean", 3002399751580331.0),
    "mean of ints that are no floats": (int, [(1 << 53) + 1] * 3 + [None, 1], "mean", 6755399441055745.0),
    "mean of ints beyond 64 bits": (int, [MOST, MOST, 3], "mean", (2 * MOST + 3) / 3),
}


@pytest.mark.parametrize("form", ["one batch", "batch by batch", "sessions"])
@pytest.mark.parametrize("name", EXACT_SUMS)
def test_sums_and_means_are_exact_while_their_window_is_open(name, form):
    kind, values, way, expected = EXACT_SUMS[name]
    bolt = WindowAggregate("k", table="r", ttl=WEEK, a=({"v": kind}, way), n="count", m=({"v": kind}, "max"))
    bolt.with_timestamp_field("ts")
    bolt = bolt.with_session_window(Duration(10)) if form == "sessions" else bolt.with_tumbling_window(Duration(100))
    rows = [("a", value, 10 + number) for number, value in enumerate(values)]
    both = [*zip(rows, [("b", *row[1:]) for row in rows[::-1]], strict=True)]  # "b" has them in the reverse order
    with driver_of(bolt, ("k", "v", "ts")) as driver:
        for batch in [sum(both, ())] if form == "one batch" else both:
            driver.commit(driver.feed({"s1": batch}))
        driver.commit(driver.end_of_input())
        most = max(value for value in values if value is not None)
        assert [(a, n, m) for _, _, _, a, n, m in driver.emitted("w")] == [(expected, len(values), most)] * 2


def test_late_tuples_are_counted_and_emitted_once_with_all_their_fields_whatever_their_values():
    bolt = WindowAggregate("k", table="r", ttl=WEEK, a=({"v": int}, "mean"))
    bolt.with_timestamp_field("ts").with_tumbling_window(Duration(10)).with_late_tuple_stream("late")
    with driver_of(bolt, ("k", "v", "ts")) as driver:
        for rows in ([("a", 1, 55)], [("a", (1 << 60) + 1, 1), ("a", (1 << 60) + 1, 56)]):
            driver.commit(driver.feed({"s1": rows}))
        assert [one[1] for one in driver.emitted("w", stream="late")] == [(1 << 60) + 1]
    bolt = counts().with_tumbling_window(Duration(10)).with_late_tuple_stream("$late")  # Storm's name
    with driver_of(bolt, ("k", "v", "ts")) as driver:
        driver.commit(driver.feed({"s1": [("a", "x", 25)]}))
        driver.commit(driver.feed({"s1": [("a", "y", 20), ("a", "z", 21), ("b", "v", 3)]}))
        assert driver.emitted("w", stream="$late") == [("a", "y", 20), ("b", "v", 3)]
        assert [values for *_, values in driver.late("w")] == [("a", "y", 20), ("b", "v", 3)]
        driver.commit(driver.end_of_input())
        assert numbers(driver) == [2]


@pytest.mark.parametrize("form", ["sliding", "sessions"])
def test_a_sum_out_of_range_is_left_out_alone(form):
    bolt = WindowAggregate("k", table="r", ttl=timedelta(days=1), a=({"v": Decimal}, "sum"), n="count")
    bolt.with_timestamp_field("ts")
    bolt = bolt.with_session_window(Duration(3)) if form == "sessions" else bolt.with_tumbling_window(Duration(10))
    rows = [[("a", Decimal("9e19"), 1), ("b", Decimal(1), 1)], [("a", Decimal("9e19"), 2), ("b", Decimal(2), 12)]]
    with driver_of(bolt, ("k", "v", "ts"), settings={"on_error": "dead_letter"}) as driver:
        for batch in rows:
            driver.commit(driver.feed({"s1": batch}))
        driver.commit(driver.end_of_input())
        assert sorted((key, a) for key, _, _, a, _ in driver.emitted("w")) == [("b", 1), ("b", 2)]
        (letter,) = snapshot(driver.data_dir).dead_letters().to_pylist()
        assert (letter["component"], letter["what"]) == ("w", "record")
        assert json.loads(letter["record"])["key"] == '["a"]'
        assert "'a' of the key {'k': 'a'}" in letter["message"]
        assert "the sum exceeds decimal128(38, 18)" in letter["message"]


@pytest.mark.parametrize(
    ("value", "aggregate", "message"),
    [
        (1 << 62, ("v", "sum"), "the sum exceeds int64; declare the field with a type that holds it"),
        (1.5, ("v", "sum"), r"field 'v' has values of type double, .* takes it as int64.*'v': float"),
        ((1 << 60) + 1, ("v", "argmax", "v"), "a value of field 'v' does not fit its type: expected values"),
    ],
    ids=["a sum beyond 64 bits", "another type", "an int that no float can hold"],
)
def test_values_that_do_not_fit_are_errors_instead_of_wrong_numbers(value, aggregate, message):
    with pytest.raises(TopologyFailed, match=message):
        aggregated([("a", value, 1), ("a", value, 2)], a=aggregate)


def test_keys_of_several_fields_and_none():
    rows = [("a", 1, 1), (None, 1, 1), ("a", 2, 1), ("a", 1, 2)]
    with driver_of(counts({"k": str, "v": int}).with_tumbling_window(Duration(10)), ("k", "v", "ts")) as driver:
        driver.commit(driver.feed({"s1": rows}))
        driver.commit(driver.end_of_input())
        found = [(key, v, n) for key, v, _, _, n in driver.emitted("w")]
        assert found == [(None, 1, 1), ("a", 1, 2), ("a", 2, 1)]


def test_results_expire_and_panes_are_evicted():
    bolt = counts(ttl=timedelta(seconds=5)).with_window(Duration.seconds(2), Duration.seconds(1))
    with driver_of(bolt) as driver:
        for second in range(30):
            driver.commit(driver.feed({"s1": [("a", 1000 * second), ("b", 1000 * second)]}, at=1000 * second))
        assert driver.state("r").to_arrow().num_rows <= 12
        assert driver.state("w-panes").to_arrow().num_rows <= 4


def test_rows_of_sessions_that_close_or_grow_for_long_are_few():
    with driver_of(counts().with_session_window(Duration(500))) as driver:
        for second in range(20):
            driver.commit(driver.feed({"s1": [("a", 1000 * second), ("b", 1000 * second)]}))
        assert driver.state("r").to_arrow().num_rows == 38
        assert driver.state("w-sessions").to_arrow().num_rows == 2
        assert driver.state("w-due").to_arrow().num_rows == 2
    with driver_of(counts().with_session_window(Duration.hours(1))) as driver:
        most = 0
        for second in range(40):
            driver.commit(driver.feed({"s1": [("a", 1000 * second), ("b", 1000 * (second // 20))]}))
            most = max(most, driver.state("w-sessions").to_arrow().num_rows)
        assert most < 40
        assert driver.state("w-due").to_arrow().num_rows == 2
        driver.commit(driver.end_of_input())
        assert sorted(numbers(driver)) == [40, 40]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 60))
def test_windows_that_fire_together_are_those_that_fire_one_by_one(seed):
    draw = np.random.default_rng(seed)
    declared = {"n": "count", "s": ("v", "sum"), "low": ("v", "min"), "f": ("v", "first"), "l": ("v", "last"),
                "a": ("v", "argmax", {"v": int}), "m": ({"v": float}, "sum")}  # fmt: skip
    names = draw.choice(list(declared), 4, replace=False)
    cells = Cells(key_fields({"k": int}), tuple(aggregate_of(name, declared[name]) for name in names))
    panes = Panes(int(draw.integers(1, 12)), int(draw.integers(1, 4)))
    rows = int(draw.integers(1, 80))
    times = draw.integers(0, 40, rows)
    batch = pa.table({"k": draw.integers(0, 4, rows), "v": draw.integers(-9, 9, rows)})
    table = cells.of_batch(batch, times, "here")[0].append_column(PANE, pa.array(panes.of(times)))
    low, high = (int(end) for end in np.sort(draw.integers(0, 30, 2)) // panes.step * panes.step)
    columns = [WINDOW_END, "k", *(name for name in cells.columns if name != "k")]
    together = panes.windows(cells, table, low, high).select(columns).to_pylist()
    single = [panes.windows(cells, table, end, end) for end in range(low, high + 1, panes.step)]
    one_by_one = pa.concat_tables(single).select(columns).to_pylist()
    assert sorted(map(str, together)) == sorted(map(str, one_by_one)), f"SEED={seed}"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 100))
def test_sessions_that_have_become_part_of_others_are_not_live(seed):
    draw = random.Random(seed)
    stored, live_now = [], {}
    for arrival in range(draw.randint(1, 30)):
        key, start = draw.randint(0, 2), draw.randint(0, 40)
        low, high = start, start + draw.randint(1, 6)
        joined = [one for one in live_now.get(key, []) if one[0] < high and low < one[1]]
        while joined:
            low, high = min(low, *(one[0] for one in joined)), max(high, *(one[1] for one in joined))
            live_now[key] = [one for one in live_now[key] if one not in joined]
            joined = [one for one in live_now[key] if one[0] < high and low < one[1]]
        live_now.setdefault(key, []).append((low, high, arrival))
        stored.append((key, high, arrival, low))
    stored.sort()
    keys, ends, arrivals, starts = (np.array(column) for column in zip(*stored, strict=True))
    wide = draw.choice([1, 1 << 55])
    alive = live(keys, starts * wide, ends * wide)
    expected = {one[2] for sessions in live_now.values() for one in sessions}
    assert set(arrivals[alive].tolist()) == expected, f"SEED={seed}"


def test_windows_and_sessions_of_processing_time_fire_by_heartbeats():
    settings = {"heartbeat_interval": 0.1}
    with driver_of(counts(timed=False).with_tumbling_window(Duration(1000)), ("k",), settings=settings) as driver:
        driver.commit(driver.feed({"s1": [("a",), ("a",)]}, at=100))
        assert driver.emitted("w") == []
        driver.advance(2)
        driver.commit()
        assert numbers(driver) == [2]
    with driver_of(counts(timed=False).with_session_window(Duration(1000)), ("k",), settings=settings) as driver:
        driver.commit(driver.feed({"s1": [("a",)]}, at=100))
        driver.commit(driver.feed({"s1": [("a",)]}, at=900))
        driver.advance(0.5)
        assert driver.active == {}
        driver.advance(2)
        driver.commit()
        assert [(end - EPOCH, n) for *_, end, n in driver.emitted("w")] == [(timedelta(seconds=1.9), 2)]


@pytest.mark.parametrize("sessions", [False, True])
def test_late_tuples_are_listed_without_a_stream_for_them(sessions):
    bolt = counts().with_session_window(Duration(2)) if sessions else counts().with_tumbling_window(Duration(10))
    with driver_of(bolt, ("k", "v", "ts")) as driver:
        driver.commit(driver.feed({"s1": [("a", "x", 25), ("b", "x", 24)]}))
        failed = driver.feed({"s1": [("a", "y", 3), ("a", "z", 26), ("b", "v", 4)]})
        driver.fail(failed)
        assert driver.late("w") == []
        driver.commit(failed)
        instants = [EPOCH + timedelta(milliseconds=at) for at in (3, 4, 25)]
        assert driver.late("w") == [
            (2, ("feed", "s1"), instants[0], instants[2], ("a", "y", 3)),
            (2, ("feed", "s1"), instants[1], instants[2], ("b", "v", 4)),
        ]


def ranked(counted, tasks, top, top_tasks):
    """Return a driver of a topology that counts the tuples of each key and ranks the counts."""
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"s1": ("k", "ts")}))
    builder.set_bolt("w", counted.with_tumbling_window(Duration(10)), tasks).fields_grouping("feed", "s1", ["k"])
    builder.set_bolt("top", TopPerWindow(top, "n"), top_tasks).global_grouping("w")
    return TopologyTestDriver(builder.build_topology(), clock=ManualClock(EPOCH))


def test_equal_ranks_are_all_among_the_top_and_changed_results_are_ranked_again():
    with ranked(counts(), 1, 2, 1) as driver:
        driver.commit(driver.feed({"s1": [(key, 5) for key in "aabbcde"] + [("e", 15)]}))
        driver.commit(driver.end_of_input())
        found = [(key, n, rank) for key, _, _, n, rank in driver.emitted("top")]
        assert found == [("a", 2, 1), ("b", 2, 1), ("e", 1, 1)]
    with ranked(counts(retractions=True).with_allowed_lateness(Duration(100)), 2, 1, 3) as driver:
        driver.commit(driver.feed({"s1": [(key, 5) for key in "aab"] + [("c", 15)]}))
        driver.commit(driver.feed({"s1": [("b", 5), ("b", 6)]}))
        assert [(row[0], *row[3:]) for row in driver.emitted("top", stream="retractions")] == [("a", 2, 1)]
        assert [(row[0], *row[3:]) for row in driver.emitted("top", 2)] == [("b", 3, 1)]


@pytest.mark.parametrize("sessions", [False, True])
def test_results_without_a_table_are_emitted_but_not_kept(sessions):
    emitted, tables = [], []
    for table in ("r", None):
        bolt = counts(table=table, ttl=None)
        bolt = bolt.with_session_window(Duration(3)) if sessions else bolt.with_window(Duration(10), Duration(5))
        with driver_of(bolt) as driver:
            driver.commit(driver.feed({"s1": [("a", 1), ("b", 2), ("a", 14)]}))
            driver.commit(driver.feed({"s1": [("a", 3), ("b", 31)]}))
            driver.commit(driver.end_of_input())
            emitted.append(driver.emitted("w"))
            tables.append({one.name for states in driver.topology.states.values() for one in states})
    assert len(emitted[0]) >= 4
    assert emitted[0] == emitted[1]
    assert tables[0] - tables[1] == {"r"}


@pytest.mark.parametrize("part", range(4))
def test_sessions_of_many_keys_are_those_of_a_loop(part):
    cells = Cells(key_fields("k"), (aggregate_of("n", "count"),))
    for seed in range(FIRST + part * 100, FIRST + part * 100 + 100):
        rng = random.Random(seed)
        rows = [
            (rng.choice("abc"), start := rng.randrange(40), start + rng.randrange(1, 6))
            for _ in range(rng.randrange(25))
        ]
        expected = []
        for key, start, end in sorted(rows):
            if expected and expected[-1][0] == key and start < expected[-1][2]:
                last = expected[-1]
                expected[-1] = (key, last[1], max(end, last[2]), last[3] + 1)
            else:
                expected.append((key, start, end, 1))
        keys, starts, ends = zip(*rows, strict=True) if rows else ((), (), ())
        table = pa.table({
            WINDOW_START: pa.array(starts, pa.int64()), WINDOW_END: pa.array(ends, pa.int64()),
            "k": pa.array(keys, pa.string()), TUPLES: pa.array([1] * len(rows), pa.int64()),
        })  # fmt: skip
        sessions = Sessions.of(cells, table)
        found = sessions.table(cells)[0].select(["k", WINDOW_START, WINDOW_END, TUPLES])
        assert sorted(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected, f"SEED={seed}"


@pytest.mark.parametrize(("span", "step"), [(10, 2), (10, 3), (10, 10), (3, 10), (7, 14), (1, 1), (4, 6)])
def test_panes_are_in_the_windows_that_cover_their_times(span, step):
    panes = Panes(span, step, lateness=3)
    for time in range(-30, 30):
        pane = panes.of(np.array([time]))
        first, last = int(panes.first_ends(pane)[0]), int(panes.last_ends(pane)[0])
        ends = [end for end in range(-90, 90, 1) if end % step == 0 and end - span < time <= end]
        assert list(range(first, last + 1, step)) == ends
        for watermark in range(-10, 10):
            needed = bool(ends) and max(ends) + 3 > watermark
            assert (bool(panes.covered(pane)[0]) and int(pane[0]) >= panes.needed(watermark)) == needed


def test_one_row_per_key_and_pane_leaves_the_tasks_of_the_source():
    with driver_of(counts().with_window(Duration(10), Duration(4))) as driver:
        rows = [(key, ts) for key in "ab" for ts in (1, 2, 2, 3, 4) for _ in range(50)]
        driver.commit(driver.feed({"s1": rows}))
        stage = [
            one.values for one in driver.emissions if one.component.startswith("w (from") and one.stream == "default"
        ]
        assert sorted(stage) == [(2000, "a", 150), (2000, "b", 150), (4000, "a", 100), (4000, "b", 100)]


@pytest.mark.parametrize("phase", ["processing", "committing"])
def test_a_pane_of_a_transaction_that_is_replayed_counts_once(phase):
    with driver_of(counts().with_tumbling_window(Duration(10))) as driver:
        txid = driver.feed({"s1": [("a", 1), ("a", 2)]})
        if phase == "committing":
            driver.ack(txid)
        driver.fail(txid)
        driver.commit(txid)
        driver.commit(driver.end_of_input())
        assert numbers(driver) == [2]
