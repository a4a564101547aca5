"""The Kafka broker tests use."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from servers.running import Kafka

pytestmark = pytest.mark.integration


def committed(kafka: Kafka, topic: str, until: int) -> list[bytes]:
    """What a reader of committed records finds in partition 0 before offset `until`."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while consumer.position([TopicPartition(topic, 0)])[0].offset < until:
        message = consumer.poll(10)
        assert message is not None, f"nothing came in 10 s; {found} so far"
        assert message.error() is None, message.error()
        found.append(message.value())
    consumer.close()
    return found


def test_kill_and_restart_keep_records_and_address(kafka_broker: Kafka):
    topic = kafka_broker.make_topic()
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "acks": "all"})
    producer.produce(topic, b"before")
    assert producer.flush(10) == 0
    bootstrap = kafka_broker.bootstrap
    kafka_broker.kill()
    assert not kafka_broker.listens(kafka_broker.ports[0])
    kafka_broker.restart()
    assert kafka_broker.bootstrap == bootstrap
    producer.produce(topic, b"after")
    assert producer.flush(30) == 0
    assert committed(kafka_broker, topic, 2) == [b"before", b"after"]


def test_aborted_transactions_are_invisible(kafka_broker: Kafka):
    topic = kafka_broker.make_topic(partitions=1)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.flush(10)
    producer.abort_transaction(10)
    producer.begin_transaction()
    producer.produce(topic, b"committed")
    producer.commit_transaction(10)
    assert committed(kafka_broker, topic, 3) == [b"committed"]
