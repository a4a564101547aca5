"""P0, lead: acquire the lease, check the tables, increment the epoch, roll decided groups forward, open the session.

If an external system to which the run writes is unavailable, the start is retried with the same back-off as a run. This
is one module, as the steps of P0 depend on their order.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from txstorm import faults
from txstorm.api.attempt import FIRST_TXID
from txstorm.api.composite import kept_states
from txstorm.api.external import ManagedState, MapState, Outlet, OwnTarget, TargetDeclaration
from txstorm.api.join_store import StoreUse
from txstorm.books.books import Books
from txstorm.books.data_directory import VERSION, check_directory, make_directory, was_run, write_format
from txstorm.books.origin import CodeOrigin
from txstorm.books.records import Identity
from txstorm.clocks import Clock
from txstorm.engine.port import Engine
from txstorm.engine.program import Program, program_of
from txstorm.engine.spill import sweep_spilled
from txstorm.engine.task.collector import Observe
from txstorm.engine.task.commit_phase import CommitRun
from txstorm.errors import AwayError, BlockedError, DataDirectoryError, InputError, SettingError, SpoutError
from txstorm.lanes import THREADS, Lanes
from txstorm.ledger.credentials import named_ledger
from txstorm.ledger.location import ZOOKEEPER, LedgerSpec, record_ledger
from txstorm.ledger.open import check_in_use, chosen_ledger, ledger_is_there, open_ledger
from txstorm.ledger.zookeeper.location import zookeeper_spec
from txstorm.monitor.progress import Monitor
from txstorm.plan.stages import compile_plan
from txstorm.recovery.rewind import finish_rewind
from txstorm.recovery.roster import check_roster, check_started, record, sources_of
from txstorm.recovery.take_over import Decided, check, complete, take_over
from txstorm.results.read import list_states, read_state
from txstorm.runtime.batches.flow import Flow, FlowOptions
from txstorm.runtime.batches.planning import Pins, Planning
from txstorm.runtime.batches.wall_clock import StampClock, check_not_behind
from txstorm.runtime.commit.job import CommitJobs
from txstorm.runtime.commit.line import CommitLine, LineOptions, MakeRun
from txstorm.runtime.commit.publication import Publisher, pause_after
from txstorm.runtime.companion import Companion, begin, companion_of
from txstorm.runtime.failures import NO_LETTERS, Failure, LetterLimit, RetryPolicy
from txstorm.runtime.maintenance import Retention
from txstorm.runtime.session import Session
from txstorm.runtime.standby import Tell, real_end, take_lease
from txstorm.spouts.executors import check_spout, planner
from txstorm.spouts.port import SpoutPlanner
from txstorm.state.external.maps import StoredMap
from txstorm.state.external.targets import ExternalTarget, StoredOutlet
from txstorm.state.index.index import Bounds
from txstorm.state.store import RecordedTables, StateStore, StoreSettings
from txstorm.stateful.target import StatefulTarget
from txstorm.storage.rows.dead_letters import TABLE_SCHEMA
from txstorm.storage.tables.declared import LETTERS_REF, declarations
from txstorm.storage.tables.directory import Directory, TableDirectory
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import KINDS
from txstorm.storage.tables.spark_writer import SparkWriter, spark_writer
from txstorm.topology.graph import Component, Topology
from txstorm.topology.rebalance import rebalanced_before
from txstorm.topology.settings import Settings

log = logging.getLogger(__name__)


RECORDED_RETRIES = 2
"""Maximum number of replays of a recorded transaction after a `FailedException` or the death of its worker."""


class Patience:
    """Retry policy for steps of P0 that need an external system that does not respond.

    The number of attempts and the back-off are the same as for a decided group that cannot be published. The lease is
    checked before each attempt.

    Args:
        books: the ledger's content; the lease is held.
        sleep: waits some seconds between attempts; returns True if the run is to stop.
    """

    def __init__(self, books: Books, sleep: Callable[[float], bool]) -> None:
        self._books = books
        self._sleep = sleep

    def __call__(self, step: Callable[[], None]) -> None:
        """Call `step`, which must be idempotent, until the external system it needs responds.

        Raises:
            FencedError: another coordinator has taken over meanwhile.
            BlockedError: the system was unavailable in all attempts.
        """
        logged = ""
        for attempt in range(Publisher.TRIES):
            self._books.check_lease()
            try:
                step()
            except (AwayError, BlockedError) as error:
                cause = error
            else:
                if logged:
                    log.warning("the system that this start waited for responds again; the start continues")
                return
            if (reason := str(cause)) != logged:
                log.warning("cannot lead yet, retrying for a while: %s", reason)
                logged = reason
            if self._sleep(pause_after(attempt)):
                break
        msg = f"{cause}. It answered in earlier runs, so this start waited for it; start again when it is available"
        raise BlockedError(msg) from cause


@dataclass(frozen=True)
class RunOptions:
    """Options of one run; see `txstorm.run`.

    Attributes:
        lanes: run the work of the run, and give its clocks.
        observe: called with everything that a task of the commit phase emitted.
        origin: location of the topology's code, recorded for replays.
        ledger: overrides the setting ``ledger``.
        standby: called with messages while the run waits for another one to end; None: do not wait.
        drop: recorded tables and sources that the code no longer declares, to be dropped.
        accept_clock: whether the machine's clock is believed, whatever the last run's was.
        want: the clock of the source at which a snapshot is taken, if there is none yet; see `Snapshots.want`.
        recorded: replaces the spout's planner with a planner of recorded transactions. Such a run has neither pauses
            nor timeouts; a failure that was not recorded never leads to a dead letter, but ends the run after
            `RECORDED_RETRIES`.
    """

    available_now: bool = False
    until_txid: int | None = None
    journal: Path | None = None
    lanes: Lanes = THREADS
    observe: Observe | None = None
    origin: CodeOrigin | None = None
    ledger: str | None = None
    standby: Tell | None = None
    drop: Sequence[str] = ()
    recorded: Callable[[SpoutPlanner], SpoutPlanner] | None = None
    end_of_input: bool = False
    accept_clock: bool = False
    want: Clock | None = None

    @property
    def bounded(self) -> bool:
        """Whether the run ends by itself once it has read what there is; no heartbeats are planned then."""
        return self.available_now or self.end_of_input or self.recorded is not None


@dataclass(frozen=True)
class Start:
    """The arguments of `open_session`."""

    topology: Topology
    engine: Engine
    data_dir: Path
    options: RunOptions
    monitor: Monitor
    sleep: Callable[[float], bool]


def open_session(
    topology: Topology,
    engine: Engine,
    data_dir: Path,
    options: RunOptions,
    monitor: Monitor,
    sleep: Callable[[float], bool],
) -> Session:
    """Become the coordinator of `topology` in `data_dir`, and open everything the driver needs.

    The caller starts the engine afterwards; only a run on standby starts it here, before waiting.

    Args:
        topology: the topology as its code declares it.
        engine: runs the packs.
        data_dir: directory of the tables and the ledger.
        options: see `RunOptions`.
        monitor: observes the run.
        sleep: waits some seconds; returns True if the run is to stop.

    Raises:
        InputError: spout, directory, ledger or tables are unusable; raised before any side effect if possible.
        HeldError: another run holds the lease.
        FencedError: another run has taken over in the meantime; also raised in place of any error caused by that.
        KilledError: the run whose end this run awaited on standby was killed.
    """
    check_directory(data_dir)
    _check_source(topology, engine, data_dir)
    if topology.pending is not None:
        topology = _completed(topology, engine)
    start = Start(topology, engine, data_dir, options, monitor, sleep)
    _check_journal(options.journal)
    program = program_of(compile_plan(topology), str(data_dir / "spill"))
    named = options.ledger or topology.settings.ledger or zookeeper_spec(topology.settings, topology.id)
    if named is not None:
        named_ledger(named)

    def make_ready() -> None:
        engine.start(program)
        engine.warm_up()

    writer = spark_writer(topology)
    companion = Companion() if options.recorded is not None else companion_of(topology)
    try:
        books = _lease(start, chosen_ledger(data_dir, named), make_ready)
    except BaseException:
        if writer is not None:
            writer.close()
        raise
    try:
        companion.check(books, data_dir)
        running = rebalanced_before(topology, books.parallelism())
        store, identity = _lead(start, running, books, writer)
        if options.origin is not None:
            books.write_origin(options.origin.to_json())
        _empty_spill(data_dir / "spill", books)
        if running is not topology:
            program = program.with_plan(compile_plan(running))
        led = Led(store, identity, Directory(data_dir, books.check_leads), companion=companion)
        return assemble(start, running, program, books, led)
    except BaseException as error:
        end = real_end(error, books)  # a process that was suspended may find tables created by its successor
        books.ledger.close()
        if writer is not None:
            writer.close()
        if end is not error:
            raise end from error
        raise


def _check_source(topology: Topology, engine: Engine, data_dir: Path) -> None:
    """Raise `SpoutError` if the engine cannot run the spout, or its source is unusable."""
    if getattr(topology.spout.object, "emits_frames", False) and engine.name == "local":
        raise SpoutError(f"spout {topology.spout.id!r} emits DataFrames: it needs engine='spark', got {engine.name!r}")
    check_spout(topology.spout.object, list_states(data_dir))


def _completed(topology: Topology, engine: Engine) -> Topology:
    """Return the topology with the columns of its frame bolts, which the session of the engine knows."""
    session = getattr(engine, "session", None)
    made = topology.completed(None if session is None else session(topology.id))
    for warning in made.warnings:
        if warning not in topology.warnings:
            log.warning("topology %s: %s", topology.id, warning)
    return made


def _empty_spill(directory: Path, books: Books) -> None:
    """Remove what killed runs have spilled; files of a coordinator that has taken over meanwhile stay."""
    books.check_leads()
    make_directory(directory)
    sweep_spilled(str(directory), None, books.epoch)


def _lease(start: Start, chosen: LedgerSpec, make_ready: Callable[[], None]) -> Books:
    """Open the ledger and acquire its lease; raises an error if tables exist but the ledger is missing."""
    topology, data_dir = start.topology, start.data_dir
    settings = topology.settings
    first = not ledger_is_there(chosen, data_dir, settings)
    if first and was_run(data_dir):
        place = chosen.within(data_dir.absolute()).removeprefix("sqlite:./")
        raise DataDirectoryError(
            f"data directory {data_dir} was run in, but has no ledger ({place}); starting at txid 1 "
            "would count everything again: put the ledger back, rebuild it from the tables with: txstorm recover "
            f"{data_dir}, or choose another --data-dir"
        )
    ledger = open_ledger(data_dir, create=first, ledger=chosen, settings=settings)
    try:
        books = Books(ledger, data_dir / "intents", start.options.lanes)
        if take_lease(books, topology.id, start.options.standby, make_ready, start.options.lanes):
            # Meanwhile another version of txstorm may have led, or the topology may have moved to another ledger.
            check_directory(data_dir)
            chosen_ledger(data_dir, str(chosen))
        check_in_use(ledger, chosen)  # until the lease was acquired, another process could move the ledger
        books.check_leads()
        make_directory(data_dir)  # a ledger may be there before it
        record_ledger(data_dir, chosen, settings)
        make_directory(data_dir / "intents")
        if chosen.kind == ZOOKEEPER:
            books.keep_partitions()
        return books
    except BaseException:
        ledger.close()
        raise


def _lead(start: Start, running: Topology, books: Books, writer: SparkWriter | None) -> tuple[StateStore, Identity]:
    """Take over the tables while holding the lease; nothing is written before the ledger and the tables are checked.

    Nothing is created either before the ledger, asked with the new epoch, says that this run leads
    (`Books.check_leads`).
    """
    topology, data_dir, drop = start.topology, start.data_dir, start.options.drop
    faults.point("p0.before")
    place = Directory(data_dir, books.check_leads)
    identity, known = _claim(start, running, books, place)
    waiting = take_over(place, books, identity)
    books.check_leads()
    write_format(data_dir, first=known is None)
    roster = check_roster(topology, books, drop)  # again: another start was not fenced before `take_over`
    committed = max([books.currtx() - 1, *(intent.last for intent, _ in waiting)])
    settings, recorded = topology.settings, books.tables()
    sinks = {sink.name for some in topology.sinks.values() for sink in some}
    if unknown := settings.log_bounds.keys() - sinks - {None}:
        there = ", ".join(sorted(sinks)) or "none"
        raise SettingError(f"setting log_entries: {min(map(str, unknown))!r} is no sink; sinks are {there}")
    letters = TABLE_SCHEMA if settings.dead_letters or LETTERS_REF.uri in recorded else None
    bounds = Bounds(memory=settings.index_cache_bytes // max(1, sum(map(len, topology.states.values()))))
    owner = TopologyIdentity(topology.id, identity.incarnation, identity.timeline)
    store = StateStore.open(
        place,
        owner,
        declarations({**running.states, **running.kept}, topology.sinks, letters),
        RecordedTables(known is None, committed, recorded),
        _outside_targets(topology, data_dir, owner),
        settings=StoreSettings(
            bounds, settings.log_retention, settings.log_bounds, settings.state_max_lag, start.options.lanes
        ),
        spark=writer,
    )
    store.raise_epoch(books.epoch)
    _lead_outside(store, books, committed, waiting, Patience(books, start.sleep))
    if roster.tables or books.dropped().tables:  # an older txstorm, which does not know of these, would write to them
        books.check_leads()
        write_format(data_dir, VERSION, first=False)
    record(data_dir, books, store.owner, store.last_txids(), roster, sources_of(topology.spout.object))
    faults.point("p0.after")
    return store, identity


def _claim(start: Start, running: Topology, books: Books, place: Directory) -> tuple[Identity, Identity | None]:
    """Check the ledger and the tables, and write the topology's identity; return it and that of before."""
    topology, data_dir = start.topology, start.data_dir
    while True:
        known = books.identity()
        identity = known or Identity(topology.id, uuid.uuid4().hex)
        _check_same(topology, identity, data_dir)
        if finish_rewind(data_dir, books, start.options.lanes) is not None:
            identity = known = books.identity() or identity
        check(place, books, identity)
        check_started(place, running, books, TopologyIdentity(topology.id, identity.incarnation, identity.timeline))
        check_roster(topology, books, start.options.drop)
        if start.options.recorded is None:
            stamps = [(txid, meta.stamp) for txid, meta in books.metas().items()]
            now = start.options.lanes.now()
            check_not_behind(now, stamps, books.currtx() - 1, data_dir, accepted=start.options.accept_clock)
        written = replace(identity, fingerprint=topology.fingerprint())
        if written == known or books.write_identity(written, known):
            return identity, known


