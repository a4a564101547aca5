"""Fixtures for Kafka tests: topics of known content, a topology that stores tuples, and an independent reader."""

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from servers.kafka_reading import messages, until_decided
from servers.running import Kafka

from txstorm import TransactionalTopologyBuilder
from txstorm.results.read import read_sink
from txstorm.results.views import read_directory_history
from txstorm.sinks import DeltaSink
from txstorm.topology.graph import Topology

COLUMNS = {"value": str, "topic": str, "partition": int, "offset": int}
QUICK = {"retry_backoff": 0.05, "retry_backoff_max": 0.2, "compact_on_stop": False}


def produce_with_aborts(
    kafka: Kafka, topic: str, records: int, partitions: int, rng: random.Random, *, most: int = 60, words: int = 1 << 30
) -> None:
    """Write at least `records` committed records to `topic`, in transactions of which 30 % are aborted.

    A transaction has at most `most` records, each in a random partition. There are `words` distinct values, which start
    with ``good``, or ``aborted`` in an aborted transaction.
    """
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": uuid.uuid4().hex, "linger.ms": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    made = 0
    while made < records:
        aborted = rng.random() < 0.3
        producer.begin_transaction()
        for _ in range(rng.randint(1, most)):
            word = "aborted" if aborted else "good"
            producer.produce(topic, f"{word}-{made % words}", partition=rng.randrange(partitions))
            made += not aborted
        if aborted:
            producer.flush(10)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    until_decided(kafka.bootstrap, topic, seconds=30)


def content(kafka: Kafka, *topics: str) -> Counter[tuple[str, str, int, int]]:
    """Count the committed records in `topics`, each as (value, topic, partition, offset)."""
    found = messages(kafka.bootstrap, *topics)
    return Counter((one.value().decode(), one.topic(), one.partition(), one.offset()) for one in found)


def delete(kafka: Kafka, topic: str) -> None:
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in admin.list_topics(timeout=5).topics, "the topic to go")


def recreate(kafka: Kafka, topic: str) -> None:
    """Delete a topic with its records, and create a new one of this name."""
    delete(kafka, topic)
    kafka.make_topic(topic)


def keeping(spout, tasks: int = 2, **settings) -> Topology:
    """Build a topology that writes the tuples of `spout` to a sink with the columns `COLUMNS`."""
    builder = TransactionalTopologyBuilder("kafka", "spout", spout, tasks)
    builder.set_bolt("keep", DeltaSink("rows", COLUMNS)).global_grouping("spout")
    return builder.set_settings({**QUICK, **settings}).build_topology()


def kept(data_dir: Path) -> Counter[tuple[str, str, int, int]]:
    return Counter((row["value"], row["topic"], row["partition"], row["offset"]) for row in rows(data_dir))


def rows(data_dir: Path) -> list[dict]:
    return read_sink(data_dir, "rows").to_pylist()


def metadata(data_dir: Path) -> list[tuple[int, dict]]:
    """Return (txid, spout metadata) of every committed txid, from the history."""
    history = read_directory_history(data_dir).to_pylist()
    return [(row["txid"], json.loads(row["extents"])["meta"]) for row in history]


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    Kafka.wait(condition, what, seconds)
