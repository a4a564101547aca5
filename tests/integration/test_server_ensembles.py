"""Ensembles of three Kafka brokers or three ZooKeeper servers, each of which is killed in turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient
from servers.running import start_kafka, start_zookeeper

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROUNDS = 3
Progress = Callable[[str], None]


def test_partitions_without_leader_while_their_broker_is_away(tmp_path: Path, progress: Progress):
    with start_kafka(tmp_path, brokers=3) as kafka:
        topic = kafka.make_topic(partitions=3)
        assert set(kafka.leaders(topic).values()) == {0, 1, 2}
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all", "message.timeout.ms": 60_000})
        for number in range(ROUNDS):
            killed = number % 3
            led = kafka.leaders(topic)
            (partition,) = [p for p, leader in led.items() if leader == killed]
            other = (killed + 1) % 3
            kafka.kill(killed)
            kafka.wait(lambda: kafka.leaders(topic, other)[partition] is None, "the partition to be without leader")  # noqa: B023
            for p in led:
                producer.produce(topic, str(number).encode(), partition=p)
            assert producer.flush(2) >= 1, "the partition without leader took a record"
            kafka.restart(killed)
            assert producer.flush(60) == 0
            progress(f"{number + 1} of {ROUNDS} brokers killed")
        assert [values(kafka.bootstrap, topic, p) for p in range(3)] == [list(range(ROUNDS))] * 3


def values(bootstrap: str, topic: str, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(int(message.value() or b""))
    consumer.close()
    assert message is not None, "no end of the partition in 30 s"
    return found


def test_an_ensemble_goes_on_without_its_leader(tmp_path: Path, progress: Progress):
    with start_zookeeper(tmp_path, servers=3) as zookeeper:
        client = KazooClient(zookeeper.hosts, timeout=20)
        client.start(timeout=30)
        client.create("/count", b"0")
        for number in range(1, ROUNDS + 1):
            leader = zookeeper.leader()
            zookeeper.kill(leader)
            assert zookeeper.leader() != leader
            client.retry(client.set, "/count", str(number).encode())
            zookeeper.restart(leader)
            progress(f"{number} of {ROUNDS} leaders killed")
        assert client.retry(client.get, "/count")[0] == str(ROUNDS).encode()
        client.stop()
        client.close()