def _outside_targets(topology: Topology, data_dir: Path, owner: TopologyIdentity) -> list[ExternalTarget[Any, Any]]:
    """Return what the topology commits outside of the tables, in the order of publication."""
    found = [(topology.component(name), one) for name, some in topology.targets.items() for one in some]
    order = [kind.name for kind in KINDS]
    found.sort(key=lambda pair: order.index(pair[1].committed_as) if pair[1].committed_as in order else len(order))
    made = [_outside_target(component, one, data_dir, owner) for component, one in found]
    for target in made:
        target.meet(made)
    return made


def _outside_target(
    component: Component, declared: TargetDeclaration, data_dir: Path, owner: TopologyIdentity
) -> ExternalTarget[Any, Any]:
    match declared:
        case MapState():
            return StoredMap(data_dir, owner, component.id, declared)
        case Outlet():
            return StoredOutlet(data_dir, owner, component.id, declared)
        case ManagedState():
            return StatefulTarget(data_dir, owner, component, declared)
        case StoreUse():
            from txstorm.joins.delay.store_target import FilledStore, ReadStore  # joins are slow to import

            return FilledStore(data_dir, owner, declared) if declared.fills else ReadStore(data_dir, declared)
        case OwnTarget():
            target: ExternalTarget[Any, Any] = declared.make(data_dir, owner, component.id, declared)
            return target
    raise TypeError(f"{declared!r} is no declaration of a commit target")


