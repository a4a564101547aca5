"""Fencing of a coordinator that is frozen at a random point and resumes after another one took over and ended.

Wherever it was frozen, it must no longer change the ledger, the tables or the target topic; it must report why,
and end with exit code 3. A seed draws where it is frozen: a step, one of its fault points, its n-th passage, and the
source; it is printed, and ``TXSTORM_ZOMBIE_SEED`` repeats it. Every `BLOCK` of choices has each step exactly once, and
each kind of source at least once.
"""

import functools
import json
import os
import random
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from crash_cells import AFTER, BEFORE, PARTITIONS, expected, word
from grid_tables import Tables, check_extents, check_sent, produce, start_grid, verify
from programs import Program
from recovery_cases import check_ledger, is_frozen, last_decided, ledger_entries, logs, long_if, reaches, wait_free
from scenarios.grid import SOURCES, TASKS, TOPICS, write_lines
from servers.kafka_reading import committed_records
from servers.running import Kafka

# Most worlds need both servers.
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kafka_broker", "zookeeper_server")]

SESSION = 1.5
PATIENCE = 240
Say = Callable[[str], None]


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
    """A coordinator frozen at the nth passage of a point (`OUTSIDE`: of any points, by a signal), then resumed."""

    source: str
    depth: int
    ledger: str
    point: str
    nth: int

    def __str__(self) -> str:
        where = f"{self.point}:freeze:{self.nth}"
        return f"{where}, {self.source}, {self.depth} at once, ledger in {self.ledger}"


def drawn(seed: int, number: int) -> list[Zombie]:
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


@functools.cache
def seed() -> int:
    return int(os.environ.get("TXSTORM_ZOMBIE_SEED", random.randrange(1 << 30)))


@dataclass
class World:
    """The environment of a zombie and its successor: a data directory, a ledger, topics."""

    place: Path
    options: Sequence[str]
    topics: Sequence[str]

    @property
    def data_dir(self) -> Path:
        return self.place / "data"

    def start(self, zombie: Zombie, when: str, *more: str, **environ: str) -> Program:
        arguments = [zombie.source, when, zombie.depth, str(self.place), *self.topics]
        # Nothing asks Storm's spouts how much there is.
        until = ["--until-txid", str(TXIDS)] if zombie.source in TASKS else ["--available-now"]
        return start_grid(self.place, arguments, *until, *self.options, *more, **environ)

    def sent(self) -> list[Any]:
        return committed_records(self.topics[0], self.topics[2]) if self.topics else []

    def everything(self) -> tuple[Any, ...]:
        """Return a snapshot of everything that a fenced zombie must not change."""
        return logs(self.place), ledger_entries(self.data_dir), self.sent()


@pytest.fixture
def world(place: Path, request: pytest.FixtureRequest) -> Callable[[Zombie], World]:
    """Return a function that creates the environment of a zombie, and starts the servers that it needs."""

    def make(zombie: Zombie) -> World:
        write_lines(place)
        if zombie.ledger == "delta":
            options = ["--ledger", f"delta:{place / 'ledger'}"]
        else:
            server = request.getfixturevalue("zookeeper_server")
            options = ["--ledger", f"zookeeper:{server.new_chroot()}"]
        topics = _topics(request.getfixturevalue("kafka_broker")) if zombie.source in TOPICS else []
        return World(place, options, topics)

    return make


def _topics(kafka: Kafka) -> list[str]:
    topic, target = kafka.make_topic(partitions=len(PARTITIONS)), kafka.make_topic(partitions=3)
    produce(kafka, topic, range(BEFORE.size))
    return [kafka.bootstrap, topic, target]


@pytest.mark.parametrize("number", long_if(lambda number: number >= BLOCK, range(200)))
def test_a_coordinator_frozen_at_any_step_changes_nothing_when_it_wakes_up(world, progress, number):
    """One coordinator for each step; in long runs two hundred."""
    wakes_up_too_late(world, drawn(seed(), number + 1)[number], progress)


@pytest.mark.parametrize("point", ["p0.3.created", "history.before"])
def test_a_frozen_coordinator_finds_the_table_that_it_was_about_to_create(world, progress, point):
    wakes_up_too_late(world, Zombie("transactional", 1, "zookeeper", point, 1), progress)


def wakes_up_too_late(make: Callable[[Zombie], World], zombie: Zombie, say: Say) -> None:
    say(f"TXSTORM_ZOMBIE_SEED={seed()}: {zombie}")
    world = make(zombie)
    first = frozen(world, zombie)
    try:
        wait_free(world.data_dir, PATIENCE)
        known = last_decided(world.data_dir)  # later transactions are planned again
        second = world.start(zombie, "after", "--standby")
        _, complained = second.communicate(PATIENCE)
        assert second.returncode == 0, complained
        tables = verify(world.data_dir)
        check_records(world, zombie, tables, known)
        check_ledger(world.data_dir, len(tables.rows), intents=2)  # the last one, and one that it rolled forward
        before = world.everything()
        assert is_frozen(first.pid)
        first.send_signal(signal.SIGCONT)
        printed, complained = first.communicate(PATIENCE)
    finally:
        first.kill()
    document = json.loads(printed.splitlines()[-1])
    assert (first.returncode, document["error"]["type"]) == (3, "FencedError"), complained
    said = document["error"]["message"]
    assert re.search("another run may lead by now|has taken over|a newer coordinator leads", said)
    assert world.everything() == before
    assert verify(world.data_dir, swept=False) == tables


def frozen(world: World, zombie: Zombie) -> Program:
    short = [] if zombie.ledger == "delta" else ["--set", f"zookeeper_session_timeout={SESSION}"]
    trace = world.place / "trace"
    if zombie.point != OUTSIDE:
        first = world.start(zombie, "before", *short, TXSTORM_FAULT=f"{zombie.point}:freeze:{zombie.nth}")
    else:
        first = world.start(zombie, "before", *short, TXSTORM_FAULT_TRACE=str(trace))
        reaches(first, lambda: trace.exists() and trace.read_text().count("\n") >= zombie.nth)
        first.send_signal(signal.SIGSTOP)
    return reaches(first, lambda: is_frozen(first.pid))


def check_records(world: World, zombie: Zombie, tables: Tables, known: int) -> None:
    """Check that each record exists once: with its old content if decided before the takeover, else the new one."""
    rows = [row for some in tables.rows.values() for row in some]
    assert all(made == word(*at) for *at, made in rows)
    if zombie.source in AFTER:
        batches = expected(zombie.source, known)
        assert tables.batches() == batches
        check_extents(tables.history, batches)
    else:
        assert sorted(rows) == sorted((p, i, 0, word(p, i, 0)) for p in PARTITIONS for i in range(BEFORE.size))
    if world.topics:
        check_sent(world.topics[0], world.topics[2], tables.rows)
