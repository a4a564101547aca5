"""Random schedules of window aggregates on tables, with failures, replays, restarts and rescaling, against a model (U3, U5).

``SEED=n`` starts with that schedule; a failure names the seed of its schedule. ``AGGREGATE_SCHEDULES`` is the number of
them.
"""

import os
import random
from collections import Counter
from datetime import timedelta
from functools import partial

import pytest
from aggregate_model import INF, AggregateModel, AggregateRules
from window_bolts import Emitting
from window_schedules import FedSchedule, beside, duration, micros, run_seeds, time

from txstorm import TopPerWindow, TransactionalTopologyBuilder, WindowAggregate
from txstorm.results.views import DeadLettersView
from txstorm.results.windowed_components import component_windows
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver
from txstorm.windows.rules.event_time import END, instant

FIRST, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("AGGREGATE_SCHEDULES", "8"))
LARGE = (None, 1, -5, 1 << 53, 1 << 62, (1 << 63) - 1, (1 << 63) - 1, -(1 << 63), 1 - (1 << 63), (1 << 60) + 1)
FIELDS = ("key", "at", "id", "value")


def some_rules(rng):
    rules = AggregateRules(rng.choice([1, 2, 3, 5, 8, 10, 20]), rng.choice([1, 2, 3, 5, 10]))
    if rng.random() < 0.4:
        gap, more = rng.choice([1, 3, 8]), rng.choice([0, 0, 4])
        rules.length = rules.slide = None
        rules.gap = lambda id: gap + more * (id % 3)
    rules.processing_time = rng.random() < 0.2
    if not rules.processing_time:
        rules.lateness, rules.lag = rng.choice([0, 0, 4, 15]), rng.choice([0, 0, 3, 10])
        rules.inputs = rng.choice([1, 1, 2])
    rules.large = rng.random() < 0.3
    rules.closed = "right" if rules.gap else beside(rng).choice(["right", "left"])
    return rules


def schedule(rng, rules):
    """Yield stamp, rows (key, time, id, value, input) and whether the input ends."""
    stamp, now, id, length = rng.randrange(50), rng.randrange(-30, 60), 0, rng.randrange(3, 10)
    for number in range(length):
        stamp += rng.choice([0, 1, 3, 10])
        now += rng.choice([0, 1, 4, 15, 40])
        rows = []
        for _ in range(rng.choice([0, 1, 3, 8, 20])):
            id += 1
            value = rng.choice(LARGE if rules.large else [None, *range(5)])
            rows.append((rng.choice("abc"), now - rng.randrange(25), id, value, rng.randrange(rules.inputs)))
        yield stamp, rows, number == length - 1 and rng.random() < 0.6


def names_of(seed):
    """Draw what start and end are called."""
    return (None, {"end": "until"}, {"start": "end", "end": "field"})[seed % 3]


def bolt_of(rules, seed):
    rng = random.Random(seed)
    value = ("value", "sum")
    bolt = WindowAggregate(
        "key", table="results", ttl=timedelta(days=1), retractions=True, n="count", total=value, low=("value", "min"),
        high=("value", "max"), mean=({"value": int}, "mean"), first=("id", "first"), last=("id", "last"),
        top=("id", "argmax", {"value": int}), names=names_of(seed),
    )  # fmt: skip
    if rules.gap is None:
        bolt.with_window(duration(rules.length), duration(rules.slide), closed=rules.closed)
    else:
        gap = rules.gap
        fixed = all(gap(0) == gap(id) for id in range(3))
        bolt.with_session_window(duration(gap(0)) if fixed else lambda one: duration(gap(one["id"])))
    if not rules.processing_time:
        bolt.with_timestamp_field("at").with_lag(duration(rules.lag)).with_allowed_lateness(duration(rules.lateness))
        if rng.random() < 0.5:
            bolt.with_late_tuple_stream("late")
    return bolt


