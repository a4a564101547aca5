"""Window forms: lengths, slides, gaps and triggers as users declare them, each checked when it is given.

All rules of windows speak of *held times*: the window of length L that ends at E holds those from E − L, excluded, to
E. Where windows are closed on the right, the held time of a tuple is its timestamp. Where they are closed on the left,
and hold the timestamps from E − L to E, excluded, it is 1 µs later, as timestamps are whole microseconds. So there is
one set of rules, and `WindowForm.held` alone knows of two conventions. Watermarks and ends are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from txstorm.api.names import field_fault, near
from txstorm.errors import InputError

Held = TypeVar("Held", int, npt.NDArray[np.int64])
Trigger = Callable[[Any], Any]
"""User's function of a tuple: for a slide, whether the tuple fires a window; for a gap, the gap that follows it."""

MILLISECOND, SECOND, MINUTE, HOUR, DAY = 1000, 10**6, 60 * 10**6, 3600 * 10**6, 86400 * 10**6
RIGHT, LEFT = "right", "left"
"""The closed side of windows: whether they hold their end, or their start."""
LONGEST = 9999 * 366 * DAY
"""The longest duration, in microseconds: longer than the time between any two timestamps."""


@dataclass(frozen=True, order=True, init=False)
class Duration:
    """A length of time: ``Duration(500)`` is 500 ms as in Storm; also ``Duration.seconds(20)``, ``Duration.hours(1)``.

    Wherever a duration is expected, a `datetime.timedelta` is accepted too.

    Attributes:
        microseconds: the length.
    """

    microseconds: int

    def __init__(self, milliseconds: int | float | timedelta | Duration) -> None:
        object.__setattr__(self, "microseconds", _microseconds(milliseconds, MILLISECOND, "Duration"))

    @classmethod
    def of(cls, milliseconds: int | float | timedelta | Duration) -> Duration:
        """Return a duration of `milliseconds`, or one that equals a `timedelta`."""
        return cls(milliseconds)

    @classmethod
    def milliseconds(cls, n: int | float) -> Duration:
        """Return a duration of `n` milliseconds."""
        return _duration(n, MILLISECOND, "Duration.milliseconds")

    @classmethod
    def seconds(cls, n: int | float) -> Duration:
        """Return a duration of `n` seconds."""
        return _duration(n, SECOND, "Duration.seconds")

    @classmethod
    def minutes(cls, n: int | float) -> Duration:
        """Return a duration of `n` minutes."""
        return _duration(n, MINUTE, "Duration.minutes")

    @classmethod
    def hours(cls, n: int | float) -> Duration:
        """Return a duration of `n` hours."""
        return _duration(n, HOUR, "Duration.hours")

    @classmethod
    def days(cls, n: int | float) -> Duration:
        """Return a duration of `n` days."""
        return _duration(n, DAY, "Duration.days")

    @property
    def as_timedelta(self) -> timedelta:
        """The duration as a `datetime.timedelta`."""
        return timedelta(microseconds=self.microseconds)

    def __repr__(self) -> str:
        for unit, name in ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes"), (SECOND, "seconds")):
            if self.microseconds and self.microseconds % unit == 0:
                return f"Duration.{name}({self.microseconds // unit})"
        return f"Duration({self.microseconds / MILLISECOND:.15g})"


@dataclass(frozen=True, order=True)
class Count:
    """A number of tuples, at least 1, as the length or slide of a window.

    Attributes:
        value: the number.
    """

    value: int

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 1:
            raise InputError(f"Count({self.value!r}): expected a whole number of tuples, at least 1")

    @classmethod
    def of(cls, value: int) -> Count:
        """Return a count of `value` tuples; Storm's ``Count.of``."""
        return cls(value)

    def __repr__(self) -> str:
        return f"Count({self.value})"


Length = Duration | Count
Slide = Duration | Count | Trigger


def _duration(n: int | float, unit: int, name: str) -> Duration:
    return Duration(timedelta(microseconds=_microseconds(n, unit, name)))


def _microseconds(given: Any, unit: int, name: str) -> int:
    if isinstance(given, Duration):
        return given.microseconds
    if isinstance(given, timedelta):
        length = given // timedelta(microseconds=1)
    elif isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= LONGEST:
        raise InputError(f"{name}({given!r}): expected a number or a timedelta, shorter than 9999 years")
    else:
        length = round(given * unit)
    if not 0 <= length <= LONGEST:
        raise InputError(f"{name}({given!r}): expected a duration of at least 0 and of less than 9999 years")
    return length


def duration(given: Any, what: str, *, zero: bool = False) -> Duration:
    """Return `given`, a `Duration` or `timedelta`, as a duration; raise `InputError` unless positive (or `zero`)."""
    length = signed_duration(given, what)
    if length < 0 or (not length and not zero):
        raise InputError(f"{what}: expected a duration {'of at least' if zero else 'longer than'} 0, got {given!r}")
    return Duration(timedelta(microseconds=length))


def signed_duration(given: Any, what: str) -> int:
    """Return a `Duration`, or a `timedelta`, which may be negative, in microseconds; raise `InputError` otherwise."""
    if not isinstance(given, Duration | timedelta):
        msg = f"{what}: expected a Duration or a timedelta, got {given!r}; write for example Duration.seconds(10)"
        raise InputError(msg)
    length = given.microseconds if isinstance(given, Duration) else given // timedelta(microseconds=1)
    if abs(length) > LONGEST:
        raise InputError(f"{what}: expected a duration shorter than 9999 years, got {given!r}")
    return length


