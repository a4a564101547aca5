"""Record sizes of topics, estimated from occasional samples, to find how many offsets fit into a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from txstorm.clients.kafka.cluster import Partition, Range, Unavailable, Unreadable

SAMPLE = 100
AGE = 10.0
UNKNOWN = 1024.0
LARGEST = 1 << 20
"""Largest record by the brokers' default, in bytes: a batch that fits even such records needs no sample."""

Sample = Callable[[Partition, Range], float | None]
"""The mean size of a record in this range, in bytes; None when there is none."""


class Sampled(Protocol):
    """The methods of `txstorm.clients.kafka.reader.RangeReader` that sampling calls."""

    def read(
        self, ranges: Mapping[Partition, Range], ids: Mapping[str, str], patience: float
    ) -> Mapping[Partition, list[object]]:
        """See there."""

    def leave(self) -> None:
        """See there."""


class Sizes:
    """Gives the budget of a topic in offsets.

    Args:
        rows: the most offsets of a topic in a transaction.
        size: the most bytes, as an estimate.
        sample: asked at most every `AGE` seconds for each topic.
        monotonic: seconds.
    """

    def __init__(self, rows: int, size: int, sample: Sample, monotonic: Callable[[], float]) -> None:
        self._rows = rows
        self._size = size
        self._sample = sample
        self._monotonic = monotonic
        self._known: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def budget(self, topic: str, waiting: Mapping[Partition, Range]) -> int:
        """The most offsets of `topic` in a transaction; `waiting` is what there is of each partition."""
        count = min(self._rows, sum(stop - start for start, stop in waiting.values()))
        if count * LARGEST <= self._size:
            return self._rows
        if self._monotonic() >= self._due.get(topic, 0.0):
            partition = max(waiting, key=lambda one: (waiting[one][1] - waiting[one][0], one))
            start, stop = waiting[partition]
            mean = self._sample(partition, (start, min(stop, start + SAMPLE)))
            self._due[topic] = self._monotonic() + AGE
            self._known[topic] = self._known.get(topic, UNKNOWN) if mean is None else max(1.0, mean)
        return max(1, min(self._rows, int(self._size / self._known[topic])))


def sampling(reader: Callable[[], Sampled], patience: float) -> Sample:
    """Samples read with what `reader` gives."""

    def sample(partition: Partition, extent: Range) -> float | None:
        try:
            found = reader().read({partition: extent}, {}, patience)[partition]
        except (Unavailable, Unreadable):
            return None
        finally:
            reader().leave()
        return sum(map(size_of, found)) / len(found) if found else None

    return sample


def size_of(message: object) -> int:
    """The bytes of a record."""
    return len(message)  # type: ignore[arg-type]
