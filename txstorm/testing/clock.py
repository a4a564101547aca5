"""Manual clock for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from txstorm.errors import InputError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """Clock for tests, which moves only when `advance` is called.

    Args:
        start: the initial time; must have a time zone.

    Raises:
        InputError: `start` has no time zone.
    """

    def __init__(self, start: datetime = START) -> None:
        if start.tzinfo is None:
            raise InputError(f"ManualClock: start {start} has no time zone, expected one; add tzinfo=UTC")
        self._start = round(start.timestamp() * 1_000_000)
        self._passed = 0

    def now(self) -> int:
        """Return the time in microseconds since 1970 (UTC), with which transactions planned now are stamped."""
        return self._start + self._passed

    def monotonic(self) -> float:
        """Return the seconds by which the clock has advanced since the start."""
        return self._passed / 1_000_000

    def move_to(self, when: datetime | int) -> None:
        """Move the time forward to `when`, an aware datetime or milliseconds since 1970 (UTC).

        Raises:
            InputError: `when` is before the present time of the clock, or is neither of the two.
        """
        if isinstance(when, datetime) and when.tzinfo is not None:
            micros = (when - _EPOCH) // timedelta(microseconds=1)
        elif type(when) is int:
            micros = when * 1000
        else:
            raise InputError(f"ManualClock: expected an aware datetime or milliseconds since 1970, got {when!r}")
        if micros < self.now():
            now = _EPOCH + timedelta(microseconds=self.now())
            raise InputError(f"ManualClock: {when!r} is before the present time, {now}; time does not run backwards")
        self._passed = micros - self._start

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds`; raise `InputError` if that is negative."""
        if not seconds >= 0:
            msg = f"ManualClock: advance by {seconds!r} seconds, expected a number >= 0; time does not run backwards"
            raise InputError(msg)
        self._passed += round(seconds * 1_000_000)
