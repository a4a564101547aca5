"""Deduplicator between Kafka topics on a real broker: output exactly once, also after redeployments."""

import json
from collections import Counter

import pytest
from runs import ended
from servers.kafka_reading import committed_records

from txstorm import Duration, TransactionalTopologyBuilder, recent_in_topic
from txstorm.bolts import Map
from txstorm.errors import InputError
from txstorm.joins import Deduplicator
from txstorm.sinks.kafka import KafkaSink
from txstorm.spouts import TransactionalKafkaSpout

pytestmark = pytest.mark.integration


def topology(kafka, source, target, recent=None):
    spout = TransactionalKafkaSpout(source, kafka.bootstrap, fields=["value"], value="json", max_batch_rows=20)
    builder = TransactionalTopologyBuilder("dedup", "source", spout)
    builder.set_bolt("parsed", Map(lambda row: (row["value"]["id"], row["value"]["n"]), "id", "n")).shuffle_grouping(
        "source"
    )
    once = Deduplicator("id", quiet=Duration.hours(1), recent=recent)
    builder.set_bolt("once", once, 2).fields_grouping("parsed", ["id"])
    builder.set_bolt("send", KafkaSink("out", target, kafka.bootstrap)).global_grouping("once")
    builder.set_settings({"pin_timeout": 60})
    return builder.build_topology()


def send(kafka, topic, ids):
    for partition in (0, 1):
        records = [json.dumps({"id": one, "n": number}) for number, one in enumerate(ids) if number % 2 == partition]
        kafka.produce(topic, records, partition)


def sent(kafka, topic):
    return Counter(record.value["id"] for record in committed_records(kafka.bootstrap, topic))


def test_results_of_a_redeployed_topology_are_sent_once(kafka_broker, tmp_path):
    """A7, A8, U12: a topology in a new directory reads all input again, and sends what its predecessor has not sent."""
    source, target = kafka_broker.make_topic(partitions=2), kafka_broker.make_topic(partitions=2)
    ids = [f"r{number}" for number in range(60)]
    send(kafka_broker, source, [*ids[:40], *ids[10:20]])
    ended(topology(kafka_broker, source, target), tmp_path / "first")
    assert sent(kafka_broker, target) == Counter(ids[:40])
    send(kafka_broker, source, [*ids[30:], *ids[50:]])
    recent = recent_in_topic(target, kafka_broker.bootstrap, "id")
    assert sorted(recent()) == sorted(ids[:40])
    ended(topology(kafka_broker, source, target, recent), tmp_path / "second")
    assert sent(kafka_broker, target) == Counter(ids)
    ended(topology(kafka_broker, source, target, recent), tmp_path / "second")
    assert sent(kafka_broker, target) == Counter(ids)


def test_the_tail_of_a_topic(kafka_broker):
    """A8: the last records of each partition, of which some have no id, by field or function."""
    topic = kafka_broker.make_topic(partitions=2)
    assert recent_in_topic(topic, kafka_broker.bootstrap, "id")() == []
    send(kafka_broker, topic, [1, 2, 3, 4, 5, None, 7, 8])
    assert sorted(recent_in_topic(topic, kafka_broker.bootstrap, "id", records=2)()) == [5, 7, 8]
    whole = recent_in_topic(topic, kafka_broker.bootstrap, ["n", "id"])()
    assert sorted(whole)[:2] == [(0, 1), (1, 2)]
    by_function = recent_in_topic(topic, kafka_broker.bootstrap, lambda value: json.loads(value)["n"], records=1)
    assert sorted(by_function()) == [6, 7]
    with pytest.raises(InputError, match="JSON objects with 'missing'"):
        recent_in_topic(topic, kafka_broker.bootstrap, "missing")()
    with pytest.raises(InputError, match="no topic 'absent-topic'"):
        recent_in_topic("absent-topic", kafka_broker.bootstrap, "id")()
