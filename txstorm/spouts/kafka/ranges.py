"""Offset ranges that a transaction reads from Kafka, as pure functions of positions and ends; metadata of a txid.

The metadata, version 1::

    {"v": 1,
     "topics": {topic: {"id": its id, "next": {partition: offset}, "from": {partition: offset}}},
     "new": ["topic/partition", …], "away": [the same], "lost": [{"topic", "partition", "from", "to", "cause"}, …]}

``next`` says of every partition that is known where the next transaction begins, so the metadata of one txid are
enough to go on. ``from`` names those that this one reads, from there up to ``next``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from txstorm.clients.kafka.cluster import Partition, Range
from txstorm.errors import SpoutError

VERSION = 1


@dataclass(frozen=True)
class Lost:
    """Offsets of a partition that no transaction has read and none can read any more; `stop` is None if unknown."""

    partition: Partition
    start: int
    stop: int | None
    cause: str

    def to_json(self) -> dict[str, Any]:
        """As it stands in the metadata."""
        topic, number = self.partition
        return {"topic": topic, "partition": number, "from": self.start, "to": self.stop, "cause": self.cause}

    def __str__(self) -> str:
        span = f"offsets {self.start} to {self.stop - 1}" if self.stop is not None else f"offset {self.start} and later"
        return f"{named(self.partition)}: {span} ({self.cause})"


@dataclass(frozen=True)
class Positions:
    """Next offset of every partition.

    Attributes:
        ids: topic → id of the topic that the offsets belong to.
        next: partition → the first offset that is not read yet.
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
    """Ranges that one transaction reads, and the events to record with them.

    Attributes:
        positions: where every partition stands before it.
        ranges: partition → what is read of it.
        new: partitions that are in a transaction for the first time.
        away: partitions that cannot be asked now.
        lost: what cannot be read any more.
    """

    positions: Positions
    ranges: Mapping[Partition, Range] = field(default_factory=dict)
    new: Collection[Partition] = ()
    away: Collection[Partition] = ()
    lost: Collection[Lost] = ()

    def to_json(self) -> dict[str, Any]:
        """The metadata."""
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
    """`metadata` if this version can read them; raises `SpoutError`."""
    version = metadata.get("v") if isinstance(metadata, dict) else None
    if version != VERSION:
        msg = f"kafka spout: metadata of version {version!r}, expected {VERSION}; use the txstorm that wrote them"
        raise SpoutError(msg)
    return metadata


def named(partition: Partition) -> str:
    """`partition` as it is shown."""
    return f"{partition[0]}/{partition[1]}"


def ids_of(metadata: Any) -> dict[str, str]:
    """Topic → its id, of the topics that the txid with `metadata` reads."""
    return {topic: entry["id"] for topic, entry in checked(metadata)["topics"].items() if entry["from"]}


def ranges_of(metadata: Any, task: int = 0, tasks: int = 1) -> dict[Partition, Range]:
    """Return the ranges that task `task` of `tasks` reads in the txid with `metadata`.

    A partition stays with its task while no others are added, so that its consumer can read on.
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
    """The next ranges: of every topic as many offsets as its budget allows, shared fairly among its partitions.

    Args:
        positions: partition → where it stands.
        ends: partition → where it ends now; a partition that is not there gives nothing.
        budgets: topic → the most offsets of a transaction.
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
    """Divide `budget` offsets evenly among partitions; what one does not have goes to the others.

    Where the budget is smaller than the number of partitions, those with most to give come first.
    """
    given: dict[Partition, int] = {}
    # Those with little are served in full before the rest is divided; the larger ones share what is over.
    order = sorted(waiting, key=lambda partition: (waiting[partition], partition))
    for served, partition in enumerate(order):
        left = len(order) - served
        given[partition] = min(waiting[partition], budget // left)
        budget -= given[partition]
    return {partition: count for partition, count in sorted(given.items()) if count}
