"""Reader for Kafka that returns exactly the records in given offset ranges."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt

from txstorm.clients.kafka.cluster import (
    CHUNK,
    DENIED,
    END,
    OUT_OF_RANGE,
    SLICE,
    UNKNOWN,
    ClientError,
    Partition,
    Range,
    Troubles,
    Unavailable,
    Unreadable,
    consumer,
    topic_partitions,
)


class RangeReader:
    """Reader of offset ranges with one consumer, which is assigned to partitions and never joins a group.

    Ranges that begin where the previous ranges ended need no seek, since records fetched beyond a range are buffered.
    `settings` of librdkafka are on top of defaults that suit the reading of ranges.
    """

    def __init__(self, settings: Mapping[str, Any], isolation: str = "read_committed") -> None:
        self._troubles = Troubles()
        own = {
            "group.id": "txstorm",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
        self._consumer = consumer({**_READING, **settings, **own}, self._troubles)
        self._spans: dict[Partition, _Span] = {}
        self._paused = False

    def fits(self, ranges: Mapping[Partition, Range], ids: Mapping[str, str]) -> int:
        """Count the `ranges` that this reader can read without a seek; `ids`: the current id of each topic."""
        spans = ((self._spans.get(partition), ids.get(partition[0]), start) for partition, (start, _) in ranges.items())
        return sum(span is not None and span.id == id and span.holds(start) for span, id, start in spans)

    def read(
        self, ranges: Mapping[Partition, Range], ids: Mapping[str, str], patience: float
    ) -> dict[Partition, list[Any]]:
        """Return the records of `ranges`, as `confluent_kafka.Message`, in the order of their offsets.

        A range may contain fewer records than offsets: it is complete when the consumer has reached its end.

        Args:
            ranges: partition → the first offset, inclusive, and the end offset, exclusive.
            ids: topic → its id; records fetched under another id are discarded.
            patience: maximum number of seconds to wait while no record of an incomplete range arrives.

        Raises:
            Unreadable: the brokers do not have an offset, or do not know a partition.
            Unavailable: no record of an incomplete range arrived for `patience` seconds.
        """
        try:
            return self._read(ranges, ids, patience)
        except BaseException:
            self._spans = {}  # the consumer's position is unknown: the next read seeks
            raise

    def _read(
        self, ranges: Mapping[Partition, Range], ids: Mapping[str, str], patience: float
    ) -> dict[Partition, list[Any]]:
        self._troubles.clear()
        if self._paused:
            self._paused = False
            self._consumer.resume(topic_partitions({partition: span.known for partition, span in self._spans.items()}))
        self._seek(ranges, ids)
        deadline, unknown_until = time.monotonic() + patience, time.monotonic() + min(patience, 2.0)
        while left := self._left(ranges):
            unknown = self._handle(self._next(left + len(ranges)))
            if unknown is not None:
                # A new partition, or stale metadata in the client, which has to request the topic again.
                self._refresh_topic(ranges, unknown, unknown_until)
                self._spans = {}
                self._seek(ranges, ids)
            elif self._left(ranges) < left:  # records of partitions that are already complete do not count as progress
                deadline = time.monotonic() + patience
            elif time.monotonic() > deadline:
                raise Unavailable(self._shortfall(ranges))
        return {partition: self._spans[partition].cut(*extent) for partition, extent in ranges.items()}

    def _seek(self, ranges: Mapping[Partition, Range], ids: Mapping[str, str]) -> None:
        idle = sum(len(span.ahead) for partition, span in self._spans.items() if partition not in ranges)
        if self.fits(ranges, ids) < len(ranges) or idle > 5 * CHUNK:
            self._spans = {
                partition: _Span(ids.get(partition[0]), start, start) for partition, (start, _) in ranges.items()
            }
            self._consumer.assign(topic_partitions({partition: start for partition, (start, _) in ranges.items()}))

    def _left(self, ranges: Mapping[Partition, Range]) -> int:
        """Return the number of offsets of `ranges` that have not been reached."""
        return sum(max(0, stop - self._spans[partition].known) for partition, (_, stop) in ranges.items())

    def _next(self, most: int) -> list[Any]:
        found = self._consumer.consume(min(most, CHUNK), 0)
        if found:
            return list(found)
        message = self._consumer.poll(SLICE)
        return [] if message is None else [message]

    def _handle(self, messages: Sequence[Any]) -> Partition | None:
        """Buffer the records received; return a partition that the brokers do not know, or None if there is none."""
        start = 0
        # Some messages are not records but events of partitions; the records between them are handled by column.
        events = [i for i, error in enumerate(map(_ERROR, messages)) if error is not None]
        for stop in [*events, len(messages)]:
            self._keep(messages[start:stop])
            if stop < len(messages):
                unknown = self._handle_event(messages[stop])
                if unknown is not None:
                    return unknown
            start = stop + 1
        return None

    def _keep(self, records: Sequence[Any]) -> None:
        for partition, run, offsets in _runs(records, one_topic=len({topic for topic, _ in self._spans}) == 1):
            span = self._spans.get(partition)
            if span is not None:
                span.add(run, offsets)

    def _handle_event(self, message: Any) -> Partition | None:
        error, partition = message.error(), (message.topic(), message.partition())
        span = self._spans.get(partition)
        if error.code() == END:
            if span is not None:
                span.known = span.end = max(span.known, message.offset())
        elif error.code() in UNKNOWN and message.topic() is not None:
            return partition
        elif error.code() in OUT_OF_RANGE and span is not None:
            raise Unreadable(partition, span.known, error.str())
        elif error.code() in DENIED:
            raise Unavailable(error.str(), refused=True)
        else:
            self._troubles(error)
        return None

    def _refresh_topic(self, ranges: Mapping[Partition, Range], unknown: Partition, until: float) -> None:
        if time.monotonic() > until:
            raise Unreadable(unknown, ranges.get(unknown, (0, 0))[0], "the brokers do not know it", unknown=True)
        try:
            self._consumer.list_topics(unknown[0], timeout=SLICE * 10)
        except ClientError as error:
            self._troubles(error.args[0])
        time.sleep(SLICE)

    def _shortfall(self, ranges: Mapping[Partition, Range]) -> str:
        behind = [
            f"{topic}/{number} from offset {self._spans[topic, number].known} of {start}..{stop - 1}"
            for (topic, number), (start, stop) in ranges.items()
            if self._spans[topic, number].known < stop
        ]
        because = f"; {said}" if (said := str(self._troubles)) else ""
        return f"no records received from {', '.join(behind)}{because}"

    def rest(self) -> None:
        """Pause fetching until the next read, if all records up to the ends of the partitions have been fetched."""
        if self._spans and all(span.known == span.end for span in self._spans.values()):
            self._paused = True
            self._consumer.pause(topic_partitions({partition: span.known for partition, span in self._spans.items()}))

    def leave(self) -> None:
        """Release all partitions and stop fetching until the next read."""
        self._spans = {}
        self._consumer.unassign()

    def close(self) -> None:
        """Close the consumer; call once, at the end."""
        self._consumer.close()


_READING = {
    # A new assignment waits for the response to the request in flight, which a broker may delay for this long.
    "fetch.wait.max.ms": 20,
    "fetch.error.backoff.ms": 100,
    # By default, a consumer whose queue was full waits for a second before it resumes fetching.
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 32768,
    "reconnect.backoff.max.ms": 1000,
}


_ERROR, _TOPIC, _PARTITION, _OFFSET = map(methodcaller, ("error", "topic", "partition", "offset"))


def _runs(
    records: Sequence[Any], *, one_topic: bool
) -> Iterator[tuple[Partition, Sequence[Any], npt.NDArray[np.int64]]]:
    """Yield runs of consecutive records of one partition, with their offsets."""
    if not records:
        return
    numbers = np.fromiter(map(_PARTITION, records), np.int32, len(records))
    offsets = np.fromiter(map(_OFFSET, records), np.int64, len(records))
    changes = numbers[1:] != numbers[:-1]
    if not one_topic:
        topics = np.array(list(map(_TOPIC, records)))
        changes |= topics[1:] != topics[:-1]
    for start, stop in pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(records)]):
        yield (records[start].topic(), records[start].partition()), records[start:stop], offsets[start:stop]


@dataclass
class _Span:
    """Buffer of the records of one partition that were fetched but have not been returned yet.

    Attributes:
        id: the id of the topic from which they were fetched.
        start: the first offset of the buffer.
        known: the offset, exclusive, up to which the buffer is complete.
        ahead: the records from `start` up to `known`.
        offsets: the offsets of the records, in chunks.
        end: the end offset of the partition when it was last reached; None if it was not.
    """

    id: str | None
    start: int
    known: int
    ahead: list[Any] = field(default_factory=list)
    offsets: list[npt.NDArray[np.int64]] = field(default_factory=list)
    end: int | None = None

    def holds(self, offset: int) -> bool:
        return self.start <= offset <= self.known

    def add(self, records: Sequence[Any], offsets: npt.NDArray[np.int64]) -> None:
        """Append records, except those that are already in the buffer."""
        before = np.maximum.accumulate(np.concatenate([[self.known - 1], offsets]))
        new = offsets > before[:-1]
        if not new.all():
            records, offsets = [records[i] for i in np.flatnonzero(new).tolist()], offsets[new]
        self.ahead += records
        self.offsets.append(offsets)
        self.known = int(before[-1]) + 1

    def cut(self, start: int, stop: int) -> list[Any]:
        """Return the records of a range, and drop all records before its end."""
        offsets = np.concatenate([np.empty(0, np.int64), *self.offsets])
        first, last = np.searchsorted(offsets, [start, stop]).tolist()
        taken = self.ahead[first:last]
        self.ahead, self.offsets = self.ahead[last:], [offsets[last:]]
        self.start = stop
        return taken
