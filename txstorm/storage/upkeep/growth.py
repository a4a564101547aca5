"""Growth of a state since its last compaction: the cached change rows, and when the next compaction is due."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pyarrow as pa

from txstorm.storage.upkeep.thinning import Versions

LEAST_ROWS = 500_000
"""Number of change rows from which on compaction is due at once, if the state has no more rows than that."""
SHARE = 0.03
"""Share of one core for compacting one state before it has changed by as many rows as it holds."""
RECENT_ROWS, RECENT_BYTES = 200_000, 64 << 20
"""Budget for change rows of one state cached for its next compaction; beyond it they are read from the table."""


class Recent:
    """Cache of the change rows of the groups last published to one table."""

    def __init__(self, last: int) -> None:
        self._since = last  # the rows of all groups after this txid are cached
        self._groups: deque[tuple[int, pa.Table]] = deque()
        self._rows = self._bytes = 0

    def add(self, last: int, rows: pa.Table | None) -> None:
        """Add the rows of a published group that ends with txid `last`; None: its rows are not in memory."""
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
        """The rows of the groups that end after txid `after` and not after `last`; None if not all are cached."""
        if after < self._since:
            return None
        return [rows for end, rows in self._groups if after < end <= last]


@dataclass
class Growth:
    """Changes of a state since its last compaction, and when the next one is due.

    Attributes:
        rows: rows of the table.
        later: change rows since the last compaction.
        recent: those of the change rows that are in memory.
        versions: the thinning of the table's versions; None until the first compaction has read it.
        cost: seconds of processor time that the last compaction took.
    """

    rows: int
    later: int
    recent: Recent
    versions: Versions | None = None
    cost: float = 0.0
    _begun: float | None = None
    _taken: int = field(default=0)

    def overdue(self, now: float, max_lag: float | None) -> float | None:
        """Seconds since the next compaction became due; None if it is not due.

        It is due half of `max_lag` after the last one began (the other half is for the compaction itself), or later if
        that would cost more than `SHARE` of a core. It is due at once when the state has changed by as many rows as it
        holds: so the cost of compaction stays proportional to the changes. `now`: monotonic seconds.
        """
        if self.later >= max(LEAST_ROWS, self.rows):
            return float("inf")
        if max_lag is None or not self.later:
            return None
        if self._begun is None:
            return max_lag
        waited = now - self._begun - max(max_lag / 2, self.cost / SHARE)
        return waited if waited >= 0 else None

    @property
    def is_settled(self) -> bool:
        """Whether the table's newest version is known to stay and has all changes."""
        return not self.later and self.versions is not None and self.versions.settled

    def begin(self, now: float, *, whole: bool) -> None:
        """Note that a compaction begins, of all changes so far if `whole`; `now`: monotonic seconds."""
        self._taken, self._begun = self.later if whole else 0, now

    def end(self, rows: int, as_of: int) -> None:
        """Note that the compaction is committed: the table now has `rows` rows and is as of txid `as_of`."""
        self.rows, self.later, self._taken = rows, self.later - self._taken, 0
        self.recent.forget(as_of)
