"""Offsets for a time: `first_at_or_after` against a scan, the number of its questions, and wrong answers."""

import math
import random

import numpy as np
import pytest
from seeded import seeded

from txstorm.errors import InputError
from txstorm.joins import first_at_or_after


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
