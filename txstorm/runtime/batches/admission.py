"""Admission control for new transactions, and the in-flight window. Replays are always admitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txstorm.spouts.port import SpoutPlanner


@dataclass
class InFlightWindow:
    """Limits on the number of txids in flight and per job, either fixed by the settings or learnt from finished jobs.

    A job has a fixed overhead of tens of milliseconds. Packs therefore grow while user code accounts for less than
    `SHARE` of a job's duration and a pack of twice the size would still finish within `LONG` seconds. After a job that
    takes longer than `LONG`, the next packs are half its size. The window is wider than a pack and shrinks more slowly:
    otherwise the batches that await their commit would fill it as soon as packs shrink, and no job could run meanwhile.

    Attributes:
        pending: the setting `max_spout_pending`; None: the limit is learnt.
        pack_limit: the setting `max_pack_txids`; None: no limit.
        pack: the pack size learnt so far.
        reached: the pack size from which the width of the window is calculated; it shrinks more slowly than `pack`.
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
        """Maximum number of transactions in flight."""
        return self.pending if self.pending is not None else min(self.LIMIT, 8 * self.reached)

    @property
    def pack_size(self) -> int:
        """Maximum number of transactions in one job.

        If the window is fixed, this is half of it, so that jobs overlap, or more if overhead dominates the duration of
        a job.
        """
        if self.pending is None:
            most = self.pack
        else:
            most = max(1, self.pending // 2, min(self.pack, self.pending))
        return min(most, self.pack_limit or most)

    def job_took(self, seconds: float, work: float, txids: int) -> None:
        """Adapt the limits to a finished job of `txids` txids: it took `seconds`, of which user code ran for `work`."""
        if seconds > self.LONG:
            # Half of the job's own txids, not of `pack`: overlapping slow jobs must not halve it repeatedly.
            self.pack = min(self.pack, max(1, txids // 2))
        elif work < self.SHARE * seconds and txids >= self.pack and 2 * seconds <= self.LONG:
            self.pack = min(self.LIMIT // 2, self.pack * 2)
        self.reached = max(self.pack, min(self.reached, 4 * self.pack))


class Admission:
    """Admission control: decides whether the limits allow another transaction; the source is only asked after that.

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
        """Use `planner` from now on to ask the source for data."""
        self._planner = planner

    def bound(self) -> None:
        """End the run once everything that the source currently holds has been read (``--available-now``)."""
        self._mark = self._planner.latest()
        self._bounded = True

    def data_only(self) -> None:
        """From now on, admit a transaction only if the source has new data."""
        self._data_only = True

    def saw(self, tuples: int) -> None:
        """Record a processed batch's number of tuples; 0 marks the end of a source that has no known latest offset."""
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
        """Return whether the new txid `txid` may be planned now; `previous` is the document of its predecessor."""
        if self._ended(txid, previous):
            self.closed = True
            return False
        if in_flight >= width or self.full or self.blocked or self.wait() > 0:
            return False
        if self._data_only and self._caught_up(previous):
            return False
        self._next_start = self._monotonic() + self._min_interval
        return True

    def past(self, txid: int) -> bool:
        """Return whether `txid` is beyond `until_txid`, the limit that applies to replays too."""
        return self._until is not None and txid > self._until

    def wait(self) -> float:
        """Return the seconds until `min_interval` allows the next transaction to start; 0.0 if it already does."""
        return max(0.0, self._next_start - self._monotonic()) if self._min_interval else 0.0

    def _ended(self, txid: int, previous: Any) -> bool:
        if not self._bounded:
            return self.past(txid)
        covered = self._seen_empty if self._mark is None else self._planner.reached(previous, self._mark)
        return covered or self.past(txid)

    def _caught_up(self, previous: Any) -> bool:
        latest = self._planner.latest()
        return latest is not None and self._planner.reached(previous, latest)
