"""What happens after a batch failed: again at once, again later, or the end of the topology (design.md, R11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txstorm.engine.port import ErrorRow
from txstorm.topology.settings import Settings

Record = Callable[[int, int, str], None]
LOST_RETRIES = 2
"""A worker may die, or be slow, for reasons that have nothing to do with the batch it is at."""


@dataclass(frozen=True)
class Verdict:
    """`delay` seconds until the txid is emitted again; None: the topology fails."""

    delay: float | None
    count: int


class RetryPolicy:
    """Counts failures per txid, durably, and judges the next one.

    Args:
        record: called with (txid, count, cause) before the verdict takes effect.
        known: counts from before a restart.
    """

    def __init__(self, settings: Settings, record: Record, known: dict[int, int]) -> None:
        self._settings = settings
        self._record = record
        self._counts = dict(known)

    def judge(self, txid: int, row: ErrorRow) -> Verdict:
        """What to do about a failed attempt at `txid`."""
        count = self._counts[txid] = self._counts.get(txid, 0) + 1
        self._record(txid, count, str(row))
        settings = self._settings
        limit = _limit(settings, row.kind)
        if limit is not None and count > limit:
            return Verdict(None, count)
        # The first replay is immediate, as Storm's; a batch that keeps failing backs off.
        delay = 0.0 if count == 1 else settings.retry_backoff * 2.0 ** min(count - 2, 30)
        return Verdict(min(delay, settings.retry_backoff_max), count)

    def forget(self, upto: int) -> list[int]:
        """Txids up to `upto` are committed; returns those that had failures."""
        done = [txid for txid in list(self._counts) if txid <= upto]
        for txid in done:
            del self._counts[txid]
        return done


def _limit(settings: Settings, kind: str) -> int | None:
    """How many failures are followed by a replay; None: all."""
    if kind == "other":
        return settings.error_retries
    return max(LOST_RETRIES, settings.error_retries) if kind == "lost" else settings.max_retries