@dataclass(frozen=True)
class BoundNames:
    """Names of the columns in which results have the bounds of their window."""

    start: str = "start"
    end: str = "end"

    @classmethod
    def of(cls, what: str, names: Any) -> BoundNames:
        """Return the names that a user gives as ``names={"end": "until"}``; None: Storm's.

        Raises:
            InputError: they are no mapping, of other columns, or no different names of fields.
        """
        known = [one.name for one in fields(cls)]
        if not isinstance(names, Mapping | None):
            raise InputError(f"{what}: names: expected a mapping such as {{'end': 'until'}}, got {names!r}")
        for name, given in (names or {}).items():
            fault = field_fault(f"{what}: names", given)
            if name not in known:
                hint = near(name, known) if isinstance(name, str) else ""
                fault = f"{what}: names: the bounds of a window are {' and '.join(known)}, got {name!r}{hint}"
            elif fault is None and given.startswith("window_"):
                fault = f"{what}: names: {given!r} starts with 'window_', as columns of windows do; choose another name"
            if fault is not None:
                raise InputError(fault)
        made = cls(**(names or {}))
        if made.start == made.end:
            raise InputError(f"{what}: names: start and end are both called {made.end!r}; choose different names")
        return made

    def __iter__(self) -> Iterator[str]:
        return iter((self.start, self.end))


BOUNDS = BoundNames()
"""Storm's names of them."""


@dataclass(frozen=True)
class WindowForm:
    """Form of a component's windows: sliding by time, by count or by a trigger, or sessions.

    Build it with `sliding`, `tumbling` or `sessions`, which check their arguments.

    Attributes:
        length: the window's length; None for sessions.
        slide: distance between windows, or a function of the tuple that says whether it fires one; None for sessions.
        gap: what separates sessions: a duration, or a function of the tuple; None for other windows.
        closed: whether windows hold their end (`RIGHT`) or their start (`LEFT`).
    """

    length: Length | None = None
    slide: Slide | None = None
    gap: Duration | Trigger | None = None
    closed: str = RIGHT

    STORED: ClassVar[str] = "function"
    """How a function is recorded: its code may change between runs, that there is one may not."""

    @property
    def span(self) -> int | None:
        """The length in microseconds; None if it is not a duration."""
        return self.length.microseconds if isinstance(self.length, Duration) else None

    @property
    def step(self) -> int | None:
        """The slide in microseconds; None if windows do not slide by time."""
        return self.slide.microseconds if isinstance(self.slide, Duration) else None

    @property
    def shift(self) -> int:
        """The difference of held times and timestamps, in microseconds: see the module."""
        return int(self.closed == LEFT and self.step is not None)

    def held(self, times: Held) -> Held:
        """Return the held time of a timestamp, or of each of several."""
        return times + 1 if self.shift else times

    @property
    def is_session(self) -> bool:
        """Whether the windows are sessions."""
        return self.gap is not None

    @property
    def trigger(self) -> Trigger | None:
        """The function that decides which tuples fire; None if there is none."""
        return None if self.slide is None or isinstance(self.slide, Duration | Count) else self.slide

    def faults(self) -> list[str]:
        """Return what is wrong with the parts taken together, one sentence each."""
        if self.closed == RIGHT or self.step is not None:
            return []
        return [
            f"closed={self.closed!r}: a window of a count slide or a trigger ends at the tuple that fires it, and "
            "would not hold it; give a duration as the slide, or leave closed out"
        ]

    def described(self) -> dict[str, Any]:
        """Return the form as JSON: durations in microseconds, counts as numbers of tuples, functions by their mark.

        That windows are closed on the right is left out, as in forms that were stored when all were.
        """
        parts = {"length": self.length, "slide": self.slide, "gap": self.gap}
        made = {name: self._described(part) for name, part in parts.items() if part is not None}
        return made if self.closed == RIGHT else {**made, "closed": self.closed}

    def _described(self, part: Any) -> Any:
        if isinstance(part, Duration):
            return {"microseconds": part.microseconds}
        return {"tuples": part.value} if isinstance(part, Count) else self.STORED

    def __str__(self) -> str:
        if self.gap is not None:
            return f"sessions with a gap of {self.gap if isinstance(self.gap, Duration) else 'a function'}"
        closed = "" if self.closed == RIGHT else f", closed {self.closed}"
        return f"length {self.length}, slide {'a function' if self.trigger else self.slide}{closed}"


def sliding(length: Any, slide: Any = None, closed: Any = RIGHT) -> WindowForm:
    """Return windows of `length`, one per `slide`; without a slide, one per tuple.

    Raises:
        InputError: a length or slide that is not a positive `Duration` or `Count` (or, as a slide, a function), or a
            closed side that there is not.
    """
    size = _extent(length, "the window's length")
    if closed not in (RIGHT, LEFT):
        msg = f"closed: expected {RIGHT!r}, windows hold their end, or {LEFT!r}, they hold their start, got {closed!r}"
        raise InputError(msg)
    if slide is None:
        slide = Count(1)
    elif not callable(slide) or isinstance(slide, type):
        slide = _extent(slide, "the window's slide")
    return WindowForm(size, slide, closed=closed)


def tumbling(length: Any, closed: Any = RIGHT) -> WindowForm:
    """Return windows of `length` without gaps or overlaps; raise `InputError` as `sliding` does."""
    return sliding(length, _extent(length, "the window's length"), closed)


def sessions(gap: Any) -> WindowForm:
    """Return sessions that end when nothing has come for `gap`, a duration or a function of a tuple."""
    if callable(gap) and not isinstance(gap, type):
        return WindowForm(gap=gap)
    return WindowForm(gap=duration(gap, "the gap between sessions"))


def _extent(given: Any, what: str) -> Length:
    if isinstance(given, Count):
        return given
    if isinstance(given, Duration | timedelta):
        return duration(given, what)
    msg = f"{what}: expected a Duration, a timedelta or a Count, got {given!r}; write for example Duration.seconds(10)"
    raise InputError(msg)
