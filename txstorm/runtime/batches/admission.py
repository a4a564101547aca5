"""The gate: whether another new transaction may be planned now. Replays never ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txstorm.spouts.port import SpoutPlanner


@dataclass
class InFlightWindow:
    """How many txids may be in flight, and how many one job takes: learnt, or as the settings say.

    A job costs tens of milliseconds before it does anything, so packs grow while less than `SHARE` of a job's time
    is work and twice the txids would not take longer than `LONG` seconds; jobs that do take longer hold half of
    their txids next time. The window is wider than the packs and follows them downwards late: what waits for its
    commit would otherwise fill it as soon as they shrink, and no job would run meanwhile.
    """

    SHARE = 0.7
    LONG = 3.0
    LIMIT = 256

    pending: int | None
    pack_limit: int | None
    pack: int = 1
    reached: int = 1

    @property
    def width(self) -> int:
        """Transactions in flight at most."""
        return self.pending if self.pending is not None else min(self.LIMIT, 8 * self.reached)

    @property
    def pack_size(self) -> int:
        """Transactions one job takes at most.

        Of a window that is set half, so that jobs overlap; more where a job's own cost is most of its time.
        """
        if self.pending is None:
            most = self.pack
        else:
            most = max(1, self.pending // 2, min(self.pack, self.pending))
        return min(most, self.pack_limit or most)

    def job_took(self, seconds: float, work: float, txids: int) -> None:
        """Learn from a finished job that took `seconds`, `work` of them spent in user code and its surroundings."""
        if seconds > self.LONG:
            # Of its own txids: of several long jobs that ran beside each other, each says the same.
            self.pack = min(self.pack, max(1, txids // 2))
        elif work < self.SHARE * seconds and txids >= self.pack and 2 * seconds <= self.LONG:
            self.pack = min(self.LIMIT // 2, self.pack * 2)
        self.reached = max(self.pack, min(self.reached, 4 * self.pack))


class Admission:
    """Decides from limits only; the source itself is asked afterwards.

    Args:
        monotonic: seconds, for `min_interval`.
    """

    def __init__(
        self,
        planner: SpoutPlanner,
        *,
        monotonic: Callable[[], float],
        min_interval: float = 0.0,
        until_txid: int | None = None,
        max_bytes: int = 1 << 62,
    ) -> None:
        self._planner = planner
        self._monotonic = monotonic
        self._min_interval = min_interval
        self._until = until_txid
        self._max_bytes = max_bytes
        self._mark: Any = None
        self._bounded = False
        self._data_only = False
        self._seen_empty = False
        self._next_start = 0.0
        self.closed = False

    @property
    def ends(self) -> bool:
        """Whether the run was told where to end."""
        return self._bounded or self._until is not None

    def ask(self, planner: SpoutPlanner) -> None:
        """From now on the source is asked through `planner`."""
        self._planner = planner

    def bound(self) -> None:
        """Take what the source holds now as all there is (``--available-now``)."""
        self._mark = self._planner.latest()
        self._bounded = True

    def data_only(self) -> None:
        """Start no transaction from now on unless the source holds something new."""
        self._data_only = True

    def saw(self, tuples: int) -> None:
        """A processed batch had `tuples` tuples; for sources that cannot tell what they hold."""
        self._seen_empty = self._seen_empty or tuples == 0

    def opens(self, txid: int, previous: Any, *, in_flight: int, width: int, bytes_held: int) -> bool:
        """Whether new transaction `txid`, after the one with document `previous`, may be planned now."""
        if self._ended(txid, previous):
            self.closed = True
            return False
        if in_flight >= width or bytes_held > self._max_bytes or self.wait() > 0:
            return False
        if self._data_only and self._caught_up(previous):
            return False
        self._next_start = self._monotonic() + self._min_interval
        return True

    def past(self, txid: int) -> bool:
        """Whether the run ends before `txid`, replays included."""
        return self._until is not None and txid > self._until

    def wait(self) -> float:
        """Seconds until `min_interval` allows the next start."""
        return max(0.0, self._next_start - self._monotonic()) if self._min_interval else 0.0

    def _ended(self, txid: int, previous: Any) -> bool:
        if not self._bounded:
            return self.past(txid)
        covered = self._seen_empty if self._mark is None else self._planner.reached(previous, self._mark)
        return covered or self.past(txid)

    def _caught_up(self, previous: Any) -> bool:
        latest = self._planner.latest()
        return latest is not None and self._planner.reached(previous, latest)
