"""Compaction: bring ``state/<name>`` up to a published txid, in parallel to commits, one range of key groups at a time.

The state as of txid T is its files with the later change rows up to T applied. Neither files nor rows ever change, so
the run goes on while the new files are written. Change rows of recent groups are in memory; others are read from
``changes/<name>``. Only the log entry that replaces the old files with the new ones is written in the committer's turn.
A crash leaves the table either as it was or compacted; files to which nothing refers are swept later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from txstorm import faults
from txstorm.storage.rows.schema import KEY_GROUP, TXID
from txstorm.storage.tables.as_of import Versions
from txstorm.storage.tables.identity import key_names_of
from txstorm.storage.tables.rewrite import KeyGroupRange, Rewriting, counted, group_counts
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import RewriteFiles

WINDOW_ROWS = 1_000_000
"""Most change rows in memory at once."""
LEAST_ROWS = 500_000
"""Number of change rows from which on compaction is due at once, if the state has no more rows than that."""
RECENT_ROWS, RECENT_BYTES = 200_000, 64 << 20
"""Budget for change rows of one state cached for its next compaction; beyond it they are read from the table."""
SHARE = 0.03
"""Share of one core for compacting one state before it has changed by as many rows as it holds."""

Opened = Callable[[], DeltaTableState]


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


class Compaction:
    """One compaction of a state table, which brings it up to txid `as_of`.

    `steps` opens its own handles and writes new files, on any thread; `finish` is called afterwards in the committer's
    turn, with the committer's handle.

    Args:
        uri: the state table.
        opened: functions that open the state table and ``changes/…``.
        growth: the state's growth; updated by `finish`.
        txids: the txids that the table is as of now, and shall be as of afterwards.
        epoch: the coordinator's epoch.
        now: milliseconds since 1970.
        stays: whether the resulting version has to stay, even if that takes a commit without changed rows.
    """

    def __init__(
        self,
        uri: str,
        opened: tuple[Opened, Opened],
        growth: Growth,
        txids: tuple[int, int],
        epoch: int,
        now: int,
        *,
        stays: bool,
    ) -> None:
        self.uri = uri
        self._opened, self._growth, (self._base, self._as_of) = opened, growth, txids
        self._epoch, self._now, self._stays = epoch, now, stays
        self._recent = growth.recent.between(*txids)
        self._later = self._rows = 0
        self._files: Rewriting | None = None
        self._versions: Versions | None = growth.versions
        self._cost = 0.0

    @property
    def written(self) -> set[str]:
        """Paths, relative to the table, of the files written or about to be written."""
        return set() if self._files is None else self._files.written

    def steps(self) -> Iterator[None]:
        """Write the new files, one range of key groups after each step; raises `TableCorrupt` and `OSError`.

        Passes the fault points ``compact.before`` and ``compact.staged``.
        """
        faults.point("compact.before")
        opened, cpu = time.monotonic(), time.thread_time()
        table = self._opened[0]()
        if self._versions is None:
            self._versions = Versions(table, self._now)
        self._cost = max(time.monotonic() - opened, time.thread_time() - cpu)  # delta-rs reads logs on other threads
        cpu = time.thread_time()
        self._rows, last = table.handle.row_count(), table.last_txid()
        if last != self._base:
            self._base, self._recent = last, None
        keys = key_names_of(table.handle.properties)
        self._files = Rewriting(table.handle, keys, self._epoch, self._now, threads=False)
        if self._base < self._as_of:
            yield from self._rewrite(self._files)
        self._cost += time.thread_time() - cpu
        faults.point("compact.staged")

    def give_up(self) -> None:
        """Delete the files written, if they will not be committed."""
        if self._files is not None:
            self._files.give_up()

    def finish(self, table: DeltaTableState, now: int) -> bool:
        """Commit the new files to `table`; False if there was nothing to commit, or they are useless by now.

        Called in the committer's turn; `now`: milliseconds since 1970. Passes the fault point ``compact.after``.

        Raises:
            FencedError: a newer coordinator leads this table.
        """
        if self._files is None or self._versions is None:
            return False
        growth, versions, cpu = self._growth, self._versions, time.thread_time()
        done = self._base < self._as_of or (self._stays and not versions.settled)
        if done:
            removes = sorted(self._files.removes)
            about = versions.decide(removes, self._later, self._rows, now, stays=self._stays)
            files = RewriteFiles(self._files.adds, removes, now, self._base, self._as_of, about=about)
            growth.versions = None  # read again next time, unless it becomes certain below what is in the log
            done = table.exchange(files, self._epoch)
            if done:
                versions.made(table, about)
        if done or self._base >= self._as_of:
            growth.versions = versions
        faults.point("compact.after")
        growth.end(table.handle.row_count(), table.last_txid())
        growth.cost = self._cost + time.thread_time() - cpu
        return done

    def _rewrite(self, files: Rewriting) -> Iterator[None]:
        if self._recent is None:
            yield from self._rewrite_from(self._opened[1](), files)
        elif self._recent:
            later = pa.concat_tables(self._recent).combine_chunks()
            self._later = later.num_rows
            for span in files.spans(counted(later)):
                yield
                files.rewrite(span, later)

    def _rewrite_from(self, changes: DeltaTableState, files: Rewriting) -> Iterator[None]:
        counts = group_counts(changes.handle, (TXID.name, self._base), (TXID.name, self._as_of))
        self._later = int(counts.sum())
        for window in _windows(files.spans(counts)):
            groups = (KEY_GROUP.name, window[0].first, window[-1].last)
            parts = changes.handle.batches((TXID.name, self._base), (TXID.name, self._as_of), within=groups)
            later = pa.concat_tables([changes.handle.schema.empty_table(), *parts])
            for span in window:
                yield
                files.rewrite(span, later)


def _windows(spans: Sequence[KeyGroupRange]) -> Iterator[list[KeyGroupRange]]:
    """Group `spans` into windows whose change rows fit into memory together."""
    window: list[KeyGroupRange] = []
    for span in spans:
        if window and sum(other.later for other in window) + span.later > WINDOW_ROWS:
            yield window
            window = []
        window.append(span)
    if window:
        yield window
