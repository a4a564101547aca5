"""Says whether a data directory holds every record of a topic exactly once. Shares no code with txstorm.

It reads the topics with confluent-kafka, as anybody can who wants committed records only, and the tables with
deltalake. What txstorm says of itself, it says in its history table: which offsets each transaction has read, and which
were lost. Both are held against each other and against what the one who made the trouble knows to have deleted.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable
from servers.kafka_reading import until_decided

Place = tuple[str, int]
"""A partition of one life of the topic: the topic's id, and the partition's number."""

SECONDS = 30


@dataclass(frozen=True)
class Ended:
    """What cannot be read any more of a partition: offsets before `before`; all of them, and later ones, where None."""

    before: int | None


@dataclass
class Known:
    """What was ever in the topic, and what was deleted.

    Attributes:
        values: (place, offset) → value of every committed record.
        deleted: what was taken away on purpose.
    """

    values: dict[tuple[Place, int], str] = field(default_factory=dict)
    deleted: dict[Place, Ended] = field(default_factory=dict)

    def is_deleted(self, place: Place, offset: int) -> bool:
        """Whether nobody can read that any more."""
        ended = self.deleted.get(place)
        return ended is not None and (ended.before is None or offset < ended.before)


@dataclass
class Read:
    """What the history says of one partition."""

    ranges: list[tuple[int, int, int]] = field(default_factory=list)  # txid, from, to
    lost: list[tuple[int, int, int | None]] = field(default_factory=list)  # txid, from, to
    next: int = -1


def committed_values(brokers: str, topic: str) -> Iterator[tuple[int, int, str]]:
    """(partition, offset, value) of every committed record that is there now."""
    settings = {
        "bootstrap.servers": brokers,
        "group.id": uuid.uuid4().hex,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "log_level": 0,
    }
    until_decided(brokers, topic)
    consumer = Consumer(settings)
    try:
        places = [
            TopicPartition(topic, n) for n in consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions
        ]
        for place in places:
            place.offset = consumer.get_watermark_offsets(place, timeout=SECONDS)[0]
        consumer.assign(places)
        open_ = {place.partition for place in places}
        while open_:
            message = consumer.poll(SECONDS)
            assert message is not None, f"{topic}: nothing came in {SECONDS} s of partitions {sorted(open_)}"
            if message.error() is None:
                yield message.partition(), message.offset(), message.value().decode()
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                open_.discard(message.partition())
    finally:
        consumer.close()


def verify(data_dir: Path, topic: str, id: str, known: Known, target: str, brokers: str) -> dict[str, int]:
    """Fail unless all that was read is in the tables once, and all that was not read cannot be read.

    Args:
        data_dir: of the topology, which has ended when it had read everything.
        topic: the topic; `id` is the one it has now.
        known: what was deleted, and what had been in it before; what is in the topic now is added here.
        target: the topic that the topology has written to.
        brokers: whom to ask.
    """
    for partition, offset, value in committed_values(brokers, topic):
        known.values[(id, partition), offset] = value
    history = sorted(table_rows(data_dir / "history"), key=lambda row: row["txid"])
    assert [row["txid"] for row in history] == list(range(1, len(history) + 1)), "txids without gaps, each once"
    read = read_ranges(history, topic)
    rows = table_rows(data_dir / "sinks" / "rows")
    _checktable_rows(rows, read, known)
    passed_over = _check_rest(read, known)
    _check_ends(read, id, known)
    _check_counts(data_dir, rows)
    _check_sent(brokers, target, {row["value"]: row["_txid"] for row in rows})
    lost = sum(len(one.lost) for one in read.values())
    return {"txids": len(history), "records": len(rows), "losses told": lost, "records lost": passed_over}


def table_rows(table: Path) -> list[dict[str, Any]]:
    return list(DeltaTable(table).to_pyarrow_table().to_pylist())


def read_ranges(history: Iterable[Mapping[str, Any]], topic: str) -> dict[Place, Read]:
    """What the transactions say they read and lost; what one reads of a partition begins where the last one ended."""
    read: dict[Place, Read] = defaultdict(Read)
    before = ""
    for row in history:
        txid, meta = row["txid"], json.loads(row["extents"])["meta"]
        entry = meta["topics"].get(topic)
        now = entry["id"] if entry else before
        for lost in meta.get("lost", ()):
            # A loss without end is that of the topic that had the name before.
            one = read[before if lost["to"] is None else now, lost["partition"]]
            assert one.next in (-1, lost["from"]), f"txid {txid}: lost {lost}, but stood at {one.next}"
            one.lost.append((txid, lost["from"], lost["to"]))
            one.next = lost["from"] if lost["to"] is None else lost["to"]
        for number, stop in (entry["next"] if entry else {}).items():
            one, start = read[now, int(number)], entry["from"].get(number, stop)
            assert one.next in (-1, start), f"txid {txid}, {number}: read from {start}, expected {one.next}"
            if start < stop:
                one.ranges.append((txid, start, stop))
            one.next = stop
        before = now
    return dict(read)


def _checktable_rows(rows: Iterable[Mapping[str, Any]], read: Mapping[Place, Read], known: Known) -> None:
    """The rows of each txid are the records of its ranges."""
    expected: Counter[tuple[int, int, int, str]] = Counter()
    by_place: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    for (place, offset), value in known.values.items():
        by_place[place].append((offset, value))
    for place, one in read.items():
        for txid, start, stop in one.ranges:
            expected.update(
                (txid, place[1], offset, value) for offset, value in by_place[place] if start <= offset < stop
            )
    got = Counter((row["_txid"], row["partition"], row["offset"], row["value"]) for row in rows)
    missing, extra = expected - got, got - expected
    assert not missing and not extra, f"missing {sorted(missing)[:10]}, not expected {sorted(extra)[:10]}"
    assert set(expected.values()) <= {1}


def _check_sent(brokers: str, target: str, kept: Mapping[str, int]) -> None:
    """What was sent on is what was kept. A commit is answered before all readers see it."""
    until = time.monotonic() + SECONDS
    while True:
        sent = Counter(value for _, _, value in committed_values(brokers, target))
        missing, extra = Counter(kept.keys()) - sent, sent - Counter(kept.keys())
        if extra or not missing or time.monotonic() > until:
            break
        time.sleep(0.5)
    assert not missing and not extra, (
        f"not sent: {len(missing)} of txids {sorted({kept[one] for one in missing})}; sent too often: {len(extra)} of "
        f"txids {sorted({kept.get(one, 0) for one in extra})}"
    )


def _check_rest(read: Mapping[Place, Read], known: Known) -> int:
    """What no transaction has read is deleted, and where txstorm knew the partition it says so; how many these are."""
    count = 0
    for place, offset in known.values:
        one = read.get(place, Read())
        if any(start <= offset < stop for _, start, stop in one.ranges):
            continue
        assert known.is_deleted(place, offset), f"{place}, offset {offset} was not read, but is there"
        begins = min([start for _, start, _ in [*one.ranges, *one.lost]], default=None)
        told = any(start <= offset and (stop is None or offset < stop) for _, start, stop in one.lost)
        assert told or begins is None or offset < begins, f"{place}, offset {offset}: no transaction tells of its loss"
        count += 1
    for place, one in read.items():
        for txid, start, stop in one.lost:
            ended = known.deleted.get(place)
            explained = ended is not None and (ended.before is None or (stop is not None and stop <= ended.before))
            assert explained, f"txid {txid}: {place} lost {start} to {stop}, but only {ended} was deleted"
    return count


def _check_ends(read: Mapping[Place, Read], id: str, known: Known) -> None:
    """Everything that is there was read."""
    for (place, offset), _ in known.values.items():
        if place[0] == id and not known.is_deleted(place, offset):
            assert place in read and offset < read[place].next, f"{place} was read to {read.get(place)} only"


def _check_counts(data_dir: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """The changes of each transaction are what its rows add; from one to the next without gaps; so is the state."""
    added: Counter[tuple[int, str]] = Counter((row["_txid"], row["value"].partition(" ")[0]) for row in rows)
    now: dict[str, int] = {}
    for change in sorted(table_rows(data_dir / "changes" / "counts"), key=lambda row: row["_txid"]):
        word, before = change["word"], (change["_prev"] or {"n": 0})["n"]
        assert before == now.get(word, 0), f"txid {change['_txid']}: {word} was {now.get(word)}, not {before}"
        assert change["n"] - before == added.pop((change["_txid"], word), None), (change, "is not what its rows add")
        now[word] = change["n"]
    assert not added, f"rows that are not counted: {sorted(added)[:10]}"
    assert {row["word"]: row["n"] for row in table_rows(data_dir / "state" / "counts")} == now
