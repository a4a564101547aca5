"""Search through many schedules, on one or several processes; a failing schedule is shrunk to the smallest one."""

from __future__ import annotations

import logging
import multiprocessing
import resource
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from txstorm.engine.gc_pause import seldom_collected
from txstorm.errors import InputError
from txstorm.simulation.expected import Violation
from txstorm.simulation.schedule import KINDS, Schedule, random_of, taken
from txstorm.simulation.topologies.topology_world import Setting, TopologyWorld, kind_named
from txstorm.simulation.world import World

STORIES = 3
"""Maximum number of violations described in the report; any others are only counted."""

SHRINKS = 2000
"""Maximum number of schedules tried in order to shrink a failing one."""


@dataclass(frozen=True)
class Found:
    """A schedule, plain or of a topology, that violates an invariant; `what` describes the violation."""

    schedule: Schedule | Setting
    what: str


@dataclass(frozen=True)
class Report:
    """Result of a search through many schedules.

    Attributes:
        schedules, seed: the arguments of the search.
        steps: total number of steps of all schedules.
        cpu_seconds: total CPU time of all processes.
        faults: kind of fault → number of occurrences.
        found: the violations, in the order of their schedules.
    """

    schedules: int
    seed: int
    steps: int
    cpu_seconds: float
    faults: Mapping[str, int]
    found: Sequence[Found] = field(default=())

    def to_json(self) -> dict[str, object]:
        """Return the result as ``txstorm simulate --json`` prints it; rates are per second of CPU time."""
        return {
            "schedules": self.schedules,
            "seed": self.seed,
            "violations": len(self.found),
            "steps": self.steps,
            "steps_per_s": int(self.steps / max(self.cpu_seconds, 1e-9)),
            "schedules_per_s": int(self.schedules / max(self.cpu_seconds, 1e-9)),
            "faults": {kind: self.faults.get(kind, 0) for kind in dict.fromkeys((*KINDS, *self.faults))},
        }


