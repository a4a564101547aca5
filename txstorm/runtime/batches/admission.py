"""Admission control for new transactions, and the in-flight window. Replays are always admitted, up to `until_txid`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txstorm.spouts.port import SpoutPlanner


class Admission:
    """Admission control: decides whether the limits allow another transaction, before the source is asked for data.

    Args:
        planner: the spout's planner.
        monotonic: a clock in seconds, for `min_interval`.
        min_interval: minimum number of seconds between the starts of two transactions.
        until_txid: the last txid of the run; None: no limit.
        max_bytes: maximum total size, in bytes, of the processed batches that await their commit.

    Attributes:
        closed: True once the run has reached its end; no new transaction will be admitted.
        blocked: True while a decided group cannot be published; no new transaction is admitted then (R13, blocked). Set
            by the publishing thread.
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
        self._held: dict[int, int] = {}
        self.closed = False
        self.blocked = False

    @property
    def ends(self) -> bool:
        """True if the run ends by itself (`available_now` or `until_txid`)."""
        return self._bounded or self._until is not None

    def ask(self, planner: SpoutPlanner) -> None:
        """Replace the spout's planner, through which the source is queried, with `planner`."""
        self._planner = planner

    def bound(self) -> None:
        """End the run once everything that the source currently holds has been read (``--available-now``)."""
        self._mark = self._planner.latest()
        self._bounded = True

    def data_only(self) -> None:
        """For the rest of the run, admit a transaction only if the source has new data."""
        self._data_only = True

    def saw(self, tuples: int) -> None:
        """Record the size in tuples of a processed batch; 0: a source that has no latest offset is exhausted."""
        self._seen_empty = self._seen_empty or tuples == 0

    def hold(self, txid: int, size: int) -> None:
        """Count the `size` bytes of the processed batch of `txid`, held until it is committed or discarded."""
        self._held[txid] = size

    def release(self, txid: int) -> None:
        """Stop counting the bytes of `txid`, which has been committed or discarded."""
        self._held.pop(txid, None)

    @property
    def full(self) -> bool:
        """True if the processed batches take up more than `max_bytes` in total."""
        return sum(self._held.values()) > self._max_bytes

    def opens(self, txid: int, previous: Any, *, in_flight: int, width: int) -> bool:
        """Return whether the new `txid` may be planned now; `previous` is the spout document of the txid before it."""
        if self._ended(txid, previous):
            self.closed = True
            return False
        if in_flight >= width or self.full or self.blocked or self.wait() > 0:
            return False
        if self._data_only and self._planner.caught_up(previous):
            return False
        self._next_start = self._monotonic() + self._min_interval
        return True

    def past(self, txid: int) -> bool:
        """Return whether `txid` is beyond `until_txid`, a limit that applies to replays too."""
        return self._until is not None and txid > self._until

    def wait(self) -> float:
        """Return the seconds until `min_interval` allows the next transaction to start; 0.0 if it may start now."""
        return max(0.0, self._next_start - self._monotonic()) if self._min_interval else 0.0

    def _ended(self, txid: int, previous: Any) -> bool:
        if not self._bounded:
            return self.past(txid)
        covered = self._seen_empty if self._mark is None else self._planner.reached(previous, self._mark)
        return covered or self.past(txid)
