"""Offsets for a time: binary search in a partition whose records are in the order of their times."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real

from txstorm.errors import InputError


def first_at_or_after(time_of: Callable[[int], float], start: int, end: int, wanted: float) -> int:
    """Return the first offset from `start` to `end` (excluded) whose time is `wanted` or later; `end` if there is none.

    It asks for the times of about log2(end − start) offsets. The times must not decrease. Where they do, the result is
    an offset that has reached `wanted` while the one before it, if it is in the range, has not: perhaps not the first.

    Args:
        time_of: returns the time of the record at an offset, in the unit of `wanted`.
        start: the first offset.
        end: the offset after the last one; equal to `start` for an empty range.
        wanted: the time.

    Raises:
        InputError: `start` is after `end`, or a time is not a number, for example because an offset has no record.
    """
    if not callable(time_of):
        raise InputError(f"first_at_or_after: expected a function of an offset, got {time_of!r}")
    if not (isinstance(start, Integral) and isinstance(end, Integral)) or start > end:
        raise InputError(f"first_at_or_after: expected int offsets with start <= end, got {start!r} and {end!r}")
    if not _is_time(wanted):
        raise InputError(f"first_at_or_after: expected a number for the time wanted, got {wanted!r}")
    low, high = int(start), int(end)
    while low < high:
        middle = (low + high) // 2
        time = time_of(middle)
        if not _is_time(time):
            raise InputError(
                f"first_at_or_after: time_of({middle}) returned {time!r}, expected a number; for an offset without a "
                "record, return the time of the record after it"
            )
        if time < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def _is_time(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