def simulate(
    schedules: int, seed: int = 0, processes: int = 1, first: int = 0, stop_at: int | None = None, kind: str = ""
) -> Report:
    """Run schedules `first` to ``first + schedules - 1`` of `seed`; the number of processes does not affect results.

    Args:
        schedules: number of schedules.
        seed: 0 or more.
        processes: number of parallel processes.
        first: number of the first schedule, to continue an earlier call.
        stop_at: each process stops after this many violations.
        kind: kind of worlds of topologies: ``counts``, or ``MODULE:CLASS`` with a `WorldKind`; empty: plain worlds.

    Raises:
        InputError: a number is out of range, or `kind` is none.
    """
    asked = ("schedules", schedules, 1), ("seed", seed, 0), ("processes", processes, 1), ("first", first, 0)
    for name, value, least in asked:
        if value < least:
            raise InputError(f"simulate: {name}: expected a whole number of at least {least}, got {value}")
    size = -(-schedules // processes)
    parts = [
        (kind, seed, at, min(size, first + schedules - at), stop_at) for at in range(first, first + schedules, size)
    ]
    if kind:
        kind_named(kind)  # raises here, not in every process
    if len(parts) == 1:
        return _part(*parts[0])
    # A fork need not import everything again, but only a process of one thread can be forked safely.
    start = "fork" if threading.active_count() == 1 else "spawn"
    with multiprocessing.get_context(start).Pool(len(parts)) as pool:
        return _joined(pool.starmap(_part, parts))


def _part(kind: str, seed: int, first: int, count: int, stop_at: int | None) -> Report:
    faults: Counter[str] = Counter()
    steps, done, before = 0, 0, _cpu_seconds()
    found: list[Found] = []
    with seldom_collected(), quiet():
        for index in range(first, first + count):
            world: World | TopologyWorld
            if kind:
                world = TopologyWorld(Setting.drawn(kind, seed, index), faults)
            else:
                draw = random_of(seed, index).random
                world = World(taken(seed, index, draw), draw=draw, counts=faults)
            if (what := violation(world)) is not None:
                found.append(Found(world.schedule, what))
            steps, done = steps + world.steps, done + 1
            world.forget()
            if stop_at is not None and len(found) >= stop_at:
                break
    return Report(done, seed, steps, _cpu_seconds() - before, faults, tuple(found))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log of the shipped code while it runs in a simulated world."""
    log = logging.getLogger("txstorm")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _joined(parts: Sequence[Report]) -> Report:
    faults: Counter[str] = Counter()
    for part in parts:
        faults.update(part.faults)
    found = tuple(one for part in parts for one in part.found)
    seconds, steps = sum(part.cpu_seconds for part in parts), sum(part.steps for part in parts)
    return Report(sum(part.schedules for part in parts), parts[0].seed, steps, seconds, faults, found)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def world_of(schedule: Schedule | Setting, *, traced: bool = False) -> World | TopologyWorld:
    """Return a new world of a schedule."""
    if isinstance(schedule, Setting):
        return TopologyWorld(schedule, traced=traced)
    return World(schedule, traced=traced)


def violation(world: World | TopologyWorld) -> str | None:
    """Run `world`; return the violation, if any. Any error other than a simulated one is also a violation."""
    try:
        world.run()
    except Violation as violation:
        return str(violation)
    except Exception as error:  # noqa: BLE001 - a defect of shipped code: an assertion, a missing key
        return f"invariant 7: {type(error).__name__}: {error}"
    return None


def trace(schedule: Schedule | Setting) -> list[str]:
    """Return the trace of a schedule, line by line; it is deterministic."""
    world = world_of(schedule, traced=True)
    what = violation(world)
    assert world.trace is not None
    return [*world.trace, *([f"-- VIOLATION of {what}"] if what else [])]


def shrunk(found: Found) -> Found:
    """Shrink a failing schedule: return the smallest one found (faults, tables, turns) with the same violation."""
    best, tries = found, 0
    going = True
    while going and tries < SHRINKS:
        going = False
        for schedule in _smaller(best.schedule):
            tries += 1
            what = violation(world_of(schedule))
            if what is not None and _invariant(what) == _invariant(found.what):
                best, going = Found(schedule, what), True
                break
    return best


def _invariant(what: str) -> str:
    return what.partition(":")[0]


def _smaller(schedule: Schedule | Setting) -> Iterator[Schedule | Setting]:
    """Yield slightly simpler schedules, the simplest first."""
    for number in range(len(schedule.strikes)):
        yield replace(schedule, strikes=schedule.strikes[:number] + schedule.strikes[number + 1 :])  # type: ignore[arg-type]
    if isinstance(schedule, Setting):
        yield from (replace(schedule, turns=turns) for turns in range(1, schedule.turns))
        yield from ([replace(schedule, flaky=0)] if schedule.flaky else [])
        return
    for name in ("turns", "tables", "partitions", "depth", "group", "trouble", "flaky"):
        least, value = int(name in ("tables", "partitions", "depth", "group")), getattr(schedule, name)
        for smaller in dict.fromkeys((least, (least + value) // 2, value - 1)):
            if least <= smaller < value:
                yield replace(schedule, **{name: smaller})
    for name, simple in {"opaque": False, "external": False, "spark": False, "polls": True}.items():
        if getattr(schedule, name) is not simple:
            yield replace(schedule, **{name: simple})  # type: ignore[arg-type]


def story(found: Found) -> str:
    """Describe a violation: the smallest schedule, its faults, and every step of it."""
    with quiet():
        return _description(found, shrunk(found))


def _description(found: Found, small: Found) -> str:
    schedule = small.schedule
    if isinstance(schedule, Setting):
        return "\n".join([f"{found.what}", f"made smaller: {small.what}", f"  {schedule}", *trace(schedule)])
    strikes = ", ".join(f"{one.kind} at step {one.step}" for one in schedule.strikes) or "none"
    head = [
        f"seed {schedule.seed}, schedule {schedule.index}: {found.what}",
        f"made smaller: {small.what}",
        f"  {'opaque' if schedule.opaque else 'transactional'} spout, {schedule.partitions} partitions, "
        f"{schedule.tables} tables{' (the last by Spark)' if schedule.spark else ''}, depth {schedule.depth}, "
        f"group {schedule.group}, {schedule.turns} turns{'' if schedule.polls else ', polling off'}",
        f"  strikes: {strikes}",
    ]
    return "\n".join([*head, *(f"  {line}" for line in trace(schedule))])
