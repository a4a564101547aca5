"""Data delay (A14, A15): what `collect` reports of a consumer, and offsets for a time, against a scan."""

import math
import random

import numpy as np
import pytest
from seeded import seeded

from txstorm.errors import InputError
from txstorm.joins import collect, first_at_or_after

RECORDS = {"r0": [10, 20, 30, 40], "r1": [5, 25, 15, 50]}


def time_of(partition: str, offset: int) -> int:
    return RECORDS[partition][offset]


def test_consumed_time_is_the_greatest_so_far_of_the_slowest_partition():
    """A14, A15: everything before the least time of the partitions is consumed; the delay is from there to now."""
    report = collect({"r0": 1, "r1": 1}, time_of, {"r0": 4, "r1": 4}, 60)
    assert report.times == {"r0": 20, "r1": 25}
    assert (report.caught_up, report.consumed_time, report.delay, report.slowest) == ([], 20, 40, "r0")
    assert collect({"r1": 2}, time_of, {"r1": 4}, 60).times == {"r1": 25}
    first = collect({"r1": 1}, time_of, {"r1": 4}, 60, look_back=0)
    second = collect({"r1": 2}, time_of, {"r1": 4}, 61, previous=first, look_back=0)
    assert (second.consumed_time, second.delay) == (25, 36)
    assert collect({"r1": 0}, time_of, {"r1": 4}, 62, previous=second, look_back=0).consumed_time == 5


@pytest.mark.parametrize(
    ("consumed", "ends", "caught_up", "time"),
    [({"r0": 3, "r1": 1}, {"r0": 4, "r1": 4}, ["r0"], 25), ({"r0": 1}, {"r0": 4, "r1": 0}, ["r1"], 20)],
    ids=["at its end", "empty"],
)
def test_a_partition_at_its_end_or_empty_holds_nothing_back(consumed, ends, caught_up, time):
    """A15, A17: a partition without unread records is left out, however old its last record is."""
    report = collect(consumed, time_of, ends, 60)
    assert (report.caught_up, report.consumed_time) == (caught_up, time)


def test_consumers_at_the_known_end_of_all_existing_partitions_have_no_delay():
    """A15, A17: the consumed time of a paused stream is now, not the time of its last record."""
    report = collect({"r0": 3, "r1": 3}, time_of, {"r0": 4, "r1": 4}, 1000)
    assert (report.consumed_time, report.delay, report.slowest) == (1000, 0, None)
    assert report.times == {"r0": 40, "r1": 50}
    # A14: when a paused stream goes on, its consumer is behind by the time since the report before, not the pause.
    paused = collect({"r0": 0}, time_of, {"r0": 1}, 1000)
    resumed = collect({"r0": 0}, time_of, {"r0": 2}, 1005, previous=paused)
    assert (resumed.consumed_time, resumed.delay) == (1000, 5)
    assert collect({"r0": 0}, time_of, {"r0": 2}, 1010, previous=resumed).consumed_time == 1000
    assert collect({"r0": 3}, time_of, {"r0": None}, 60).consumed_time == 40
    assert collect({"r0": 3}, time_of, {}, 60).consumed_time == 40
    known = {("r0", 0): 10, ("r0", 1): 20}
    assert collect({"r0": 3}, lambda *at: known.get(at), {"r0": 9}, 60).consumed_time == 20
    assert collect({"r0": 3}, lambda *at: known[at], {"r0": 9}, 60).consumed_time == 20
    assert collect({"r0": 3}, lambda *at: None, {"r0": 9}, 60).consumed_time is None


@pytest.mark.parametrize("consumed", [{"r0": 1}, {"r0": 1, "r1": None}, {"r0": 1, "r1": -1}])
def test_partition_with_records_of_which_none_is_consumed_leaves_the_time_unknown(consumed):
    report = collect(consumed, time_of, {"r0": 4, "r1": 4}, 60)
    assert (report.consumed_time, report.delay, report.slowest) == (None, None, "r1")
    assert report.times == {"r0": 20}


