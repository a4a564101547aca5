"""Random choices of where a coordinator is frozen: a step, one of its fault points, its n-th passage, and the source.

Every `BLOCK` of choices has each step exactly once, and each kind of source at least once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from scenarios.grid import SOURCES, TOPICS

TXIDS, GROUPS = 6, 2
"""Transactions of a run one at a time; and what there is at least of packs and groups, four at a time."""
OUTSIDE = "outside"
STEPS: Mapping[str, Mapping[str, int]] = {
    # step → point → how often it is passed per pack or group; 0: once a start
    "p0": {
        **dict.fromkeys(("p0.before", "p0.epoch", "p0.raised", "p0.after"), 0),
        **{f"p0.{table}.{what}": 0 for table in range(1, 6) for what in ("created", "raised")},
        "kafka.created": 0,
        "kafka.fenced": 0,
    },
    "p1": {"p1.before": 1, "p1.after": 1},
    "p2": {"p2.before": 1, "p2.after": 1},
    "p3": {"p3.before": 2, "p3.after": 2},
    "p4": {"p4.before": 1, "p4.after": 1},
    "p5": {"p5.before": 1, "p5.staged.before": 3, "p5.staged.after": 3, "p5.after": 1},
    "p6": {"p6.before": 1, "p6.after": 1},
    "p7": {
        **{f"p7.{table}.{what}": 1 for table in (1, 2, 3) for what in ("before", "written", "after")},
        **dict.fromkeys(("kafka.begun", "kafka.sent", "kafka.committed"), 1),
    },
    "p8": {"p8.before": 1, "p8.after": 1, "ledger.meta": 1},
    "ledger": {"ledger.before": 4, "ledger.written": 4},
    "end": dict.fromkeys(("history.before", "history.written", "compact.before", "compact.staged"), 0),
    OUTSIDE: {OUTSIDE: 20},
}
BLOCK = len(STEPS)


@dataclass(frozen=True)
class Zombie:
    """A coordinator that is frozen and later resumed.

    Attributes:
        source: one of `scenarios.grid.SOURCES`.
        depth: maximum number of transactions in flight.
        ledger: ``zookeeper`` or ``delta``.
        point: where it is frozen; `OUTSIDE`: by a signal, after `nth` passages of any points.
        nth: the passage of the point at which it is frozen, counted from 1.
    """

    source: str
    depth: int
    ledger: str
    point: str
    nth: int

    def __str__(self) -> str:
        where = f"{self.point}:freeze:{self.nth}"
        return f"{where}, {self.source}, {self.depth} at once, ledger in {self.ledger}"


def drawn(seed: int, number: int) -> list[Zombie]:
    """Draw the first `number` zombies of `seed`."""
    rng = random.Random(seed)
    zombies: list[Zombie] = []
    while len(zombies) < number:
        steps = rng.sample(list(STEPS), BLOCK)
        sources = rng.sample([*SOURCES, *rng.choices(SOURCES, k=BLOCK - len(SOURCES))], BLOCK)
        delta = rng.randrange(BLOCK)  # its lease lasts longer than a session of ZooKeeper
        zombies += [
            _zombie(rng, step, source, "delta" if place == delta else "zookeeper")
            for place, (step, source) in enumerate(zip(steps, sources, strict=True))
        ]
    return zombies[:number]


def _zombie(rng: random.Random, step: str, source: str, ledger: str) -> Zombie:
    depth = rng.choice((1, 4))
    # A commit of a ledger in a Delta table is one write, with nothing within it.
    without = ("ledger.meta",) * (ledger == "delta") + ("kafka.",) * (source not in TOPICS)
    points = {point: per for point, per in STEPS[step].items() if not point.startswith(without)}
    point = rng.choice(list(points))
    most = max(1, points[point] * (TXIDS if depth == 1 else GROUPS) - (point == "ledger.meta"))  # none before the first
    # The first write to a ledger in a Delta table acquires the lease: before, there is no coordinator to be fenced.
    least = 2 if ledger == "delta" and point.startswith("ledger.") else 1
    return Zombie(source, depth, ledger, point, rng.randint(least, most))
