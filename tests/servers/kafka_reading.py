"""Independent readers of a topic's committed records, which use only confluent-kafka."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

SECONDS = 30


@dataclass(frozen=True)
class Record:
    """A Kafka record written by txstorm, with its headers."""

    partition: int
    offset: int
    key: str | None
    value: Any
    timestamp: int
    headers: dict[str, str]

    @property
    def txid(self) -> int:
        return int(self.headers["txstorm.txid"])

    @property
    def index(self) -> int:
        return int(self.headers["txstorm.index"])


def until_decided(bootstrap: str, topic: str, seconds: float = 2.0) -> None:
    """Wait until the partitions have the markers of all ended transactions.

    A commit is acknowledged before its markers are written (KIP-98).
    The wait ends after `seconds` if a transaction remains open; only records before it are then readable as committed.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}

    def ends(level: IsolationLevel) -> list[int]:
        answers = admin.list_offsets(latest, isolation_level=level, request_timeout=SECONDS)
        return [answer.result().offset for answer in answers.values()]

    late = time.monotonic() + seconds
    while ends(IsolationLevel.READ_COMMITTED) != ends(IsolationLevel.READ_UNCOMMITTED) and time.monotonic() < late:
        time.sleep(0.01)


def committed_records(bootstrap: str, topic: str) -> list[Record]:
    """Return all committed records of `topic`, ordered by partition and offset."""
    until_decided(bootstrap, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions)
        return [record for number in partitions for record in _of(consumer, topic, number)]
    finally:
        consumer.close()


def _of(consumer: Consumer, topic: str, partition: int) -> list[Record]:
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None, f"{topic}/{partition}: nothing came in {SECONDS} s after {len(found)} records"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            return found
        found.append(_record(message))


def _record(message: Any) -> Record:
    key, value = message.key(), message.value()
    return Record(
        message.partition(),
        message.offset(),
        None if key is None else key.decode(),
        None if value is None else json.loads(value),
        message.timestamp()[1],
        {name: content.decode() for name, content in message.headers() or []},
    )


def committed_values(brokers: str, topic: str) -> Iterator[tuple[int, int, str]]:
    """Yield (partition, offset, value) of every currently readable committed record of `topic`."""
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
