"""Events of every world of a topology, besides faults at a step: requests of users, other processes, power cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from txstorm.books.requests import DEACTIVATE
from txstorm.errors import DataDirectoryError, InputError
from txstorm.operations.rewind import rewind_to
from txstorm.simulation import schedule as kinds

if TYPE_CHECKING:
    from txstorm.simulation.topologies.topology_world import TopologyWorld


def crash(world: TopologyWorld) -> None:
    """Kill the leader between two steps, and start its successor."""
    process = world.leader()
    if process is not None:
        world.count(kinds.CRASH, f"{process} is killed")
        world.ended(process, "is dead")
        world.start()


def rival(world: TopologyWorld) -> None:
    """Make the leader lose its lease, and start another process beside it."""
    world.count(kinds.RIVAL, "another process takes over")
    world.start()
    world.lets_run(400, jumps=3)


def stand_by(world: TopologyWorld) -> None:
    """Start a process on standby, then end or kill the leader."""
    process = world.leader()
    if process is None:
        return
    world.count(kinds.STANDBY, f"a process stands by for {process}")
    world.start(standby=True)
    world.lets_run(200, jumps=3)
    if world.below(2):
        world.ended(process, "is dead")
    else:
        stop(world)
    world.lets_run(400, jumps=5)


def stop(world: TopologyWorld) -> None:
    """Have the user stop the leader, perhaps after all that is in flight."""
    process = world.leader()
    if process is None or process.stops or process.handle is None:
        return
    handle, drains, process.stops = process.handle, world.below(2) == 0, True
    world.count(kinds.STOP, f"{process} is to stop")
    process.does("stop", lambda: handle.stop(drain=drains))
    world.lets_run(600, lambda: process not in world.processes, jumps=10)


def deactivate(world: TopologyWorld) -> None:
    """Have the user deactivate the topology."""
    process = world.leader()
    if process is not None and process.handle is not None:
        world.count(kinds.INACTIVE, f"{process} is deactivated")
        world.process("command").asks(DEACTIVATE)
        world.lets_run(200, jumps=3)


def rewind(world: TopologyWorld) -> None:
    """Kill the leader, and rewind to some transaction."""
    if world.kind.outside:
        return
    for process in list(world.processes):
        world.ended(process, "is killed")
    world.ledger.expire()
    operator = world.process("rewind")
    world.count(kinds.REWIND, f"{operator} starts")

    def call() -> None:
        try:
            committed = world.committed()
            if committed:
                rewind_to(world.data_dir, world.below(committed), (), operator.lanes)
        except (InputError, DataDirectoryError) as error:
            world.say(f"{operator} is refused: {error}")

    operator.does("rewind", call)
    world.lets_run(5000, jumps=20)
    if operator in world.processes:
        world.ended(operator, "has ended")


def power_cut(world: TopologyWorld) -> None:
    """End all processes at once, and lose any subset of what they had not synced."""
    world.cut_power()
    world.start()


def savepoint(world: TopologyWorld) -> None:
    """Create a savepoint of the last committed transaction."""
    process = world.leader()
    if process is not None and process.handle is not None:
        handle, name = process.handle, f"s{world.steps}"
        world.count(kinds.SAVEPOINT, f"{process} creates a savepoint")
        process.does("savepoint", lambda: handle.savepoint(name) if handle.committed else None)


def go_away(world: TopologyWorld) -> None:
    """Make a partition of the source unavailable, or available again."""
    world.count(kinds.AWAY, "a partition goes away, or comes back")
    world.source.away ^= {world.below(len(world.source.partitions))}


EVENTS: tuple[Callable[[TopologyWorld], None], ...] = (
    *(crash, crash, rival, stand_by, stop, deactivate, savepoint, go_away),
    *(rewind, rewind, power_cut, power_cut),
)
