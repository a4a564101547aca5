"""Rewinds to a time of topologies without event time: the times of records on a real broker decide."""

from datetime import UTC, datetime, timedelta

import pytest
from kafka_cases import COLUMNS, keeping, kept, recreate
from runs import ended
from servers.process import free_ports
from servers.running import Kafka

import txstorm
from txstorm import CompositeSpout, TransactionalTopologyBuilder, rewind
from txstorm.errors import InputError, SpoutError
from txstorm.operations.rewind_target import rewind_target
from txstorm.results.views import committed_txid
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout, TransactionalKafkaSpout

pytestmark = pytest.mark.integration

BEGIN = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
"""The second 0 of the tests; not so long ago that the broker would delete the records."""


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def produce(kafka: Kafka, topic: str, seconds: dict[int, list[float]]) -> None:
    for partition, times in seconds.items():
        kafka.produce(topic, times, partition, times=[int(at(one).timestamp() * 1000) for one in times])


def spout_of(kafka: Kafka, topic: str, **options) -> TransactionalKafkaSpout:
    return TransactionalKafkaSpout(
        topic, kafka.bootstrap, fields=tuple(COLUMNS), discover_seconds=0.2, **{"max_batch_rows": 2, **options}
    )


def test_the_last_transaction_before_the_first_record_of_the_time(kafka_broker, tmp_path):
    """A4, U25: per partition the first offset of the time or later; what is read again is stored once."""
    topic = kafka_broker.make_topic(partitions=2)
    produce(kafka_broker, topic, {0: [1, 3, 5, 7, 9, 11], 1: [2, 4, 6, 8, 10, 12]})
    topology = keeping(spout_of(kafka_broker, topic))
    ended(topology, tmp_path / "data")
    everything = kept(tmp_path / "data")
    assert committed_txid(tmp_path / "data") == 6  # each read one record of each partition
    for second, txid in ((0, 0), (1, 0), (2, 0), (6, 2), (6.5, 3), (11.5, 5), (12, 5)):
        assert rewind_target(tmp_path / "data", at(second), code=lambda: topology).txid == txid
    with pytest.raises(InputError, match=r"is after all that was read.*had been read up to offset 6"):
        rewind(tmp_path / "data", to_time=at(12.5), topology=topology)
    found = rewind(tmp_path / "data", to_time=at(6), topology=topology)
    assert (found["taken_back"], found["inputs"]) == ([3, 6], [])
    assert found["sources"] == [
        {"partition": f"{topic}/0", "offset": 2, "at_time": 3},
        {"partition": f"{topic}/1", "offset": 2, "at_time": 2},
    ]
    ended(topology, tmp_path / "data")
    assert kept(tmp_path / "data") == everything


def test_only_the_topics_of_a_composite_spout_decide(kafka_broker, tmp_path):
    """A4: sources whose records have no times go back with the topics, in the same transactions."""
    topic = kafka_broker.make_topic(partitions=1)
    produce(kafka_broker, topic, {0: [1, 2, 3, 4]})
    sources = {
        "topic": spout_of(kafka_broker, topic, max_batch_rows=1),
        "memory": MemoryTransactionalSpout([list(range(8))], "n", take=1),
    }
    builder = TransactionalTopologyBuilder("both", "all", CompositeSpout(sources))
    rows = builder.set_committer_bolt("rows", DeltaSink("rows", {"value": str}))
    rows.global_grouping("all", "topic")
    builder.set_committer_bolt("numbers", DeltaSink("numbers", {"n": int})).global_grouping("all", "memory")
    topology = builder.build_topology()
    ended(topology, tmp_path / "data")
    found = rewind(tmp_path / "data", to_time=at(3), topology=topology)
    assert (found["txid"], [one["partition"] for one in found["sources"]]) == (2, [f"topic/{topic}/0"])
    assert [row["n"] for row in txstorm.snapshot(tmp_path / "data").to_arrow()["sinks/numbers"].to_pylist()] == [0, 1]


def test_a_topic_that_was_recreated_is_refused(kafka_broker, tmp_path):
    topic = kafka_broker.make_topic(partitions=1)
    produce(kafka_broker, topic, {0: [1, 2, 3]})
    topology = keeping(spout_of(kafka_broker, topic))
    ended(topology, tmp_path / "data")
    recreate(kafka_broker, topic)
    produce(kafka_broker, topic, {0: [1, 2, 3]})
    with pytest.raises(SpoutError, match="was deleted and recreated since"):
        rewind(tmp_path / "data", to_time=at(2), topology=topology)
    assert committed_txid(tmp_path / "data") == 2


def test_brokers_that_do_not_answer(tmp_path, kafka_broker):
    topic = kafka_broker.make_topic(partitions=1)
    produce(kafka_broker, topic, {0: [1, 2, 3]})
    ended(keeping(spout_of(kafka_broker, topic)), tmp_path / "data")
    (port,) = free_ports(1)
    away = TransactionalKafkaSpout(topic, f"127.0.0.1:{port}", fields=tuple(COLUMNS))
    with pytest.raises(SpoutError, match="the brokers do not answer"):
        rewind(tmp_path / "data", to_time=at(2), topology=keeping(away))