def _check_same(topology: Topology, identity: Identity, data_dir: Path) -> None:
    if identity.topology != topology.id:
        raise DataDirectoryError(
            f"data directory {data_dir} belongs to topology {identity.topology!r}, not to {topology.id!r}; "
            "choose another --data-dir"
        )


def _lead_outside(
    store: StateStore, books: Books, committed: int, waiting: Sequence[Decided], patient: Patience
) -> None:
    """Take over the maps and outlets, and complete the decided groups in `waiting`, whose publication needs them."""
    live = [intent for intent, _ in waiting]
    first = len(store.tables) + 1
    store.outside.lead(
        books.epoch, committed, books.tables(), live, number=first, known=patient, check_leads=books.check_leads
    )
    for intent, versions in waiting:
        patient(partial(store.outside.roll_forward, intent, books.epoch))
        complete(books, intent, versions)
        store.outside.settle()


@dataclass(frozen=True)
class Led:
    """Tables and directory of a coordinator that has taken over, and what a simulation replaces.

    Attributes:
        companion: what the front end of the topology adds to the run.
        source: the spout's planner; None: that of the topology's spout.
        run: makes the commit phase of an attempt.
        external: whether committers change other systems in `finish_batch`; None: as the topology declares.
    """

    store: StateStore
    identity: Identity
    place: TableDirectory
    source: SpoutPlanner | None = None
    run: MakeRun = CommitRun
    external: bool | None = None
    companion: Companion = field(default_factory=Companion)


