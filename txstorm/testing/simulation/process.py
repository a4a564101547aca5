"""One process of a simulated world: what the driver does around the machine, without its threads.

Machine, books, planning, taking over, concluding and the tables' protocol are shipped code; the order in which answers
come, what committers write, and the files are simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from txstorm.api.attempt import TransactionAttempt
from txstorm.clients.delta_values import DataFile
from txstorm.coordinator import commands as cmd
from txstorm.coordinator import events as ev
from txstorm.coordinator.machine import initial, step
from txstorm.engine.port import Processed
from txstorm.ledger.names import savepoint_path
from txstorm.ledger.store import ABSENT, Check
from txstorm.runtime.books import Books, Identity
from txstorm.runtime.concluding import Concluder
from txstorm.runtime.leading import check, take_over
from txstorm.runtime.planning import Planning
from txstorm.runtime.rewinding import carry_out, finish_rewind
from txstorm.state.exchange import Exchange
from txstorm.state.intent import CHANGES, STATE, Intent, IntentTable, TxidRecord
from txstorm.state.owner import Owner, TableRef
from txstorm.state.rewind import Rewind, planned
from txstorm.state.savepoint import SavedTable, Savepoint
from txstorm.state.staging import STAGED, Staged, StagedName, compact_name
from txstorm.state.sweep import kept_by, orphans
from txstorm.testing.simulation.judge import frontier, skips
from txstorm.testing.simulation.ledger import SimLedger
from txstorm.testing.simulation.schedule import INCARNATION, TOPOLOGY
from txstorm.testing.simulation.source import SimPlanner
from txstorm.testing.simulation.tables import Row, SimPlace, SimRows, SimTable, Stored

if TYPE_CHECKING:
    from txstorm.testing.simulation.world import World

KEEP_INTENTS = 2
WAKE = ev.Wake()
E = TypeVar("E", bound=Exception)


class Crash(BaseException):
    """The process dies here; nothing of it but what is durable is left."""


class Process:
    """A coordinator, or the operator's rewind; `name` is for the trace."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self.ledger = SimLedger(world, self)
        self.books = Books(self.ledger, world.values)
        self.place = SimPlace(world, self)
        self.struck = self.busy = False
        self.asked = -1
        self.group: cmd.Commit | None = None
        self.jobs: dict[int, int] = {}
        self.ready: dict[int, Processed] = {}
        self.dead: list[tuple[int, int]] = []
        self.works: list[tuple[SimTable, Exchange]] = []

    def __str__(self) -> str:
        return self.name

    def dies(self) -> NoReturn:
        """End here."""
        raise Crash

    def injected(self, error: E) -> E:
        """`error` comes from the world: that this process ends with it is no fault of it."""
        self.struck = True
        return error

    # -- P0 -----------------------------------------------------------------------------------------------------

    def lead(self) -> Identity:
        """Take the lease and take over what is there, as `txstorm.runtime.opening` and a rewind do."""
        self.ledger.acquire(self.name)
        known = self.books.identity()
        identity = known or Identity(TOPOLOGY, INCARNATION)
        if finish_rewind(self.place, self.books, self.world.clock) is not None:
            identity = known = self.books.identity() or identity
        check(self.place, self.books, identity)
        if identity != known:
            self.books.write_identity(identity, known)
        take_over(self.place, self.books, identity)
        return identity

    def open(self) -> None:
        """Lead, make what tables are missing, and go on where the ledger says."""
        identity = self.lead()
        self.owner = Owner(identity.topology, identity.incarnation, identity.timeline)
        currtx = self.books.currtx()
        self.tables = {uri: self._opened(stored, currtx - 1) for uri, stored in self.world.tables.items()}
        for table in self.tables.values():
            if self.world.by_spark(table.stored):
                table.use_spark()
            table.raise_epoch(self.books.epoch)
        self.last = {u: one.last_txid() for u, one in self.tables.items() if one.ref.kind != STATE}
        self.books.write_tables(self.last)
        self.planning = Planning(self.books, SimPlanner(self.world), self.world.micros)
        self.concluder = Concluder(
            self, self.books, keep_intents=KEEP_INTENTS, blocked=lambda cause: None, sleep=lambda seconds: False
        )
        self.attempts = self.books.epoch << 32
        self.state = initial(self.world.config)
        self.feed(ev.Opened(currtx, self.planning.open(currtx)))
        self.look()

    def _opened(self, stored: Stored, after: int) -> SimTable:
        if stored.versions:
            return self.place.table(self.owner, stored.ref)
        return self.place.create(self.owner, stored.ref, after)

    # -- the machine ---------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """Tell the machine, and carry out what it says."""
        pending, reads = [event], self.world.reads
        for happened in pending:
            reads(self, "event", happened)
            self.state, commands = step(self.state, happened)
            for command in commands:
                if (answer := self._carry_out(command)) is not None:
                    pending.append(answer)

    def look(self) -> None:
        """Ask the source again if it has changed; what is planned is stored before it is processed."""
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
            case cmd.Commit():
                self.group = command
            case cmd.Discard():
                self._discard(command)
        return None

    def _plan(self, command: cmd.Plan) -> ev.Event:
        if not self.planning.plan(command.txid, replay=command.replay):
            return ev.NotReady(command.txid)
        self.attempts += 1
        return ev.Planned(command.txid, self.attempts)

    def _discard(self, command: cmd.Discard) -> None:
        for txid, attempt in zip(command.txids, command.attempt_ids, strict=True):
            self.dead.append((txid, attempt))
            self.jobs.pop(txid, None)
            self.ready.pop(txid, None)
        if self.group is not None and set(self.group.attempt_ids) & set(command.attempt_ids):
            self.group = None

    # -- processing ----------------------------------------------------------------------------------------------

    def process(self, place: int) -> None:
        """The processing phase of one of the jobs is over (P4)."""
        txid = list(self.jobs)[place % len(self.jobs)]
        attempt = TransactionAttempt(txid, self.jobs.pop(txid))
        extents = self.planning.document(txid)
        made = Processed(attempt, digests={"source": f"{extents}"})
        self.planning.processed([made])
        self.ready[txid] = made
        self.feed(ev.Processed(*attempt))

    def fail(self, place: int, *, resume: bool) -> None:
        """The processing phase of one of the jobs has failed."""
        txid = list(self.jobs)[place % len(self.jobs)]
        self.feed(ev.Failed(txid, self.jobs[txid], resume))

    def stale(self, place: int, kind: int) -> None:
        """A late or duplicate answer of an attempt that is void: it must change nothing."""
        txid, attempt = self.dead[place]
        events = ev.Processed(txid, attempt), ev.Failed(txid, attempt), ev.Committed(txid, attempt)
        self.feed(events[kind])

    # -- P5 to P8 ------------------------------------------------------------------------------------------------

    def commit(self, upto: int | None = None) -> None:
        """The commit phase of the group whose turn it is; `finish_batch` of its txid number `upto` fails."""
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
            self.concluder.conclude(made, tuples, outlived, published=self._published(made), milliseconds=took)
            for txid, _ in done:
                self.ready.pop(txid, None)
            self.planning.committed(made.last)
            self.feed(ev.Committed(*done[-1]))
        if upto is not None and upto < len(group):
            self.feed(ev.Failed(*group[upto]))

    def _change_database(self, txid: int) -> None:
        for key in self.world.database.apply(self._record(self.ready[txid])):
            self.world.reads(self, "put", key)

    def _published(self, made: Intent) -> Callable[[int], None]:
        return lambda last: self.last.update(dict.fromkeys([table.uri for table in made.tables], last))

    def _staged(self, done: Sequence[Processed]) -> Intent:
        """P5: what the committers wrote is staged, table by table."""
        records = tuple(map(self._record, done))
        first, last = records[0].txid, done[-1].attempt
        tables = []
        for uri, table in self.tables.items():
            rows = _rows(records, table.stored) if table.ref.kind != STATE else ()
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
        """Table → the last txid published to it."""
        return self.last

    def publish(self, intent: Intent, epoch: int) -> dict[str, int]:
        """P7, in an order that is drawn: really it is all at once."""
        numbered = list(enumerate(intent.tables, start=1))
        if len(numbered) > 1 and self.world.below(2):
            numbered.reverse()
        return {one.uri: self.tables[one.uri].publish(number, one, intent, epoch) for number, one in numbered}

    def forget(self, before: int) -> None:
        """There are no maps."""

    # -- upkeep --------------------------------------------------------------------------------------------------

    def begin_upkeep(self, *, compact: bool) -> bool:
        """Write the files of a compaction, or of gathering small files; whether there is anything to do."""
        refs = [table.ref for table in self.tables.values() if (table.ref.kind == STATE) is compact]
        compacts = any(table.ref.kind == STATE for table, _ in self.works)
        if len(self.works) > 1 or not refs or (compact and compacts):
            return False
        ref = refs[self.world.below(len(refs))]
        work = self._compaction(ref) if compact else self._gathering(ref)
        self.works += [] if work is None else [work]
        return work is not None

    def end_upkeep(self) -> None:
        """Put the files in their place, in the committer's turn."""
        table, files = self.works.pop(self.world.below(len(self.works)))
        self.tables[table.ref.uri].exchange(files, self.books.epoch)

    def _compaction(self, ref: TableRef) -> tuple[SimTable, Exchange] | None:
        changes = TableRef(CHANGES, ref.name)
        kept, later = self.place.table(self.owner, ref), self.place.table(self.owner, changes)
        base, as_of = kept.last_txid(), min(self.last[changes.uri], later.last_txid())
        if base >= as_of:
            return None
        partitions = self.world.schedule.partitions
        ends = frontier([row for row in _seen(later) if row[0] <= as_of], partitions, changes.uri)
        rows = tuple((as_of, part, 0, end) for part, end in enumerate(ends))
        removes = [file.path for file in kept.log.files()]
        return kept, Exchange([self.compacted(kept.stored, rows)], removes, 0, base, as_of)

    def _gathering(self, ref: TableRef) -> tuple[SimTable, Exchange] | None:
        table = self.place.table(self.owner, ref)
        files = [(min(table.stored.rows[one.path]), one.path) for one in table.log.files()]
        paths = [path for _, path in sorted(files)]
        if len(paths) < 2:
            return None
        rows = tuple(sorted(row for path in paths for row in table.stored.rows[path]))
        return table, Exchange([self.compacted(table.stored, rows)], paths, 0)

    def compacted(self, stored: Stored, rows: tuple[Row, ...]) -> DataFile:
        """Stage the rows of other files as one."""
        path = f"{STAGED}/{compact_name(self.books.epoch, self.world.unique())}"
        stored.rows[path] = rows
        return DataFile(path, len(rows))

    def sweep(self) -> None:
        """Remove what nothing refers to."""
        live = self.books.intents()
        for uri, table in self.tables.items():
            kept = kept_by(live, uri)
            kept |= {file.path for work, files in self.works if work.ref.uri == uri for file in files.adds}
            for path in orphans(sorted(table.stored.rows), self.books.epoch, kept, table.sim_log):
                del table.stored.rows[path]

    def flush_history(self) -> None:
        """Move the history rows from the ledger to the history."""
        groups = self.books.history()
        if groups:
            self.place.append_history([row for rows in groups.values() for row in rows])
            self.books.forget_history(list(groups))

    # -- savepoints and rewinds ----------------------------------------------------------------------------------

    def savepoint(self) -> bool:
        """Name the last committed transaction; what it needs must stay."""
        txid, name = self.books.committed(), f"s{self.world.unique()}"
        rows = [row for found in self.books.history().values() for row in found if row["txid"] == txid]
        if not rows:
            return False
        where = {uri: SavedTable(table.version) for uri, table in self.tables.items()}
        document, stamp = rows[0]["extents"], rows[0]["stamp"]
        made = Savepoint(name, TOPOLOGY, INCARNATION, self.owner.timeline, txid, document, stamp, 0, where)
        return self.books.put_if([Check(savepoint_path(name), ABSENT)], {savepoint_path(name): made.to_json()})

    def rewind(self, share: float) -> bool:
        """Take back what was committed after a txid, as `txstorm rewind`; False when nothing was."""
        identity = self.lead()
        last = self.books.currtx() - 1
        if last < 1:
            return False
        txid = int(share * last)
        owner = Owner(identity.topology, identity.incarnation, identity.timeline)
        row = self._row(identity.timeline, txid) if txid else None
        tables = tuple(
            planned(self.place.table(owner, stored.ref), txid, SimRows(self, stored))
            for stored in self.world.tables.values()
            if stored.versions
        )
        timeline = identity.timeline + 1
        decided = Rewind(TOPOLOGY, INCARNATION, timeline, self.books.epoch, txid, row, tables)
        self.books.decide_rewind(decided)
        carry_out(self.place, self.books, decided, self.world.clock)
        return True

    def _row(self, timeline: int, txid: int) -> dict[str, Any]:
        own = {"timeline": timeline + 1, "first": txid, "last": txid, "versions": {}}
        known = [*self.world.history, *(row for rows in self.books.history().values() for row in rows)]
        return {**[row for row in known if row["txid"] == txid][-1], **own}


def _seen(table: SimTable) -> list[Row]:
    return sorted(row for file in table.log.files() for row in table.stored.rows[file.path])


def _rows(records: Sequence[TxidRecord], stored: Stored) -> tuple[Row, ...]:
    """What the committers of one table write for a group."""
    rows = [
        (one.txid, part, start, end)
        for one in records
        for part, (start, end) in enumerate(one.extents)
        if start < end and not skips(stored.number, part, len(one.extents))
    ]
    return tuple(rows)
