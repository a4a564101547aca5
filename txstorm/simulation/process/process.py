"""One process of a simulated world: the shipped run, from its start to its end, on lanes, ledger and tables simulated.

Opening follows `txstorm.runtime.opening`, whose checks of files do not apply; everything after it is shipped code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import pyarrow as pa

from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.spout import SpoutCoordinator, TransactionalSpout
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.coordinator import events as ev
from txstorm.coordinator.machine import AttemptStatus, Mode, State, step
from txstorm.engine.port import TxidInput
from txstorm.engine.program import Program, program_of
from txstorm.errors import StateError, TxstormError
from txstorm.lanes import Lanes
from txstorm.monitor.progress import Monitor
from txstorm.operations.lifecycle import Waiting, ask_run
from txstorm.plan.stages import compile_plan
from txstorm.recovery.rewind import finish_rewind
from txstorm.recovery.roster import Roster, record, undeclared_tables
from txstorm.recovery.take_over import check, take_over
from txstorm.runtime.commit.line import MakeRun
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.opening import Led, RunOptions, Start, assemble
from txstorm.runtime.session import Session
from txstorm.runtime.standby import real_end, take_lease
from txstorm.simulation import schedule as kinds
from txstorm.simulation.delta.tables import SimPlace, SimTable, Stored
from txstorm.simulation.expected import Violation
from txstorm.simulation.ledger import HOST, SimLedger
from txstorm.simulation.outside import Extents, SimPlanner, extents_of
from txstorm.simulation.process.committers import KEEP_INTENTS, SimRun, SimStore
from txstorm.simulation.process.engine import SimEngine
from txstorm.simulation.process.scheduler import Owner, SimLanes
from txstorm.simulation.schedule import INCARNATION, TOPOLOGY
from txstorm.state.store import StateStore
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import TxidRecord
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

if TYPE_CHECKING:
    from txstorm.simulation.world import World

DROPPING = 6
"""Approximate number of steps it takes to drop a table."""
E = TypeVar("E", bound=Exception)


class _Spout(TransactionalSpout):
    fields = ("n",)

    def coordinator(self, context: object) -> SpoutCoordinator:
        raise NotImplementedError


class _Keep(BatchBolt, Committer):
    fields = ()
    timers = True

    def execute(self, tuple: object) -> None:  # noqa: A002 - Storm's word
        raise NotImplementedError


@cache
def _program(depth: int, group: int, ahead: bool, external: bool) -> tuple[Topology, Program]:
    """Return the topology of a world and its program: a spout and a committer, neither of which ever runs."""
    builder = TransactionalTopologyBuilder(TOPOLOGY, "source", _Spout())
    builder.set_committer_bolt("commit", _Keep()).shuffle_grouping("source")
    topology = builder.build_topology().with_settings(
        {
            "max_spout_pending": depth,
            "max_group_txids": 1 if external else group,
            "max_pack_txids": 1 + depth // 2,
            "finish_ahead": ahead and not external,
            "keep_intents": KEEP_INTENTS,
            "batch_timeout": BATCH_TIMEOUT,
            "retry_backoff": 0.1,
            "on_error": "retry(1000)",
            "heartbeat_interval": 1,
            "max_stop": None,  # a call may hang for 30 years
        }
    )
    return topology, program_of(compile_plan(topology))


BATCH_TIMEOUT = 60.0


class SimMonitor(Monitor):
    """Monitor that has the judge look at every state of the coordinator."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self.state: State | None = None
        self._attempts: dict[int, int] = {}  # attempt id → txid

    def watch(self, state: State) -> None:
        """Record the coordinator's state after an event, and have it judged."""
        super().watch(state)
        before, self.state = self.state, state
        with self._process.world.judging():
            self._process.world.judge.watched(self._process, before, state)
            if self._process.world.below(16) == 0:
                self._late_event(state)
        for txid, entry in enumerate(state.entries, state.currtx):
            self._attempts[entry.attempt_id] = txid

    def _late_event(self, state: State) -> None:
        """Check that a late answer for a void attempt, or the repeated one of a processed attempt, changes nothing."""
        world, attempts = self._process.world, list(self._attempts)
        if not attempts:
            return
        attempt = attempts[world.below(len(attempts))]
        txid, which = self._attempts[attempt], world.below(3)
        current = state.active.get(txid)
        if current is not None and current[0] == attempt:
            if current[1] is AttemptStatus.PROCESSING:
                return
            which = 0
        late = (ev.Processed(txid, attempt), ev.Failed(txid, attempt), ev.Committed(txid, attempt))[which]
        world.count(kinds.STALE, f"{self._process} gets {late}")
        after, commands = step(state, late)
        if after != state or commands:
            raise Violation(9, f"{self._process} gets {late}, late or repeated, and changes from {state} to {after}")


