"""Kafka spouts with brokers that are unreachable, or killed and restarted, while they read."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from kafka_cases import COLUMNS, content, eventually, keeping, kept
from servers.running import Kafka, start_kafka

from txstorm import run
from txstorm.spouts import OpaqueTransactionalKafkaSpout, TransactionalKafkaSpout

pytestmark = pytest.mark.integration


def spout_of(bootstrap: str, topic: str, kind, **options):
    return kind(topic, bootstrap, fields=tuple(COLUMNS), max_batch_rows=200, patience=1.0, **options)


@pytest.fixture
def started(kafka_broker: Kafka, tmp_path):
    """Return a function that runs a topology over a filled topic up to its third transaction; return handle and topic."""

    def start(kind, bootstrap: str):
        topic = kafka_broker.make_topic(partitions=3)
        for partition in range(3):
            kafka_broker.produce(topic, range(2000), partition)
        handle = run(keeping(spout_of(bootstrap, topic, kind)), engine="local", data_dir=tmp_path / "data")
        eventually(lambda: handle.status["committed"] >= 3, "three transactions")
        return handle, topic

    return start


def check_all_are_read(kafka: Kafka, topic: str, handle, data_dir) -> None:
    kafka.produce(topic, range(100))
    eventually(lambda: kept(data_dir).total() >= 6100, "all records")
    handle.stop()
    assert kept(data_dir) == content(kafka, topic)


@pytest.mark.long
@pytest.mark.parametrize("kind", [TransactionalKafkaSpout, OpaqueTransactionalKafkaSpout])
def test_reading_continues_after_a_broker_is_killed_and_restarted(kafka_broker: Kafka, started, tmp_path, kind):
    handle, topic = started(kind, kafka_broker.bootstrap)
    kafka_broker.kill()
    threading.Event().wait(random.uniform(0.5, 2))
    assert handle.isActive
    kafka_broker.restart()
    check_all_are_read(kafka_broker, topic, handle, tmp_path / "data")


def test_reading_continues_after_a_broker_was_unreachable(kafka_broker: Kafka, started, tmp_path):
    proxy = kafka_broker.proxy()
    handle, topic = started(TransactionalKafkaSpout, proxy.address)
    proxy.cut()
    threading.Event().wait(random.uniform(0.5, 2))
    assert handle.isActive
    proxy.heal()
    check_all_are_read(kafka_broker, topic, handle, tmp_path / "data")


@pytest.mark.long
def test_an_unavailable_leader_delays_only_its_own_partitions(tmp_path):
    with start_kafka(tmp_path / "kafka", brokers=3) as kafka:
        topic = kafka.make_topic(partitions=3)
        for partition in range(3):
            kafka.produce(topic, range(500), partition)
        spout = spout_of(kafka.bootstrap, topic, OpaqueTransactionalKafkaSpout, discover_seconds=1.0)
        handle = run(keeping(spout), engine="local", data_dir=tmp_path / "data")
        eventually(lambda: kept(tmp_path / "data").total() == 1500, "all records")
        gone = 1
        [away] = [number for number, leader in kafka.leaders(topic).items() if leader == gone]
        others = [number for number in range(3) if number != away]
        kafka.produce(topic, range(500, 1000), away)
        kafka.kill(gone)
        for partition in others:
            kafka.produce(topic, range(500, 1000), partition)

        def complete(partition: int) -> bool:
            return Counter(row[2] for row in kept(tmp_path / "data").elements())[partition] == 1000

        eventually(lambda: all(map(complete, others)), "the records of the others")
        kafka.produce(topic, range(1000, 1001), others[0])
        eventually(lambda: any("away" in notice for notice in notices(handle)), "a notice of what is away")
        kafka.restart(gone)
        eventually(lambda: complete(away), "the records of the partition that was away")
        eventually(lambda: kept(tmp_path / "data").total() == 3001, "the last record")
        handle.stop()
        assert kept(tmp_path / "data") == content(kafka, topic)
        assert any("back" in notice for notice in notices(handle))


def notices(handle) -> list[str]:
    return [notice for progress in handle.recentProgress for notice in progress.reported]
