"""Timers of the driver loop."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Call = Callable[[], None]


class Timers:
    """Calls to be made later, on the thread that asks for the due ones.

    Args:
        monotonic: seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._waiting: list[tuple[float, int, Call]] = []
        self._number = 0

    def later(self, seconds: float, call: Call) -> None:
        """Have `call` made after `seconds`."""
        self._number += 1
        heapq.heappush(self._waiting, (self._monotonic() + seconds, self._number, call))

    def wait(self, longest: float) -> float:
        """Seconds until the next call is due, at most `longest`."""
        if not self._waiting:
            return longest
        return max(0.0, min(longest, self._waiting[0][0] - self._monotonic()))

    def run_due(self) -> None:
        """Make the calls that are due."""
        now = self._monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            heapq.heappop(self._waiting)[2]()
