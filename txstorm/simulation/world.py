"""Simulated world: processes that work, fail, pause and die around durable storage; fully determined by one seed.

It is one module, as everything that is drawn is drawn here, in one order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from txstorm.books.requests import ACTIVATE
from txstorm.coordinator.machine import FIRST_TXID, Config
from txstorm.errors import BlockedError, FencedError, KilledError, StateError, TableCorrupt, TxstormError
from txstorm.ledger.paths import DROPPED, EPOCH, STATUS, TABLES
from txstorm.simulation import schedule as kinds
from txstorm.simulation.delta.tables import Stored
from txstorm.simulation.expected import Violation
from txstorm.simulation.judge import Judge
from txstorm.simulation.ledger import Entries, Injected, Values
from txstorm.simulation.outside import Database
from txstorm.simulation.process.process import Process
from txstorm.simulation.process.scheduler import Scheduler
from txstorm.simulation.schedule import Schedule, Strike, after_drawn
from txstorm.simulation.simulated_world import SimulatedWorld
from txstorm.simulation.trouble import TAKING_OVER, TROUBLE, operate, rewind
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, SINK, STATE

NEVER = 1 << 60
UPKEEP = 4
"""Approximate number of steps it takes to commit a compaction."""

HEALING = 600.0
"""Simulated seconds after the last fault within which everything must be committed."""
PATIENCE = 2000
"""Maximum number of choices of a lane until a process that starts has opened, or an operator's command has ended."""

_SINK, _KEPT, _MORE = TableRef(SINK, "out"), TableRef(CHANGES, "kept"), TableRef(SINK, "more")
_STATE = TableRef(STATE, "kept")


