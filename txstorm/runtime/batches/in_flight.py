"""Limits on the number of transactions in flight and on the number of transactions per job."""

from __future__ import annotations

from dataclasses import dataclass


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