class SimBooks(Books):
    """Books whose status names the simulated process instead of the real one."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.ledger, process.world.values, process.lanes)
        self._process = process

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Record the status of the run."""
        super().write_status({**status, "pid": self._process.name, "host": HOST})


class Process(Owner):
    """A simulated process: a coordinator, or an operator's command.

    With `standby`, it waits for the lease while another one has it.

    Attributes:
        struck: whether a fault was injected that the process may end with.
        lied_to: whether its source has replayed another batch, with which the run must end.
        before: what would have fenced it, as of when it acquired the lease.
        waits: whether it stands by, and has never had the lease; `told`: what it said of the runs it stood by for.
        led: whether it led when it closed its ledger.
        stops: whether its user has asked it to stop.
        handle: the handle of its run, once it has opened.
        ended: whether it has ended by itself.
    """

    def __init__(self, world: World, name: str, *, standby: bool = False) -> None:
        self.name, self.world, self.scheduler = name, world, world.scheduler
        self.lanes = SimLanes(world.scheduler, self, world.micros)
        self.lanes.longest = Lanes.longest if world.schedule.polls else math.inf
        self.ledger = SimLedger(world, self)
        self.books = SimBooks(self)
        self.place = SimPlace(world, self)
        self.struck = self.led = self.ended = self.lied_to = self.stops = False
        self.waits, self.told = standby, list[str]()
        self.handle: RunHandle | None = None
        self.monitor = SimMonitor(self)
        self.session: Session | None = None
        self.store: SimStore | None = None
        self.tables: dict[str, SimTable] = {}
        self.asked_since: dict[int, int] = {}
        self.code, self.drop = world.code, world.drop
        self.before = world.fences()

    @property
    def taken_back(self) -> bool:
        """Whether a rewind happened after this process started, so that its undecided work is void."""
        return self.owner.timeline != self.world.judge.timeline

    @property
    def publishing(self) -> bool:
        """Whether the current lane publishes a decided group."""
        lane = self.scheduler.current
        return lane is not None and lane.publishing

    @contextmanager
    def publishing_here(self) -> Iterator[None]:
        """Within it, a decided group is published on the current lane."""
        lane = self.scheduler.current
        assert lane is not None
        lane.publishing = True
        try:
            yield
        finally:
            lane.publishing = False

    def dies(self) -> NoReturn:
        """Kill this process; its lanes end here."""
        self.world.killed(self)
        raise AssertionError

    def has_written(self, fault: str | None) -> None:
        """Die or pause after a write, if that is the fault."""
        if fault == kinds.CRASH_AFTER:
            self.dies()
        if fault == kinds.PAUSE_AFTER:
            self.world.pause(self)

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
        take_lease(self.books, TOPOLOGY, self.told.append if self.waits else None, lambda: None, self.lanes)
        self.books.check_leads()
        while True:
            known = self.books.identity()
            identity = known or Identity(TOPOLOGY, INCARNATION)
            if finish_rewind(self.place, self.books, self.lanes) is not None:
                identity = known = self.books.identity() or identity
            check(self.place, self.books, identity)
            if starts:
                self._undeclared_tables()
            if identity == known or self.books.write_identity(identity, known):
                break
        take_over(self.place, self.books, identity)
        return identity

    def _undeclared_tables(self) -> Roster:
        """Return the recorded tables that the code lacks and may drop; raise `StateError` if it may not drop one."""
        uris = {uri: uri for uri in self.code if not uri.startswith("state/")}
        left = undeclared_tables(self.books, uris)
        if not left <= self.drop:
            raise StateError(f"{sorted(left)} is recorded, the code has {sorted(uris)}")
        return Roster(frozenset(left))

    def run(self) -> None:
        """Open, and start the driver; the process ends with the run."""
        try:
            self.open()
        except Exception as error:  # noqa: BLE001 - judged by the world
            end = real_end(error, self.books)
            self.ledger.close()
            self.world.finished(self, end)
        else:
            assert self.handle is not None
            self.handle.start()

    def open(self) -> None:
        """Acquire the lease, take over, create missing tables, and prepare to go on from the ledger's position."""
        identity = self.lead(starts=True)
        roster = self._undeclared_tables()
        self.owner = TopologyIdentity(identity.topology, identity.incarnation, identity.timeline)
        currtx = self.books.currtx()
        recorded = self.books.tables()
        self.tables = {uri: self._opened(self.world.tables[uri], currtx - 1, recorded) for uri in self.code}
        for table in self.tables.values():
            if self.world.by_spark(table.stored):
                table.use_spark()
            new = table.stored.uri.replace("state/", "changes/") not in recorded
            table.raise_epoch(self.books.epoch, begins=currtx - 1 if new else None)
            if new and not table.begins_after(currtx - 1):
                table.begin(currtx - 1, self.books.epoch)
        self.store = SimStore(self, self.tables)
        if roster.tables and self.world.below(2):
            self.world.arm(DROPPING)
        record(self.place, self.books, self.owner, self.store.last, roster)
        self._assemble(identity)

    def _assemble(self, identity: Identity) -> None:
        schedule, stopping, store = self.world.schedule, self.lanes.event(), self.store
        assert store is not None
        topology, program = _program(schedule.depth, schedule.group, schedule.ahead, schedule.external)
        options, engine, source = RunOptions(lanes=self.lanes), SimEngine(self), SimPlanner(self)
        start = Start(topology, engine, store.data_dir, options, self.monitor, stopping.wait)
        led = Led(cast(StateStore, store), identity, self.place, source, cast(MakeRun, SimRun), schedule.external)
        self.session = assemble(start, topology, program, self.books, led)
        document = self.session.planning.document(self.session.currtx - 1)
        extents = [[0, 0]] * schedule.partitions if document is None else extents_of(document)
        store.ends, store.published = tuple(end for _, end in extents), self.session.currtx - 1
        self.handle = handle = RunHandle(topology, self.session, self.monitor, stopping)
        self.monitor.at_work = tuple  # the status, a write of the ledger, is the same however long work takes
        handle.on_end(lambda: self.world.finished(self, handle.exception()))

    def _opened(self, stored: Stored, after: int, recorded: Mapping[str, int]) -> SimTable:
        if self.place.has(stored.ref):
            if stored.uri.replace("state/", "changes/") not in recorded:
                self.place.secure_names(self.owner, stored.ref)
        else:
            self.place.create(self.owner, stored.ref, pa.schema([]), after, {})
        return self.open_table(stored.ref)

    def open_table(self, ref: TableRef) -> SimTable:
        """Open a table at its newest version."""
        return self.place.table(self.owner, ref)

    # -- what committers and engine of this process need ------------------------------------------------------------

    def has_read(self, txid: int) -> bool:
        """Return whether the digests of a batch are known, so that a replay of another one can be found out."""
        return self.session is not None and bool(self.session.planning.metas[txid].digests)

    def change_database(self, txid_input: TxidInput, extents: Extents) -> None:
        """Change the user's database in `finish_batch`, key by key."""
        attempt = txid_input.attempt
        digests = self.world.judge.read(attempt.txid)
        if not digests:
            self.world.violates(
                4, f"{self} changes a database for txid {attempt.txid}, what it has read of it is not kept"
            )
        for key in self.world.database.apply(TxidRecord(*attempt, "", txid_input.document, txid_input.stamp)):
            self.world.reads(self, "put", key)

    @property
    def is_inactive(self) -> bool:
        """Whether it starts no new transactions."""
        return self.state is not None and self.state.mode is Mode.INACTIVE

    # -- what others do to it ---------------------------------------------------------------------------------------

    @property
    def asked(self) -> str:
        """Path of the newest answer of the ledger to the current lane."""
        lane = self.scheduler.current
        return "" if lane is None else lane.asked

    def plans(self, txid: int) -> None:
        """Note the time at which the source is asked for `txid`, which its stamp must not precede."""
        self.asked_since[txid] = self.world.micros()

    @property
    def opened(self) -> bool:
        """Whether it leads, or led, and its driver has started."""
        return self.handle is not None

    @property
    def state(self) -> State | None:
        """The coordinator's state after its newest event; None before the first."""
        return self.monitor.state

    def is_done(self) -> bool:
        """Return whether everything in the source is committed and nothing is in flight."""
        state, session = self.state, self.session
        if state is None or session is None or not state.idle:
            return False
        document = session.planning.document(state.currtx - 1)
        return document is not None and [end for _, end in extents_of(document)] == self.world.available

    def does(self, name: str, call: Callable[[], object]) -> None:
        """Have a thread of the user in this process make a call; what it raises is judged like the end of a run."""

        def body() -> None:
            try:
                call()
            except TxstormError as error:
                self.world.told(self, name, error)

        self.lanes.start(body, name)

    def asks(self, command: str, **arguments: Any) -> None:
        """Ask the run, through its ledger, for a life-cycle command."""
        ask_run(self.books, "simulated", command, arguments, Waiting(lanes=self.lanes))
