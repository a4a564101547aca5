"""Simulated systems of the user: a spout for the shipped planning code, and a database.

Committers change the database in `finish_batch`, long before the transaction is decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from txstorm.api.context import TaskContext
from txstorm.api.spout import NOT_READY, SpoutCoordinator, TransactionalSpout
from txstorm.clocks import Clock
from txstorm.simulation.schedule import HEARTBEAT, REPLAYED, TOPOLOGY
from txstorm.spouts.executors import planner
from txstorm.spouts.port import SpoutPlanner
from txstorm.storage.rows.update_rules import Row, opaque, transactional
from txstorm.storage.tables.intent import TxidRecord

if TYPE_CHECKING:
    from txstorm.simulation.process.process import Process
    from txstorm.simulation.world import World


Extents = list[list[int]]
"""First offset and end offset of each partition."""


def extents_of(document: Any) -> Extents:
    """Return the extents in the spout document of a txid; in a system transaction no partition advances."""
    extents: Extents = document["meta"]
    return [[end, end] for _, end in extents] if document.get("skipped") else extents


class SimPlanner(SpoutPlanner):
    """The shipped planner, for a simulated user's coordinator, whose metadata are the extents."""

    def __init__(self, process: Process) -> None:
        world, self._process = process.world, process
        self.opaque = world.schedule.opaque
        self._coordinator = SimCoordinator(world)
        self._shipped = planner(SimSpout(self._coordinator), TaskContext(TOPOLOGY, "source", 0, 1))

    def plan(self, txid: int, previous: Any, *, replay: bool = False, upto: Clock | None = None) -> Any:
        """Plan the next batch; an opaque replay may contain more or less than before."""
        self._process.plans(txid)
        self._coordinator.replay = replay
        return self._shipped.plan(txid, previous, replay=replay)

    def skip(self, previous: Any) -> Any:
        """Return the document of a system transaction."""
        self._process.world.counts[HEARTBEAT] += 1
        if previous is None:
            previous = {"meta": self._coordinator.beginning()}
        return self._shipped.skip(previous)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SimSpout(TransactionalSpout):
    """Spout that returns the coordinator of a world."""

    def __init__(self, coordinator: SimCoordinator) -> None:
        self._coordinator = coordinator

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the spout coordinator of the world."""
        return self._coordinator


class SimCoordinator(SpoutCoordinator):
    """Coordinator that plans ranges of offsets per partition; an unavailable partition keeps its position.

    It modifies the metadata that it receives, and later that which it returned, as user code may do.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._planned: dict[int, str] = {}
        self._returned: Extents = []
        self.replay = False

    def beginning(self) -> Extents:
        """Return the extents before the first transaction."""
        return [[0, 0] for _ in range(self._world.schedule.partitions)]

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        """Advance every partition by an amount drawn from the seed."""
        world, some = self._world, self.replay
        extents: Extents = prev_metadata or self.beginning()
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
"""Keys per partition: an offset counts for the key offset % SLOTS, so that different batches have different keys."""

Key = tuple[int, int]


class Database:
    """Simulated database of the user: rows of (value, txid, prev), written one by one under the shipped update rule."""

    def __init__(self, *, is_opaque: bool) -> None:
        self._opaque = is_opaque
        self._rows: dict[Key, Row[int]] = {}

    def apply(self, record: TxidRecord) -> Iterator[Key]:
        """Count the offsets of a batch, key by key; the process may die after each key.

        Keys changed by an earlier attempt but not by this one are restored to their previous values.
        """
        counts = _counts(extents_of(record.extents))
        rule = opaque if self._opaque else transactional
        missing = [key for key, row in self._rows.items() if row.txid == record.txid and key not in counts]
        for key in [*missing, *counts]:
            self._rows[key] = rule(self._rows.get(key), record.txid, partial(_more, counts[key]))
            yield key

    def wrong(self, ends: Sequence[int]) -> str | None:
        """Return a description of the first key whose value does not match all offsets up to `ends`, if any."""
        expected = _counts([[0, end] for end in ends])
        found = {key: row.value for key, row in self._rows.items() if row.value}
        wrong = next((key for key in {**expected, **found} if expected[key] != found.get(key)), None)
        return None if wrong is None else f"key {wrong} holds {found.get(wrong)}, not {expected[wrong]}"


def _more(count: int, old: int | None) -> int:
    return (old or 0) + count


def _counts(extents: Sequence[Sequence[int]]) -> Counter[Key]:
    return Counter((part, at % SLOTS) for part, (start, end) in enumerate(extents) for at in range(start, end))
