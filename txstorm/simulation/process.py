"""One process of a simulated world: the driver around the state machine, without threads, and its upkeep of tables.

Machine, books, planning, take-over, conclusion and the tables' protocol are shipped code; the order of responses, the
rows that committers write, and the files are simulated. Upkeep between commits: compaction, small-file compaction,
removal of superseded files. It is one module, like the driver that it stands in for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pyarrow as pa

from txstorm.api.attempt import EPOCH_BITS, TransactionAttempt
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.clients.delta.entry import DataFile
from txstorm.coordinator import commands as cmd
from txstorm.coordinator import events as ev
from txstorm.coordinator.machine import initial, step
from txstorm.engine.port import Processed
from txstorm.errors import SpoutError, StateError
from txstorm.ledger import paths as names
from txstorm.recovery.rewind import finish_rewind
from txstorm.recovery.roster import Roster, record, undeclared_tables
from txstorm.recovery.take_over import check, take_over
from txstorm.runtime.batches.planning import Planning
from txstorm.runtime.commit.publisher import Publisher
from txstorm.simulation import schedule as kinds
from txstorm.simulation.delta.tables import Row, SimPlace, SimTable, Stored
from txstorm.simulation.expected import Violation, frontier, rows_from
from txstorm.simulation.ledger import SimLedger
from txstorm.simulation.outside import SimPlanner, extents_of
from txstorm.simulation.schedule import INCARNATION, TOPOLOGY
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import CHANGES, STAGED, STATE, Intent, IntentTable, Staged, TxidRecord
from txstorm.storage.tables.staging import StagedName, compact_name
from txstorm.storage.tables.table_log import RewriteFiles
from txstorm.storage.upkeep.sweep import kept_by, orphans
from txstorm.storage.upkeep.thinning import SUPERSEDED_MILLIS, Versions

if TYPE_CHECKING:
    from txstorm.simulation.delta.tables import Row, SimTable
    from txstorm.simulation.world import World


def compaction(process: Process, ref: TableRef) -> tuple[SimTable, RewriteFiles] | None:
    """Stage a compaction of a state; return the table and the new files, or None if nothing has changed."""
    changes = TableRef(CHANGES, ref.name)
    kept, later = process.place.table(process.owner, ref), process.place.table(process.owner, changes)
    base, as_of = kept.last_txid(), min(process.last[changes.uri], later.last_txid())
    if base >= as_of:
        return None
    rows = [row for row in _seen(later) if row[0] <= as_of]
    partitions = range(process.world.schedule.partitions)
    start = [next((row[2] for row in rows if row[1] == part), 0) for part in partitions]
    ends = frontier(rows, start, changes.uri)
    made = tuple((as_of, part, 0, end) for part, end in enumerate(ends) if end > start[part])
    removes = [file.path for file in kept.log.files()]
    return kept, RewriteFiles([process.compacted(kept.stored, made)], removes, 0, base, as_of)


def gathering(process: Process, ref: TableRef) -> tuple[SimTable, RewriteFiles] | None:
    """Stage a small-file compaction of a table; return the table and the new files; None below two files."""
    table = process.place.table(process.owner, ref)
    files = [(min(table.stored.rows[one.path]), one.path) for one in table.log.files()]
    paths = [path for _, path in sorted(files)]
    if len(paths) < 2:
        return None
    rows = tuple(sorted(row for path in paths for row in table.stored.rows[path]))
    return table, RewriteFiles([process.compacted(table.stored, rows)], paths, 0)


def _seen(table: SimTable) -> list[Row]:
    return sorted(row for file in table.log.files() for row in table.stored.rows[file.path])


def exchanged(process: Process, table: SimTable, files: RewriteFiles) -> bool:
    """Commit the files of a compaction; return whether the commit succeeded."""
    uri = table.ref.uri
    versions = process.versions.pop(uri, None) or Versions(table, 0)
    about = versions.decide(files.removes, 0, 0, 0, stays=process.world.below(3) == 0)
    done = table.exchange(replace(files, about=about), process.books.epoch)
    if done:
        versions.made(table, about)
        process.versions[uri] = versions
    return done


def thin(process: Process) -> None:
    """Remove the files of superseded versions immediately, since there are no readers here."""
    for uri, versions in process.versions.items():
        rows, judge = process.world.tables[uri].rows, process.world.judge
        while versions.is_due(SUPERSEDED_MILLIS):
            for path in versions.due(SUPERSEDED_MILLIS):
                process.world.reads(process, "thin", uri)
                if rows.pop(path, None) is not None:
                    process.world.count(kinds.THINNING, f"{process} removes {path}")
                    judge.removed(process.world.tables[uri], path)
            versions.removed()


KEEP_INTENTS = 2
DROPPING = 6
"""Approximate number of steps it takes to drop a table."""

WAKE = ev.Wake()
E = TypeVar("E", bound=Exception)


class Crash(BaseException):
    """Death of the simulated process at this point; only its durable effects remain."""


class Process:
    """A simulated process: a coordinator, or an operator's rewind; `name` is for the trace."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self.ledger = SimLedger(world, self)
        self.books = Books(self.ledger, world.values)
        self.place = SimPlace(world, self)
        self.struck = self.busy = self.publishing = False
        self.starts, self.goes_on = True, True
        self.asked = -1
        self.group: cmd.Commit | None = None
        self.jobs: dict[int, int] = {}
        self.ready: dict[int, Processed] = {}
        self.dead: list[tuple[int, int]] = []
        self.works: list[tuple[SimTable, RewriteFiles]] = []
        self.held: set[int] = set()
        self.versions: dict[str, Versions] = {}
        self.code, self.drop = world.code, world.drop

    def __str__(self) -> str:
        return self.name

    @property
    def taken_back(self) -> bool:
        """Whether a rewind happened after this process started, so that its undecided work is void."""
        return self.owner.timeline != self.world.judge.timeline

    def dies(self) -> NoReturn:
        """Kill this process by raising `Crash`."""
        raise Crash

    def injected(self, error: E) -> E:
        """Mark `error` as simulated and return it: a process that ends with it is not a violation."""
        self.struck = True
        return error

    def refused(self, error: E) -> E:
        """Mark `error` of a table as simulated and return it: publishing a decided group must then be retried."""
        return error if self.publishing else self.injected(error)

    # -- P0 -----------------------------------------------------------------------------------------------------

    def lead(self, *, starts: bool = False) -> Identity:
        """Acquire the lease and take over, as `txstorm.runtime.opening` and a rewind do."""
        self.ledger.acquire(self.name)
        known = self.books.identity()
        identity = known or Identity(TOPOLOGY, INCARNATION)
        if finish_rewind(self.place, self.books, self.world.lanes) is not None:
            identity = known = self.books.identity() or identity
        check(self.place, self.books, identity)
        if starts:
            self._undeclared_tables()
        if identity != known:
            self.books.write_identity(identity, known)
        take_over(self.place, self.books, identity)
        return identity

    def _undeclared_tables(self) -> Roster:
        """Return the recorded tables that the code lacks and may drop; raise `StateError` if it may not drop one."""
        uris = {uri: uri for uri in self.code if not uri.startswith("state/")}
        left = undeclared_tables(self.books, uris)
        if not left <= self.drop:
            raise StateError(f"{sorted(left)} is recorded, the code has {sorted(uris)}")
        return Roster(frozenset(left))

    def open(self) -> None:
        """Acquire the lease, take over, create missing tables, and continue from the position in the ledger."""
        identity = self.lead(starts=True)
        roster = self._undeclared_tables()
        self.owner = TopologyIdentity(identity.topology, identity.incarnation, identity.timeline)
        currtx = self.books.currtx()
        self.tables = {uri: self._opened(self.world.tables[uri], currtx - 1) for uri in self.code}
        recorded = self.books.tables()
        for table in self.tables.values():
            if self.world.by_spark(table.stored):
                table.use_spark()
            new = table.stored.uri.replace("state/", "changes/") not in recorded
            table.raise_epoch(self.books.epoch, begins=currtx - 1 if new else None)
            if new and not table.begins_after(currtx - 1):
                table.begin(currtx - 1, self.books.epoch)
        self.last = {u: one.last_txid() for u, one in self.tables.items() if one.ref.kind != STATE}
        if roster.tables and self.world.below(2):
            self.world.arm(DROPPING)
        record(self.place, self.books, self.owner, self.last, roster)
        source, external = SimPlanner(self.world), self.world.schedule.external
        self.planning = Planning(self.books, source, self.world.micros, external=external)
        self.concluder = Publisher(
            self,
            self.books,
            keep_intents=KEEP_INTENTS,
            blocked=lambda cause: None,
            sleep=lambda seconds: False,
            monotonic=self.world.clock,
        )
        self.attempts = self.books.epoch << EPOCH_BITS
        self.state = initial(self.world.config)
        self.feed(ev.Opened(currtx, self.planning.open(currtx)))
        self.look()

    def _opened(self, stored: Stored, after: int) -> SimTable:
        if not self.place.has(stored.ref):
            self.place.create(self.owner, stored.ref, pa.schema([]), after, {})
        return self.place.table(self.owner, stored.ref)

    # -- the machine ---------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the state machine, and execute the resulting commands."""
        pending, reads = [event], self.world.reads
        for happened in pending:
            reads(self, "event", happened)
            self.state, commands = step(self.state, happened)
            for command in commands:
                if (answer := self._carry_out(command)) is not None:
                    pending.append(answer)

    def activate(self, *, active: bool) -> None:
        """Activate or deactivate the topology: start new transactions, or none."""
        if active != self.starts:
            self.starts = active
            self.feed(ev.Activated() if active else ev.Deactivated())
            self.look()

    def look(self) -> None:
        """Poll the source again if it has changed; planned transactions are stored before they are processed."""
        self.books.check_lease()
        if self.asked != self.world.news:
            self.asked = self.world.news
            self.feed(WAKE)
        self.planning.save()

    def _carry_out(self, command: cmd.Command) -> ev.Event | None:
        match command:
            case cmd.Plan():
                return self._plan(command)
            case cmd.Process():
                self.jobs[command.txid] = command.attempt_id
                if not self.goes_on:
                    self._wrong(command, "is stopping")
            case cmd.Commit():
                self._check_group(command)
                self.group = command
            case cmd.Discard():
                self._discard(command)
            case cmd.Forget():
                if command.before >= self.world.judge.currtx and not self.taken_back:
                    self._wrong(command, "knows that it is not committed")
        return None

    def _check_group(self, command: cmd.Commit) -> None:
        if len(command.txids) > self.world.schedule.group or not self.goes_on:
            self._wrong(command, f"may commit {self.world.schedule.group} at once, and none if it is stopping")
        attempts = [self.ready[txid].attempt.attempt_id for txid in command.txids]
        if attempts != list(command.attempt_ids):
            self._wrong(command, f"has attempts {attempts} of them")

    def _wrong(self, command: cmd.Command, though: str) -> NoReturn:
        raise Violation(9, f"{self} gets {command}, though it {though}")

    def _plan(self, command: cmd.Plan) -> ev.Event:
        if len(self.jobs) + len(self.ready) >= self.world.schedule.depth:
            self._wrong(command, f"may have {self.world.schedule.depth} in flight")
        if not (command.replay or self.starts):
            self._wrong(command, "is to begin nothing new")
        if self.held and command.txid >= min(self.held):
            self._wrong(command, f"has to wait with txid {min(self.held)}")
        if not (self.planning.plan(command.txid, replay=command.replay) or self._plan_system(command)):
            return ev.NotReady(command.txid)
        self.attempts += 1
        return ev.Planned(command.txid, self.attempts)

    def _plan_system(self, command: cmd.Plan) -> bool:
        """Plan a heartbeat, now and then, if nothing is in flight; one that is replayed is one again."""
        if command.replay:
            due = self.planning.kind(command.txid) != "data"
        else:
            due = not (self.jobs or self.ready or self.group) and self.world.timer()
        if due:
            self.planning.plan_system(command.txid, "heartbeat")
            self.world.count(kinds.HEARTBEAT, f"{self} plans txid {command.txid} without input")
        return due

    def _discard(self, command: cmd.Discard) -> None:
        for txid, attempt in zip(command.txids, command.attempt_ids, strict=True):
            self.dead.append((txid, attempt))
            self.jobs.pop(txid, None)
            self.ready.pop(txid, None)
        if self.group is not None and set(self.group.attempt_ids) & set(command.attempt_ids):
            self.group = None

    def work_off(self) -> None:
        """Do all work that can be done immediately."""
        while self.works:
            self.end_upkeep()
        while self.jobs:
            self.process(0)
        while self.group is not None:
            self.commit()
        for txid in sorted(self.held):
            self.resume(txid)
        self.look()

    # -- processing ----------------------------------------------------------------------------------------------

    def process(self, place: int) -> None:
        """Finish the processing phase of one of the jobs (P4)."""
        txid = list(self.jobs)[place % len(self.jobs)]
        attempt = TransactionAttempt(txid, self.jobs.pop(txid))
        made = Processed(attempt, digests=self._digests(txid))
        self.planning.processed([made])
        self.ready[txid] = made
        self.feed(ev.Processed(*attempt))

    def _digests(self, txid: int) -> dict[str, str]:
        return {"source": f"{extents_of(self.planning.document(txid))}"}

    def lie(self, place: int) -> None:
        """Replay a batch with different content although the source is not opaque; the replay must be refused."""
        txid = list(self.jobs)[place % len(self.jobs)]
        if self.world.schedule.opaque or not self.planning.metas[txid].digests:
            return
        self.world.count(kinds.LIE, f"{self} gets another batch for txid {txid}")
        digests = {"source": "another one"} if place % 2 else {}
        try:
            self.planning.processed([Processed(TransactionAttempt(txid, self.jobs[txid]), digests=digests)])
        except SpoutError as error:
            raise self.injected(error) from None
        raise Violation(4, f"{self} takes another batch for txid {txid} than the first time")

    def fail(self, place: int, *, resume: bool, emitted: bool) -> None:
        """Fail the processing phase of one of the jobs, before or (if `emitted`) after its batch was read."""
        txid = list(self.jobs)[place % len(self.jobs)]
        if emitted:
            self._emitted(TransactionAttempt(txid, self.jobs[txid]))
        if not resume:
            self.held.add(txid)
        self.feed(ev.Failed(txid, self.jobs[txid], resume))

    def _emitted(self, attempt: TransactionAttempt) -> None:
        """Record the batch that was read: from now on every replay, by any process, must read the same."""
        digests = self._digests(attempt.txid)
        fresh = not (self.world.schedule.opaque or self.planning.metas[attempt.txid].digests)
        self.planning.emitted(Processed(attempt, digests=digests))
        over = self.taken_back or attempt.txid < self.world.judge.currtx  # by another process while this one was paused
        if fresh and not over and self.world.judge.read(attempt.txid) != digests:
            raise Violation(4, f"what {self} has read for txid {attempt.txid} is not kept")

    def resume(self, txid: int) -> None:
        """Retry a failed txid."""
        self.held.discard(txid)
        self.feed(ev.Resume(txid))

    def stale(self, place: int, kind: int) -> None:
        """Deliver a late answer of a void attempt, or a duplicate one of a current attempt; it must change nothing."""
        txid, attempt = (*self.dead, *[one.attempt for one in self.ready.values()])[place]
        events = ev.Processed(txid, attempt), ev.Failed(txid, attempt), ev.Committed(txid, attempt)
        before, late = self.state, events[kind if place < len(self.dead) else 0]
        self.feed(late)
        if self.state != before:
            raise Violation(9, f"{self} gets {late}, late or repeated, and changes from {before} to {self.state}")

    # -- P5 to P8 ------------------------------------------------------------------------------------------------

    def commit(self, upto: int | None = None) -> None:
        """Run the commit phase of the group whose turn it is; `finish_batch` fails for its txid at index `upto`."""
        assert self.group is not None
        group, self.group = list(zip(self.group.txids, self.group.attempt_ids, strict=True)), None
        done = group[:upto]
        if self.world.schedule.external:
            self._change_database(group[0][0])
        if done:
            made = self._staged([self.ready[txid] for txid, _ in done])
            tuples = dict.fromkeys([txid for txid, _ in done], 1)
            took: dict[str, float] = {}
            outlived = self.planning.outlived
            intents = len(self.world.entries.names(names.INTENTS)) + (len(made.tables) > 0)
            self.concluder.conclude(made, tuples, outlived, published=self._published(made), milliseconds=took)
            if not self.taken_back:
                self.world.judge.completed(made.last, min(intents, KEEP_INTENTS))
            for txid, _ in done:
                self.ready.pop(txid, None)
            self.planning.committed(made.last)
            self.feed(ev.Committed(*done[-1]))
        if upto is not None and upto < len(group):
            if self.group is not None:
                self._wrong(self.group, f"is about to be told that {group[upto]} has failed")
            self.feed(ev.Failed(*group[upto]))

    def _change_database(self, txid: int) -> None:
        if not self.world.judge.read(txid):
            raise Violation(4, f"{self} changes a database for txid {txid}, what it has read of it is not kept")
        for key in self.world.database.apply(self._record(self.ready[txid])):
            self.world.reads(self, "put", key)

    def _published(self, made: Intent) -> Callable[[int], None]:
        return lambda last: self.last.update(dict.fromkeys([table.uri for table in made.tables], last))

    def _staged(self, done: Sequence[Processed]) -> Intent:
        """Stage the rows of the committers, table by table (P5)."""
        records = tuple(map(self._record, done))
        first, last = records[0].txid, done[-1].attempt
        tables = []
        for uri, table in self.tables.items():
            rows = rows_from(records, table.stored) if table.ref.kind != STATE else ()
            if rows:
                self.world.reads(self, "stage", uri)
                name = StagedName(self.books.epoch, last.txid, last.attempt_id, "sim", "all").text(self.world.unique())
                path = f"{STAGED}/{name}"
                table.stored.rows[path] = rows
                staged = Staged(path, len(rows), "", len(rows), "{}", first, last.txid)
                tables.append(IntentTable(table.ref.kind, table.ref.name, uri, "", self.last[uri], staged))
        return Intent(TOPOLOGY, INCARNATION, self.owner.timeline, self.books.epoch, records, tuple(tables))

    def _record(self, one: Processed) -> TxidRecord:
        meta = self.planning.metas[one.attempt.txid]
        return TxidRecord(*one.attempt, one.digests["source"], meta.document, meta.stamp)

    def last_txids(self) -> dict[str, int]:
        """Return table → the last txid published to it."""
        return self.last

    def publish(self, intent: Intent, epoch: int) -> dict[str, int]:
        """Publish a group (P7) table by table, in random order; the shipped code does so in parallel."""
        numbered = list(enumerate(intent.tables, start=1))
        if len(numbered) > 1 and self.world.below(2):
            numbered.reverse()
        self.publishing = True
        try:
            return {one.uri: self.tables[one.uri].publish(number, one, intent, epoch) for number, one in numbered}
        finally:
            self.publishing = False

    def forget(self, before: int) -> None:
        """Do nothing: simulated topologies have no maps in external stores."""

    # -- upkeep --------------------------------------------------------------------------------------------------

    def begin_upkeep(self, *, compact: bool) -> bool:
        """Write the files of a compaction, or of a small-file compaction; return whether there is anything to do."""
        refs = [table.ref for table in self.tables.values() if (table.ref.kind == STATE) is compact]
        compacts = any(table.ref.kind == STATE for table, _ in self.works)
        if len(self.works) > 1 or not refs or (compact and compacts):
            return False
        ref = refs[self.world.below(len(refs))]
        work = compaction(self, ref) if compact else gathering(self, ref)
        self.works += [] if work is None else [work]
        return work is not None

    def end_upkeep(self) -> None:
        """Commit the files written, between two groups."""
        written, files = self.works.pop(self.world.below(len(self.works)))
        table = self.tables[written.ref.uri]
        done = table.exchange(files, self.books.epoch) if files.as_of is None else exchanged(self, table, files)
        if done:
            table.stored.check_durable(table.version, f"{self} reports new files of {table.ref.uri}")
        elif files.as_of is not None and table.last_txid() < files.as_of and self.world.leads(self):
            raise Violation(7, f"{self} leads and cannot bring {table.ref.uri} to txid {files.as_of}")
        if self.world.below(2):
            thin(self)

    def compacted(self, stored: Stored, rows: tuple[Row, ...]) -> DataFile:
        """Stage the rows of several files as one new file."""
        path = f"{STAGED}/{compact_name(self.books.epoch, self.world.unique())}"
        stored.rows[path] = rows
        return DataFile(path, len(rows))

    def sweep(self) -> None:
        """Remove unreferenced and superseded files."""
        thin(self)
        live = self.books.intents()
        for uri, table in self.tables.items():
            kept = kept_by(live, uri)
            kept |= {file.path for work, files in self.works if work.ref.uri == uri for file in files.adds}
            for path in orphans(sorted(table.stored.rows), self.books.epoch, kept, table.sim_log):
                del table.stored.rows[path]

    def flush_history(self) -> None:
        """Move the history rows from the ledger to the history table."""
        groups = self.books.history()
        if groups:
            self.place.append_history([row for rows in groups.values() for row in rows])
            self.books.forget_history(list(groups))
            if not self.taken_back:
                self.world.judge.check_removed(names.HISTORY, groups)
