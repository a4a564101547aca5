"""Maintenance schedule for a run's tables: determines which table is due, and performs the maintenance.

Maintenance (upkeep) consists of compaction, small-file compaction, shortening of logs, thinning of versions and
sweeping. The caller provides the threads: `due` and similar queries never block, log entries are written in the
committer's turn, and new files may be written in parallel to commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from txstorm.lanes import Lanes
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.history import HISTORY
from txstorm.storage.tables.identity import TableRef, table_ref
from txstorm.storage.tables.intent import CHANGES, STATE, Intent, IntentTable
from txstorm.storage.tables.staging import staged_after
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.upkeep.compaction import Compaction
from txstorm.storage.upkeep.growth import Growth, Recent
from txstorm.storage.upkeep.read_guard import removing
from txstorm.storage.upkeep.retention import Steps
from txstorm.storage.upkeep.small_files import SmallFileCompaction, are_many, small_files
from txstorm.storage.upkeep.sweep import kept_by, remove_own, sweep_table


class UpkeepSchedule:
    """Scheduled maintenance (upkeep) of the Delta tables of one run.

    Before `start`, no table is due. Not thread-safe, except that `due`, `behind`, `unsettled`, `has_superseded` and
    `long_log` may be called concurrently with any other method, and `published` concurrently for different tables.

    Args:
        place: the data directory.
        tables: the tables, at the versions last read.
        max_lag: seconds by which the table of a state may lag behind its changes; None: no bound.
        load: blocks until the states are loaded and `start` was called.
        lanes: give the clocks.
        applied: returns the txid up to which a table's change rows have been applied to the index.
        unpublished: returns the files of a table that this run has staged, or taken over from tasks, and for which it
            may still record an intent.

    Attributes:
        epoch: the coordinator's epoch, once it has taken over the tables.
    """

    def __init__(
        self,
        place: Directory,
        tables: Mapping[TableRef, DeltaTableState],
        max_lag: float | None,
        load: Callable[[], None],
        lanes: Lanes,
        applied: Callable[[str], int],
        unpublished: Callable[[str], set[str]],
    ) -> None:
        self.data_dir, self.tables, self._place = place.path, tables, place
        self.epoch = 0
        self._max_lag, self._load, self._applied, self._unpublished = max_lag, load, applied, unpublished
        self._lanes = lanes
        self._works: dict[str, Compaction | SmallFileCompaction] = {}
        self._loose: dict[str, int] = {}
        self._growths: dict[str, Growth] = {}

    def start(self) -> None:
        """Count the change rows and small files of the tables, which must have been refreshed; tables may then be due.

        Called once, when the states are loaded.
        """
        growths: dict[str, Growth] = {}
        for ref, changes in self.tables.items():
            if ref.kind == CHANGES:
                kept = self.tables[TableRef(STATE, ref.name)]
                later = changes.handle.row_count((TXID.name, kept.last_txid()))
                growths[ref.name] = Growth(kept.handle.row_count(), later, Recent(changes.last_txid()), self._lanes)
        self._loose = {ref.uri: small_files(table) for ref, table in self.tables.items() if ref.kind != STATE}
        self._growths = growths  # assigned as a whole, since the driver thread reads it concurrently

    def published(self, table: IntentTable, last: int, rows: pa.Table | None) -> None:
        """Record that a group ending with txid `last` was published to `table`; `rows`: its rows, if in memory."""
        if table.kind != STATE:
            self._loose[table.uri] = self._loose.get(table.uri, 0) + len(table.files)
        if table.kind == CHANGES and table.name in self._growths:
            later = sum(staged.rows for staged in table.files)
            known = rows if rows is not None and rows.num_rows == later else None
            self._growths[table.name].add(later, last, known, self._lanes.monotonic())

    # -- what is due --------------------------------------------------------------------------------------------

    def due(self, now: float) -> str | None:
        """Choose a table due for upkeep: the state whose compaction is most overdue, or a table with many small files.

        Returns its uri, or None if no table is due. `now`: monotonic time in seconds.
        """
        waits = ((growth.overdue(now, self._max_lag), name) for name, growth in self._growths.items())
        longest = max(((overdue, name) for overdue, name in waits if overdue is not None), default=None)
        if longest is not None:
            return TableRef(STATE, longest[1]).uri
        return next((uri for uri, loose in self._loose.items() if are_many(loose)), None)

    def behind(self) -> list[str]:
        """Return the uris of the state tables that lag behind their changes."""
        return [TableRef(STATE, name).uri for name, growth in self._growths.items() if growth.later]

    def unsettled(self) -> list[str]:
        """Return the URIs of state tables that lack some of their changes, or whose newest version is not retained."""
        return [TableRef(STATE, name).uri for name, growth in self._growths.items() if not growth.is_settled]

    def has_superseded(self, now: int) -> bool:
        """Whether `thin` has files to remove; `now`: milliseconds since 1970."""
        return any(growth.versions is not None and growth.versions.is_due(now) for growth in self._growths.values())

    def long_log(self) -> DeltaTableState | None:
        """Return a table whose log is due for a checkpoint; None if there is none."""
        return next((table for table in self.tables.values() if table.is_long), None)

    def log_spans(self) -> dict[str, float]:
        """Return for how many seconds the bounded log of each table keeps an entry at the present rate.

        Call from the driver thread only.
        """
        spans = {ref.uri: table.log_span() for ref, table in self.tables.items()}
        return {uri: float(f"{span:.2g}") for uri, span in spans.items() if span is not None}

    # -- the work -----------------------------------------------------------------------------------------------

    def begin(
        self, uri: str, now: int, *, stays: bool = False, beside: bool = True
    ) -> Compaction | SmallFileCompaction | None:
        """Begin a compaction of the table `uri`; return None if there is nothing to do.

        Call this and `finish` in the committer's turn; the steps in between may run on another thread, in parallel to
        commits. `now`: milliseconds since 1970. `stays`: whether the resulting version is to be retained. `beside`:
        whether the steps run beside commits, and therefore open the tables once more.
        """
        self._load()
        ref = table_ref(uri)
        if ref.kind == STATE:
            work: Compaction | SmallFileCompaction | None = self._compaction(ref.name, now, stays=stays, beside=beside)
        else:
            self._loose[uri] = 0
            table = self.tables[ref].opener()()
            work = SmallFileCompaction(table, self.epoch, now) if are_many(small_files(table)) else None
        if work is not None:
            self._works[uri] = work
        return work

    def finish(self, work: Compaction | SmallFileCompaction, now: int) -> bool:
        """Commit the files written by `work`; return False if there was nothing to commit or the files are outdated.

        `now`: milliseconds since 1970.
        """
        return work.finish(self.tables[table_ref(work.uri)], now)

    def compact(
        self,
        limit_seconds: float | None = None,
        clock: Callable[[], float] | None = None,
        *,
        stays: bool = False,
    ) -> list[str]:
        """Compact all state tables up to the last txid, then `thin`; return the names of the states compacted.

        Called in the committer's turn, at a clean stop. Compaction ends after `limit_seconds` (None: no limit). A state
        is compacted up to the last txid applied to the index. `stays`: whether the resulting versions are to be
        retained.

        Raises:
            FencedError: a newer coordinator has taken over.
        """
        self._load()
        clock = clock or self._lanes.monotonic
        until = None if limit_seconds is None else clock() + limit_seconds
        done = []
        for name in self._growths:
            if until is not None and clock() >= until:
                break
            work = self.begin(TableRef(STATE, name).uri, self._lanes.now() // 1000, stays=stays, beside=False)
            if work is not None and all(until is None or clock() < until for _ in work.steps()):
                done += [name] * self.finish(work, self._lanes.now() // 1000)
        self._works.clear()  # upkeep has ended: files that it has not committed may be swept
        for _ in self.thin(self._lanes.now() // 1000):
            if until is not None and clock() >= until:
                break
        return done

    def thin(self, now: int) -> Steps[None]:
        """Delete the files of versions that were superseded long enough ago, one version per step.

        Called in the committer's turn; ends early while this process reads the data directory. `now`: milliseconds
        since 1970. Passes the fault point ``thin.removed``.
        """
        for name, growth in self._growths.items():
            table = self.tables[TableRef(STATE, name)]
            while growth.versions is not None and growth.versions.is_due(now):
                with removing(self.data_dir) as free:
                    if not free:
                        return
                    remove_own(table.path, growth.versions.due(now))
                growth.versions.removed()
                yield None

    def sweep(self, live: Sequence[Intent]) -> list[str]:
        """Delete unreferenced files of this and older epochs; return their paths, relative to the data directory.

        Called at the end of a run, when the work of tasks does not count any more. `live`: the intents still in the
        ledger, whose files are kept.
        """
        removed = []
        for ref, table in self.tables.items():
            growth = self._growths.get(ref.name) if ref.kind == STATE else None
            named = growth.versions.named if growth is not None and growth.versions is not None else set()
            swept = sweep_table(table.path, self.epoch, self._used(ref, live) | named, table.handle)
            removed += [f"{ref.uri}/{path}" for path in swept]
        if (history := self._place.history()) is not None:
            swept = sweep_table(history.path, self.epoch, set(), history)
            removed += [f"{HISTORY}/{path}" for path in swept]
        return removed

    def kept_files(self, ref: TableRef, live: Sequence[Intent]) -> set[str]:
        """Return the files of table `ref` that `live` intents, this run or its upkeep use, relative to the table.

        While transactions are processed: tasks may be writing files of every txid that is not published.
        """
        return self._used(ref, live) | staged_after(self.tables[ref].path, self.epoch, self.tables[ref].last_txid())

    def _used(self, ref: TableRef, live: Sequence[Intent]) -> set[str]:
        work = self._works.get(ref.uri)
        kept = kept_by(live, ref.uri) | self._unpublished(ref.uri)
        return kept | (work.written if work is not None else set())

    def _compaction(self, name: str, now: int, *, stays: bool, beside: bool) -> Compaction | None:
        """Create a compaction of state `name` up to the last applied txid; None if its table is already there."""
        kept, changes = TableRef(STATE, name), TableRef(CHANGES, name)
        last, base = self.tables[changes].last_txid(), self.tables[kept].last_txid()
        as_of, growth = min(self._applied(changes.uri), last), self._growths[name]
        if base >= last:
            growth.later = 0
        if base >= as_of and not (stays and not growth.is_settled):
            return None
        growth.begin(self._lanes.monotonic(), whole=as_of == last)
        tables = self.tables[kept], self.tables[changes]
        opened = [table.opener() if beside else partial(_newest, table) for table in tables]
        return Compaction(kept.uri, opened, growth, (base, max(base, as_of)), self.epoch, now, stays=stays)


def _newest(table: DeltaTableState) -> DeltaTableState:
    table.refresh()
    return table
