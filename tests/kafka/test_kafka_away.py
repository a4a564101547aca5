"""Kafka spouts with brokers that are unreachable, or killed and restarted, while they read."""

import random
import time
from collections import Counter

import pytest
from kafka_cases import COLUMNS, content, eventually, keeping, kept
from servers.running import Kafka, start_kafka

from txstorm import run
from txstorm.spouts import OpaqueTransactionalKafkaSpout, TransactionalKafkaSpout

pytestmark = pytest.mark.integration


def spout_of(bootstrap: str, topic: str, kind, **options):
    return kind(topic, bootstrap, fields=tuple(COLUMNS), max_batch_rows=200, patience=1.0, **options)


KINDS = [TransactionalKafkaSpout, OpaqueTransactionalKafkaSpout]
AWAY = [
    ("unreachable", TransactionalKafkaSpout),
    *(pytest.param("killed", kind, marks=pytest.mark.long) for kind in KINDS),
]


@pytest.mark.parametrize(("how", "kind"), AWAY)
def test_reading_continues_after_a_broker_was_away(kafka_broker: Kafka, tmp_path, how, kind):
    proxy, topic = kafka_broker.proxy(), kafka_broker.make_topic(partitions=3)
    for partition in range(3):
        kafka_broker.produce(topic, range(2000), partition)
    spout = spout_of(proxy.address if how == "unreachable" else kafka_broker.bootstrap, topic, kind)
    handle = run(keeping(spout), engine="local", data_dir=tmp_path / "data")
    eventually(lambda: handle.status["committed"] >= 3, "three transactions")
    leave, come_back = {
        "unreachable": (proxy.cut, proxy.heal),
        "killed": (kafka_broker.kill, kafka_broker.restart),
    }[how]
    leave()
    time.sleep(random.uniform(0.5, 2))
    assert handle.isActive
    come_back()
    kafka_broker.produce(topic, range(100))
    eventually(lambda: kept(tmp_path / "data").total() >= 6100, "all records")
    handle.stop()
    assert kept(tmp_path / "data") == content(kafka_broker, topic)


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
