"""Kafka for the comparisons: a broker with a topic of words; and the time of planning and of a ledger in ZooKeeper."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import Spread, percentile
from benchmarks.suite.job import Job
from benchmarks.suite.results import Setting
from benchmarks.suite.sides import call
from benchmarks.words import message_ranks, vocabulary

PARTITIONS = 8
BYTES = 100
"""Size of a message: its key, a word, and a value that fills up the rest."""
BATCH = 1_000


@contextmanager
def topic(messages: int) -> Iterator[Mapping[str, Any]]:
    """Start a broker with a topic of `messages` messages; yield the source of a job."""
    # The servers are those of the tests; scripts/bench puts them on the path.
    from servers.running import start_kafka

    with tempfile.TemporaryDirectory(prefix="txstorm-bench-", ignore_cleanup_errors=True) as directory:
        broker = start_kafka(Path(directory), quick=False)
        try:
            name = broker.make_topic(partitions=PARTITIONS)
            fill(broker.bootstrap, name, messages)
            yield {"bootstrap": broker.bootstrap, "topic": name, "partitions": PARTITIONS}
        finally:
            broker.close()


def fill(bootstrap: str, topic: str, messages: int) -> None:
    """Write `messages` messages, distributed evenly over the partitions."""
    from confluent_kafka import Producer

    names = [word.encode() for word in vocabulary().to_pylist()]
    values = [b"." * (BYTES - len(name)) for name in names]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    each, step = -(-messages // PARTITIONS), 50_000
    for start in range(0, each, step):
        for partition in range(PARTITIONS):
            for rank in message_ranks(partition, start, min(each, start + step)).tolist():
                producer.produce(topic, values[rank], names[rank], partition)
            producer.poll(0)
        producer.flush()


def planning(setting: Setting) -> None:
    """Measure the milliseconds per transaction of planning eight partitions, and of a ledger in ZooKeeper."""
    from servers.running import start_zookeeper

    last = 60 if setting.quick else 300
    with topic(last * BATCH) as source, tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory:
        zookeeper = start_zookeeper(Path(directory))
        try:
            for how in ("as it comes", "one at a time"):
                job = Job("kafka", BATCH, last, loaded=False, source=source)
                _plan(setting, job, zookeeper.hosts, how)
        finally:
            zookeeper.close()


def _plan(setting: Setting, job: Job, hosts: str, how: str) -> None:
    alone = how == "one at a time"
    runs: list[Mapping[str, Any]] = []
    for number in range(setting.rounds):
        setting.say(f"planning and ZooKeeper, {how}, round {number + 1} of {setting.rounds}")
        with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place, setting.results.round():
            ledger = f"zookeeper:{hosts}/planning-{alone:d}-{number}"
            options = {"job": job.line(), "alone": alone, "directory": place, "ledger": ledger}
            runs.append(call("benchmarks.peers.kafka:planning", options, setting.logs))
    name = "planning-alone" if alone else "planning"
    values = setting.results.values
    values[name] = Spread.of([percentile(one["both"], 0.5) for one in runs])
    values[f"{name}: p99 ms"] = Spread.of([percentile(one["both"], 0.99) for one in runs])
    values[f"{name}: planning alone, p50 ms"] = Spread.of([percentile(one["plan"], 0.5) for one in runs])
    values[f"{name}: ledger alone, p50 ms"] = Spread.of([percentile(one["ledger"], 0.5) for one in runs])
    values[f"{name}: ledger writes a transaction"] = Spread.of([statistics.fmean(one["writes"]) for one in runs])
