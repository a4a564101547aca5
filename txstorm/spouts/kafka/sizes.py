"""Record sizes of topics, estimated from occasional samples, to determine how many offsets fit into a batch."""

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
"""Function that returns the mean size of a record in a range, in bytes; None if it cannot be determined."""


class Sampled(Protocol):
    """The methods of `txstorm.clients.kafka.reader.RangeReader` that sampling calls."""

    def read(
        self, ranges: Mapping[Partition, Range], ids: Mapping[str, str], patience: float
    ) -> Mapping[Partition, list[object]]:
        """Read records of `ranges`; see `RangeReader.read`."""

    def leave(self) -> None:
        """Stop fetching; see `RangeReader.leave`."""


class Sizes:
    """Estimates of record sizes, which turn a topic's budget in bytes into one in offsets.

    Args:
        rows: maximum number of offsets of a topic in a transaction.
        size: maximum number of bytes, as an estimate.
        sample: function that measures a range; called at most every `AGE` seconds for each topic.
        monotonic: clock, in seconds.
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


def sampling(reader: Callable[[], Sampled], patience: float) -> Sample:
    """Return a `Sample` function that reads with the reader returned by `reader`."""

    def sample(partition: Partition, extent: Range) -> float | None:
        try:
            messages = reader().read({partition: extent}, {}, patience)[partition]
        except (Unavailable, Unreadable):
            return None
        finally:
            reader().leave()
        return sum(map(size_of, messages)) / len(messages) if messages else None

    return sample


def size_of(message: object) -> int:
    """Return the size of a record, in bytes."""
    return len(message)  # type: ignore[arg-type]
