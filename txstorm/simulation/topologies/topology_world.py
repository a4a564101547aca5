"""Simulated world of a whole topology: shipped code from P0 to the tables, on files, under a scheduler and with faults.

In contrast to the plain worlds of `txstorm.simulation.world`, which play a hundred times as many schedules, start,
engine, state store, windows, joins, upkeep and Delta logs are the shipped code, on files in memory. What befalls it is
drawn: crashes, pauses, lost answers and failures at every fault point and call of the ledger, second coordinators,
stand-bys, stops, rewinds. A kind of world (`kind.WorldKind`) brings the bolts and a model of what they must commit.
It is one module, as what is drawn is drawn here, in one order.
"""

from __future__ import annotations

import errno
import importlib
import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from txstorm import faults
from txstorm.api.context import EPOCH
from txstorm.books.books import Books
from txstorm.books.requests import ACTIVATE
from txstorm.clients.delta import log as delta_log
from txstorm.coordinator.machine import Mode
from txstorm.errors import BlockedError, FailedException, FencedError, HeldError, InputError, TxstormError
from txstorm.ledger.open import ledger_in_memory
from txstorm.ledger.port import Entry
from txstorm.results.snapshot import snapshot
from txstorm.results.views import read_directory_history
from txstorm.runtime import maintenance
from txstorm.runtime import session as sessions
from txstorm.runtime.session import Session
from txstorm.simulation import schedule as kinds
from txstorm.simulation.expected import Violation
from txstorm.simulation.ledger import Injected
from txstorm.simulation.outside import extents_of
from txstorm.simulation.process.scheduler import Killed
from txstorm.simulation.schedule import random_of
from txstorm.simulation.simulated_world import SimulatedWorld
from txstorm.simulation.topologies.counts import CountsWorld
from txstorm.simulation.topologies.disk import Disk
from txstorm.simulation.topologies.events import EVENTS
from txstorm.simulation.topologies.kind import CommittedBatch, Source, WorldKind, WorldSpout
from txstorm.simulation.topologies.topology_process import TopologyProcess, WorldLedger
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

HEALING = 600.0
PATIENCE = 20_000
NEVER = 1 << 60
STRIKES = (kinds.CRASH, kinds.CRASH, kinds.POWER, kinds.FAILED, kinds.PAUSE, kinds.PAUSE, kinds.HANGS)
"""Faults at a step; a kind listed twice is drawn twice as often."""
STRIKE_STEPS = 600
RETAINED = 0.1
"""Simulated seconds for which history is kept, if not for ever."""
COUNTED = {
    "compact.after": kinds.COMPACTION,
    "checkpoint.after": kinds.CHECKPOINT,
    "sweep.after": kinds.SWEEP,
    "thin.removed": kinds.THINNING,
    "retain.history": kinds.RETENTION,
}
"""Fault points at which something has happened that is counted."""
Begun = tuple[Sequence[tuple[Path, bytes | None]], dict[str, Entry]]
"""What a start has written: files (None: a directory), parents first, and the entries of the ledger."""


KINDS: dict[str, type[WorldKind]] = {"counts": CountsWorld}


def kind_named(name: str) -> type[WorldKind]:
    """Return the kind of world with this name, or the class ``MODULE:CLASS``.

    Raises:
        InputError: there is none.
    """
    if name in KINDS:
        return KINDS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None) if module and attribute else None
    except ImportError as error:
        raise InputError(
            f"kind {name!r}: expected the MODULE of MODULE:CLASS to be importable, got: {error}"
        ) from error
    if isinstance(found, type) and issubclass(found, WorldKind):
        return found
    raise InputError(f"kind {name!r}: expected {', '.join(KINDS)}, or MODULE:CLASS with a subclass of WorldKind")


