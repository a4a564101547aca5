"""Worlds with a keyed state, a sink, a map and an outlet, all of which count the same rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.external import MapRow, MapState, Mark, Outlet
from txstorm.api.output import Collector
from txstorm.api.state import KeyedState, SinkTable
from txstorm.results.read import read_sink, read_state
from txstorm.simulation.topologies.kind import CommittedBatch, Row, WorldKind
from txstorm.topology.builder import TransactionalTopologyBuilder

if TYPE_CHECKING:
    from txstorm.simulation.topologies.topology_world import TopologyWorld

KEYS = 5


class OutsideStore:
    """A map's backend and an outlet's writer: content and mark outlive processes; each call is a step of one."""

    def __init__(self, world: TopologyWorld) -> None:
        self.world = world
        self.rows: dict[str, MapRow] = {}
        self.appended: list[tuple[int, int]] = []
        self.stored: Mark | None = None

    def __reduce__(self) -> str:
        raise TypeError("a store in another system stays in the driver")

    def multi_get(self, keys: Sequence[str]) -> list[MapRow | None]:
        """Return the rows of `keys`."""
        self.world.passes("map get")
        return [self.rows.get(key) for key in keys]

    def multi_put(self, rows: Mapping[str, MapRow | None]) -> None:
        """Store rows."""
        for key, row in rows.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row

    def mark(self) -> Mark | None:
        """Return the mark of the map."""
        self.world.passes("map mark")
        return self.stored

    def put_marked(self, rows: Mapping[str, MapRow | None], expected: Mark | None, mark: Mark) -> bool:
        """Store rows and the mark, if the stored mark is the expected one; the answer may be lost."""
        self.world.passes("map put")
        if self.stored != expected:
            return False
        self.multi_put(rows)
        self.stored = mark
        self.world.passes("map written")
        return True

    def open(self, outlet: str, topology: str, incarnation: str) -> None:
        """Connect."""
        self.world.passes("outlet open")

    def published(self) -> Mark | None:
        """Return the mark of the outlet."""
        self.world.passes("outlet mark")
        return self.stored

    def publish(self, rows: pa.Table, expected: Mark | None, mark: Mark) -> bool:
        """Append rows and store the mark, if the stored mark is the expected one; the answer may be lost."""
        self.world.passes("outlet publish")
        if self.stored != expected:
            return False
        self.appended += zip(rows["_txid"].to_pylist(), rows["n"].to_pylist(), strict=True)
        self.stored = mark
        self.world.passes("outlet written")
        return True

    def close(self) -> None:
        """Close the connection."""


class Count(BatchBolt, Committer):
    """Counts its rows by key in a state and a map, and appends them to a sink and an outlet."""

    state = KeyedState("counts", {"key": int}, {"n": int})
    sink = SinkTable("rows", {"n": int})

    def __init__(self, kept: MapState, out: Outlet) -> None:
        self.kept, self.out = kept, out

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Begin a batch."""
        self._context, self._seen = context, list[tuple[int, int]]()

    def execute(self, tuple: Any) -> None:  # noqa: A002 - Storm's word
        """Take one row."""
        self._seen.append((tuple["key"], tuple["n"]))

    def finish_batch(self) -> None:
        """Write what the batch changes."""
        context, counts = self._context, Counter(key for key, _ in self._seen)
        state, kept = context.state("counts"), context.state("kept")
        for key, more in sorted(counts.items()):
            state.put(key, (state.get(key) or 0) + more)
            kept.put(key, (kept.get(key) or 0) + more)
        for name in ("rows", "out"):
            for _, number in self._seen:
                context.sink(name).append(number)


class CountsWorld(WorldKind):
    """Every row counts once, in tables and outside, and sink and outlet have the rows in the order of the source."""

    name = "counts"
    streams: Mapping[str, Sequence[str]] = {"default": ("key", "n")}
    outside = True

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._number = 0
        self._map: OutsideStore | None = None
        self._outlet: OutsideStore | None = None

    def declare(self, rng: Random) -> None:
        """Draw the kind of the map."""
        self._kind = rng.choice(("opaque", "opaque", "transactional"))

    def build(self, builder: TransactionalTopologyBuilder, world: TopologyWorld) -> None:
        """Add the committer."""
        self._map, self._outlet = self._map or OutsideStore(world), self._outlet or OutsideStore(world)
        kind: Any = "opaque" if world.setting.opaque else self._kind
        count = Count(MapState("kept", self._map, kind), Outlet("out", {"n": int}, self._outlet))
        builder.set_committer_bolt("count", count).global_grouping("feed")

    def rows(self, partition: int) -> list[Row]:
        """Return some rows."""
        first, self._number = self._number, self._number + self.rng.randrange(4)
        return [("default", (self.rng.randrange(KEYS), number)) for number in range(first, self._number)]

    def check(self, batches: Sequence[CommittedBatch], data_dir: Path) -> str | None:
        """Compare tables, map and outlet with the rows of the source."""
        assert self._map is not None and self._outlet is not None
        counts = Counter(key for batch in batches for _, (key, _) in batch.rows)
        rows = [(batch.txid, number) for batch in batches for _, (_, number) in batch.rows]
        state = {row["key"]: row["n"] for row in read_state(data_dir, "counts").to_pylist()}
        kept = {json.loads(key): row.value for key, row in self._map.rows.items() if row.value}
        sink = [(row["_txid"], row["n"]) for row in read_sink(data_dir, "rows").to_pylist()]
        found = {"state": state, "map": kept, "sink": sink, "outlet": self._outlet.appended}
        expected = {"state": counts, "map": counts, "sink": rows, "outlet": rows}
        wrong = [
            f"{name} has {found[name]}, not {wanted}" for name, wanted in expected.items() if found[name] != wanted
        ]
        return wrong[0] if wrong else None
