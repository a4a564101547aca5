"""Exact counts of a million Kafka records, with 30 % of the producer's transactions aborted."""

from collections import Counter

import pytest
from kafka_cases import produce_with_aborts
from seeded import seeded
from servers.kafka_reading import committed_values
from servers.running import Kafka

from txstorm import TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.spouts import TransactionalKafkaSpout

pytestmark = [pytest.mark.integration, pytest.mark.long]
RECORDS = 1_000_000


def test_a_million_records_are_counted_exactly(kafka_broker: Kafka, tmp_path):
    topic = kafka_broker.make_topic(partitions=8)
    produce_with_aborts(kafka_broker, topic, RECORDS, 8, seeded(), most=5000, words=1000)
    spout = TransactionalKafkaSpout(topic, kafka_broker.bootstrap, fields=["value"], max_batch_rows=20_000)
    builder = TransactionalTopologyBuilder("million", "spout", spout, 2)
    builder.set_committer_bolt("counts", CountByKey("value", table="counts"), 2).fields_grouping("spout", ["value"])
    handle = run(builder.build_topology(), engine="local", data_dir=tmp_path / "data", available_now=True)
    assert handle.awaitTermination(900)
    counted = {row["value"]: row["n"] for row in handle.state("counts").to_pylist()}
    expected = Counter(value for _, _, value in committed_values(kafka_broker.bootstrap, topic))
    assert sum(expected.values()) >= RECORDS
    assert counted == expected