def assemble(start: Start, topology: Topology, program: Program, books: Books, led: Led) -> Session:
    """Build the session of a coordinator that has taken over its tables."""
    engine, options, monitor, store, identity = start.engine, start.options, start.monitor, led.store, led.identity
    settings, lanes = _settings(topology, options), options.lanes
    clock = _clock(topology, options)
    planning = _planning(topology, program, books, clock, options, led)
    stamps = (one.stamp for one in planning.metas.values())
    clock.open(max(stamps, default=None), lambda: (books.status() or {}).get("clock_at"))
    companion = led.companion
    if not planning.metas and books.currtx() == FIRST_TXID and not books.live_intents():
        begin(companion, store, books, planning, identity.timeline)
    retry = _retry(settings if options.recorded is None else settings.updated(NO_LETTERS), books, planning, monitor)
    reading = _flow_options(topology, settings, options, store)
    flow = Flow(planning, engine, program, retry, clock, reading)
    retention = None
    if (seconds := settings.history_retention) is not None:
        retention = Retention(store.upkeep, books, identity.timeline, seconds, lanes, clock)
    return Session(
        data_dir=Path(store.data_dir),
        coded=start.topology,
        topology=topology,
        identity=identity,
        settings=settings,
        program=program,
        engine=engine,
        books=books,
        store=store,
        place=led.place,
        planning=planning,
        flow=flow,
        line=_line(start, topology, program, books, led, flow),
        retry=retry,
        currtx=books.currtx(),
        lanes=lanes,
        clock=clock,
        companion=companion,
        journal=_journal(options.journal),
        retention=retention,
        want=options.want,
    )


