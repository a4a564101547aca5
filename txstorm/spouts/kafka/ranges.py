"""Offset ranges that a transaction reads from Kafka: which, as functions of positions and ends, and its metadata.

The metadata, version 1::

    {"v": 1,
     "topics": {topic: {"id": its id, "next": {partition: offset}, "from": {partition: offset}}},
     "new": ["topic/partition", …], "away": [the same], "lost": [{"topic", "partition", "from", "to", "cause"}, …]}

``next`` holds the offset at which the next transaction begins, for every known partition, so the metadata of one txid
suffice to continue. ``from`` holds the first offset, for the partitions that this transaction reads, up to ``next``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from txstorm.clients.kafka.cluster import Partition, Range
from txstorm.errors import SpoutError

VERSION = 1


@dataclass(frozen=True)
class Lost:
    """Offsets of a partition that were never read and can no longer be read; `stop` is None if unknown."""

    partition: Partition
    start: int
    stop: int | None
    cause: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the metadata stores."""
        topic, number = self.partition
        return {"topic": topic, "partition": number, "from": self.start, "to": self.stop, "cause": self.cause}

    def __str__(self) -> str:
        span = f"offsets {self.start} to {self.stop - 1}" if self.stop is not None else f"offset {self.start} and later"
        return f"{named(self.partition)}: {span} ({self.cause})"


@dataclass(frozen=True)
class Positions:
    """Positions in Kafka: the next offset of every partition.

    Attributes:
        ids: topic → id of the topic to which the offsets belong.
        next: partition → the first offset that has not been read.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    next: Mapping[Partition, int] = field(default_factory=dict)

    @classmethod
    def after(cls, metadata: Any) -> Positions:
        """Return the positions after the txid with `metadata` (None: before the first txid, no positions)."""
        if metadata is None:
            return cls()
        topics = checked(metadata)["topics"]
        return cls(
            {topic: entry["id"] for topic, entry in topics.items()},
            {
                (topic, int(number)): offset
                for topic, entry in topics.items()
                for number, offset in entry["next"].items()
            },
        )


@dataclass(frozen=True)
class Batch:
    """Offset ranges that one transaction reads, and the events to record with them.

    Attributes:
        positions: position of every partition before the transaction.
        ranges: partition → the range read.
        new: partitions that are part of a transaction for the first time.
        away: partitions that are unavailable now.
        lost: offsets that can no longer be read.
    """

    positions: Positions
    ranges: Mapping[Partition, Range] = field(default_factory=dict)
    new: Collection[Partition] = ()
    away: Collection[Partition] = ()
    lost: Collection[Lost] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the batch as the metadata of its txid, in JSON form."""
        topics: dict[str, dict[str, Any]] = {}
        for topic, number in sorted(self.positions.next):
            entry = topics.setdefault(topic, {"id": self.positions.ids[topic], "next": {}, "from": {}})
            start, stop = self.ranges.get((topic, number), (0, self.positions.next[topic, number]))
            entry["next"][str(number)] = stop
            if (topic, number) in self.ranges:
                entry["from"][str(number)] = start
        more = {
            "new": [named(one) for one in sorted(self.new)],
            "away": [named(one) for one in sorted(self.away)],
            "lost": [one.to_json() for one in self.lost],
        }
        return {"v": VERSION, "topics": topics, **{key: value for key, value in more.items() if value}}


def checked(metadata: Any) -> Any:
    """Return `metadata` if this version of txstorm can read it; raise `SpoutError` if not."""
    version = metadata.get("v") if isinstance(metadata, dict) else None
    if version != VERSION:
        msg = f"kafka spout: metadata of version {version!r}, expected {VERSION}; use the txstorm that wrote them"
        raise SpoutError(msg)
    return metadata


def named(partition: Partition) -> str:
    """Return `partition` in the form used in messages, ``topic/number``."""
    return f"{partition[0]}/{partition[1]}"


def clock_name(partition: Partition) -> str:
    """Return the name of `partition` in clocks, ``topic-number``."""
    return f"{partition[0]}-{partition[1]}"


def bounded(ends: Mapping[Partition, int], upto: Mapping[str, int] | None) -> Mapping[Partition, int]:
    """Return the `ends` that a transaction may read: up to the clock `upto`, of which missing partitions give nothing.

    None: no bound.
    """
    if upto is None:
        return ends
    return {one: min(end, upto[clock_name(one)] + 1) for one, end in ends.items() if clock_name(one) in upto}


