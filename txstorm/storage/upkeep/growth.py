"""Growth of a state since its last compaction: the cached change rows, and when the next compaction is due."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa

from txstorm.lanes import THREADS, Lanes
from txstorm.storage.upkeep.thinning import Versions

LEAST_ROWS = 500_000
"""Number of change rows at which compaction is due immediately, unless the state has more rows than that."""
SHARE = 0.03
"""Maximum share of one core for compacting a state that has changed by fewer rows than it has."""
RECENT_ROWS, RECENT_BYTES = 200_000, 64 << 20
"""Budget for the cached change rows of one state; if it is exceeded, compaction reads them from the table."""


class Recent:
    """Cache of the change rows most recently published to one table, by group.

    Args:
        last: the table's last txid; the rows of later groups are cached.
    """

    def __init__(self, last: int) -> None:
        self._since = last  # the rows of all groups after this txid are cached
        self._groups: deque[tuple[int, pa.Table]] = deque()
        self._rows = self._bytes = 0

    def add(self, last: int, rows: pa.Table | None) -> None:
        """Add the `rows` of a published group that ends with txid `last`; None: its rows are not in memory.

        If they are not in memory, or the cache exceeds its budget, the whole cache is evicted.
        """
        if rows is not None:
            self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes
            self._groups.append((last, rows))
        if rows is None or self._rows > RECENT_ROWS or self._bytes > RECENT_BYTES:
            self.forget(last)

    def forget(self, last: int) -> None:
        """Evict the groups up to txid `last`."""
        self._since = max(self._since, last)
        while self._groups and self._groups[0][0] <= last:
            _, rows = self._groups.popleft()
            self._rows, self._bytes = self._rows - rows.num_rows, self._bytes - rows.nbytes

    def between(self, after: int, last: int) -> list[pa.Table] | None:
        """Return the rows of the groups that end after txid `after`, up to `last`; None if not all are cached."""
        if after < self._since:
            return None
        return [rows for end, rows in self._groups if after < end <= last]


@dataclass
class Growth:
    """Growth of a state since its last compaction, and when the next compaction is due.

    Attributes:
        rows: number of rows in the state table.
        later: number of change rows since the last compaction.
        recent: cache of the most recent of these change rows.
        versions: the thinning of the table's versions; None if it has to be read from the log.
        lanes: give the clocks by which a compaction measures its cost.
        cost: processor time of the last compaction, in seconds.
    """

    rows: int
    later: int
    recent: Recent
    lanes: Lanes = THREADS
    versions: Versions | None = None
    cost: float = 0.0
    _since: float | None = None  # when the last compaction began; before it, when the first change came
    _taken: int = field(default=0)

    def add(self, count: int, last: int, rows: pa.Table | None, now: float) -> None:
        """Add the `count` change rows of a published group that ends with txid `last`; `rows`: None if not in memory.

        `now`: monotonic time in seconds.
        """
        if self._since is None and not self.later:  # all earlier changes were compacted before the start
            self._since = now
        self.later += count
        self.recent.add(last, rows)

    def overdue(self, now: float, max_lag: float | None) -> float | None:
        """Return the number of seconds since the next compaction became due; None if it is not due yet.

        Compaction is due half of `max_lag` after the last one began, or after the first change of a run that began
        without any to compact (the other half is for the compaction itself), or later if it would otherwise take more
        than `SHARE` of a core. It is due immediately once the state has changed by as many rows as it has, so the cost
        of compaction stays proportional to the changes, and if there were changes to compact when the run began.

        Args:
            now: monotonic time in seconds.
            max_lag: seconds by which the table may lag behind its changes; None: no bound.
        """
        if self.later >= max(LEAST_ROWS, self.rows):
            return float("inf")
        if max_lag is None or not self.later:
            return None
        if self._since is None:
            return max_lag
        waited = now - self._since - max(max_lag / 2, self.cost / SHARE)
        return waited if waited >= 0 else None

    @property
    def is_settled(self) -> bool:
        """Whether the table's newest version contains all changes and is known to be retained."""
        return not self.later and self.versions is not None and self.versions.settled

    def begin(self, now: float, *, whole: bool) -> None:
        """Record that a compaction begins, of all changes so far if `whole`; `now`: monotonic time in seconds."""
        self._taken, self._since = self.later if whole else 0, now

    def end(self, rows: int, as_of: int) -> None:
        """Record that the compaction has ended, with the table at `rows` rows, as of txid `as_of`."""
        self.rows, self.later, self._taken = rows, self.later - self._taken, 0
        self.recent.forget(as_of)