def down_closed(seed):
    """Draw the side on which the windows over the results are closed."""
    return ("right", "left")[seed // 2 % 2]


def topology_of(rules, seed, tasks, limit="none"):
    streams = {f"s{i}": FIELDS for i in range(rules.inputs)}
    opaque = random.Random(seed).random() < 0.5 and not rules.large
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout(streams, opaque=opaque))
    declarer = builder.set_bolt("w", bolt_of(rules, seed), tasks)
    for stream in streams:
        declarer.fields_grouping("feed", stream, ["key"])
    end = (names_of(seed) or {}).get("end", "end")
    builder.set_bolt("top", TopPerWindow(2, "total"), tasks).fields_grouping("w", [end])
    down = Emitting("end n", lambda window: (micros(window.end), len(window.get()))).with_timestamp_field(end)
    down.with_tumbling_window(duration(10), closed=down_closed(seed))
    builder.set_bolt("down", down, 2).fields_grouping("w", ["key"])
    policy = "dead_letter" if rules.large else "fail_topology"  # of sums beyond 64 bits
    settings = {"retry_backoff": 0, "on_error": policy, "max_ends_per_txid": limit}
    return builder.set_settings(settings).build_topology()


def results_in(driver, txid, stream="default", component="w"):
    return [(key, micros(a), micros(b), *more) for key, a, b, *more in driver.emitted(component, txid, stream=stream)]


def shift_of(rules, seed):
    """Return what is taken from ends: 1 µs if they open the windows that follow, but not the windows that read them."""
    return 1 if (rules.closed, down_closed(seed)) == ("left", "right") else 0


