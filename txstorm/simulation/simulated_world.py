"""Base of simulated worlds: processes on lanes in a drawn order, which others may pause or kill; counts and a trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from txstorm.simulation.expected import Violation
from txstorm.simulation.process.scheduler import Killed, Owner, Scheduler
from txstorm.simulation.schedule import REFUSED

P = TypeVar("P", bound=Owner)


class SimulatedWorld(ABC, Generic[P]):
    """World whose processes, of type `P`, are run by a scheduler.

    Args:
        draw: source of all random numbers.
        counts: counter of faults, which several worlds may share; None: a new one.
        traced: whether to record a trace.

    Attributes:
        steps: number of steps at seams so far; a fault may hit each.
        counts: number of occurrences of each kind of fault.
        trace: descriptions of the events; None if not requested.
        processes: those that are alive.
    """

    def __init__(self, draw: Callable[[], float], counts: Counter[str] | None, *, traced: bool) -> None:
        self.draw = draw
        self.steps = 0
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.trace: list[str] | None = [] if traced else None
        self.scheduler = Scheduler(draw, self._refused)
        self.processes: list[P] = []
        self._all: list[P] = []
        self._todo: list[Callable[[], None]] = []

    @abstractmethod
    def released(self, process: P) -> None:
        """Release what `process`, which has ended or died, held in the world: its lease."""

    def below(self, bound: int) -> int:
        """Draw a number from 0 to `bound` - 1."""
        return int(self.draw() * bound)

    def added(self, make: Callable[[str], P], kind: str) -> P:
        """Add the process that `make` returns for a new name of this `kind`."""
        made = make(f"{kind}{len(self._all) + 1}")
        self.processes.append(made)
        self._all.append(made)
        return made

    def lets_run(self, picks: int, until: Callable[[], bool] = lambda: False, jumps: int = 1) -> bool:
        """Let all processes run for a while; return whether `until` holds."""
        end = self.scheduler.picks + picks
        while self.scheduler.picks < end and not until():
            more = self.scheduler.run(end - self.scheduler.picks, until, jumps)
            acts = bool(self._todo)
            while self._todo:
                self._todo.pop(0)()
            if not more and not acts:
                break
        return until()

    def acts(self, call: Callable[[], None]) -> None:
        """Have the world make a call before the current lane goes on."""
        self._todo.append(call)
        self.scheduler.interrupt()
        self.scheduler.pass_on()

    def killed(self, process: P) -> NoReturn:
        """Kill a process at the step of one of its lanes."""
        self.gone(process, "is dead")
        self.scheduler.kill(process)
        raise Killed

    def ended(self, process: P, how: str) -> None:
        """Kill a process between its steps."""
        self.gone(process, how)
        self.scheduler.kill(process)

    def gone(self, process: P, how: str) -> None:
        """Take note that a process has ended or dies."""
        self.say(f"{process} {how}")
        if process in self.processes:
            self.processes.remove(process)
        self.released(process)

    def over(self) -> None:
        """Kill all processes: what is left of their lanes must not take further steps."""
        for process in [one for one in self._all if not one.dead]:
            self.ended(process, "is over")

    def violates(self, invariant: int, what: str) -> NoReturn:
        """End the world with a violation."""
        self.scheduler.abort(Violation(invariant, what))

    def count(self, kind: str, what: str) -> None:
        """Count a fault, and record it in the trace."""
        self.counts[kind] += 1
        self.say(f"fault {kind}: {what}")

    def say(self, what: str) -> None:
        """Record what happens in the trace."""
        if self.trace is not None:
            self.trace.append(f"-- {what}")

    def forget(self) -> None:
        """Drop all references, so that this world's memory is freed immediately."""
        for one in (*self._all, self):
            vars(one).clear()

    def _refused(self, process: Owner) -> None:
        self.counts[REFUSED] += 1
