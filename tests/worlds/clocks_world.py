"""Worlds in which snapshots are wanted at random clocks: what is saved are the rows up to the clock, and no others."""

import shutil
from collections import Counter

from txstorm import MonoidBolt
from txstorm.books.books import Books
from txstorm.errors import InputError, StoppedError
from txstorm.monoids import Sum
from txstorm.operations.restore import restore_savepoint
from txstorm.operations.savepoints import list_snapshots
from txstorm.results.read import read_state
from txstorm.simulation import schedule as kinds
from txstorm.simulation.topologies.events import EVENTS
from txstorm.simulation.topologies.kind import WorldKind

WORDS = ("the", "cow", "moon", "cat", "a")


def wants(world):
    """Have a user want several snapshots, while the source goes on."""
    for _ in range(1 + world.below(4)):
        want(world)
        world.lets_run(world.below(300), jumps=3)
        world.more()
    if world.below(2):
        EVENTS[world.below(len(EVENTS))](world)


def want(world):
    """Have a user want a snapshot at a clock that the source reaches now, soon or never, or at the present one."""
    process = world.leader()
    if process is None or process.handle is None:
        return
    handle, clock = process.handle, {}
    for number, rows in enumerate(world.source.partitions):
        clock[str(number)] = len(rows) - 1 + world.below(4) - world.below(4)
    world.count(kinds.SAVEPOINT, f"{process} wants {clock}")

    def call():
        try:
            if world.below(4):
                handle.want_snapshot(clock)
            else:
                handle._asked(handle._driver.snapshots.take)
        except (InputError, StoppedError) as error:
            world.say(f"{process} refuses {clock}: {error}")

    process.does("want", call)


class ClocksWorld(WorldKind):
    name = "clocks"
    streams = {"default": ("word",)}
    events = (wants,) * 50
    settings = {"snapshot_wait": 20.0}

    def __init__(self, rng):
        super().__init__(rng)
        self.world = None

    def declare(self, rng):
        self.tasks = rng.choice([1, 2])

    def build(self, builder, world):
        self.world = world
        counts = MonoidBolt("counts", Sum(), "word", to_state=lambda row: 1, emit=None)
        builder.set_bolt("counts", counts, self.tasks).fields_grouping("feed", ["word"])

    def rows(self, partition):
        return [("default", (self.rng.choice(WORDS),)) for _ in range(self.rng.randrange(4))]

    def check(self, batches, data_dir):
        parts = self.world.source.partitions
        end = {str(number): len(rows) - 1 for number, rows in enumerate(parts)}
        _, left = Books(self.world.ledger, data_dir / "intents").snapshots()
        if left is not None and all(end[name] >= offset for name, offset in left.clock.items()):
            return f"{left} is still wanted at {end}"
        found = list_snapshots(data_dir)
        for one in found:
            rows = [word for number, some in enumerate(parts) for _, (word,) in some[: one.clock[str(number)] + 1]]
            copy = data_dir.parent / "copy"
            restore_savepoint(data_dir, one.name, copy)
            state = {row["word"]: row["state"] for row in read_state(copy, "counts").to_pylist()}
            shutil.rmtree(copy)
            if state != Counter(rows):
                return f"{one} has {state}, not {Counter(rows)}"
        self.world.counts["snapshots"] += len(found)
        numbers = [one.number for one in found]
        return None if numbers == sorted(set(numbers), reverse=True) else f"there are the snapshots {numbers}"
