"""Simulated world: processes that work, fail, pause and die around durable storage; fully determined by one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from txstorm.coordinator.machine import FIRST_TXID, Config
from txstorm.errors import TableCorrupt, TxstormError
from txstorm.lanes import Inline
from txstorm.ledger.paths import EPOCH
from txstorm.simulation import schedule as kinds
from txstorm.simulation.delta.tables import Stored
from txstorm.simulation.expected import Violation
from txstorm.simulation.judge import Judge
from txstorm.simulation.ledger import Entries, Injected, Values
from txstorm.simulation.outside import Database, extents_of
from txstorm.simulation.process import Crash, Process
from txstorm.simulation.schedule import Schedule, Strike, after_drawn
from txstorm.simulation.trouble import TAKING_OVER, TROUBLE, rewind, unlikely
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, SINK, STATE

NEVER = 1 << 60
UPKEEP = 4
"""Approximate number of steps it takes to commit a compaction."""

DEEP = 2
"""Maximum number of coordinators paused within each other's steps."""

_SINK, _KEPT, _MORE = TableRef(SINK, "out"), TableRef(CHANGES, "kept"), TableRef(SINK, "more")
_STATE = TableRef(STATE, "kept")


class World:
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
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        traced: bool = False,
        draw: Callable[[], float] | None = None,
        counts: Counter[str] | None = None,
    ) -> None:
        self.schedule = schedule
        self.config = Config(schedule.depth, schedule.group, schedule.opaque)
        self.steps = 0
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.trace: list[str] | None = [] if traced else None
        self.draw = after_drawn(schedule) if draw is None else draw
        self.entries, self.values = Entries(), Values()
        self.history: list[Mapping[str, Any]] = []
        self.available = [1 + self.below(3) for _ in range(schedule.partitions)]
        self.away: set[int] = set()
        self.news = 0  # number of changes to the source
        self.now = 1_000_000
        self.lanes = Inline(self.micros, self.clock)
        self.tables: dict[str, Stored] = {}
        for number, ref in enumerate((_SINK, _KEPT, _MORE)[: schedule.tables]):
            self._add(ref, number)
        if schedule.tables > 1:
            self._add(_STATE, 1)
        self.code = tuple(self.tables)
        self.drop: frozenset[str] = frozenset()
        self.database = Database(is_opaque=schedule.opaque)
        self.judge = Judge(self)
        self.processes: list[Process] = []
        self._all: list[Process] = []
        self._strikes = list(reversed(schedule.strikes))
        self._fuse = self._strikes[-1].step if self._strikes else NEVER
        self._names, self._uniques, self._paused = 0, 0, 0
        self.late_creation = False
        self._healing = False

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

    def below(self, bound: int) -> int:
        """Draw a number from 0 to `bound` - 1."""
        return int(self.draw() * bound)

    def timer(self) -> bool:
        """Draw whether the timer of a committer is due; none is once the world heals."""
        return not self._healing and self.below(2) == 0

    def unique(self) -> str:
        """Return a new unique name."""
        self._uniques += 1
        return f"u{self._uniques}"

    def clock(self) -> float:
        """Return the simulated time, in seconds."""
        return self.now / 1_000_000

    def micros(self) -> int:
        """Return the simulated time, in microseconds."""
        return self.now

    def passes(self, process: Process, what: str, about: object) -> str | None:
        """Take a step of `process`; return the kind of fault, if any, that the caller has to carry out itself."""
        self.steps += 1
        if self.trace is not None:
            self.trace.append(f"{process}: {what} {about}")
        return None if self.steps < self._fuse else self._strike(process)

    def reads(self, process: Process, what: str, about: object) -> None:
        """Take a step without effects outside `process`; a fault can only end the process."""
        self.steps += 1
        if self.trace is not None:
            self.trace.append(f"{process}: {what} {about}")
        if self.steps < self._fuse or self._strikes[-1].kind == kinds.PAUSE_AFTER:
            return
        kind = self._strike(process)
        if kind == kinds.CRASH_AFTER:
            process.dies()
        if kind in (kinds.LOST, kinds.FAILED):
            error = OSError if kind == kinds.LOST else TableCorrupt
            raise error(f"no answer to {what}") if process.publishing else process.injected(Injected(f"{what} failed"))

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

    def _strike(self, process: Process) -> str | None:
        kind = self._strikes.pop().kind
        self._fuse = self._strikes[-1].step if self._strikes else NEVER
        self.count(kind, f"strikes {process}")
        if kind == kinds.CRASH:
            process.dies()
        if kind == kinds.PAUSE:
            self.pause(process)
            return None
        return kind

    def creates(self, process: Process, uri: str) -> None:
        """Pause `process` before it creates a table, if that is due: usually, it is fenced when it wakes up."""
        if self.late_creation:
            self.late_creation = False
            self.count(kinds.CREATING, f"{process} is about to create {uri}")
            self.pause(process, rewinds=2)

    def pause(self, process: Process, rewinds: int = 6) -> None:
        """Pause `process` in the middle of a step while others continue, usually a new leader; then wake it up.

        In one of `rewinds` cases, an operator rewinds the topology first.
        """
        if self._paused >= DEEP:
            return
        self._paused += 1
        if self.below(2) or all(one.busy for one in self.processes):
            if self.below(3) == 0:
                self.arm(TAKING_OVER, kinds.CRASH)
            if self.below(rewinds if process.books.epoch else 2) == 0:  # no fence covers yet what it has read so far
                rewind(self)
            self.start()
        for _ in range(self.below(8)):
            others = [one for one in self.processes if not one.busy]
            if others:
                self.act(others[self.below(len(others))], other_turn)
        self._paused -= 1
        self._say(f"{process} wakes up")

    # -- what happens -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the world: first with trouble, then healed; raise `Violation` if an invariant does not hold."""
        for _ in range(self.schedule.turns):
            self._turn()
        self._heal()
        self.judge.end()

    def _turn(self) -> None:
        self.now += self.below(5)
        if self.below(3) == 0:
            self.more()
        if not self.processes:
            if self.judge.currtx > FIRST_TXID and self.below(4) == 0:
                self.arm(TAKING_OVER)
            self.start()
        if self.processes:
            process = self.processes[self.below(len(self.processes))]
            for _ in range(2 + self.below(4)):
                if process in self.processes:
                    self.act(process, other_turn)
        if self.below(100) < self.schedule.trouble:
            TROUBLE[self.below(len(TROUBLE))](self)

    def more(self) -> None:
        """Add data to the source."""
        self.available[self.below(len(self.available))] += 1 + self.below(3)
        self.news += 1

    def start(self) -> Process:
        """Start a new process that becomes the leader, no matter which process had the lease."""
        self.entries.holder = None
        process = self.process("c")
        self._say(f"{process} starts")
        self.act(process, Process.open)
        return process

    def process(self, kind: str) -> Process:
        """Create a new process."""
        self._names += 1
        made = Process(self, f"{kind}{self._names}")
        self.processes.append(made)
        self._all.append(made)
        return made

    def act(self, process: Process, action: Callable[[Process], object]) -> None:
        """Run `action` on `process`; if it ends, except by a simulated fault or another leader, that is a violation."""
        process.struck, process.busy = False, True
        try:
            action(process)
        except Crash:
            self.ended(process, "is dead")
        except TxstormError as error:
            leads = self.leads(process)
            self.ended(process, f"ends with {type(error).__name__}: {error}")
            if leads and not process.struck:
                raise Violation(7, f"{process} leads and ends with {type(error).__name__}: {error}") from error

        finally:
            process.busy = False

    def leads(self, process: Process) -> bool:
        """Return whether `process` has the lease, and no process that lost it has raised the epoch since."""
        epoch = self.entries.at.get(EPOCH)
        newest = process.books.epoch == 0 or epoch is None or self.values.decode(epoch.value, "") == process.books.epoch
        return self.entries.holder is process.ledger and newest

    def leader(self) -> Process | None:
        """Return the process that holds the lease; None if it is free."""
        return next((one for one in self.processes if self.entries.holder is one.ledger), None)

    def ended(self, process: Process, how: str) -> None:
        """Record that `process` has ended."""
        self._say(f"{process} {how}")
        self.processes.remove(process)
        process.ledger.release()

    # -- healing ------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Run without faults: everything in the source must be committed within a bounded number of turns."""
        self._say("everything heals")
        self._fuse, self._healing = NEVER, True
        self.away.clear()
        self.news += 1
        self.available = [max(1, one) for one in self.available]
        leader = next(filter(self.leads, self.processes), None)
        for process in [one for one in self.processes if one is not leader]:
            self.act(process, other_turn)  # processes that were paused make one more attempt
            if process in self.processes:
                self.ended(process, "has ended")
        process = next(filter(self.leads, self.processes), None) or self.start()
        self.act(process, lambda one: one.activate(active=True))
        for _ in range(20 + 4 * sum(self.available)):
            if process not in self.processes:
                raise Violation(7, f"{process} makes no progress though nothing fails")
            if self._all_done(process):
                break
            self.act(process, Process.work_off)
        else:
            raise Violation(7, f"the content of the source is not committed: {process.state}")
        if self.below(4) == 0:
            self.act(process, Process.sweep)
            self.judge.swept()

    def _all_done(self, process: Process) -> bool:
        idle = not (process.jobs or process.group or process.works) and process.state.idle
        document = process.planning.document(process.state.currtx - 1)
        return idle and document is not None and [end for _, end in extents_of(document)] == self.available

    def forget(self) -> None:
        """Drop all references, so that this world's memory is freed immediately."""
        self.entries.holder = None
        for one in (*self._all, self.judge, self):
            vars(one).clear()

    # -- words --------------------------------------------------------------------------------------------------------

    def count(self, kind: str, what: str) -> None:
        """Count a fault, and record it in the trace."""
        self.counts[kind] += 1
        self._say(f"fault {kind}: {what}")

    def _say(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"-- {what}")


def other_turn(process: Process) -> None:
    """Make a running process take a randomly chosen action."""
    below = process.world.below
    if below(100) < process.world.schedule.flaky:
        unlikely(process.world, process)
    elif process.works and below(2):
        if below(3) == 0:
            process.world.arm(UPKEEP)
        process.end_upkeep()
    elif process.group is not None and below(3):
        process.commit()
    elif process.jobs:
        process.process(below(8))
    elif process.held:
        process.resume(min(process.held))
    process.look()