def _line(start: Start, topology: Topology, program: Program, books: Books, led: Led, flow: Flow) -> CommitLine:
    options, settings, store = start.options, _settings(topology, start.options), led.store

    def blocked(cause: str | None) -> None:
        flow.blocked = cause is not None
        start.monitor.blocked(cause)

    publisher = Publisher(
        store,
        books,
        led.identity,
        keep_intents=settings.keep_intents,
        outlived=flow.outlived,
        blocked=blocked,
        sleep=start.sleep,
    )
    large, lanes = options.observe is None, options.lanes
    jobs = CommitJobs(program, start.engine, store.staging_place, allowed=large, lanes=lanes)
    finishing = LineOptions(
        ahead=settings.finish_ahead and not topology.outside,
        letter_limit=LetterLimit(settings.max_dead_letters, program.spout) if settings.dead_letters else None,
        observe=options.observe,
        lanes=lanes,
        run=led.run,
    )
    return CommitLine(program, store, books, publisher, jobs, finishing)


def _flow_options(topology: Topology, settings: Settings, options: RunOptions, store: StateStore) -> FlowOptions:
    return FlowOptions(
        options.lanes.monotonic,
        pending=None if settings.max_spout_pending == "auto" else settings.max_spout_pending,
        pack=settings.max_pack_txids,
        jobs=settings.max_jobs,
        held_bytes=settings.max_in_flight_bytes,
        min_interval=settings.min_interval,
        until_txid=options.until_txid,
        bounded=options.available_now or options.end_of_input,
        heartbeat=settings.heartbeat_interval,
        timers=any(one.timers for one in topology.components) and not options.bounded,
        end=options.end_of_input,
        follows=options.recorded is None,
        place=store.staging_place,
    )