@dataclass(frozen=True)
class Setting:
    """Setting of a world, drawn before it begins; see `txstorm.simulation.schedule.Schedule` for the names.

    Attributes:
        kind: name of the kind of world: ``counts``, or ``MODULE:CLASS``.
        polls: whether drivers with transactions in flight look around although nothing has woken them.
        busy: whether states are compacted, and logs have checkpoints, after every few commits.
        compacts: whether a clean stop brings the states up to date.
        retains: whether history is removed after `RETAINED` simulated seconds.
        strikes: steps, and the faults at them.
    """

    kind: str
    seed: int
    index: int
    opaque: bool
    partitions: int
    depth: int
    group: int
    ahead: bool
    compacts: bool
    polls: bool
    busy: bool
    turns: int
    flaky: int
    strikes: tuple[tuple[int, str], ...]
    retains: bool

    @classmethod
    def drawn(cls, kind: str, seed: int, index: int, rng: Random | None = None) -> Setting:
        """Draw the setting of schedule `index` of `seed`, with the first numbers of `rng`."""
        rng = rng or random_of(seed, index)
        many = rng.choice((0, 1, 1, 2))
        return cls(
            kind,
            seed,
            index,
            opaque=rng.random() < 0.5,
            partitions=rng.choice((1, 1, 2)),
            depth=rng.choice((1, 2, 4)),
            group=rng.choice((1, 1, 4)),
            ahead=rng.random() < 0.5,
            compacts=rng.random() < 0.15,
            polls=rng.random() < 0.7,
            busy=rng.random() < 0.25,
            turns=rng.choice((1, 1, 2)),
            flaky=rng.choice((0, 0, 10)),
            strikes=tuple(sorted((rng.randrange(STRIKE_STEPS), rng.choice(STRIKES)) for _ in range(many))),
            retains=rng.random() < 0.2,
        )


_begun: dict[tuple[object, ...], Begun] = {}


def _opened(setting: Setting, variant: int) -> Begun:
    """Return what a start of this topology writes: to create tables costs more than to open them."""
    key = setting.kind, variant, setting.opaque
    if key not in _begun:
        one = replace(
            Setting.drawn(setting.kind, 0, 0),
            opaque=setting.opaque,
            partitions=1,
            strikes=(),
            busy=False,
            retains=False,
        )
        world = TopologyWorld(one)  # the same whichever world asks for it first
        world.kind.variant = variant
        world.kind.declare(Random(variant))  # noqa: S311 - not for secrets
        _begun[key] = world.opened()
    return _begun[key]


def _micros(stamp: datetime) -> int:
    return (stamp - EPOCH) // timedelta(microseconds=1)


