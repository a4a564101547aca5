"""Exhaustive search of small worlds: every fault at every command, then a second fault at every later command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from txstorm.api.attempt import FIRST_TXID
from txstorm.engine.gc_pause import seldom_collected
from txstorm.errors import InputError
from txstorm.simulation.process.process import Process
from txstorm.simulation.schedule import CRASH, CRASH_AFTER, LOST, PAUSE, Schedule, Strike, drawn
from txstorm.simulation.search import Found, quiet, violation
from txstorm.simulation.world import World

TXIDS = 3
SHARPEST = (CRASH, CRASH_AFTER, PAUSE, LOST)
"""The faults: the process dies before or after the command, sleeps while another one leads, or gets no response."""

ENDS, ANSWERS = 2, 1
"""Limits per world: on the number of crashes and pauses together, and on that of lost responses."""


@dataclass(frozen=True)
class Scope:
    """Scope of an exhaustive search: its small worlds.

    Attributes:
        tables: number of tables, 1 to 3; the second one is a state.
        opaque: whether batches may change when they are replanned.
        group: maximum number of transactions decided together.
    """

    tables: int
    opaque: bool
    group: int = 1


SCOPES = (Scope(2, opaque=True), Scope(2, opaque=False), Scope(3, opaque=True, group=2), Scope(3, opaque=False))


@dataclass(frozen=True)
class Struck:
    """A fault in one world: its step, its kind, and the command that it hit, such as ``table commit sinks/out``."""

    step: int
    kind: str
    command: str


@dataclass
class Search:
    """Result of an exhaustive search.

    Attributes:
        worlds: number of worlds run; `steps`: the number of their steps, in total.
        met: (command, kind) → number of worlds with this fault.
        followed: (command, kind, command, kind) → number of worlds in which the second fault followed the first.
        found: the violations.
    """

    worlds: int = 0
    steps: int = 0
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    followed: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Return the result as ``txstorm simulate --exhaustive --json`` prints it."""
        commands = dict.fromkeys(sorted(command for command, _ in self.met))
        return {
            "worlds": self.worlds,
            "steps": self.steps,
            "violations": len(self.found),
            "commands": {one: {kind: self.met[one, kind] for kind in SHARPEST} for one in commands},
            "pairs": len(self.followed),
            "missed": [list(one) for one in self.missed()],
        }

    def missed(self) -> list[tuple[str, str]]:
        """Return the pairs of a command that occurred and a kind of fault that never hit it."""
        commands = dict.fromkeys(command for command, _ in self.met)
        return [(command, kind) for command in commands for kind in SHARPEST if not self.met[command, kind]]


def searched(strikes: int = 2, scopes: Sequence[Scope] = SCOPES) -> Search:
    """Run every small world with up to `strikes` faults while three transactions are committed.

    A run without faults reveals the commands. For each of them and each kind of fault another world is run, which
    reveals the commands that follow, and so on: everything before a fault is the same with and without it.

    Args:
        strikes: maximum number of faults; `ENDS` and `ANSWERS` allow 3, which takes about thirty times as long as 2.
        scopes: the worlds to search.

    Raises:
        InputError: a number is out of range.
    """
    _check("strikes", strikes, ENDS + ANSWERS)
    search = Search()
    with seldom_collected(), quiet():
        for scope in scopes:
            _check("tables", scope.tables, 3)
            _check("group", scope.group, TXIDS)
            _search(search, _small(scope), (), strikes)
    return search


def _check(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise InputError(f"exhaustive search: {name}: expected 1 to {most}, got {value}")


class _Watched(World):
    """World that records the commands at which a fault can occur."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.commands: list[tuple[int, str]] = []
        self.committed: int | None = None

    def passes(self, process: Process, what: str, about: object) -> str | None:
        if self.committed is None:
            path = str(about)
            above, _, name = path.rpartition("/")
            self.commands.append((self.steps + 1, f"{what} {above if name.isdecimal() else path}"))
        return super().passes(process, what, about)

    def _heal(self) -> None:
        self.committed = self.judge.currtx - FIRST_TXID
        super()._heal()


def _search(search: Search, schedule: Schedule, struck: tuple[Struck, ...], more: int) -> None:
    world = _Watched(replace(schedule, strikes=tuple(Strike(one.step, one.kind) for one in struck)))
    what = violation(world)
    search.worlds, search.steps = search.worlds + 1, search.steps + world.steps
    if struck:
        search.met[struck[-1].command, struck[-1].kind] += 1
    if len(struck) > 1:
        before, last = struck[-2:]
        search.followed[before.command, before.kind, last.command, last.kind] += 1
    if what is not None:
        search.found.append(Found(world.schedule, what))
    commands = world.commands
    world.forget()
    if what is None and more:
        for one in _next(commands, struck):
            _search(search, schedule, (*struck, one), more - 1)


def _next(commands: Sequence[tuple[int, str]], struck: Sequence[Struck]) -> Iterator[Struck]:
    lost = sum(one.kind == LOST for one in struck)
    for step, command in commands:
        if not struck or step > struck[-1].step:
            for kind in SHARPEST:
                if lost < ANSWERS if kind == LOST else len(struck) - lost < ENDS:
                    yield Struck(step, kind, command)


def _small(scope: Scope) -> Schedule:
    """Return the schedule of a world without faults that commits three transactions before it heals."""
    for index in count():
        calm = replace(
            drawn(0, index), trouble=0, flaky=0, external=False, spark=False, strikes=(), notices=False, polls=True
        )
        shape = replace(calm, **vars(scope), partitions=1, depth=TXIDS, turns=6)
        world = _Watched(shape)
        world.run()
        if world.committed == TXIDS:
            return shape
    raise AssertionError