def _clock(topology: Topology, options: RunOptions) -> StampClock:
    by_clock = [one.id for one in topology.components if one.by_clock]
    accepted = options.accept_clock or options.recorded is not None
    return StampClock(options.lanes, topology.settings, topology.id, by_clock, accepted=accepted)


def _planning(
    topology: Topology, program: Program, books: Books, clock: StampClock, options: RunOptions, led: Led
) -> Planning:
    source = led.source or planner(topology.spout.object, program.driver_context(program.spout))
    external = topology.external if led.external is None else led.external
    wrap = options.recorded or (lambda planner: planner)
    pins = Pins(
        program, [one.id for one in topology.components if one.pins], topology.settings.pin_timeout, options.lanes
    )
    kept = partial(_read_kept, topology, books, Path(led.store.data_dir))
    planning = Planning(books, source, clock.now, external=external, pins=pins, kept=kept, wrap=wrap)
    planning.max_ends = topology.settings.max_ends_per_txid
    return planning


def _read_kept(topology: Topology, books: Books, data_dir: Path, source: str) -> pa.Table | None:
    """Read the committed rows that a source keeps; every decided group is published."""
    found = kept_states(topology.spout.object).get(source)
    return None if found is None else read_state(data_dir, found[0].name, committed=books.currtx() - 1)


def _settings(topology: Topology, options: RunOptions) -> Settings:
    settings = topology.settings
    if topology.external:  # a txid is decided before the effects of the next one begin
        settings = settings.updated({"max_group_txids": 1})
    if options.recorded is not None:
        settings = settings.updated({"max_retries": RECORDED_RETRIES, "min_interval": 0.0, "enable_timeouts": False})
    return settings


def _retry(settings: Settings, books: Books, planning: Planning, monitor: Monitor) -> RetryPolicy:
    """Build the retry policy, initialized with the failures recorded by earlier runs."""
    known = {txid: Failure.from_json(recorded) for txid, recorded in books.failures().items()}
    monitor.known_failures({txid: (failure.count, failure.cause) for txid, failure in known.items()})
    retry = RetryPolicy(
        settings, lambda txid, failure: books.write_failure(txid, failure.to_json()), known, planning.pin
    )
    planning.pinned = retry.pinned
    return retry


def _check_journal(path: Path | None) -> None:
    """Raise `InputError` if the journal cannot be written."""
    if (journal := _journal(path)) is not None:
        journal.close()


def _journal(path: Path | None) -> TextIO | None:
    if path is None:
        return None
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        msg = f"journal {path}: expected a file that can be appended to, got {error.strerror}; choose another file"
        raise InputError(msg) from error
