"""Schedule of one simulated world: its settings and its faults, drawn from a seed and a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

TOPOLOGY, INCARNATION = "sim", "sim"
CRASH, CRASH_AFTER, LOST, FAILED = "crash", "crash_after", "answer_lost", "failed"
CONFLICT, PAUSE, PAUSE_AFTER = "conflict", "paused_coordinator", "paused_after_write"
STRIKES = (CRASH, CRASH, CRASH_AFTER, LOST, LOST, FAILED, CONFLICT, PAUSE, PAUSE, PAUSE_AFTER, PAUSE_AFTER)
"""Faults that strike at a step; what stands here twice is drawn twice as often."""

RIVAL, LEASE, BATCH, COMMIT_FAILS = "two_coordinators", "lease_lost", "batch_fails", "commit_fails"
STALE, AWAY, REWIND, CLOCK, STOP = "late_or_duplicate_event", "partition_away", "rewind", "clock_jump", "stop"
SAVEPOINT, COMPACTION, GATHERING, SWEEP = "savepoint", "compaction", "gathering", "sweep"
THINNING = "thinning"
REPLAYED, LIE, DAMAGE, INACTIVE = "opaque_replay_differs", "other_batch", "damage", "deactivated"
ADDED, DROPPED, LEFT_OUT = "table_added", "table_dropped", "table_left_out"
KINDS = (
    *dict.fromkeys(STRIKES),
    *(RIVAL, LEASE, BATCH, COMMIT_FAILS, STALE, AWAY, REWIND, CLOCK, STOP),
    *(SAVEPOINT, COMPACTION, GATHERING, SWEEP, THINNING, REPLAYED, LIE, DAMAGE, INACTIVE),
    *(ADDED, DROPPED, LEFT_OUT),
)
SOON = 16
EXTERNAL, SPARK = 0.2, 0.25
STRIKE_STEPS = 80
DRAWS = 16
"""Numbers that are drawn for a schedule."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that strikes at the first step that is `step` or later; `PAUSE_AFTER` at the first that can write."""

    step: int
    kind: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """One world: the same schedule gives the same trace, byte for byte.

    Attributes:
        seed, index: where it comes from; whatever else happens in it is drawn from them too.
        opaque: whether undecided batches may change when they are planned again.
        tables: 1 to 3; the second one is a state.
        partitions: of the source.
        depth: transactions at once; `group`: of them under one intent at most.
        turns: how many things happen before the world heals.
        trouble: how often, in percent, a turn is trouble.
        flaky: how often, in percent, something a process does fails or is answered late.
        notices: whether who has lost the lease learns it at once.
        external: whether committers change a user's database; then one coordinator leads at a time.
        spark: whether the last table is written by Spark.
        strikes: in the order of their steps.
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
    spark: bool
    strikes: tuple[Strike, ...]


def random_of(seed: int, index: int) -> Random:
    """The source of all that is drawn in schedule `index` of `seed`."""
    return Random((seed << 64) | index)  # noqa: S311 - not for secrets


def after_drawn(schedule: Schedule) -> Callable[[], float]:
    """Draws what comes after the numbers that `schedule` was made of."""
    draw = random_of(schedule.seed, schedule.index).random
    for _ in range(DRAWS):
        draw()
    return draw


def drawn(seed: int, index: int) -> Schedule:
    """Schedule `index` of `seed`."""
    return taken(seed, index, random_of(seed, index).random)


def taken(seed: int, index: int, draw: Callable[[], float]) -> Schedule:
    """The same from the first `DRAWS` numbers that are drawn; what follows is for the world."""
    first, then, many = int(draw() * STRIKE_STEPS), draw(), (0, 1, 2, 2)[int(draw() * 4)]
    # In half of the pairs the second one comes soon after the first: what it does to a process that has just begun to
    # take over, or to come to itself, is what would otherwise hardly ever be met.
    second = first + int(then * 2 * SOON) if then < 0.5 else int((then * 2 - 1) * STRIKE_STEPS)
    strikes = [(1 + step, STRIKES[int(draw() * len(STRIKES))]) for step in (first, second)][:many]
    external = draw() < EXTERNAL
    if external:  # only the user's database can refuse what a paused coordinator still writes
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
        trouble=(5, 15, 40)[int(draw() * 3)],
        flaky=(0, 20, 40)[int(draw() * 3)],
        notices=draw() < 0.5,
        external=external,
        spark=draw() < SPARK,
        strikes=tuple([Strike(step, kind) for step, kind in sorted(strikes)]),
    )
