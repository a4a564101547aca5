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

    def plan(self, txid: int, previous: Any, *, replay: bool = False) -> Any:
        """What comes next, as much as is drawn; an opaque replay may get more or less than before."""
        world = self._world
        starts = [end for _, end in previous] if previous is not None else [0] * world.schedule.partitions
        extents = [[start, start + self._size(number, start)] for number, start in enumerate(starts)]
        if not replay and all(start == end for start, end in extents):
            return NOT_READY
        if replay and self._planned.get(txid) not in (None, extents):
            world.counts[REPLAYED] += 1
        self._planned[txid] = extents
        return extents

    def _size(self, partition: int, start: int) -> int:
        if partition in self._world.away:
            return 0
        return min(self._world.available[partition] - start, 1 + self._world.below(4))

    def close(self) -> None:
        """Nothing is open."""
