"""Events of the benchmarks of windowed bolts: readings of sensors, partly out of order. Usable without txstorm."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

RATE = 10_000
"""Events per second of event time."""
SENSORS, LATE, LAG_MS = 1_000, 0.01, 2_000
"""Number of sensors; share of events that are out of order, by at most the lag."""
LENGTH_MS, SLIDE_MS = 10_000, 2_000
_STEP = 1 << 16


class Events(NamedTuple):
    """Columns: timestamp in milliseconds, sensor, value."""

    ts: Numbers
    sensor: Numbers
    value: Numbers


def events(first: int, last: int) -> Events:
    """Return the events with these numbers, `last` excluded; the same for every cut."""
    parts = [_step(step) for step in range(first // _STEP, -(-last // _STEP))]
    begin = first // _STEP * _STEP
    return Events(*(np.concatenate(column)[first - begin : last - begin] for column in zip(*parts, strict=True)))


def _step(number: int) -> Events:
    draw = np.random.default_rng([7, number])
    ts = (np.arange(_STEP) + number * _STEP) * 1000 // RATE
    delay = draw.integers(0, LAG_MS, _STEP) * (draw.random(_STEP) < LATE)
    sensors, values = draw.integers(0, SENSORS, _STEP), draw.integers(0, 1_000, _STEP)
    return Events(np.maximum(ts - delay, 0), sensors, values)


def sums(count: int) -> dict[int, int]:
    """Return window end, in milliseconds → sum of its values, for the ends that `count` events close."""
    ts, _, values = events(0, count)
    ends = range(0, int(ts.max()) - LAG_MS + 1, SLIDE_MS)
    return {end: int(values[(ts > end - LENGTH_MS) & (ts <= end)].sum()) for end in ends}
