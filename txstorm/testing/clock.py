"""Manual clock for tests."""

from __future__ import annotations

from datetime import UTC, datetime

from txstorm.errors import InputError

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
            msg = f"ManualClock: start {start} has no time zone, expected one; add tzinfo=UTC"
            raise InputError(msg)
        self._start = round(start.timestamp() * 1_000_000)
        self._passed = 0

    def now(self) -> int:
        """Return the time in microseconds since 1970 (UTC), with which transactions planned now are stamped."""
        return self._start + self._passed

    def monotonic(self) -> float:
        """Return the seconds by which the clock has advanced since the start."""
        return self._passed / 1_000_000

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds`; raise `InputError` if that is negative."""
        if not seconds >= 0:
            msg = f"ManualClock: advance by {seconds!r} seconds, expected a number >= 0; time does not run backwards"
            raise InputError(msg)
        self._passed += round(seconds * 1_000_000)