def check_counts(driver, rules, seed, results):
    """Check the windows of 10 µs over results: they have those of whole windows within them, for each convention."""
    counts = Counter()
    for end, n in driver.emitted("down"):
        counts[end] += n
    assert counts == Counter(-(-(row[2] - shift_of(rules, seed)) // 10) * 10 for row in results), f"SEED={seed}"


def top_of(kept, n=2):
    """Return the rows of `kept` with the `n` highest ranks per window by total, with their rank."""
    ranked = [(one, [o[4] for o in kept if o[1:3] == one[1:3] and o[4] is not None]) for one in kept]
    ranks = {one: 1 + sum(total > one[4] for total in totals) for one, totals in ranked if one[4] is not None}
    return {(*one, rank) for one, rank in ranks.items() if rank <= n}


def test_random_schedules_emit_and_keep_what_the_model_says(tmp_path):
    run_seeds(run_schedule, range(FIRST, FIRST + SCHEDULES), tmp_path)


@pytest.mark.long
def test_many_random_schedules_emit_and_keep_what_the_model_says(tmp_path):
    run_seeds(run_schedule, range(FIRST + SCHEDULES, FIRST + 30 * SCHEDULES), tmp_path)
    run_seeds(run_limited, range(FIRST + 2 * SCHEDULES, FIRST + 6 * SCHEDULES), tmp_path)


def streams(rules, rows):
    return {
        f"s{i}": [(key, time(t), id, value) for key, t, id, value, n in rows if n == i] for i in range(rules.inputs)
    }


def run_schedule(seed, directory):
    rng = random.Random(seed)
    rules = some_rules(rng)
    model, kept, without = AggregateModel(rules), {}, 0

    def rescaled():
        return topology_of(rules, seed, rng.choice([1, 2, 3]))

    topology = rescaled()
    has_late = "late" in topology.component("w").streams
    with TopologyTestDriver(topology, data_dir=directory, clock=ManualClock(time(-100))) as driver:
        fed = FedSchedule(driver, rng, partial(streams, rules), number=4, id=2, rescaled=rescaled)
        for stamp, rows, end in schedule(rng, rules):
            txid, rows = fed.commit(stamp, rows, end=end)
            late, old, new = model.transaction(txid, stamp, rows, end)
            where = f"SEED={seed}, txid {txid}, {rules}, watermark {model.w}"
            in_order = sorted(results_in(driver, txid), key=lambda row: (row[2], row[0]))
            assert in_order == new, where
            assert sorted(results_in(driver, txid, "retractions")) == sorted(old), where
            without += model.without
            assert not rules.large or len(DeadLettersView(driver.data_dir).to_pylist()) == without, where
            if has_late:
                assert sorted(one[2] for one in driver.emitted("w", txid, stream="late")) == sorted(
                    r.id for r in late
                ), where
            before = top_of(kept.values())
            for row in old:
                del kept[row[0], row[2]]
            kept |= {(row[0], row[2]): row for row in new}
            after = top_of(kept.values())
            assert set(results_in(driver, txid, component="top")) == after - before, where
            if rules.lateness:
                assert set(results_in(driver, txid, "retractions", "top")) == before - after, where
            at = None if model.w is None else model.w - rules.lateness - shift_of(rules, seed)
            frontier = None if at is None else instant(END if model.w == INF else at)
            assert driver.watermark("down") == frontier, where
        bounds = [(names_of(seed) or {}).get(name, name) for name in ("start", "end")]
        stored = [
            (row["key"], *(micros(row[bound]) for bound in bounds), *(row[name] for name in OUTPUTS))
            for row in driver.state("results").to_pylist()
        ]
        assert sorted(stored) == sorted(kept.values()), f"SEED={seed}"
        assert driver.late("down") == [], f"SEED={seed}"
        if end:
            check_counts(driver, rules, seed, results_in(driver, None))


def test_a_limit_of_ends_per_transaction_changes_no_result_and_no_order(tmp_path):
    run_seeds(run_limited, range(FIRST + SCHEDULES, FIRST + 2 * SCHEDULES), tmp_path)


@pytest.mark.parametrize("limit", [1, "none"])
def test_a_row_behind_the_watermark_is_in_no_window_that_waits(limit):
    """The watermark 45 has passed the end 40, whether it has fired or not: of the row at 35, only the end at 50 counts."""
    rules = AggregateRules(20, 10)
    with TopologyTestDriver(topology_of(rules, 0, 2, limit), clock=ManualClock(time(-100))) as driver:
        for times in ((5, 31, 45), (35,)):
            rows = [("k", time(t), t, 1) for t in times]
            driver.commit(driver.feed({"s0": rows}, at=time(0)))
        driver.commit(driver.end_of_input(at=time(0)))
        while component_windows(driver.data_dir, "w").waiting:
            driver.commit(driver.end_of_input(at=time(0)))
        assert [row[2:4] for row in results_in(driver, None)] == [(10, 1), (20, 1), (40, 1), (50, 3), (60, 1)]


def run_limited(seed, directory):
    """Further transactions fire the rest; windows over the results wait for them, also at the end of input.

    After thirty of them at the end, the limit is lifted by a restart.
    """
    rng = random.Random(seed)
    rules = some_rules(rng)
    rules.lateness, rules.large = 0, False

    def rescaled():
        return topology_of(rules, seed, rng.choice([1, 2, 3]), rng.choice([1, 7, "none"]))

    def commit(rows, end):
        txid, rows = fed.commit(stamp, rows, end=end)
        got.extend(sorted(results_in(driver, txid), key=lambda row: (row[2], row[0])))
        return txid, rows

    def waiting():
        return any(component_windows(directory, one).waiting for one in ("w", "down"))

    model, expected, got = AggregateModel(rules), [], []
    with TopologyTestDriver(rescaled(), data_dir=directory, clock=ManualClock(time(-100))) as driver:
        fed = FedSchedule(driver, rng, partial(streams, rules), number=4, id=2, rescaled=rescaled)
        for stamp, rows, end in schedule(rng, rules):
            txid, rows = commit(rows, end)
            expected += model.transaction(txid, stamp, rows, end)[2]
            left = 30 if end else rng.choice([0, 0, 1, 5])
            while left and waiting():
                left -= 1
                commit([], end)
            assert got == expected[: len(got)], f"SEED={seed}, txid {txid}, {rules}"
        if end:
            fed.rescaled = lambda: topology_of(rules, seed, 2)
            driver.restart(fed.rescaled())
            while waiting():
                commit([], end)
            assert got == expected
            check_counts(driver, rules, seed, got)
        assert driver.late("down") == []


OUTPUTS = ("n", "total", "low", "high", "mean", "first", "last", "top")
