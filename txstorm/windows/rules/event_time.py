"""Event time: timestamps out of columns, the watermark of a component, and which tuples are late.

Pure: no clock and no I/O. Times and stamps are UTC microseconds since 1970. The watermark of a transaction is a
function of the progress after the previous one, the newest timestamps in the transaction, its stamp, and source facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.context import EPOCH
from txstorm.keys import Name
from txstorm.misfits import Misfit, shown
from txstorm.windows.rules.forms import DAY, WindowForm, duration

Times = npt.NDArray[np.int64]

END = (1 << 63) - 1
"""The watermark at the end of input: later than every timestamp."""
MICROSECOND = timedelta(microseconds=1)
EARLIEST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LATEST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
UNITS = {"s": 10**6, "ms": 1000, "us": 1}
"""Unit of an int timestamp → its microseconds."""
WHOLE = ""
"""The partition of an input that has no partition field."""


class TimestampError(Misfit):
    """A tuple without a usable timestamp, whose index in its batch is `row`."""

    row: int

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message, row)


def instant(time: int) -> datetime:
    """Return a time as an aware datetime; the last one there is for the end of input."""
    return EPOCH + timedelta(microseconds=min(max(time, EARLIEST), LATEST))


def microseconds(value: Any, unit: str = "ms") -> int | str:
    """Return the time of an int in `unit` or of an aware datetime; for anything else, what is wrong with it."""
    if isinstance(value, bool):
        return "expected an int or an aware datetime, got a bool"
    if isinstance(value, int):
        time = value * UNITS[unit]
    elif isinstance(value, datetime):
        if value.utcoffset() is None:
            return f"the datetime {value.isoformat()} has no time zone; attach one, for example datetime.UTC"
        time = (value - EPOCH) // MICROSECOND
    elif value is None:
        return "expected an int or an aware datetime, got None"
    else:
        return f"expected an int or an aware datetime, got {type(value).__name__} {shown(value)}"
    if not EARLIEST <= time <= LATEST:
        return f"{shown(value)} is outside the years 1 to 9999; is its unit really {unit!r}?"
    return time


def times_of_values(values: Iterable[Any], unit: str = "ms") -> Times:
    """Return the times of Python values; raise `TimestampError` for the first that is not a timestamp."""
    times = []
    for row, value in enumerate(values):
        time = microseconds(value, unit)
        if isinstance(time, str):
            raise TimestampError(row, time)
        times.append(time)
    return np.array(times, np.int64)


def unusable(values: Any, unit: str = "ms") -> dict[int, str]:
    """Return the rows with values, in a list or a column, that are no timestamps, each with the reason."""
    found = dict[int, str]()
    for row in range(len(values)):
        one = values[row : row + 1]
        try:
            times_of_values(one, unit) if isinstance(one, list) else times_of_column(one, unit)
        except TimestampError as error:
            found[row] = str(error)
    return found


def times_of_column(column: pa.Array | pa.ChunkedArray, unit: str = "ms") -> Times:
    """Return the times of a column, as `times_of_values` does, without a Python object per row."""
    kind = column.type
    if pa.types.is_integer(kind):
        factor = UNITS[unit]
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        factor = UNITS.get(kind.unit, 0)  # 0: nanoseconds
    else:
        return times_of_values(column.to_pylist(), unit)
    low, high = (-(-EARLIEST // factor), LATEST // factor) if factor else (-(1 << 63), (1 << 63) - 1)
    raw = column if pa.types.is_integer(kind) else column.cast(pa.int64())
    wrong = _outside(raw, low, high)
    if wrong is not None:
        value = raw[wrong].as_py()
        raise TimestampError(wrong, str(microseconds(value, unit if pa.types.is_integer(kind) else kind.unit)))
    numbers = raw.cast(pa.int64())
    chunks = numbers.chunks if isinstance(numbers, pa.ChunkedArray) else [numbers]
    times: Times = np.concatenate([np.zeros(0, np.int64), *(one.to_numpy(zero_copy_only=False) for one in chunks)])
    return times * factor if factor else times // 1000


def _outside(column: pa.Array | pa.ChunkedArray, low: int, high: int) -> int | None:
    """Return the index of the first number that is null, below `low` or above `high`; None if there is none."""
    kind = column.type
    signed = pa.types.is_signed_integer(kind)
    most = (1 << (kind.bit_width - signed)) - 1
    if not column.null_count:
        least, greatest = pc.min_max(column).as_py().values()
        if least is None or (low <= least and greatest <= high):
            return None
    wrong = column.is_null()
    if most > high:
        wrong = pc.or_(wrong, pc.fill_null(pc.greater(column, pa.scalar(high, kind)), False))
    if signed and -most - 1 < low:
        wrong = pc.or_(wrong, pc.fill_null(pc.less(column, pa.scalar(low, kind)), False))
    first: int = pc.index(wrong, True).as_py()
    return None if first < 0 else first


@dataclass(frozen=True)
class ClockRule:
    """Rule of how far timestamps may be from the stamp of their transaction; durations in microseconds.

    Attributes:
        ahead: the newest times that tuples report are at most so far ahead; None: as far as they say.
        refuses: whether a tuple further ahead is an error.
        behind: a tuple further behind is an error; None: none is.
    """

    ahead: int | None = DAY
    refuses: bool = False
    behind: int | None = None

    @classmethod
    def of(cls, given: Any, what: str) -> ClockRule:
        """Return the rule of a declaration: a duration, None for no bound, or `A_DAY`, the default."""
        if given is A_DAY:
            return cls()
        return cls(None if given is None else duration(given, what, zero=True).microseconds, given is not None)

    def check(self, times: Times, stamp: int) -> None:
        """Raise `TimestampError` for the first tuple that is too far ahead or behind."""
        bounds = {"ahead": self.ahead if self.refuses else None, "behind": self.behind}
        for way, most in bounds.items():
            if most is None or not len(times):
                continue
            wrong = times > stamp + most if way == "ahead" else times < stamp - most
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise TimestampError(
                    row,
                    f"{instant(int(times[row])).isoformat()} is more than {most * MICROSECOND} {way} of "
                    f"{instant(stamp).isoformat()}, the stamp of its transaction, which with_max_{way} (max_{way}) "
                    "forbids",
                )


class _ADay:
    """Default of a bound for timestamps ahead: tuples stay, but move the watermark by no more than a day."""

    def __repr__(self) -> str:
        return "A_DAY"


A_DAY: Any = _ADay()


@dataclass(frozen=True)
class Newest:
    """Newest timestamp of one partition, and the stamp of the transaction that last had data of it."""

    time: int
    stamp: int


@dataclass(frozen=True)
class Progress:
    """Progress of a component in event time, after a transaction.

    Attributes:
        watermark: None while it is undefined, `END` at the end of input.
        advanced: the stamp of the transaction that last advanced the watermark.
        first_stamp: the stamp of the first transaction; None before it.
        newest: (input, partition) → its newest timestamp.
    """

    watermark: int | None = None
    advanced: int | None = None
    first_stamp: int | None = None
    newest: Mapping[tuple[int, str], Newest] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """Facts about the inputs, fixed when a transaction is planned.

    Attributes:
        partitions: input → the partitions that its sources have, by name; only if it has a partition field.
        ended: the inputs to which nothing more will come.
        frontiers: input → frontier of the component that produces it, in place of its newest timestamps; None if that
            is undefined.
        end_of_input: whether no source will contribute again.
    """

    partitions: Mapping[int, frozenset[str]] = field(default_factory=dict)
    ended: frozenset[int] = frozenset()
    frontiers: Mapping[int, int | None] = field(default_factory=dict)
    end_of_input: bool = False


@dataclass(frozen=True)
class WatermarkRule:
    """Rule by which the watermark of a component follows its inputs; durations in microseconds.

    Attributes:
        inputs: number of inputs.
        lag: how much tuples may be out of order.
        idle: the time without data after which an input or a partition is left out; None: never.
        policy: ``min`` or ``max`` over the inputs.
        interval: the least time between two advances, by stamps.
    """

    inputs: int
    lag: int = 0
    idle: int | None = None
    policy: str = "min"
    interval: int = 0

    def after(
        self, progress: Progress, newest: Mapping[tuple[int, str], int], stamp: int, facts: Facts = Facts()
    ) -> Progress:
        """Return the progress after a transaction whose tuples have these `newest` timestamps.

        A partition takes the place of those that older versions took its spellings for.
        """
        seen = dict(progress.newest)
        for number, part in newest:
            for other in part.others([one for of, one in seen if of == number]) if isinstance(part, Name) else ():
                del seen[number, other]
        for place, time in newest.items():
            old = seen.get(place)
            seen[place] = Newest(time if old is None else max(old.time, time), stamp)
        first = stamp if progress.first_stamp is None else progress.first_stamp
        after = replace(progress, first_stamp=first, newest=seen)
        reached = self.reached(after, stamp, facts)
        old_watermark = progress.watermark
        if reached is None or (old_watermark is not None and reached <= old_watermark):
            return after
        waits = progress.advanced is not None and stamp - progress.advanced < self.interval
        return after if waits and reached != END else replace(after, watermark=reached, advanced=stamp)

    def held_back_by(self, progress: Progress, stamp: int, facts: Facts = Facts()) -> dict[int, int | None]:
        """Return input → the time up to which it lets the watermark advance, None if undefined; without the ended."""
        return {one: self._position(one, progress, stamp, facts) for one in self._considered(progress, stamp, facts)}

    def active_partitions(self, one: int, progress: Progress, stamp: int, facts: Facts = Facts()) -> list[str]:
        """Return the partitions of an input that are not idle; none if it has ended."""
        if facts.end_of_input or one in facts.ended:
            return []
        return self._active(self._stamps(one, progress, facts), progress, stamp)

    def next_idle(self, progress: Progress, stamp: int, facts: Facts = Facts()) -> int | None:
        """Return the next stamp at which an input or a partition without data is left out; None if there is none."""
        if self.idle is None or progress.first_stamp is None:
            return None
        running = self._running(facts)
        groups = [_not_latest([self._stamp_of(one, progress) for one in running])]
        groups += [_not_latest(list(self._stamps(one, progress, facts).values())) for one in running]
        due = [self._since(at, progress) + self.idle for group in groups for at in group]
        return min((when for when in due if when > stamp), default=None)

    def reached(self, progress: Progress, stamp: int, facts: Facts) -> int | None:
        """Return the watermark that inputs and partitions allow now, perhaps less than it was; None if undefined."""
        considered = self._considered(progress, stamp, facts)
        if facts.end_of_input or not self._running(facts):
            return END
        positions = [self._position(one, progress, stamp, facts) for one in considered]
        known = [one for one in positions if one is not None]
        if len(known) < len(positions) or not known:
            return None
        return max(known) if self.policy == "max" else min(known)

    def _running(self, facts: Facts) -> list[int]:
        return [one for one in range(self.inputs) if one not in facts.ended]

    def _considered(self, progress: Progress, stamp: int, facts: Facts) -> list[int]:
        return self._active({one: self._stamp_of(one, progress) for one in self._running(facts)}, progress, stamp)

    def _position(self, one: int, progress: Progress, stamp: int, facts: Facts) -> int | None:
        if one in facts.frontiers:
            return facts.frontiers[one]
        parts = self._active(self._stamps(one, progress, facts), progress, stamp)
        newest = [progress.newest.get((one, part)) for part in parts]
        times = [entry.time for entry in newest if entry is not None]
        return min(times) - self.lag if times and len(times) == len(newest) else None

    def _stamps(self, one: int, progress: Progress, facts: Facts) -> dict[str, int | None]:
        """Return partition → the stamp of its last data, None if it has had none."""
        known = dict.fromkeys(sorted(facts.partitions.get(one, ())))
        return {**known, **{part: entry.stamp for (of, part), entry in progress.newest.items() if of == one}}

    def _stamp_of(self, one: int, progress: Progress) -> int | None:
        return max((entry.stamp for (of, _), entry in progress.newest.items() if of == one), default=None)

    def _since(self, at: int | None, progress: Progress) -> int:
        return (progress.first_stamp or 0) if at is None else at

    def _active(self, stamps: Mapping[Any, int | None], progress: Progress, stamp: int) -> list[Any]:
        """Return those that are not idle, or have the latest data."""
        if self.idle is None:
            return list(stamps)
        latest = max((at for at in stamps.values() if at is not None), default=None)
        return [
            one
            for one, at in stamps.items()
            if (at is not None and at == latest) or stamp - self._since(at, progress) < self.idle
        ]


def _not_latest(stamps: Sequence[int | None]) -> list[int | None]:
    latest = max((at for at in stamps if at is not None), default=None)
    return [at for at in stamps if at is None or at != latest]


def late(times: Times, watermark: int | None, form: WindowForm) -> npt.NDArray[np.bool_]:
    """Return which tuples are late, by the watermark after the previous transaction."""
    if watermark is None:
        return np.zeros(len(times), bool)
    before: npt.NDArray[np.bool_] = times < watermark
    if form.step is None or form.span is None:
        return before
    next_end = (watermark // form.step + 1) * form.step
    # Ends up to the watermark have fired; a tuple at the watermark needs a later one that still covers it.
    return before | (times == watermark) if next_end >= form.held(watermark) + form.span else before
