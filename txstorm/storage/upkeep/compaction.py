"""Compaction: bring ``state/<name>`` up to a published txid, in parallel to commits, one range of key groups at a time.

The state as of txid T consists of its files with the later change rows up to T applied. Since files and change rows are
immutable, commits continue while the new files are written. Change rows of recent groups are cached in memory; others
are read from ``changes/<name>``. Only the log entry that replaces the old files with the new files is written in the
committer's turn. A crash leaves the table either unchanged or compacted; unreferenced files are swept later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from txstorm import faults
from txstorm.storage.rows.eviction import is_placed
from txstorm.storage.rows.schema import KEY_GROUP, TXID
from txstorm.storage.tables.identity import key_names_of
from txstorm.storage.tables.rewrite import KeyGroupRange, Rewriting, counted, group_counts
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import RewriteFiles
from txstorm.storage.upkeep.collection_rewrite import CollectionRewriting
from txstorm.storage.upkeep.growth import Growth
from txstorm.storage.upkeep.thinning import Versions

BATCH_ROWS = 100_000
"""Number of change rows of a collection state that are read at once."""
WINDOW_ROWS = 1_000_000
"""Maximum number of change rows that a compaction holds in memory."""

Opened = Callable[[], DeltaTableState]


class Compaction:
    """One compaction of a state table.

    `steps` opens separate handles and writes new files, on any thread; `finish` is called afterwards, in the
    committer's turn, with the committer's handle.

    Args:
        uri: the state table.
        opened: functions that open the state table and its table ``changes/…``.
        growth: the state's growth, updated by `finish`.
        txids: the txids that the table is as of before and after the compaction.
        epoch: the coordinator's epoch.
        now: the current time, in milliseconds since 1970.
        stays: whether the resulting version has to be retained, even if that takes a commit without changed rows.
    """

    def __init__(
        self,
        uri: str,
        opened: Sequence[Opened],
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
        self._files: Rewriting | CollectionRewriting | None = None
        self._versions: Versions | None = growth.versions
        self._cost = 0.0

    @property
    def written(self) -> set[str]:
        """Paths, relative to the table, of the files written or about to be written."""
        return set() if self._files is None else self._files.written

    def steps(self) -> Iterator[None]:
        """Write the new files, one range of key groups per step; raises `TableCorrupt` and `OSError`.

        Passes the fault points ``compact.before`` and ``compact.staged``.
        """
        faults.point("compact.before")
        lanes = self._growth.lanes
        opened, cpu = lanes.monotonic(), lanes.processor()
        table = self._opened[0]()
        if self._versions is None:
            self._versions = Versions(table, self._now)
        self._cost = max(lanes.monotonic() - opened, lanes.processor() - cpu)  # delta-rs reads logs on other threads
        cpu = lanes.processor()
        self._rows, last = table.handle.row_count(), table.last_txid()
        if last != self._base:
            self._base, self._recent = last, None
        keys = key_names_of(table.handle.properties)
        if is_placed(keys):
            self._files = CollectionRewriting(table.handle, keys, self._epoch, self._now)
            if self._base < self._as_of:
                yield from self._files.steps(self._changes)
            self._later = self._files.later
        else:
            self._files = Rewriting(table.handle, keys, self._epoch, self._now, threads=False)
            if self._base < self._as_of:
                yield from self._rewrite(self._files)
        self._cost += lanes.processor() - cpu
        faults.point("compact.staged")

    def give_up(self) -> None:
        """Delete the files written so far; call if they will not be committed."""
        if self._files is not None:
            self._files.give_up()

    def finish(self, table: DeltaTableState, now: int) -> bool:
        """Commit the new files to `table`; return False if there was nothing to commit, or the files are outdated.

        Called in the committer's turn; `now`: milliseconds since 1970. Passes the fault point ``compact.after``.

        Raises:
            FencedError: a newer coordinator leads this table.
        """
        if self._files is None or self._versions is None:
            return False
        growth, versions, cpu = self._growth, self._versions, self._growth.lanes.processor()
        done = self._base < self._as_of or (self._stays and not versions.settled)
        if done:
            removes = sorted(self._files.removes)
            about = versions.decide(removes, self._later, self._rows, now, stays=self._stays)
            bound = self._files.bound if isinstance(self._files, CollectionRewriting) else None
            files = RewriteFiles(self._files.adds, removes, now, self._base, self._as_of, about=about, bound=bound)
            growth.versions = None  # read again next time, unless the outcome of the commit is known below
            done = table.exchange(files, self._epoch)
            if done:
                versions.made(table, about)
        if done or self._base >= self._as_of:
            growth.versions = versions
        faults.point("compact.after")
        growth.end(table.handle.row_count(), table.last_txid())
        growth.cost = self._cost + growth.lanes.processor() - cpu
        return done

    def _changes(self) -> Iterator[pa.Table]:
        """Read the change rows of a collection state, in batches."""
        if self._recent is not None:
            yield from self._recent
        else:
            bounds = (TXID.name, self._base), (TXID.name, self._as_of)
            yield from self._opened[1]().handle.batches(*bounds, rows=BATCH_ROWS)

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
    """Group `spans` into windows, each with at most `WINDOW_ROWS` change rows unless it is a single span."""
    window: list[KeyGroupRange] = []
    for span in spans:
        if window and sum(other.later for other in window) + span.later > WINDOW_ROWS:
            yield window
            window = []
        window.append(span)
    if window:
        yield window
