"""Compaction: ``state/<name>`` brought up to a published txid, beside the commits, a range of key groups at a time.

The state as of txid T is its files with the later change rows up to T over them. Neither changes, so nothing of the
run has to wait while the new files are written. Change rows of the last groups are at hand in memory; what is not, is
read from ``changes/<name>``. Only the log entry that puts the new files in the place of the old ones is made in the
committer's turn. A crash leaves the table as it was or as it is to be; files that nothing refers to are swept later.
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
"""Change rows in memory at once."""
LEAST_ROWS = 500_000
"""Change rows from which on a table is brought up to date at once, if it has no more rows than that."""
RECENT_ROWS, RECENT_BYTES = 200_000, 64 << 20
"""Change rows of one state that are kept in memory for its next compaction; beyond that they are read again."""
SHARE = 0.03
"""Of one core, for keeping one state up to date before it has changed by as much as it holds."""

Opened = Callable[[], DeltaTableState]


class Recent:
    """The change rows of the last groups that were published to one table, as far as they are in memory."""

    def __init__(self, last: int) -> None:
        self._since = last  # all groups after this txid are here
        self._groups: deque[tuple[int, pa.Table]] = deque()
        self._rows = self._bytes = 0

    def add(self, last: int, rows: pa.Table | None) -> None:
        """A group that ends with txid `last` was published; None: its rows are not at hand."""
        if rows is not None:
            self._rows, self._bytes = self._rows + rows.num_rows, self._bytes + rows.nbytes
            self._groups.append((last, rows))
        if rows is None or self._rows > RECENT_ROWS or self._bytes > RECENT_BYTES:
            self.forget(last)

    def forget(self, last: int) -> None:
        """The groups up to txid `last` are not needed any more."""
        self._since = max(self._since, last)
        while self._groups and self._groups[0][0] <= last:
            _, rows = self._groups.popleft()
            self._rows, self._bytes = self._rows - rows.num_rows, self._bytes - rows.nbytes

    def between(self, after: int, last: int) -> list[pa.Table] | None:
        """The rows of groups that end after txid `after`, up to the one that ends with `last`; None: not at hand."""
        if after < self._since:
            return None
        return [rows for end, rows in self._groups if after < end <= last]


@dataclass
class Growth:
    """How much a state has changed since its table was brought up to date, and when that is due again.

    Attributes:
        rows: rows of the table.
        later: change rows since.
        recent: those of them that are in memory.
        versions: of the table; None until the first compaction has read them.
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
        """For how many seconds it has been time to bring the table up to date; None when it is not.

        That is half of `max_lag` after the last time, or later where that costs more than `SHARE` of a core: the rest
        is for the compaction itself. And as soon as it has changed by as much as it holds, so that what compaction
        writes stays in proportion. `now`: monotonic seconds.
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
        """Whether the newest version of the table is known to stay, and to be up to date."""
        return not self.later and self.versions is not None and self.versions.settled

    def begin(self, now: float, *, whole: bool) -> None:
        """What has changed up to now is being taken into the table, `whole` or not; `now`: monotonic seconds."""
        self._taken, self._begun = self.later if whole else 0, now

    def end(self, rows: int, as_of: int) -> None:
        """It is in the table, which now has `rows` and is as of txid `as_of`."""
        self.rows, self.later, self._taken = rows, self.later - self._taken, 0
        self.recent.forget(as_of)


class Compaction:
    """One state table on its way from the txid it is as of to txid `as_of`.

    `steps` opens the tables and writes new files, on any thread, as the handles are its own; `finish` is called
    afterwards, in the committer's turn, with the handle of that.

    Args:
        uri: the state table.
        opened: open it, and ``changes/…``.
        growth: of the state; changed in `finish`.
        base, as_of: the txids that the table is as of, and that it is to be as of.
        epoch: of the coordinator.
        now: milliseconds since 1970.
        stays: whether the version that this makes is to stay, if there is one to make or not.
    """

    def __init__(
        self,
        uri: str,
        opened: tuple[Opened, Opened],
        growth: Growth,
        base: int,
        as_of: int,
        epoch: int,
        now: int,
        *,
        stays: bool,
    ) -> None:
        self.uri = uri
        self._opened, self._growth, self._as_of = opened, growth, as_of
        self._epoch, self._now, self._stays = epoch, now, stays
        self._base, self._recent = base, growth.recent.between(base, as_of)
        self._later = self._rows = 0
        self._files: Rewriting | None = None
        self._versions: Versions | None = growth.versions
        self._cost = 0.0

    @property
    def written(self) -> set[str]:
        """Paths of files that this has written, or is about to write, relative to the table."""
        return set() if self._files is None else self._files.written

    def steps(self) -> Iterator[None]:
        """Write the new files, one range of key groups after each step; raises `TableCorrupt` and `OSError`.

        Passes the fault points ``compact.before`` and ``compact.staged``.
        """
        faults.point("compact.before")
        opened, cpu = time.monotonic(), time.thread_time()
        kept = self._opened[0]()
        if self._versions is None:
            self._versions = Versions(kept, self._now)
        self._cost = max(time.monotonic() - opened, time.thread_time() - cpu)  # delta-rs reads logs on other threads
        cpu = time.thread_time()
        self._rows, last = kept.handle.row_count(), kept.last_txid()
        if last != self._base:
            self._base, self._recent = last, None
        keys = key_names_of(kept.handle.properties)
        self._files = Rewriting(kept.handle, keys, self._epoch, self._now, threads=False)
        if self._base < self._as_of:
            yield from self._rewrite(self._files)
        self._cost += time.thread_time() - cpu
        faults.point("compact.staged")

    def give_up(self) -> None:
        """Remove what was written: there is no use for it."""
        if self._files is not None:
            self._files.give_up()

    def finish(self, kept: DeltaTableState, now: int) -> bool:
        """Make the new files those of the table, on the handle `kept`; False when there is nothing to do.

        Called in the committer's turn, `now`: milliseconds since 1970. Passes the fault point ``compact.after``.

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
            growth.versions = None  # read again, unless it is certain what is in the log
            done = kept.exchange(files, self._epoch)
            if done:
                versions.made(kept, about)
        if done or self._base >= self._as_of:
            growth.versions = versions
        faults.point("compact.after")
        growth.end(kept.handle.row_count(), kept.last_txid())
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
            later = self._read(changes, window[0].first, window[-1].last)
            for span in window:
                yield
                files.rewrite(span, later)

    def _read(self, changes: DeltaTableState, first: int, last: int) -> pa.Table:
        groups = (KEY_GROUP.name, first, last)
        parts = changes.handle.batches((TXID.name, self._base), (TXID.name, self._as_of), within=groups)
        return pa.concat_tables([changes.handle.schema.empty_table(), *parts])


def _windows(spans: Sequence[KeyGroupRange]) -> Iterator[list[KeyGroupRange]]:
    """`spans` in groups whose change rows are held in memory together."""
    window: list[KeyGroupRange] = []
    for span in spans:
        if window and sum(one.later for one in window) + span.later > WINDOW_ROWS:
            yield window
            window = []
        window.append(span)
    if window:
        yield window
