"""Port of a kind of simulated world: bolts, rows, events, and a model of what must be committed; and its source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.clocks import Clock
from txstorm.topology.builder import TransactionalTopologyBuilder

if TYPE_CHECKING:
    from txstorm.simulation.topologies.topology_world import TopologyWorld

Row = tuple[str, tuple[Any, ...]]
"""A stream and the values of one tuple on it."""
Extents = list[list[int]]
"""First offset and end offset of each partition."""


VARIANTS = 32
"""Number of topologies of a kind."""


class CommittedBatch(NamedTuple):
    """A committed transaction: its processing time in UTC microseconds, and its rows in order of delivery."""

    txid: int
    stamp: int
    rows: Sequence[Row]


class WorldKind(ABC):
    """A kind of simulated world: one module that brings bolts, rows, events and a judge.

    One object serves one world; everything that it draws comes from `rng`, so the seed of the world replays it. There
    are `VARIANTS` topologies of a kind, so that a world can begin with the empty tables of an earlier one.

    Attributes:
        name: name of the kind, for reports.
        streams: stream → its fields.
        settings: settings of the topology that differ from those of every world.
        events: what may happen besides the events of every world; each is called with the world.
        outside: whether it writes to other systems: then it cannot be rewound, nor begin as an earlier one did.
        tick: microseconds of the wall clock in a simulated second, so that models may count in small numbers.
    """

    name: ClassVar[str]
    streams: Mapping[str, Sequence[str]]
    settings: Mapping[str, Any] = {}
    events: Sequence[Callable[[TopologyWorld], None]] = ()
    outside: bool = False
    tick: int = 1_000_000

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.variant = rng.randrange(VARIANTS)
        self.declare(Random(self.variant))  # noqa: S311 - not for secrets

    def declare(self, rng: Random) -> None:  # noqa: B027 - a kind may declare nothing
        """Draw what the code of the topology declares; `rng` is the same for all worlds of a variant."""

    @abstractmethod
    def build(self, builder: TransactionalTopologyBuilder, world: TopologyWorld) -> None:
        """Add the bolts of the topology, whose spout is ``feed``; called for every process, as each loads the code."""

    @abstractmethod
    def rows(self, partition: int) -> Sequence[Row]:
        """Return some new rows of a partition of the source."""

    @abstractmethod
    def check(self, batches: Sequence[CommittedBatch], data_dir: Path) -> str | None:
        """Return what is wrong with the content of tables and outside stores after `batches`; None if nothing is."""


class Source:
    """The source of a world: rows by partition, which only grow. A copy shipped to a worker is the source itself.

    Attributes:
        partitions: the rows of each partition, by offset.
        away: the partitions that cannot be read at the moment.
    """

    def __init__(self, world: TopologyWorld, partitions: int, *, opaque: bool) -> None:
        self.world, self.opaque = world, opaque
        self.partitions: list[list[Row]] = [[] for _ in range(partitions)]
        self.away: set[int] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        _SOURCES[id(self)] = self
        return _source, (id(self),)

    def rows(self, extents: Sequence[Sequence[int]]) -> list[Row]:
        """Return the rows of a batch in order of delivery: by stream, then by partition."""
        found = [row for part, (start, end) in enumerate(extents) for row in self.partitions[part][start:end]]
        return sorted(found, key=lambda row: row[0])


_SOURCES: WeakValueDictionary[int, Source] = WeakValueDictionary()


def _source(number: int) -> Source:
    return _SOURCES[number]


class WorldSpout(TransactionalSpout):
    """Spout of a world: plans ranges of offsets, drawn anew when an undecided batch of an opaque spout is replanned."""

    def __init__(self, source: Source, streams: Mapping[str, Sequence[str]]) -> None:
        self.source, self.fields_of = source, streams
        self.opaque = source.opaque

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of the kind of world."""
        for name, fields in self.fields_of.items():
            declarer.declare_stream(name, fields)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator."""
        return _Coordinator(self.source)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter."""
        return _Emitter(self.source)


class _Coordinator(SpoutCoordinator):
    def __init__(self, source: Source) -> None:
        self._source = source

    def initialize_transaction(self, txid: int, prev_metadata: Any, upto: Clock | None = None) -> Any:
        source, world = self._source, self._source.world
        before: Extents = prev_metadata or [[0, 0] for _ in source.partitions]
        extents = []
        for number, (_, start) in enumerate(before):
            there = len(source.partitions[number]) - start
            if upto is not None:
                there = max(0, min(there, upto.get(str(number), -1) + 1 - start))
            size = 0 if number in source.away else min(there, 1 + world.below(5))
            extents.append([start, start + size])
        return extents if any(start < end for start, end in extents) else NOT_READY

    def clock(self, metadata: Any) -> dict[str, int]:
        ends = [end for _, end in metadata] if metadata else [0 for _ in self._source.partitions]
        return {str(number): end - 1 for number, end in enumerate(ends)}


class _Emitter(Emitter):
    def __init__(self, source: Source) -> None:
        self._source = source

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        self._source.world.reads_batch(attempt)
        for stream, values in self._source.rows(metadata):
            collector.emit(*values, stream=stream)
