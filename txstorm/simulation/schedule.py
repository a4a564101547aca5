"""Schedule of one simulated world: its settings and its faults, drawn from a seed and a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Self

TOPOLOGY, INCARNATION = "sim", "sim"
CRASH, CRASH_AFTER, LOST, FAILED = "crash", "crash_after", "answer_lost", "failed"
CONFLICT, PAUSE, PAUSE_AFTER, POWER = "conflict", "paused_coordinator", "paused_after_write", "power_cut"
STRIKES = (CRASH, CRASH, CRASH_AFTER, LOST, LOST, FAILED, CONFLICT, PAUSE, PAUSE, PAUSE_AFTER, PAUSE_AFTER, POWER)
"""Faults that can occur at a step; a kind listed twice is drawn twice as often."""

RIVAL, LEASE, BATCH, COMMIT_FAILS = "two_coordinators", "lease_lost", "batch_fails", "commit_fails"
STALE, AWAY, REWIND, CLOCK, STOP = "late_or_duplicate_event", "partition_away", "rewind", "clock_jump", "stop"
SAVEPOINT, COMPACTION, GATHERING, SWEEP = "savepoint", "compaction", "gathering", "sweep"
THINNING = "thinning"
REPLAYED, LIE, DAMAGE, INACTIVE = "opaque_replay_differs", "other_batch", "damage", "deactivated"
ADDED, DROPPED, LEFT_OUT = "table_added", "table_dropped", "table_left_out"
HEARTBEAT, CREATING = "heartbeat", "paused_before_creation"
STANDBY, KILLED, UNPOLLED, UNSYNCED = "stand_by", "killed", "polling_off", "unsynced_write_lost"
CHECKPOINT, RETENTION = "checkpoint", "retention"
HANGS, WORKER, REFUSED = "call_hangs", "worker_dies", "step_of_a_dead_process"
KINDS = (
    *dict.fromkeys(STRIKES),
    *(RIVAL, LEASE, BATCH, COMMIT_FAILS, STALE, AWAY, REWIND, CLOCK, STOP),
    *(SAVEPOINT, COMPACTION, GATHERING, SWEEP, THINNING, REPLAYED, LIE, DAMAGE, INACTIVE),
    *(ADDED, DROPPED, LEFT_OUT, HEARTBEAT, CREATING, HANGS, WORKER, REFUSED),
    *(STANDBY, KILLED, UNPOLLED, UNSYNCED),
)
SOON = 16
EXTERNAL, SPARK, POLLS = 0.2, 0.25, 0.7
STRIKE_STEPS = 160
DRAWS = 18
"""Number of random numbers from which a schedule is drawn."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault at the first possible step from `step` on; for `PAUSE_AFTER`, the first one that can write."""

    step: int
    kind: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of one world: the same schedule gives the same trace, byte for byte.

    Attributes:
        seed, index: origin of the schedule, from which all random choices in its world are drawn, too.
        opaque: whether undecided batches may change when they are replanned.
        tables: number of tables, 1 to 3; the second one is a state.
        partitions: number of partitions of the source.
        depth: maximum number of transactions in flight; `group`: maximum number of them under one intent.
        turns: number of turns before the world heals.
        trouble: percentage of turns that inject a fault or a user request.
        flaky: percentage of a process's steps that fail or get a late answer.
        notices: whether a process that has lost the lease notices at once.
        external: whether committers change a user's database; then only one coordinator leads at a time.
        ahead: whether committers may finish ahead of their turn.
        spark: whether the last table is written by Spark.
        polls: whether drivers look around while transactions are in flight; otherwise only events and timers wake them.
        strikes: the faults, in the order of their steps.
    """

    seed: int
    index: int
    opaque: bool
    tables: int
    partitions: int
    depth: int
    group: int
    turns: int
    trouble: int
    flaky: int
    notices: bool
    external: bool
    ahead: bool
    spark: bool
    strikes: tuple[Strike, ...]
    polls: bool

    def to_json(self) -> dict[str, Any]:
        """Return all choices of the schedule, from which `from_json` builds it again."""
        return asdict(self) | {"strikes": [[one.step, one.kind] for one in self.strikes]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Build a schedule from the choices that `to_json` returned.

        Raises:
            TypeError: a choice is missing or unknown, for example one of an earlier version.
        """
        return cls(**{**document, "strikes": tuple(Strike(*one) for one in document["strikes"])})


def random_of(seed: int, index: int) -> Random:
    """Return the random generator of schedule `index` of `seed`."""
    return Random((seed << 64) | index)  # noqa: S311 - not for secrets


def after_drawn(schedule: Schedule) -> Callable[[], float]:
    """Return a function that yields the random numbers after those from which `schedule` was drawn, one per call."""
    draw = random_of(schedule.seed, schedule.index).random
    for _ in range(DRAWS):
        draw()
    return draw


def drawn(seed: int, index: int) -> Schedule:
    """Draw schedule `index` of `seed`."""
    return taken(seed, index, random_of(seed, index).random)


def taken(seed: int, index: int, draw: Callable[[], float]) -> Schedule:
    """Build a schedule from the first `DRAWS` numbers of `draw`; later numbers are for its world."""
    first, then, many = int(draw() * STRIKE_STEPS), draw(), (0, 1, 2, 2)[int(draw() * 4)]
    # In half of the pairs the second fault follows soon after the first: otherwise faults would rarely hit a process
    # that has just begun to take over or to recover.
    second = first + int(then * 2 * SOON) if then < 0.5 else int((then * 2 - 1) * STRIKE_STEPS)
    strikes = [(1 + step, STRIKES[int(draw() * len(STRIKES))]) for step in (first, second)][:many]
    external = draw() < EXTERNAL
    if external:  # only the user's database itself could refuse the writes of a coordinator that was paused
        strikes = [(step, kind) for step, kind in strikes if kind not in (PAUSE, PAUSE_AFTER)]
    return Schedule(
        seed=seed,
        index=index,
        opaque=draw() < 0.6,
        tables=(1, 1, 1, 1, 2, 2, 3)[int(draw() * 7)],
        partitions=1 + int(draw() * 2),
        depth=1 + int(draw() * 8),
        group=1 + int(draw() * (1 if external else 4)),
        turns=(1, 1, 1, 2, 3)[int(draw() * 5)],
        trouble=(5, 20, 50)[int(draw() * 3)],
        flaky=(0, 20, 40)[int(draw() * 3)],
        notices=draw() < 0.5,
        external=external,
        ahead=draw() < 0.7,
        spark=draw() < SPARK,
        strikes=tuple([Strike(step, kind) for step, kind in sorted(strikes)]),
        polls=draw() < POLLS,
    )
