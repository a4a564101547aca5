"""Data delay collector: committed positions of a data directory or a consumer group, and the times of records there."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from txstorm.api.names import near
from txstorm.clients.kafka.cluster import EARLIEST, LATEST, Cluster, Partition, Range, Unavailable, Unreadable
from txstorm.clients.kafka.reader import RangeReader
from txstorm.errors import AwayError, InputError
from txstorm.joins.data_delay import LOOK_BACK, DelayReport, collect
from txstorm.lanes import THREADS
from txstorm.results.views import committed_document

log = logging.getLogger(__name__)

ASK = 2.0
"""Seconds to wait for offsets, and for records."""
MARKERS = 64
"""Greatest number of offsets before an end that are read, in case they are transaction markers without a record."""
FARTHEST = 100_000
"""Number of offsets before a position after which the search for a record ends."""

MILLISECONDS = {"s": 1000.0, "ms": 1.0, "us": 0.001}
# Only a few records are read at once: see `RangeReader`.
_READING = {"queued.min.messages": 1, "queued.max.messages.kbytes": 2048, "max.partition.fetch.bytes": 1 << 18}


@dataclass(frozen=True)
class RecordTimes:
    """Place of the time in a record: Kafka's timestamp, or a field of its value, a JSON object.

    Attributes:
        field: the field; None: Kafka's timestamp.
        unit: of numbers in the field: ``s``, ``ms`` or ``us``.
    """

    field: str | None = None
    unit: str = "ms"

    def milliseconds(self, record: Any) -> float | None:
        """Return the time of a `confluent_kafka.Message`, in milliseconds since 1970; None if it has none."""
        if self.field is None:
            kind, millis = record.timestamp()
            return None if kind == 0 else millis
        try:
            value = json.loads(record.value() or b"null")[self.field]
            if isinstance(value, str):
                moment = datetime.fromisoformat(value)
                return None if moment.tzinfo is None else moment.timestamp() * 1000
            return None if isinstance(value, bool) else float(value) * MILLISECONDS[self.unit]
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return None


@dataclass(frozen=True)
class Consumed:
    """Committed positions: the next offset to consume per partition.

    Attributes:
        next: partition → the next offset.
        ids: topic → id of the topic that the offsets are of, where that is known.
    """

    next: Mapping[Partition, int]
    ids: Mapping[str, str] = field(default_factory=dict)


def directory_positions(data_dir: str | Path, source: str | None = None) -> Consumed:
    """Return the positions in Kafka that the last committed transaction of a data directory has reached.

    Its topology may be running. `source`: that of a composite spout; None: all that read Kafka.

    Raises:
        AwayError: nothing is committed yet.
        InputError: no source reads Kafka, or none has this name.
    """
    txid, document = committed_document(data_dir)
    if document is None:
        raise AwayError(f"data directory {data_dir}: nothing is committed yet; start the topology")
    sources = document.get("sources") or {"": document}
    if source is not None and source not in sources:
        raise InputError(f"data directory {data_dir}: no source {source!r} in txid {txid}{near(source, list(sources))}")
    chosen = sources.values() if source is None else [sources[source]]
    reads = [meta["topics"] for one in chosen if isinstance(meta := one.get("meta"), Mapping) and "topics" in meta]
    if not reads:
        msg = f"data directory {data_dir}: expected positions in Kafka, found none in txid {txid}; name another source"
        raise InputError(msg)
    topics = {name: about for topics in reads for name, about in topics.items()}
    following = {(name, int(number)): at for name, one in topics.items() for number, at in one["next"].items()}
    return Consumed(following, {name: about["id"] for name, about in topics.items()})


def group_positions(settings: Mapping[str, Any], group: str) -> Callable[[], Consumed]:
    """Return a function that returns the positions that consumer group `group` has committed."""
    cluster = Cluster(settings)
    return lambda: Consumed(cluster.group_positions(group, ASK))


class DelayCollector:
    """Collector of the data delay of one consumer of Kafka topics. Not thread-safe.

    Args:
        settings: settings of librdkafka, including ``bootstrap.servers``.
        positions: returns the committed positions.
        topics: the topics to consider; empty: all that have positions.
        times: where the time of a record is.
        isolation: what the consumer reads: ``read_committed`` or ``read_uncommitted``.
        clock: the present, in seconds since 1970.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        positions: Callable[[], Consumed],
        *,
        topics: Collection[str] = (),
        times: RecordTimes | None = None,
        isolation: str = "read_committed",
        clock: Callable[[], float] = THREADS.seconds,
    ) -> None:
        self._positions, self._topics, self._times, self._clock = positions, topics, times or RecordTimes(), clock
        self._cluster = Cluster(settings, isolation)
        # Records of open producer transactions are written, and become visible later with the times they have now.
        self._written = self._cluster if isolation == "read_uncommitted" else Cluster(settings, "read_uncommitted")
        self._reading = ({**settings, **_READING}, isolation)
        self._reader = RangeReader(*self._reading)
        self._previous: DelayReport | None = None
        self._ids: dict[str, str] = {}
        self._warned: set[str] = set()

    def report(self) -> DelayReport:
        """Return the present report; its partitions are named ``topic/number``, its times are in milliseconds.

        The end of a partition whose leader does not answer is unknown; its time stays as it was.

        Raises:
            AwayError: no broker answers, or nothing is committed yet.
            InputError: the brokers refuse the client, or a topic does not exist.
        """
        now = self._clock() * 1000  # first: what is written from now on counts as not consumed
        try:
            extents = self._extents()
        except Unavailable as error:
            raise (InputError if error.refused else AwayError)(f"kafka: {error}") from None
        found = self._records(extents)
        times, ends = {}, {}
        for one, extent in extents.items():
            records = found.get(one, [])
            known = [self._time(record) for record in records if record.offset() < extent.next]
            times[_named(one), extent.next - 1] = max((time for time in known if time is not None), default=None)
            # Markers of producer transactions have offsets at which there is no record to consume.
            markers = extent.ends_in_reach and one in found and all(record.offset() < extent.next for record in records)
            ends[_named(one)] = extent.next if markers else extent.end
        consumed = {_named(one): extent.next - 1 for one, extent in extents.items()}
        self._previous = collect(
            consumed, lambda *place: times.get(place), ends, now, previous=self._previous, look_back=0
        )
        return self._previous

    def close(self) -> None:
        """Close the consumer; call once, at the end."""
        self._reader.close()

    def _extents(self) -> dict[Partition, _Extent]:
        """Return position, beginning and ends of all partitions."""
        consumed = self._positions()
        if consumed.ids and (others := sorted(set(self._topics) - consumed.ids.keys())):
            read = sorted(consumed.ids)
            hint = near(others[0], read)
            raise InputError(f"kafka: the consumer does not read topic {others[0]!r}{hint}; it reads {', '.join(read)}")
        names = self._topics or {name for name, _ in consumed.next}
        topics = self._cluster.topics(names, ASK)
        if missing := sorted(set(names) - topics.keys()):
            raise InputError(f"kafka: no topic {missing[0]!r}{near(missing[0], self._cluster.names(ASK))}")
        if not topics:
            raise AwayError("kafka: the consumer has committed no position yet; start it, or name its topics")
        ids = {name: topic.id for name, topic in topics.items()}
        if any(self._ids.get(name, id) != id for name, id in ids.items()):
            self._previous = None  # the previous report is of a topic that was deleted
        self._ids = ids
        # A position in a topic that was deleted is none in the topic of the same name.
        following = {
            one: at for one, at in consumed.next.items() if consumed.ids.get(one[0]) in (None, ids.get(one[0]))
        }
        partitions = [(name, number) for name, topic in topics.items() for number in sorted(topic.leaders)]
        begins = self._offsets(self._cluster, partitions, EARLIEST)
        stable = self._offsets(self._cluster, partitions, LATEST)
        ends = self._offsets(self._written, partitions, LATEST)
        return {
            one: _Extent(begins.get(one), following.get(one, begins.get(one) or 0), stable.get(one), ends.get(one))
            for one in partitions
        }

    def _offsets(self, cluster: Cluster, partitions: Collection[Partition], which: int) -> dict[Partition, int]:
        """Return the offsets of the partitions whose leaders answer."""
        asked = cluster.ask(dict.fromkeys(partitions, which), ASK)
        wait(asked.values(), timeout=ASK)
        cluster.serve()
        known = {one: answer.result() for one, answer in asked.items() if answer.done() and answer.exception() is None}
        return {one: offset for one, offset in known.items() if offset is not None}

    def _records(self, extents: Mapping[Partition, _Extent]) -> dict[Partition, list[Any]]:
        """Return the records shortly before each position, and up to the end if that is in reach."""
        found: dict[Partition, list[Any]] = {}
        width, left = LOOK_BACK + 1, [one for one, extent in extents.items() if self._is_new(one, extent)]
        while ranges := {one: extent for one in left if (extent := extents[one].around(width)) is not None}:
            try:
                found.update(self._reader.read(ranges, self._ids, ASK))
                self._reader.leave()
            except (Unavailable, Unreadable) as error:
                self._warn("records", f"records at the consumed offsets cannot be read now: {error}")
                self._reader.close()
                self._reader = RangeReader(*self._reading)
                break
            left = [one for one in ranges if width < FARTHEST and extents[one].is_short(found[one], width)]
            width *= 8
        return found

    def _is_new(self, partition: Partition, extent: _Extent) -> bool:
        """Return whether the records of a partition have to be read for this report."""
        name, before = _named(partition), self._previous
        if before is None or name not in before.times or extent.ends_in_reach:
            return True
        return before.consumed.get(name) != extent.next - 1

    def _time(self, record: Any) -> float | None:
        time = self._times.milliseconds(record)
        if time is None:
            where = (
                "Kafka's timestamp" if self._times.field is None else f"the field {self._times.field!r} of its value"
            )
            place = f"{_named((record.topic(), record.partition()))}, offset {record.offset()}"
            self._warn("time", f"{place}: its time is not in {where}; its partition waits for a record that has one")
        return time

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("data delay: %s", what)


