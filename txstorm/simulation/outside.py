"""A simulated source, and what the shipped planning asks of a spout.

A database of the user that committers change in `finish_batch`, long before anything is decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from txstorm.api.context import TaskContext
from txstorm.api.spout import NOT_READY, SpoutCoordinator, TransactionalSpout
from txstorm.simulation.schedule import REPLAYED, TOPOLOGY
from txstorm.spouts.executors import planner
from txstorm.spouts.port import SpoutPlanner
from txstorm.storage.rows.semantics import Row, opaque, transactional
from txstorm.storage.tables.intent import TxidRecord

if TYPE_CHECKING:
    from txstorm.simulation.world import World


Extents = list[list[int]]
"""Per partition the first offset and the one after the last."""


class SimPlanner(SpoutPlanner):
    """The shipped planner over a coordinator of users' making, with its extents as the whole document."""

    def __init__(self, world: World) -> None:
        self.opaque = world.schedule.opaque
        self._coordinator = SimCoordinator(world)
        self._shipped = planner(SimSpout(self._coordinator), TaskContext(TOPOLOGY, "source", 0, 1))
        self.told: Any = None

    def plan(self, txid: int, previous: Any, *, replay: bool = False) -> Any:
        """Plan the next batch; an opaque replay may get more or less than before."""
        self._coordinator.replay = replay
        made = self._shipped.plan(txid, None if previous is None else {"meta": previous}, replay=replay)
        return made if made is NOT_READY else made["meta"]

    def committed(self, document: Any) -> None:
        """The driver says how far transactions are committed."""
        self.told = document

    def close(self) -> None:
        """Nothing is open."""


class SimSpout(TransactionalSpout):
    """Hands out the coordinator of a world."""

    def __init__(self, coordinator: SimCoordinator) -> None:
        self._coordinator = coordinator

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """The one there is."""
        return self._coordinator


class SimCoordinator(SpoutCoordinator):
    """Plans ranges of offsets per partition; where a partition is away it carries its position.

    It changes the metadata that it is given, and later what it has returned, as users do.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._planned: dict[int, str] = {}
        self._returned: Extents = []
        self.replay = False

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        """Move every partition on, as much as is drawn."""
        world, some = self._world, self.replay
        extents: Extents = prev_metadata or [[0, 0] for _ in range(world.schedule.partitions)]
        for number, extent in enumerate(extents):
            start = extent[1]
            size = 0 if number in world.away else min(world.available[number] - start, 1 + world.below(4))
            extent[:] = [start, start + size]
            some |= size > 0
        self._returned.clear()
        if not some:
            return NOT_READY
        if self.replay and self._planned.get(txid) not in (None, str(extents)):
            world.counts[REPLAYED] += 1
        self._planned[txid], self._returned = str(extents), extents
        return extents


SLOTS = 3
"""Keys per partition: an offset counts for the key of its remainder, so that another batch has other keys."""

Key = tuple[int, int]


class Database:
    """Rows of (value, txid, prev), under the shipped rule of updates; each row is written by itself."""

    def __init__(self, *, is_opaque: bool) -> None:
        self._opaque = is_opaque
        self._rows: dict[Key, Row[int]] = {}

    def apply(self, record: TxidRecord) -> Iterator[Key]:
        """Count the offsets of a batch, key by key; the caller may die after each of them.

        What an earlier attempt with other content has changed, and this one does not, goes back to what it was.
        """
        counts = _counts(record.extents)
        rule = opaque if self._opaque else transactional
        gone = [key for key, row in self._rows.items() if row.txid == record.txid and key not in counts]
        for key in [*gone, *counts]:
            self._rows[key] = rule(self._rows.get(key), record.txid, partial(_more, counts[key]))
            yield key

    def wrong(self, ends: Sequence[int]) -> str | None:
        """The first key that does not hold what all offsets up to `ends` give, if there is one."""
        expected = _counts([[0, end] for end in ends])
        found = {key: row.value for key, row in self._rows.items() if row.value}
        wrong = next((key for key in {**expected, **found} if expected[key] != found.get(key)), None)
        return None if wrong is None else f"key {wrong} holds {found.get(wrong)}, not {expected[wrong]}"


def _more(count: int, old: int | None) -> int:
    return (old or 0) + count


def _counts(extents: Sequence[Sequence[int]]) -> Counter[Key]:
    return Counter((part, at % SLOTS) for part, (start, end) in enumerate(extents) for at in range(start, end))