def all_held(positions: Positions, upto: Mapping[str, int]) -> bool:
    """Return whether every partition has been read up to the clock `upto`, or is not in it."""
    left = {clock_name(one): offset for one, offset in positions.next.items()}
    return all(left.get(name, 0) > offset for name, offset in upto.items())


def ids_of(metadata: Any) -> dict[str, str]:
    """Return the ids, by name, of the topics that the txid with `metadata` reads."""
    return {topic: entry["id"] for topic, entry in checked(metadata)["topics"].items() if entry["from"]}


def ranges_of(metadata: Any, task: int = 0, tasks: int = 1) -> dict[Partition, Range]:
    """Return the ranges that task `task` of `tasks` reads in the txid with `metadata`.

    A partition stays with its task unless others are added, so that the task's consumer can continue.
    """
    known = sorted(
        (topic, int(number)) for topic, entry in checked(metadata)["topics"].items() for number in entry["next"]
    )
    mine = {}
    for topic, number in known[task::tasks]:
        entry = metadata["topics"][topic]
        start = entry["from"].get(str(number))
        if start is not None:
            mine[topic, number] = (start, entry["next"][str(number)])
    return mine


def plan_ranges(
    positions: Mapping[Partition, int], ends: Mapping[Partition, int], budgets: Mapping[str, int]
) -> dict[Partition, Range]:
    """Plan the next ranges: of every topic as many offsets as its budget allows, shared fairly among its partitions.

    A partition without an end is not read.
    """
    ranges = {}
    for topic, budget in budgets.items():
        waiting = {
            partition: ends[partition] - start
            for partition, start in positions.items()
            if partition[0] == topic and ends.get(partition, 0) > start
        }
        for partition, count in shares(waiting, budget).items():
            ranges[partition] = (positions[partition], positions[partition] + count)
    return ranges


def shares(waiting: Mapping[Partition, int], budget: int) -> dict[Partition, int]:
    """Divide `budget` offsets evenly among partitions; the unused share of a partition goes to the others.

    If the budget is smaller than the number of partitions, those with the most waiting offsets come first.
    """
    given: dict[Partition, int] = {}
    # The smallest backlogs are served in full first; the remaining budget is divided among the larger ones.
    order = sorted(waiting, key=lambda partition: (waiting[partition], partition))
    for served, partition in enumerate(order):
        left = len(order) - served
        given[partition] = min(waiting[partition], budget // left)
        budget -= given[partition]
    return {partition: count for partition, count in sorted(given.items()) if count}


SAMPLE = 100
AGE = 10.0
UNKNOWN = 1024.0
LARGEST = 1 << 20
"""Largest record by the brokers' default, in bytes: a batch that fits even such records needs no sample."""

Sample = Callable[[Partition, Range], float | None]
"""Function that returns the mean size of a record in a range, in bytes; None if it cannot be determined."""


class Sizes:
    """Estimates of record sizes, which turn a topic's budget in bytes into one in offsets.

    `sample` is called at most every `AGE` seconds for each topic.
    """

    def __init__(self, rows: int, size: int, sample: Sample, monotonic: Callable[[], float]) -> None:
        self._rows = rows
        self._size = size
        self._sample = sample
        self._monotonic = monotonic
        self._known: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def budget(self, topic: str, waiting: Mapping[Partition, Range]) -> int:
        """Return the maximum number of offsets of `topic` in a transaction; `waiting` holds the unread ranges."""
        count = min(self._rows, sum(stop - start for start, stop in waiting.values()))
        if count * LARGEST <= self._size:
            return self._rows
        if self._monotonic() >= self._due.get(topic, 0.0):
            partition = max(waiting, key=lambda name: (waiting[name][1] - waiting[name][0], name))
            start, stop = waiting[partition]
            mean = self._sample(partition, (start, min(stop, start + SAMPLE)))
            self._due[topic] = self._monotonic() + AGE
            self._known[topic] = self._known.get(topic, UNKNOWN) if mean is None else max(1.0, mean)
        return max(1, min(self._rows, int(self._size / self._known[topic])))
