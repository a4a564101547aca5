"""Admission of new transactions, and the window of those in flight. Replays are always admitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txstorm.spouts.port import SpoutPlanner


@dataclass
class InFlightWindow:
    """Limits on the txids in flight and on the txids of one job: fixed by the settings, or learnt from finished jobs.

    A job costs tens of milliseconds before it does any work. Packs therefore grow while less than `SHARE` of a job's
    time is work and a pack of twice the size would still finish within `LONG` seconds. A job that takes longer than
    `LONG` halves the next packs. The window is wider than a pack, and shrinks more slowly: otherwise the batches that
    wait for their commit would fill it as soon as packs shrink, and no job could run meanwhile.

    Attributes:
        pending: the setting `max_spout_pending`; None: learnt.
        pack_limit: the setting `max_pack_txids`; None: no limit.
        pack: the pack size learnt so far.
        reached: the pack size that the width of the window follows.
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

        Half of a fixed window, so that jobs overlap; more if the fixed cost of a job is most of its time.
        """
        if self.pending is None:
            most = self.pack
        else:
            most = max(1, self.pending // 2, min(self.pack, self.pending))
        return min(most, self.pack_limit or most)

    def job_took(self, seconds: float, work: float, txids: int) -> None:
        """Learn from a finished job: it took `seconds`, of which `work` were spent on running user code."""
        if seconds > self.LONG:
            # Half of the job's own txids, not of `pack`: overlapping slow jobs must not halve it repeatedly.
            self.pack = min(self.pack, max(1, txids // 2))
        elif work < self.SHARE * seconds and txids >= self.pack and 2 * seconds <= self.LONG:
            self.pack = min(self.LIMIT // 2, self.pack * 2)
        self.reached = max(self.pack, min(self.reached, 4 * self.pack))


class Admission:
    """Admission control: whether limits allow another transaction to be planned; the source itself is asked afterwards.

    Args:
        planner: the spout's planner.
        monotonic: a clock in seconds, for `min_interval`.
        min_interval: minimum number of seconds between the starts of two transactions.
        until_txid: the last txid of the run.
        max_bytes: limit of the bytes of processed batches that wait for their commit.

    Attributes:
        closed: the run has reached its end: no new transaction will be admitted.
        blocked: a decided group cannot be published; no new transaction is admitted meanwhile (R13, blocked). Set by
            the publishing thread.
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
        """Whether the run ends by itself (`available_now`, `until_txid`)."""
        return self._bounded or self._until is not None

    def ask(self, planner: SpoutPlanner) -> None:
        """Ask the source through `planner` from now on."""
        self._planner = planner

    def bound(self) -> None:
        """End the run once everything the source holds now is read (``--available-now``)."""
        self._mark = self._planner.latest()
        self._bounded = True

    def data_only(self) -> None:
        """Admit transactions from now on only if the source holds something new."""
        self._data_only = True

    def saw(self, tuples: int) -> None:
        """Note the number of tuples of a processed batch; 0 means the end of a source that cannot tell its end."""
        self._seen_empty = self._seen_empty or tuples == 0

    def hold(self, txid: int, size: int) -> None:
        """Count the `size` bytes of the processed batch of `txid`, which are held until it commits or is discarded."""
        self._held[txid] = size

    def release(self, txid: int) -> None:
        """Release the bytes of `txid`, which was committed or discarded."""
        self._held.pop(txid, None)

    @property
    def full(self) -> bool:
        """Whether processed batches hold more bytes than `max_bytes`."""
        return sum(self._held.values()) > self._max_bytes

    def opens(self, txid: int, previous: Any, *, in_flight: int, width: int) -> bool:
        """Return whether the new transaction `txid` may be planned now; `previous` is the document before it."""
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
        """Return whether `txid` is beyond `until_txid`; this also holds for replays."""
        return self._until is not None and txid > self._until

    def wait(self) -> float:
        """Return the seconds until `min_interval` allows the next transaction to start."""
        return max(0.0, self._next_start - self._monotonic()) if self._min_interval else 0.0

    def _ended(self, txid: int, previous: Any) -> bool:
        if not self._bounded:
            return self.past(txid)
        covered = self._seen_empty if self._mark is None else self._planner.reached(previous, self._mark)
        return covered or self.past(txid)

    def _caught_up(self, previous: Any) -> bool:
        latest = self._planner.latest()
        return latest is not None and self._planner.reached(previous, latest)
