"""A simulated source, and what the shipped planning asks of a spout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txstorm.api.spout import NOT_READY
from txstorm.spouts.port import SpoutPlanner
from txstorm.testing.simulation.schedule import REPLAYED

if TYPE_CHECKING:
    from txstorm.testing.simulation.world import World

Extents = list[list[int]]
"""Per partition the first offset and the one after the last."""


class SimPlanner(SpoutPlanner):
    """Plans ranges of offsets per partition; where a partition is away it carries its position."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.opaque = world.schedule.opaque
        self._planned: dict[int, Extents] = {}
        self.told: Any = None

    def plan(self, txid: int, previous: Any, *, replay: bool = False) -> Any:
        """What comes next, as much as is drawn; an opaque replay may get more or less than before."""
        world = self._world
        starts = [end for _, end in previous] if previous is not None else [0] * world.schedule.partitions
        extents, some = [], replay
        for number, start in enumerate(starts):
            size = 0 if number in world.away else min(world.available[number] - start, 1 + world.below(4))
            extents.append([start, start + size])
            some |= size > 0
        if not some:
            return NOT_READY
        if replay and self._planned.get(txid) not in (None, extents):
            world.counts[REPLAYED] += 1
        self._planned[txid] = extents
        return extents

    def committed(self, document: Any) -> None:
        """The driver says how far transactions are committed."""
        self.told = document

    def close(self) -> None:
        """Nothing is open."""