class _Judging:
    """The context `World.judging`, entered at every write: several may be open at once, on several lanes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Violation):
            self._scheduler.abort(error)


class World(SimulatedWorld[Process]):
    """Simulated world that runs one schedule.

    Args:
        traced: whether to record a trace.
        draw: source of the random numbers that follow those from which `schedule` was drawn, if available.
        counts: counter of faults, which several worlds may share.

    Attributes:
        steps: number of events of a machine and calls of a ledger, table or history so far; a fault may hit each.
        counts: number of occurrences of each kind of fault.
        trace: descriptions of the events; None if not requested.
        code: the tables that the topology's code has now; `drop`: those that starts may drop.
        late_creation: whether the next process that creates a table is paused between the ledger's answer and that.
        at_sync: called once, with the next process that is about to sync what it has written.
        history_synced: number of rows of the history that no power cut can take.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        traced: bool = False,
        draw: Callable[[], float] | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        super().__init__(after_drawn(schedule) if draw is None else draw, counts, traced=traced)
        self.schedule = schedule
        self.config = Config(schedule.depth, schedule.group, schedule.opaque)
        self.entries, self.values = Entries(), Values()
        self.history: list[Mapping[str, Any]] = []
        self.history_synced = 0
        self.available = [1 + self.below(3) for _ in range(schedule.partitions)]
        self.away: set[int] = set()
        self.news = 0  # number of changes to the source
        self.epoch = 1_000_000  # the wall clock when the simulated time began; it may be changed
        self.tables: dict[str, Stored] = {}
        for number, ref in enumerate((_SINK, _KEPT, _MORE)[: schedule.tables]):
            self._add(ref, number)
        if schedule.tables > 1:
            self._add(_STATE, 1)
        self.code = tuple(self.tables)
        self.drop: frozenset[str] = frozenset()
        self.database = Database(is_opaque=schedule.opaque)
        self.judge, self._judging = Judge(self), _Judging(self.scheduler)
        self._strikes = list(reversed(schedule.strikes))
        self._fuse = self._strikes[-1].step if self._strikes else NEVER
        self._uniques = 0
        self.late_creation = False
        self.at_sync: Callable[[Process], object] | None = None
        self._healing = False
        if not schedule.polls:
            self.counts[kinds.UNPOLLED] += 1

    def add(self) -> None:
        """Add a sink or a state to the code."""
        number = len(self.tables)
        for kind in (CHANGES, STATE) if self.below(2) else (SINK,):
            ref = TableRef(kind, f"new{number}")
            self._add(ref, number)
            self.code = (*self.code, ref.uri)

    def _add(self, ref: TableRef, number: int) -> None:
        stored = Stored(ref, number)
        self.tables[stored.uri] = stored

    def by_spark(self, stored: Stored) -> bool:
        """Return whether commit groups are published to a table with Spark."""
        return self.schedule.spark and stored.number == self.schedule.tables - 1 and stored.ref.kind != STATE

    # -- what processes use ---------------------------------------------------------------------------------------

    def timer(self) -> bool:
        """Draw whether the timer of a committer is due; none is once the world heals."""
        return not self._healing and self.below(2) == 0

    def unique(self) -> str:
        """Return a new unique name."""
        self._uniques += 1
        return f"u{self._uniques}"

    def micros(self) -> int:
        """Return the wall-clock time, in microseconds; it may jump."""
        return self.epoch + int(self.scheduler.time * 1_000_000)

    def unlucky(self) -> bool:
        """Draw whether something fails now, or is late."""
        return not self._healing and self.below(100) < self.schedule.flaky

    def hang(self) -> float:
        """Return for how many seconds a call hangs: less than a timeout allows, more, or for ever.

        Only a driver that polls notices that time is up.
        """
        return (1.0, 30.0, 100.0, 1e9)[self.below(4 if self.schedule.polls else 3)]

    def passes(self, process: Process, what: str, about: object) -> str | None:
        """Take a step of `process`; return the kind of fault, if any, that the caller has to carry out itself."""
        self.scheduler.step(process)
        self.steps += 1
        if self.trace is not None:
            self.trace.append(f"{self._lane(process)}: {what} {about}")
        return None if self.steps < self._fuse else self._strike(process)

    def reads(self, process: Process, what: str, about: object) -> None:
        """Take a step without effects outside `process`; a fault can only end the process."""
        self.scheduler.step(process)
        self.steps += 1
        if self.trace is not None:
            self.trace.append(f"{self._lane(process)}: {what} {about}")
        if self.steps < self._fuse or self._strikes[-1].kind == kinds.PAUSE_AFTER:
            return
        kind = self._strike(process)
        if kind == kinds.CRASH_AFTER:
            process.dies()
        if kind in (kinds.LOST, kinds.FAILED):
            error = OSError if kind == kinds.LOST else TableCorrupt
            raise error(f"no answer to {what}") if process.publishing else process.injected(Injected(f"{what} failed"))

    def _lane(self, process: Process) -> str:
        current = self.scheduler.current
        return str(process) if current is None else f"{process}.{current.name}"

    def arm(self, within: int, kind: str | None = None) -> None:
        """Add a fault at one of the next `within` steps: of `kind`, or of a random kind if None."""
        if self.schedule.external or self._healing or not self.schedule.trouble:
            return  # the random fault might be a pause, which a user's database does not allow
        strikes = kind or kinds.STRIKES[self.below(len(kinds.STRIKES))]
        strike = Strike(self.steps + 1 + self.below(within), strikes)
        self._strikes = sorted([*self._strikes, strike], key=lambda one: (-one.step, one.kind))
        self._fuse = self._strikes[-1].step

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Suppress faults within the block."""
        fuse, self._fuse = self._fuse, NEVER
        yield
        self._fuse = fuse

    def judging(self) -> _Judging:
        """Within it, a violation ends the world at once, whatever the code that caused it would catch."""
        return self._judging

    def _strike(self, process: Process) -> str | None:
        kind = self._strikes.pop().kind
        self._fuse = self._strikes[-1].step if self._strikes else NEVER
        self.count(kind, f"strikes {process}")
        if kind == kinds.CRASH:
            process.dies()
        if kind == kinds.PAUSE:
            self.pause(process)
            return None
        if kind == kinds.POWER:
            self.acts(self._power_fails)
        return kind

    def syncs(self, process: Process) -> None:
        """Note that `process` is about to sync what it has written."""
        if (call := self.at_sync) is not None and not self._healing:
            self.at_sync = None
            call(process)

    def cut(self, process: Process) -> None:
        """Cut the power at a step of `process`."""
        self.count(kinds.POWER, f"at a step of {process}")
        self.acts(self._power_fails)

    def _power_fails(self) -> None:
        """Kill all processes, and lose any of what was not synced."""
        for process in list(self.processes):
            self.ended(process, "loses power")
        self.entries.holder = None
        lost = {uri: versions for uri, stored in self.tables.items() if (versions := stored.lose(self.below))}
        commits, rows = self.entries.lose(self.below), len(self.history) - self.history_synced
        if rows and self.below(2):
            del self.history[self.history_synced :]
        self.history_synced = len(self.history)
        if lost or commits:
            self.count(kinds.UNSYNCED, f"{commits} commits of the ledger, versions {lost}")
        self.judge.after_power_cut()

    def creates(self, process: Process, uri: str) -> None:
        """Pause `process` before it creates a table, if that is due: usually, it is fenced when it wakes up."""
        if self.late_creation:
            self.late_creation = False
            self.count(kinds.CREATING, f"{process} is about to create {uri}")
            self.pause(process, rewinds=2)

    def pause(self, process: Process, rewinds: int = 6) -> None:
        """Pause `process` in the middle of a step while others continue, usually a new leader; then wake it up.

        In one of `rewinds` cases, an operator rewinds the topology first. Sometimes only the lane that takes the step
        is paused.
        """
        if self.scheduler.current is None:
            return
        if self.below(4) == 0:
            self.scheduler.block((0.05, 1.0, 20.0)[self.below(3)])
            return
        process.frozen = self.scheduler.picks + (20, 60, 200)[self.below(3)]
        self.acts(lambda: self._during_pause(process, rewinds))
        self.say(f"{process} wakes up")

    def _during_pause(self, process: Process, rewinds: int) -> None:
        if self.below(2) or all(one.is_frozen for one in self.processes):
            if self.below(3) == 0:
                self.arm(TAKING_OVER, kinds.CRASH)
            if self.below(rewinds if process.books.epoch else 2) == 0:  # no fence covers yet what it has read so far
                rewind(self)
            self.start()

    # -- what happens -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the world: first with trouble, then healed; raise `Violation` if an invariant does not hold."""
        try:
            for _ in range(self.schedule.turns):
                self._turn()
            self._heal()
            self.judge.end()
        finally:
            self.over()

    def _turn(self) -> None:
        if self.below(3) == 0:
            self.more()
        if not self.processes:
            if self.judge.currtx > FIRST_TXID and self.below(4) == 0:
                self.arm(TAKING_OVER)
            self.start()
        self.lets_run(15 + self.below(60), jumps=self.below(4))
        if self.below(100) < self.schedule.trouble:
            TROUBLE[self.below(len(TROUBLE))](self)

    def more(self) -> None:
        """Add data to the source."""
        self.available[self.below(len(self.available))] += 1 + self.below(3)
        self.news += 1

    def start(self, *, standby: bool = False) -> Process:
        """Start a new process: one that stands by, or the leader, no matter which process had the lease."""
        if not standby:
            self.entries.holder = None
        process = self.process("c", standby=standby)
        self.say(f"{process} starts")
        process.lanes.start(process.run, "start")
        return process

    def started(self) -> Process | None:
        """Start a new process, and let it and others run until it has opened; return None if it ends before that."""
        process = self.start()
        self.lets_run(PATIENCE, lambda: process.opened or process not in self.processes, jumps=20)
        return process if process in self.processes else None

    def process(self, kind: str, *, standby: bool = False) -> Process:
        """Create a new process."""
        return self.added(lambda name: Process(self, name, standby=standby), kind)

    def finished(self, process: Process, error: BaseException | None) -> None:
        """Take note of a process that ends by itself; if no simulated fault explains its error, that is a violation."""
        if process not in self.processes:
            return
        process.ended = True
        self.gone(process, "ends" if error is None else f"ends with {type(error).__name__}: {error}")
        if error is not None:
            self.told(process, "run", error)

    def told(self, process: Process, what: str, error: BaseException) -> None:
        """Judge an error that a process, or a call of its user, ended with."""
        leads = process.led if process.ended else self.leads(process)
        if isinstance(error, Violation):
            raise error
        if isinstance(error, BlockedError) and process.stops:
            return  # a decided group is not published again and again by a run that is to stop
        if isinstance(error, StateError) and self._misfits(process):
            return  # code that was rolled back, or of a stand-by, is not that of the tables
        if isinstance(error, KilledError) and self._is_killed():
            return
        if isinstance(error, FencedError) and not process.opened:
            (epoch, rewinds), (before, earlier) = self.fences(), process.before
            leads = leads and rewinds == earlier and (process.books.epoch > 0 or epoch == before)
        if not isinstance(error, TxstormError) or (leads and not process.struck and not process.lied_to):
            raise Violation(7, f"{process} leads and its {what} ends with {type(error).__name__}: {error}") from error

    def _is_killed(self) -> bool:
        """Return whether the topology was killed; the command may have been meant for an earlier run."""
        status = self.status()
        return status is not None and status["mode"] == "killed"

    def _misfits(self, process: Process) -> bool:
        """Whether the code of `process` has a table that was dropped, or lacks a recorded one that it may not drop."""
        dropped, recorded = (self._read(DROPPED) or {}).get("tables", {}).keys(), (self._read(TABLES) or {}).keys()
        return not dropped.isdisjoint(process.code) or not recorded <= {*process.code, *process.drop}

    def _read(self, path: str) -> Any:
        entry = self.entries.at.get(path)
        return None if entry is None else self.values.decode(entry.value, "")

    def status(self) -> Any:
        """Return the last status that a run has written; None if there is none."""
        return self._read(STATUS)

    def leads(self, process: Process) -> bool:
        """Return whether `process` has the lease, and no process that lost it has raised the epoch since."""
        newest = process.books.epoch == 0 or self._read(EPOCH) in (None, process.books.epoch)
        return self.entries.holder is process.ledger and newest

    def fences(self) -> tuple[object, tuple[int, int]]:
        """Return what changes when a coordinator takes over, or a rewind is decided or completed."""
        return self.entries.at.get(EPOCH), (self.judge.timeline, self.judge.decided)

    def leader(self) -> Process | None:
        """Return the process that holds the lease; None if it is free."""
        return next((one for one in self.processes if self.entries.holder is one.ledger), None)

    def released(self, process: Process) -> None:
        """Release the lease, if `process` had it."""
        process.ledger.release()

    # -- healing ------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Run without faults: everything in the source must be committed within a bounded simulated time."""
        self.say("everything heals")
        self._fuse, self._healing = NEVER, True
        self.away.clear()
        self.news += 1
        self.available = [max(1, one) for one in self.available]
        for process in self.processes:
            process.frozen = 0
        # Processes that were paused make one more attempt, and operators end what they do.
        self.lets_run(2000, lambda: all(one.state is not None or one.waits for one in self.processes), jumps=5)
        self.lets_run(100, jumps=2)
        leader = next((one for one in self.processes if self.leads(one) and one.opened), None)
        for process in [one for one in self.processes if one is not leader]:
            self.ended(process, "has ended")
        process = leader or self.start()
        self._goes_on(process)
        for _ in range(
            2
        ):  # what happened before the world healed may end it only now; so may a kill, meant for another
            hit = process is leader and (process.struck or process.lied_to or process.stops)
            if process not in self.processes and (hit or self._is_killed()):
                process = self.start()
                self._goes_on(process)
        if process not in self.processes:
            raise Violation(7, f"{process} makes no progress though nothing fails")
        if not process.is_done():
            raise Violation(7, f"the content of the source is not committed in {HEALING} s: {process.state}")
        if self.below(4) == 0:
            process.stops = True
            assert process.handle is not None
            process.does("stop", process.handle.stop)
            if not self.lets_run(5000, lambda: process not in self.processes, jumps=100):
                raise Violation(7, f"{process} does not stop: {process.state}")
            self.judge.swept()

    def _goes_on(self, process: Process) -> None:
        """Let the only process that is left commit what there is; activate the topology whenever it is not active."""
        end = self.scheduler.time + HEALING
        self.lets_run(50_000, lambda: self._is_over(process, end) or process.is_inactive, jumps=2000)
        for _ in range(100):  # an operator's earlier command may be carried out after this one, or a lane sleep
            if self._is_over(process, end):
                break
            if process.is_inactive:
                self._activate()
            self.lets_run(20_000, lambda: self._is_over(process, end) or process.is_inactive, jumps=2000)

    def _activate(self) -> None:
        operator = self.process("command")
        operate(self, operator, lambda: operator.asks(ACTIVATE))
        self.lets_run(PATIENCE, lambda: operator not in self.processes, jumps=1000)

    def _is_over(self, process: Process, end: float) -> bool:
        return process not in self.processes or process.is_done() or self.scheduler.time > end

    def forget(self) -> None:
        """Drop all references, so that this world's memory is freed immediately."""
        self.entries.holder = None
        vars(self.judge).clear()
        super().forget()
