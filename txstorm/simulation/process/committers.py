"""Committers, tables and upkeep of a simulated process, behind the ports of the shipped commit and upkeep code.

A committer writes, per partition, the offsets that a transaction read: from where the previous transaction ended, as it
sees it in published rows and in those of earlier unpublished transactions, so that a wrong view shows in the tables. It
is one module, as committers, tables and upkeep share the rows that are not published yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstorm.engine.port import ErrorRow, TxidInput
from txstorm.engine.task.commit_phase import CommitFailed
from txstorm.engine.task.error_rows import At
from txstorm.ledger import paths as names
from txstorm.simulation import schedule as kinds
from txstorm.simulation.delta.tables import written
from txstorm.simulation.expected import frontier, skips
from txstorm.simulation.outside import extents_of
from txstorm.state.target import StagingPlace
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, STAGED, STATE, Intent, IntentTable, Staged, TxidRecord
from txstorm.storage.tables.staging import StagedName
from txstorm.storage.tables.table_log import RewriteFiles
from txstorm.storage.upkeep.sweep import kept_by, orphans
from txstorm.storage.upkeep.thinning import SUPERSEDED_MILLIS, Versions

if TYPE_CHECKING:
    from txstorm.simulation.delta.tables import Row, SimTable
    from txstorm.simulation.process.process import Process

Positions = tuple[int, ...]
"""End offset of each partition."""


class SimHandles:
    """Rows that the committers of one txid write; closed once its attempt was given up."""

    def __init__(self, txid: int, store: SimStore) -> None:
        self.txid, self.store = txid, store
        self.written: tuple[Row, ...] | None = None
        self.ends: Positions = ()
        self.closed = False

    def close(self) -> None:
        """Make every later write of this attempt fail."""
        self.closed = True

    def activate(self, active: bool) -> None:
        """Do nothing: simulated committers use their handles in `finish_batch` only."""

    def write(self, extents: Sequence[Sequence[int]]) -> None:
        """Write the offsets that the batch read, from where the previous txid ended."""
        if self.closed:
            raise CommitFailed(ErrorRow("commit", 0, "other", "StateError", "this attempt was given up", "", ""))
        before = self.store.ends_before(self.txid)
        self.ends = tuple(at + end - start for at, (start, end) in zip(before, extents, strict=True))
        pairs = enumerate(zip(before, self.ends, strict=True))
        self.written = tuple((self.txid, part, start, end) for part, (start, end) in pairs if start < end)


class SimGroup:
    """Commit group of a simulated process; see `CommitGroup`, whose methods it has."""

    def __init__(self, first: int, store: SimStore) -> None:
        self._store = store
        self.resources = SimHandles(first, store)

    def begin_txid(self, txid: int, resources: SimHandles | None = None, stamp: int = 0) -> SimHandles:
        """Begin `txid`; return its handles."""
        if resources is not None or self.resources.txid != txid:
            self.resources = resources or SimHandles(txid, self._store)
        return self.resources

    def end_reads(self) -> None:
        """Do nothing: reads keep nothing."""

    def end_txid(self, txid: int) -> None:
        """Keep the rows of `txid` for later txids and for `stage`."""
        made = self.resources
        if made.written is None or made.txid != txid or made.closed:
            self._store.process.world.violates(9, f"{self._store.process} ends txid {txid} without its rows")
        self._store.unpublished[txid] = made.written, made.ends

    def drop_from(self, txid: int) -> None:
        """Drop the rows of `txid` and later ones."""
        self.resources = SimHandles(txid, self._store)
        for one in [one for one in self._store.unpublished if one >= txid]:
            del self._store.unpublished[one]

    def stage(self, records: Sequence[TxidRecord], epoch: int) -> list[IntentTable]:
        """Stage the rows of `records`, table by table, concurrently."""
        store = self._store
        tables = [one for one in store.tables.values() if one.ref.kind != STATE]
        staged = store.process.lanes.together([partial(store.stage, table, records, epoch) for table in tables])
        made = [one for one in staged if one is not None]
        intents = len(store.process.world.entries.names(names.INTENTS)) + (len(made) > 0)
        store.concluding = records[-1].txid, intents
        return made

    def apply(self, last: int) -> None:
        """Count the rows of the txids up to `last` as published."""
        store = self._store
        for txid in sorted(one for one in store.unpublished if one <= last):
            store.ends = store.unpublished.pop(txid)[1]
        store.published = last


class SimRun:
    """Commit phase of one attempt; stands in for `CommitRun`."""

    letters: Sequence[Any] = ()
    reported: Sequence[str] = ()
    timers: Sequence[int] = ()
    windows: Mapping[tuple[str, int], Any] = {}

    def __init__(
        self,
        program: Any,
        txid_input: TxidInput,
        cargo: Any,
        resources: SimHandles,
        observe: Any,
        begins: Callable[[str, int], None],
        elsewhere: Any = None,
    ) -> None:
        self._input, self._resources, self.begins = txid_input, resources, begins
        self.counts: dict[str, int] = {}
        self.at = At()

    def execute(self) -> None:
        """Run the part of a committer that may run before its turn."""
        self._user_code("execute")

    def run(self) -> None:
        """Run `finish_batch` of the committer."""
        process = self._resources.store.process
        self._user_code("finish")
        extents = extents_of(self._input.document)
        if process.world.schedule.external and not self._resources.closed:
            process.change_database(self._input, extents)
        self._resources.write(extents)
        self._user_code("after")
        if process.world.timer():
            self.timers = (process.world.micros(),)

    def _user_code(self, what: str) -> None:
        """Pass through user code, which may fail, or not return for long."""
        process, attempt = self._resources.store.process, self._input.attempt
        self.begins("commit", 0)
        world = process.world
        world.reads(process, what, attempt.txid)
        if world.unlucky():
            which = world.below(4)
            if which == 0 and not world.schedule.external:
                world.count(kinds.HANGS, f"the committer of {process} hangs in {what} of txid {attempt}")
                process.lanes.sleep(world.hang())
                world.reads(process, f"{what} goes on", attempt.txid)
            elif what != "after":
                world.count(kinds.COMMIT_FAILS, f"the committer of {process} fails in {what} of txid {attempt}")
                raise CommitFailed(ErrorRow("commit", 0, "failed", "FailedException", "simulated", "", ""))


class _Outside:
    def settle(self) -> None:
        pass


class SimStore:
    """Tables of a simulated process, for the shipped finisher and publisher; see `StateStore`.

    Attributes:
        tables: uri → table; `last`: uri → the last txid published to it, of the tables that groups write to.
        unpublished: txid → the rows that its committers wrote, and where the partitions end after it.
        ends: where the partitions end after the last published txid; `published`: that txid.
    """

    outside = _Outside()
    data_dir = Path("simulated")
    staging_place = StagingPlace("simulated", 0)  # there are no frame sinks

    def __init__(self, process: Process, tables: dict[str, SimTable]) -> None:
        self.process, self.tables = process, tables
        self.last = {uri: table.last_txid() for uri, table in tables.items() if table.ref.kind != STATE}
        self.unpublished: dict[int, tuple[tuple[Row, ...], Positions]] = {}
        self.ends: Positions = ()
        self.published = 0
        self.concluding = (0, 0)
        self.upkeep = SimUpkeep(self)

    def ends_before(self, txid: int) -> Positions:
        """Return where the partitions end before `txid`, as its committers see it."""
        return max(((one, ends) for one, (_, ends) in self.unpublished.items() if one < txid), default=(0, self.ends))[
            1
        ]

    def group(self, first: int) -> SimGroup:
        """Begin a group."""
        return SimGroup(first, self)

    def last_txids(self) -> dict[str, int]:
        """Return table → the last txid published to it."""
        return self.last

    def stage(self, table: SimTable, records: Sequence[TxidRecord], epoch: int) -> IntentTable | None:
        """Stage the rows of one table (end of P5); None if it gets none."""
        process, stored, partitions = self.process, table.stored, self.process.world.schedule.partitions
        process.world.reads(process, "stage", stored.uri)
        written = [row for one in records for row in self.unpublished[one.txid][0]]
        rows = tuple(row for row in written if not skips(stored.number, row[1], partitions))
        if not rows:
            return None
        first, last = records[0].txid, records[-1]
        name = StagedName(epoch, last.txid, last.attempt_id, "sim", "all").text(process.world.unique())
        path = f"{STAGED}/{name}"
        stored.rows[path] = rows
        staged = Staged(path, len(rows), "", len(rows), "{}", first, last.txid)
        return IntentTable(table.ref.kind, table.ref.name, stored.uri, "", self.last[stored.uri], staged)

    def publish(self, intent: Intent, epoch: int) -> dict[str, int]:
        """Publish a decided group to all its tables, concurrently."""
        process = self.process
        with process.publishing_here():
            calls = [
                partial(self.tables[one.uri].publish, number, one, intent, epoch)
                for number, one in enumerate(intent.tables, start=1)
            ]
            made = process.lanes.together(calls)
        self.last.update(dict.fromkeys([one.uri for one in intent.tables], intent.last))
        return {one.uri: version for one, version in zip(intent.tables, made, strict=True)}

    def forget(self, before: int) -> None:
        """Check what the completion of a group has left; simulated topologies have no staged files to release."""
        last, intents = self.concluding
        if not self.process.taken_back:
            with self.process.world.judging():
                self.process.world.judge.completed(last, min(intents, KEEP_INTENTS))

    def sweep(self, live: Sequence[Intent]) -> None:
        """Remove unreferenced and superseded files."""
        process = self.process
        process.world.count(kinds.SWEEP, f"{process} sweeps")
        for _ in self.upkeep.thin(0):
            pass
        for uri, table in self.tables.items():
            process.world.reads(process, "sweep", uri)
            kept = kept_by(live, uri) | self.upkeep.kept(uri)
            for path in orphans(sorted(table.stored.rows), process.books.epoch, kept, table.sim_log):
                del table.stored.rows[path]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


KEEP_INTENTS = 2


class SimWork:
    """A compaction of a state, or a small-file compaction of another table: files written beside commits."""

    def __init__(self, store: SimStore, table: SimTable) -> None:
        self.uri, self.table, self.store = table.ref.uri, table, store
        self.files: RewriteFiles | None = None
        self.written: set[str] = set()

    def steps(self) -> Iterator[None]:
        """Write the files."""
        yield
        make = self._compacted if self.table.ref.kind == STATE else self._gathered
        self.files = make()
        self.written |= {file.path for file in self.files.adds} if self.files is not None else set()
        yield

    def give_up(self) -> None:
        """Leave the files to the next sweep."""
        self.written.clear()

    def _compacted(self) -> RewriteFiles | None:
        store, process = self.store, self.store.process
        kept, changes = process.open_table(self.table.ref), TableRef(CHANGES, self.table.ref.name)
        later = process.open_table(changes)
        base, as_of = kept.last_txid(), min(store.last[changes.uri], store.published, later.last_txid())
        if base >= as_of:
            return None
        rows = [row for row in _seen(later) if row[0] <= as_of]
        partitions = range(process.world.schedule.partitions)
        start = [next((row[2] for row in rows if row[1] == part), 0) for part in partitions]
        ends = frontier(rows, start, changes.uri)
        made = tuple((as_of, part, 0, end) for part, end in enumerate(ends) if end > start[part])
        removes = [file.path for file in kept.log.files()]
        return RewriteFiles([written(process, kept.stored, made)], removes, 0, base, as_of)

    def _gathered(self) -> RewriteFiles | None:
        table = self.store.process.open_table(self.table.ref)
        files = [(min(table.stored.rows[one.path]), one.path) for one in table.log.files()]
        paths = [path for _, path in sorted(files)]
        if len(paths) < 2:
            return None
        rows = tuple(sorted(row for path in paths for row in table.stored.rows[path]))
        return RewriteFiles([written(self.store.process, table.stored, rows)], paths, 0)


def _seen(table: SimTable) -> list[Row]:
    return sorted(row for file in table.log.files() for row in table.stored.rows[file.path])


class SimUpkeep:
    """Upkeep of the tables of a simulated process, which is due by chance; see `UpkeepSchedule`."""

    def __init__(self, store: SimStore) -> None:
        self._store = store
        self._versions: dict[str, Versions] = {}
        self._works: dict[str, SimWork] = {}
        self.wanted = False

    def long_log(self) -> None:
        """Return None: the logs of simulated tables have checkpoints by themselves."""

    def behind(self) -> list[str]:
        """Return the states that lag behind their changes."""
        tables, last = self._store.tables, self._store.last
        pairs = ((uri, uri.replace("state/", "changes/")) for uri, one in tables.items() if one.ref.kind == STATE)
        return [uri for uri, changes in pairs if changes in last and tables[uri].last_txid() < last[changes]]

    def unsettled(self) -> list[str]:
        """Return no state: there is no retention in simulated worlds."""
        return []

    def due(self, now: float) -> str | None:
        """Return a table, now and then, or if upkeep is wanted."""
        world, uris = self._store.process.world, list(self._store.tables)
        if not uris or not (self.wanted or world.unlucky()):
            return None
        self.wanted = False
        return uris[world.below(len(uris))]

    def has_superseded(self, now: int) -> bool:
        """Whether `thin` has files to remove."""
        return any(versions.is_due(SUPERSEDED_MILLIS) for versions in self._versions.values())

    def kept(self, uri: str) -> set[str]:
        """Return the files of a table that upkeep has written and not committed."""
        return self._works[uri].written if uri in self._works else set()

    def begin(self, uri: str, now: int, *, stays: bool = False) -> SimWork | None:
        """Begin the upkeep of a table."""
        store = self._store
        table = store.tables[uri]
        store.process.world.reads(store.process, "begin upkeep", uri)
        state = table.ref.kind == STATE
        if state and uri not in self.behind():
            return None
        store.process.world.count(kinds.COMPACTION if state else kinds.GATHERING, f"{store.process}: upkeep of {uri}")
        self._works[uri] = work = SimWork(store, table)
        return work

    def finish(self, work: SimWork, now: int) -> bool:
        """Commit the files that were written, between two groups."""
        files, process, table = work.files, self._store.process, self._store.tables[work.uri]
        if files is None:
            return False
        if files.as_of is None:
            done = table.exchange(files, process.books.epoch)
        else:
            versions = self._versions.pop(work.uri, None) or Versions(table, 0)
            stays = process.world.below(3) == 0
            about = versions.decide(files.removes, 0, 0, 0, stays=stays)
            done = table.exchange(replace(files, about=about), process.books.epoch)
            if done:
                versions.made(table, about)
                self._versions[work.uri] = versions
        if done:
            table.stored.check_durable(table.version, f"{process} reports new files of {work.uri}")
        elif files.as_of is not None and table.last_txid() < files.as_of and process.world.leads(process):
            process.world.violates(7, f"{process} leads and cannot bring {work.uri} to txid {files.as_of}")
        work.written.clear()
        return done

    def thin(self, now: int) -> Iterator[None]:
        """Remove the files of superseded versions, since there are no readers here."""
        process = self._store.process
        for uri, versions in self._versions.items():
            rows, judge = process.world.tables[uri].rows, process.world.judge
            while versions.is_due(SUPERSEDED_MILLIS):
                for path in versions.due(SUPERSEDED_MILLIS):
                    process.world.reads(process, "thin", uri)
                    if rows.pop(path, None) is not None:
                        process.world.count(kinds.THINNING, f"{process} removes {path}")
                        with process.world.judging():
                            judge.removed(process.world.tables[uri], path)
                versions.removed()
                yield None

    def compact(self, limit_seconds: float | None = None, clock: Any = None, *, stays: bool = False) -> list[str]:
        """Bring the states up to date at a clean stop."""
        for uri in self.behind():
            work = self.begin(uri, 0, stays=stays)
            if work is not None:
                for _ in work.steps():
                    pass
                self.finish(work, 0)
        self._works.clear()
        for _ in self.thin(0):
            pass
        return []

    def sweep(self, live: Collection[Intent]) -> list[str]:
        """Do nothing: `SimStore.sweep` does it."""
        return []
