"""Independent readers of a topic's committed records, which use only confluent-kafka."""

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


def messages(brokers: str, *topics: str) -> Iterator[Any]:
    """Yield the committed records of `topics` that are readable now, as confluent-kafka has them."""
    for topic in topics:
        until_decided(brokers, topic)
    settings = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_committed"}
    settings |= {"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "error"}
    consumer = Consumer({**settings, "log_level": 0})
    try:
        known = {topic: consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions for topic in topics}
        places = [TopicPartition(topic, number) for topic in topics for number in known[topic]]
        for place in places:
            place.offset = consumer.get_watermark_offsets(place, timeout=SECONDS)[0]
        consumer.assign(places)
        open_ = {(place.topic, place.partition) for place in places}
        while open_:
            message = consumer.poll(SECONDS)
            assert message is not None, f"nothing came in {SECONDS} s of partitions {sorted(open_)}"
            if message.error() is None:
                yield message
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                open_.discard((message.topic(), message.partition()))
    finally:
        consumer.close()


def committed_records(bootstrap: str, topic: str) -> list[Record]:
    """Return all committed records of `topic`, ordered by partition and offset."""
    return sorted(map(_record, messages(bootstrap, topic)), key=lambda one: (one.partition, one.offset))


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
    """Yield (partition, offset, value) of every committed record of `topic` that is readable now."""
    return ((one.partition(), one.offset(), one.value().decode()) for one in messages(brokers, topic))
