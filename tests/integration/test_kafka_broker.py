"""Tests of the Kafka broker that other tests use, and of its helpers."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from servers.kafka import is_produce
from servers.running import Kafka
from servers.tls import certificate

pytestmark = pytest.mark.integration


def committed(kafka: Kafka, topic: str, until: int) -> list[bytes]:
    """Return the committed records of partition 0 before offset `until`."""
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


@pytest.mark.long
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


def test_password_and_certificate_are_checked(kafka_broker: Kafka):
    assert AdminClient(kafka_broker.secure).list_topics(timeout=10).brokers
    for wrong in ({"sasl.password": "rain"}, {"ssl.ca.location": str(certificate("another").pem)}):
        with pytest.raises(KafkaException):
            AdminClient({**kafka_broker.secure, **wrong, "log_level": 0}).list_topics(timeout=2)


def test_clients_of_the_proxy_stay_with_it(kafka_broker: Kafka):
    topic = kafka_broker.make_topic()
    proxy = kafka_broker.proxy()
    producer = Producer({"bootstrap.servers": proxy.address, "acks": "all", "message.timeout.ms": 20_000})
    producer.produce(topic, b"passed")
    assert producer.flush(10) == 0
    proxy.drop_answers(1, matching=is_produce)
    producer.produce(topic, b"twice: the producer did not see the answer, and is not idempotent")
    assert producer.flush(20) == 0
    assert proxy.dropped >= 1
    assert len(committed(kafka_broker, topic, 3)) == 3
