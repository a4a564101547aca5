"""Timestamps out of columns, what holds a watermark back, and units of a task that takes over queued keys."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from txstorm.windows.intake import _newest
from txstorm.windows.newest import TimesSeen
from txstorm.windows.rules.event_time import (
    END,
    Facts,
    Newest,
    Progress,
    TimestampError,
    WatermarkRule,
    instant,
    times_of_column,
    times_of_values,
)
from txstorm.windows.rules.firing import Moment
from txstorm.windows.rules.forms import Count, sliding
from txstorm.windows.units import FIRE, Units, queue_name

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
MICROS = (MOMENT - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_an_older_tuple_and_a_later_batch_move_no_newest_time_back():
    rule, progress = WatermarkRule(1), Progress()
    for stamp, time in enumerate((10, 5), start=1):
        progress = rule.after(progress, {(0, ""): time}, stamp)
    assert (progress.newest[0, ""], progress.watermark) == (Newest(10, 2), 10)
    assert _newest(np.array([-7, -5, 3]), pa.array(["a", "a", "b"])) == {"a": -5, "b": 3}  # before 1970, too
    seen = TimesSeen(sliding(Count(1)), 0)
    for newest in ({"a": 5}, {"a": 3, "b": 1}, {"a": 4}):
        seen.add(SimpleNamespace(newest=newest, times=None, ahead=0))
    assert seen._newest == {"a": 5, "b": 1}


@pytest.mark.parametrize(
    ("column", "unit", "expected"),
    [
        (pa.array([1, -2], pa.int64()), "ms", [1000, -2000]),
        (pa.array([1, 2], pa.uint8()), "s", [10**6, 2 * 10**6]),
        (pa.array([1, 2], pa.uint64()), "us", [1, 2]),
        (pa.chunked_array([[1], [2, 3]], pa.int32()), "s", [10**6, 2 * 10**6, 3 * 10**6]),
        (pa.array([MOMENT], pa.timestamp("us", "UTC")), "ms", [MICROS]),
        (pa.array([MOMENT], pa.timestamp("us", "Europe/Berlin")), "ms", [MICROS]),
        (pa.array([-1, 1999], pa.timestamp("ns", "UTC")), "ms", [-1, 1]),
        (pa.array([5], pa.timestamp("s", "UTC")), "ms", [5 * 10**6]),
        (pa.array([], pa.int64()), "ms", []),
    ],
)
def test_columns_of_ints_and_aware_datetimes_are_read(column, unit, expected):
    assert times_of_column(column, unit).tolist() == expected


@pytest.mark.parametrize(
    ("column", "unit", "row", "words"),
    [
        (pa.array([1, None]), "ms", 1, "got None"),
        (pa.array([1.5]), "ms", 0, "got float 1.5"),
        (pa.array([True]), "ms", 0, "got a bool"),
        (pa.array([1, "x"][1:]), "ms", 0, "got str 'x'"),
        (pa.array([0, 10**18]), "s", 1, "outside the years 1 to 9999; is its unit really 's'?"),
        (pa.array([5, -(10**15)]), "ms", 1, "outside the years 1 to 9999"),
        (pa.array([5, 10**15]), "ms", 1, "outside the years 1 to 9999"),
        (pa.array([0, 1 << 63], pa.uint64()), "us", 1, "outside the years"),
        (pa.array([0, 10**15], pa.timestamp("s", "UTC")), "ms", 1, "outside the years"),
        (pa.array([MOMENT.replace(tzinfo=None)]), "ms", 0, "has no time zone"),
        (pa.nulls(2), "ms", 0, "got None"),
    ],
)
def test_the_first_value_that_is_no_timestamp_is_named(column, unit, row, words):
    with pytest.raises(TimestampError, match=r"expected|outside|zone") as error:
        times_of_column(column, unit)
    assert error.value.row == row and words in str(error.value)


def test_values_are_read_as_columns_are():
    assert times_of_values([3, MOMENT], "ms").tolist() == [3000, MICROS]
    assert instant(MICROS) == MOMENT
    assert instant(END) == datetime.max.replace(tzinfo=UTC)


def test_frontiers_take_the_place_of_timestamps_and_idle_inputs_are_left_out_at_the_next_stamp():
    rule = WatermarkRule(2, lag=5)
    facts = Facts(frontiers={1: 70})
    after = rule.after(Progress(), {(0, ""): 100, (1, ""): 500}, 1, facts)
    assert after.watermark == 70
    assert rule.held_back_by(after, 1, facts) == {0: 95, 1: 70}
    assert rule.after(Progress(), {(0, ""): 100, (1, ""): 500}, 1, Facts(frontiers={1: None})).watermark is None
    rule = WatermarkRule(3, idle=10)
    after = rule.after(Progress(), {(0, ""): 5}, 100)
    assert after.watermark is None and rule.next_idle(after, 100) == 110
    after = rule.after(after, {(1, ""): 3}, 104)
    assert rule.next_idle(after, 104) == 110
    after = rule.after(after, {}, 110)
    assert after.watermark == 3
    assert rule.next_idle(after, 110) is None


class Queue:
    """Stands in for the collection of queues: name → (order, key)."""

    def __init__(self, rows):
        self.rows = rows

    def scan(self, name):
        return sorted(self.rows.get(name, []))

    def append_many(self, rows):
        for name, at, key in rows:
            self.rows.setdefault(name, []).append((at, key))

    def evict_before(self, place, name):
        self.rows[name] = [row for row in self.rows[name] if row[0] >= place]


@pytest.mark.parametrize(("task", "expected"), [(0, [(5, "a"), (9, "a")]), (1, [(7, "b")])])
def test_each_queued_key_goes_to_its_new_task_only(task, expected):
    queue = Queue({queue_name(FIRE, 0, 1): [(5, "a"), (7, "b"), (9, "a")]})
    plan = SimpleNamespace(form=None, parallelism=2, owner={"a": 0, "b": 1}.__getitem__)
    Units(plan, task, Moment(1, None, None), 0, None, None, queue).adopt(1)
    assert queue.rows[queue_name(FIRE, task, 2)] == expected