@dataclass(frozen=True)
class _Extent:
    """Offsets of one partition; None: its leader does not answer.

    Attributes:
        begin: the first offset.
        next: the next offset to consume; `begin` if nothing is consumed yet.
        stable: the offset up to which the consumer can read.
        end: the offset after the last record that is written.
    """

    begin: int | None
    next: int
    stable: int | None
    end: int | None

    @property
    def ends_in_reach(self) -> bool:
        """Whether the rest of the partition is short enough to be looked through for records."""
        return self.stable is not None and self.stable == self.end and 0 < self.stable - self.next <= MARKERS

    def around(self, width: int) -> Range | None:
        """Return the range of `width` offsets before the next one, and the rest if it is in reach; None if empty."""
        if self.begin is None or self.stable is None:
            return None
        start, stop = max(self.begin, self.next - width), self.stable if self.ends_in_reach else self.next
        return (start, stop) if start < stop <= self.stable else None

    def is_short(self, records: Sequence[Any], width: int) -> bool:
        """Return whether a wider range may contain a consumed record, and this one does not."""
        return (
            self.begin is not None
            and self.next - width > self.begin
            and not any(record.offset() < self.next for record in records)
        )


def _named(partition: Partition) -> str:
    return f"{partition[0]}/{partition[1]}"