class TopologyWorld(SimulatedWorld[TopologyProcess]):
    """World of one schedule, whose setting determines everything in it.

    Args:
        setting: the setting of the schedule.
        counts: counter of what happens, which several worlds may share.
        traced: whether to record a trace.
    """

    def __init__(self, setting: Setting, counts: Counter[str] | None = None, *, traced: bool = False) -> None:
        rng, self.setting = random_of(setting.seed, setting.index), setting
        Setting.drawn(setting.kind, setting.seed, setting.index, rng)  # the world has the numbers that follow
        super().__init__(rng.random, counts, traced=traced)
        self.kind = kind_named(setting.kind)(rng)
        self.source = Source(self, self.setting.partitions, opaque=self.setting.opaque)
        if self.kind.tick < 1_000_000:  # where the wall clock is slow, a wait by it would be too short again and again
            self.scheduler.shortest = 0.1
        self._epoch = 1_000_000
        self._strikes = list(reversed(self.setting.strikes))
        self._healing = False
        self._history: dict[tuple[int, int], dict[str, Any]] = {}
        self._expired = 0

    # -- what processes use ---------------------------------------------------------------------------------------

    def micros(self) -> int:
        """Return the wall-clock time: a simulated second is `kind.tick` microseconds."""
        return self._epoch + int(self.scheduler.time * self.kind.tick)

    def topology(self) -> Topology:
        """Build the topology, as a process does that loads its code."""
        builder = TransactionalTopologyBuilder("world", "feed", WorldSpout(self.source, self.kind.streams))
        self.kind.build(builder, self)
        one = self.setting
        return builder.build_topology().with_settings(
            {
                "max_spout_pending": one.depth,
                "max_group_txids": one.group,
                "finish_ahead": one.ahead,
                "batch_timeout": 60.0,
                "retry_backoff": 0.1,
                "compact_on_stop": one.compacts,
                "on_error": "retry(30)",
                "state_max_lag": 1.0 if one.busy else 10.0,
                "max_stop": None,
                "history_retention": RETAINED * self.kind.tick / 1_000_000 if one.retains else None,
                **self.kind.settings,
            }
        )

    def current(self) -> TopologyProcess | None:
        """Return the process whose lane runs; None on the hub."""
        lane = self.scheduler.current
        return lane.owner if lane is not None else None  # type: ignore[return-value]

    def passes(self, what: str) -> None:
        """Take a step of the process whose lane runs: others may go on, or a fault strikes. Called at every seam."""
        process = self.current()
        if process is None:
            return
        self.scheduler.step(process)
        self.steps += 1
        if what in COUNTED:
            self.counts[COUNTED[what]] += 1
        if what == "retain.before":
            self.acts(self._remember)
        if self.trace is not None:
            self.trace.append(f"{process}.{self.scheduler.current.name}: {what}")  # type: ignore[union-attr]
        if self._strikes and self.steps >= self._strikes[-1][0] and not self._healing:
            self._strike(process, what, self._strikes.pop()[1])

    def _strike(self, process: TopologyProcess, what: str, kind: str) -> None:
        if kind == kinds.CRASH:
            self.count(kind, f"{process} dies at {what}")
            self.killed(process)
        if kind == kinds.POWER:
            self.cut_power()
            raise Killed
        if kind == kinds.PAUSE:
            self.count(kind, f"{process} is paused at {what}")
            self.pause(process)
        if kind == kinds.HANGS:
            self.count(kind, f"{process} hangs at {what}")
            longest = 100.0 if what.startswith("p3") else 10.0  # only a job is given up
            self.scheduler.block((1.0, 5.0, longest)[self.below(3)])
        if kind == kinds.FAILED:
            written = what.endswith("written")
            self.count(kinds.LOST if written else kind, f"{process} fails at {what}")
            process.struck = True
            why = f"injected at {what}"
            raise Injected(why) if what.startswith("ledger") else OSError(errno.EIO, why)

    def reads_batch(self, attempt: object) -> None:
        """Let a batch fail now and then."""
        if not self._healing and self.below(100) < self.setting.flaky:
            self.count(kinds.BATCH, f"the batch of {attempt} fails")
            raise FailedException("injected")

    def cut_power(self) -> None:
        """End all processes at once, and lose any subset of what they had not synced."""
        current = self.current()
        for process in sorted(self.processes, key=lambda one: one is current):
            self.gone(process, "has no power")
            with suppress(Killed):
                self.scheduler.kill(process)
        self.ledger.expire()
        lost = self.disk.cut(self.below)
        self.count(kinds.POWER, f"the power is cut, {lost} changes of files are lost")

    def pause(self, process: TopologyProcess) -> None:
        """Pause `process` in the middle of a step; usually another one takes over, and then the first one wakes up."""
        if self.below(4) == 0:
            self.scheduler.block((0.05, 1.0, 20.0)[self.below(3)])
            return
        process.frozen = self.scheduler.picks + (50, 200, 800)[self.below(3)]
        self.acts(self._during_pause)

    def _during_pause(self) -> None:
        if self.below(3):
            self.count(kinds.RIVAL, "another process takes over")
            self.start()

    @contextmanager
    def _names_drawn(self) -> Iterator[None]:
        """Draw the random names of files, so that a trace can be repeated."""
        made, rng = uuid.uuid4, Random(self.setting.seed)  # noqa: S311 - not for secrets
        uuid.uuid4 = lambda: uuid.UUID(int=rng.getrandbits(128), version=4)
        try:
            yield
        finally:
            uuid.uuid4 = made

    # -- what happens -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the world: first with faults, then healed; raise `Violation` if something is wrong."""
        begun = self.below(8) > 0 and not self.kind.outside
        with self._there(_opened(self.setting, self.kind.variant) if begun else None):
            for _ in range(self.setting.turns):
                self.more()
                if not self.processes:
                    self.start()
                self.lets_run(100 + self.below(600), jumps=self.below(6))
                if self.below(5) < 2:
                    events = (*EVENTS, *self.kind.events)
                    events[self.below(len(events))](self)
            self._heal()

    def opened(self) -> Begun:
        """Start the topology, and return what that has written: later worlds begin with it."""
        self._healing = True
        with self._there(None):
            process = self.start()
            self.lets_run(PATIENCE, lambda: process.handle is not None, jumps=100)
            self.ended(process, "has opened")
            found = sorted(self.data_dir.rglob("*"))
            files = [(one.relative_to(self.data_dir), one.read_bytes() if one.is_file() else None) for one in found]
            return files, self.ledger.entries

    @contextmanager
    def _there(self, begun: Begun | None) -> Iterator[None]:
        """Within it, the world has its directory and its ledger, and sees what its processes do."""
        with tempfile.TemporaryDirectory(prefix="txstorm-world-") as place:
            self.data_dir = Path(place) / "data"
            self.data_dir.mkdir()
            self.ledger, self.disk = WorldLedger(self), Disk(self.data_dir, self.passes)
            if begun is not None:
                files, self.ledger.entries = begun
                for path, data in files:
                    there = self.data_dir / path
                    there.mkdir() if data is None else there.write_bytes(data)
                self.disk.settle()
            watched = (
                self.disk.watched(),
                self._names_drawn(),
                ledger_in_memory(self.data_dir, self.ledger),
            )
            often = (
                (delta_log, "CHECKPOINT_EVERY", 5 if self.setting.busy else NEVER),
                (maintenance, "LEAST_SECONDS", 3.0),
                (sessions, "HISTORY_GROUPS", 1 if self.setting.retains else sessions.HISTORY_GROUPS),
            )
            with ExitStack() as stack:
                for module, name, value in often:
                    stack.callback(setattr, module, name, getattr(module, name))
                    setattr(module, name, value)
                for one in watched:
                    stack.enter_context(one)
                faults.watch(self.passes)
                try:
                    yield
                finally:
                    faults.watch(None)
                    self.over()

    def more(self) -> None:
        """Add rows to the source."""
        for number, partition in enumerate(self.source.partitions):
            for _ in range(1 + self.below(3)):
                partition += self.kind.rows(number)

    def start(self, *, standby: bool = False) -> TopologyProcess:
        """Start a process; unless it is a stand-by, no other process has the lease any more."""
        if not standby:
            self.ledger.expire()
        process = self.process("c")
        self.say(f"{process} starts")
        process.lanes.start(lambda: process.run(standby=standby), "start")
        return process

    def process(self, kind: str) -> TopologyProcess:
        """Create a process."""
        return self.added(lambda name: TopologyProcess(self, name), kind)

    def leads(self, process: TopologyProcess) -> bool:
        """Return whether `process` has the lease."""
        return any(one.leads for one in process.holds)

    def leader(self) -> TopologyProcess | None:
        """Return the process that has the lease and runs."""
        return next((one for one in self.processes if self.leads(one) and one.handle is not None), None)

    def finished(self, process: TopologyProcess, error: BaseException | None) -> None:
        """Take note of a process that ends by itself; if no fault explains its error, that is a violation."""
        if process not in self.processes:
            return
        led = process.led or self.leads(process)
        self.gone(process, "ends" if error is None else f"ends with {type(error).__name__}: {error}")
        if error is not None:
            self._judge(process, "run", error, led=led)

    def told(self, process: TopologyProcess, what: str, error: BaseException) -> None:
        """Judge an error that a call of a user ended with."""
        self._judge(process, what, error, led=self.leads(process))

    def _judge(self, process: TopologyProcess, what: str, error: BaseException, *, led: bool) -> None:
        if isinstance(error, Violation):
            raise error
        if isinstance(error, FencedError | HeldError) or (isinstance(error, BlockedError) and process.stops):
            return
        known = process.struck or not led
        if not isinstance(error, TxstormError | OSError) or not known:
            raise Violation(7, f"the {what} of {process} ends with {type(error).__name__}: {error}") from error

    def released(self, process: TopologyProcess) -> None:
        """Release the lease, if `process` had it."""
        for one in process.holds:
            one.release()

    # -- healing ------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Run without faults: everything in the source must be committed within a bounded simulated time."""
        self.say("everything heals")
        self._healing = self.disk.is_safe = True
        self.source.away.clear()
        for process in self.processes:
            process.frozen = 0
        self.lets_run(3000, jumps=3)
        leader = self.leader()
        for other in [one for one in self.processes if one is not leader]:
            self.ended(other, "is ended")
        for _ in range(3):
            process = leader if leader in self.processes and leader is not None else self.start()
            if self._commits_all(process):
                break
        else:
            raise Violation(7, "no process commits the content of the source")
        self.lets_run(3000, jumps=3)
        process.stops = True
        assert process.handle is not None
        process.does("stop", process.handle.stop)
        if not self.lets_run(PATIENCE, lambda: process not in self.processes, jumps=1000):
            raise Violation(7, f"{process} does not stop")
        self._check()

    def _commits_all(self, process: TopologyProcess) -> bool:
        end, ends = self.scheduler.time + HEALING, [len(one) for one in self.source.partitions]

        def over() -> bool:
            return process not in self.processes or process.has_committed(ends) or self.scheduler.time > end

        def activated(until: float) -> bool:
            return over() or not self._inactive(process) or self.scheduler.time > until

        while self.lets_run(PATIENCE, lambda: over() or self._inactive(process), jumps=2000) and not over():
            self.process("command").asks(ACTIVATE)
            again = self.scheduler.time + 20.0  # it is refused while the request of a command that has died is open
            self.lets_run(PATIENCE, partial(activated, again), jumps=2000)
        if process in self.processes and not process.has_committed(ends):
            raise Violation(7, f"{process} does not commit the source in {HEALING} s")
        return process in self.processes

    def _inactive(self, process: TopologyProcess) -> bool:
        return process.handle is not None and process.handle._driver.state.mode is Mode.INACTIVE  # noqa: SLF001

    def committed(self) -> int:
        """Return the last committed txid in the history."""
        return max(read_directory_history(self.data_dir)["txid"].to_pylist(), default=0)

    def ends(self, session: Session, txid: int) -> list[int]:
        """Return where the partitions end after `txid`."""
        document = session.planning.document(txid)
        if document is None:
            return [0] * len(self.source.partitions)
        return [end for _, end in extents_of(document)]

    def batches(self) -> list[CommittedBatch]:
        """Return the committed transactions; raise `Violation` unless they hold every row of the source once."""
        there = self._read_history()
        for (timeline, txid), row in self._history.items():
            if (timeline, txid) not in there and _micros(row["stamp"]) > self._expired:
                raise Violation(1, f"the history lacks txid {txid} of timeline {timeline}, which is to be kept")
        rows = [row for _, row in sorted({**self._history, **there}.items())]
        kept: dict[int, dict[str, Any]] = {}
        for row in rows:  # a later timeline replaces what it has rewound
            kept = {txid: one for txid, one in kept.items() if txid < row["txid"]}
            kept[row["txid"]] = row
        ends = [0] * len(self.source.partitions)
        batches = []
        for number, (txid, row) in enumerate(sorted(kept.items()), start=1):
            document = json.loads(row["extents"]) if isinstance(row["extents"], str) else row["extents"]
            extents = extents_of(document)
            if txid != number or [start for start, _ in extents] != ends:
                raise Violation(2, f"txid {txid} continues at {extents}, the one before it ends at {ends}")
            ends = [end for _, end in extents]
            batches.append(CommittedBatch(txid, _micros(row["stamp"]), self.source.rows(extents)))
        if ends != (wanted := [len(one) for one in self.source.partitions]):
            raise Violation(1, f"the source is committed up to {ends}, not {wanted}")
        return batches

    def _read_history(self) -> dict[tuple[int, int], dict[str, Any]]:
        rows = read_directory_history(self.data_dir).to_pylist()
        return {(row["timeline"], row["txid"]): row for row in rows}

    def _remember(self) -> None:
        """Keep a copy of the history, which is about to become shorter."""
        self._history.update(self._read_history())
        self._expired = self.micros() - int(RETAINED * self.kind.tick)

    def _check(self) -> None:
        batches = self.batches()
        kept = Books(self.ledger, self.data_dir / "intents").kept()
        if kept:
            try:
                snapshot(self.data_dir, kept).to_arrow()
            except TxstormError as error:
                raise Violation(1, f"the history is kept from txid {kept} on, but there: {error}") from error
        if (wrong := self.kind.check(batches, self.data_dir)) is not None:
            raise Violation(1, wrong)

    @property
    def schedule(self) -> Setting:
        """The setting, which determines everything in the world."""
        return self.setting

    def say(self, what: str) -> None:
        """Record what happens in the trace."""
        super().say(what.replace(str(self.data_dir), ""))