@pytest.mark.parametrize("time", ["12", True, float("nan"), float("inf")])
def test_time_that_is_no_number_is_refused(time):
    with pytest.raises(InputError, match="partition 'r0', offset 1: expected a number"):
        collect({"r0": 1}, lambda *_: time, {"r0": 4}, 60)


@pytest.mark.parametrize("seed", range(50))
def test_nothing_older_than_the_consumed_time_is_unread(seed):
    """A14: for records in time order, every unread record is at or after the consumed time, which never decreases."""
    rng = random.Random(seed)
    records: dict[str, list[int]] = {f"p{number}": [] for number in range(rng.randint(1, 4))}
    consumed: dict[str, int] = dict.fromkeys(records, -1)
    previous, last, now = None, -1, 0
    for _ in range(60):
        now += rng.randint(1, 5)
        for partition, times in records.items():
            times += [now] * rng.choice([0, 0, 1, 3])
            consumed[partition] = rng.randint(consumed[partition], len(times) - 1)
        ends = {partition: len(times) for partition, times in records.items()}
        previous = collect(consumed, lambda one, at: records[one][at], ends, now, previous=previous)
        if previous.consumed_time is None:
            continue
        unread = [time for one, times in records.items() for time in times[consumed[one] + 1 :]]
        assert all(time >= previous.consumed_time for time in unread), f"seed {seed}"
        assert last <= previous.consumed_time <= now, f"seed {seed}"
        last = previous.consumed_time


def test_it_finds_what_a_scan_finds_and_passes_errors_of_the_source_on():
    """A4: the first offset at or after a time, with equal times, empty ranges, and times before and after all."""
    rng = seeded()
    for _ in range(300):
        times = sorted(rng.randrange(20) for _ in range(rng.randrange(40)))
        start = rng.randint(0, len(times))
        end = rng.randint(start, len(times))
        wanted = rng.choice([rng.randrange(-1, 22), rng.random() * 20, -math.inf, math.inf])
        found = next((offset for offset in range(start, end) if times[offset] >= wanted), end)
        assert first_at_or_after(times.__getitem__, start, end, wanted) == found

    def time_of(offset):
        raise ConnectionError("broker away")

    with pytest.raises(ConnectionError, match="broker away"):
        first_at_or_after(time_of, 0, 3, 1)


def test_a_million_offsets_take_twenty_questions_none_of_them_for_the_end_also_where_times_decrease():
    times = np.arange(0, 100, 10)
    assert first_at_or_after(times.__getitem__, np.int64(2), np.int64(10), np.float64(41)) == 5
    asked = []
    assert first_at_or_after(lambda offset: asked.append(offset) or offset * 10, 100, 200, 5_000) == 200
    assert first_at_or_after(lambda offset: asked.append(offset) or offset * 10, 100, 200, 0) == 100
    assert set(asked) <= set(range(100, 200))
    asked.clear()
    assert first_at_or_after(lambda offset: asked.append(offset) or offset, 0, 1_000_000, 765_432) == 765_432
    assert len(asked) <= 20
    rng = random.Random(3)
    times = [rng.randrange(100) for _ in range(500)]
    for wanted in range(1, 100):
        found = first_at_or_after(times.__getitem__, 0, 500, wanted)
        assert found == 500 or times[found] >= wanted
        assert found == 0 or times[found - 1] < wanted


@pytest.mark.parametrize(
    ("message", "cases"),
    [
        (r"time_of\(5\) returned .*expected a number", [(answer, 0, 10, 3) for answer in (None, "12", math.nan, True)]),
        ("start <= end", [(0, start, end, 3) for start, end in ((5, 4), (0, None), ("0", 3), (0.0, 3))]),
        ("time wanted", [(0, 0, 3, wanted) for wanted in (None, "2026-01-31T12:00:00Z", math.nan)]),
    ],
    ids=["no time", "no range", "no wanted time"],
)
def test_answers_ranges_and_wanted_times_that_are_none(message, cases):
    for answer, start, end, wanted in cases:
        with pytest.raises(InputError, match=message):
            first_at_or_after(lambda offset, answer=answer: answer, start, end, wanted)
