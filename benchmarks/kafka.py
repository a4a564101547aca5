"""Kafka to counts in Delta, beside what one would write by hand; and what planning and ZooKeeper take."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Bench, Figure
from benchmarks.machine import Spread, percentile
from benchmarks.running import scratch
from benchmarks.sides import Run, Side, measure
from benchmarks.words import STEP, pool, vocabulary

PARTITIONS = 8
BYTES = 100
"""Of a message: its key, a word, and so much of a value that both together have this size."""
OURS = Side("txstorm", "benchmarks.kafka_sides:txstorm", "exactly once, in txid order")
LOOP = Side("confluent-kafka + deltalake loop", "benchmarks.kafka_sides:loop", "exactly once, one process")
MERGE = Side("foreachBatch + MERGE", "benchmarks.kafka_sides:merge", "at least once")
PLANNING = Side("planning", "benchmarks.kafka_sides:planning", "exactly once, in txid order")
# Side → batches of a run, and how many of the first are left out; the slow one makes do with fewer.
BATCHES: Mapping[Side, tuple[int, int]] = {OURS: (60, 12), LOOP: (60, 12), MERGE: (16, 4)}
QUICK: Mapping[Side, tuple[int, int]] = {OURS: (12, 4), LOOP: (12, 4), MERGE: (4, 1)}
SIZES = (1_000, 100_000)
LEAST = {LOOP: 0.5, MERGE: 5.0}
"""Tuples a second of txstorm at 100,000 a batch, as a multiple of the side's."""


def kafka(bench: Bench) -> list[Figure]:
    """Counts per key of 100-byte messages in eight partitions, from a real broker, into a Delta table."""
    with scratch() as directory, _servers(directory) as (broker, zookeeper):
        batches = QUICK if bench.quick else BATCHES
        topic = broker.make_topic(partitions=PARTITIONS)
        bench.say("kafka: filling the topic")
        fill(broker.bootstrap, topic, max(count for count, _ in batches.values()) * SIZES[-1])
        shared = {"bootstrap": broker.bootstrap, "topic": topic, "partitions": PARTITIONS}
        figures = [_counting(bench, directory, {**shared, "batch": size}, batches) for size in SIZES]
        given = {**shared, "batch": SIZES[0]}
        return [*figures, *(_planning(bench, directory, given, zookeeper.hosts, alone) for alone in (False, True))]


def _counting(
    bench: Bench, directory: Path, options: Mapping[str, Any], batches: Mapping[Side, tuple[int, int]]
) -> Figure:
    runs: dict[Side, list[Run]] = {side: [] for side in batches}
    for number in range(bench.rounds):
        for side, (last, warm) in batches.items():
            bench.say(f"kafka, {options['batch']:,} a batch, round {number}: {side.name}")
            with scratch() as place:
                given = {**options, "batches": last, "warm": warm, "directory": str(place)}
                run = bench.round(lambda: measure(side, given, directory))  # noqa: B023
            check(run, options["topic"])
            runs[side].append(run)
    return _figure(int(options["batch"]), runs)


def _figure(size: int, runs: Mapping[Side, list[Run]]) -> Figure:
    ours = runs[OURS]
    values: dict[str, Any] = {
        "tuples/s": Spread.of([_rate(one) * size for one in ours]),
        "txids/s": Spread.of([_rate(one) for one in ours]),
    }
    met = True
    for side, least in LEAST.items():
        times = [_rate(our) / _rate(peer) for our, peer in zip(ours, runs[side], strict=True)]
        values[f"times {side.name}"] = Spread.of(times)
        met = met and statistics.median(times) >= least
    for side, measured in runs.items():
        count = (measured[0].end["batches"] - measured[0].begin["batches"]) * size
        cpu = {kind: statistics.median(one.cpu.get(kind, 0.0) for one in measured) for kind in measured[0].cpu}
        values[f"{side.name} ({side.guarantee})"] = {
            "tuples/s": statistics.median(_rate(one) for one in measured) * size,
            **{f"{kind} CPU s per million tuples": spent / count * 1e6 for kind, spent in cpu.items()},
            "peak MiB": max(one.peak for one in measured) / (1 << 20),
        }
    target = " and ".join(f"≥ {least} × {side.name}" for side, least in LEAST.items())
    promised = size == SIZES[-1]
    return Figure("kafka", f"{size:,} a batch", values, target if promised else "", met if promised else None)


def _rate(run: Run) -> float:
    return float(run.end["batches"] - run.begin["batches"]) / run.seconds


def _planning(bench: Bench, directory: Path, options: Mapping[str, Any], hosts: str, alone: bool) -> Figure:
    how = "one at a time" if alone else "as it comes"
    runs: list[Mapping[str, Any]] = []
    for number in range(bench.rounds):
        bench.say(f"kafka: planning and ZooKeeper, {how}, round {number}")
        with scratch() as place:
            given = {
                **options,
                "alone": alone,
                "batches": 60 if bench.quick else 300,
                "directory": str(place),
                "ledger": f"zookeeper:{hosts}/planning-{alone:d}-{number}",
            }
            runs.append(bench.round(lambda: measure(PLANNING, given, directory)).result)  # noqa: B023
    p50 = Spread.of([percentile(one["both"], 0.5) for one in runs])
    values = {
        "p50 ms": p50,
        "p99 ms": Spread.of([percentile(one["both"], 0.99) for one in runs]),
        "planning p50 ms": Spread.of([percentile(one["plan"], 0.5) for one in runs]),
        "ledger p50 ms": Spread.of([percentile(one["ledger"], 0.5) for one in runs]),
        "ledger writes per txid": statistics.median(count for one in runs for count in one["writes"]),
    }
    name = f"planning and ledger, {PARTITIONS} partitions, ZooKeeper, {how}"
    return Figure("kafka", name, values, "p50 ≤ 5 ms", p50.median <= 5)


def words_at(partition: int, start: int, stop: int) -> Any:
    """The ranks of the words that are the keys of the offsets `start` to `stop` of a partition."""
    return np.take(pool(), np.arange(start, stop) + partition * STEP * 131, mode="wrap")


def fill(bootstrap: str, topic: str, messages: int) -> None:
    """Write `messages` messages, shared evenly by the partitions."""
    from confluent_kafka import Producer

    names = [word.encode() for word in vocabulary().to_pylist()]
    values = [b"." * (BYTES - len(name)) for name in names]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    each, step = -(-messages // PARTITIONS), 50_000
    for start in range(0, each, step):
        for partition in range(PARTITIONS):
            for rank in words_at(partition, start, min(each, start + step)).tolist():
                producer.produce(topic, values[rank], names[rank], partition)
            producer.poll(0)
        producer.flush()


def check(run: Run, topic: str) -> None:
    """The counts of `run` are those of the messages up to where it says it has read; raises `AssertionError`."""
    ends, counts = run.result["ends"], run.result["counts"]
    expected: Counter[int] = Counter()
    for partition, end in ends.items():
        ranks, times = np.unique(words_at(int(partition), 0, end), return_counts=True)
        expected.update(dict(zip(ranks.tolist(), times.tolist(), strict=True)))
    words = vocabulary().to_pylist()
    wrong = {words[rank] for rank, times in expected.items() if counts.get(words[rank]) != times}
    if wrong or len(counts) != len(expected):
        msg = f"{run.side.name}: {len(wrong)} of {len(expected)} counts of {topic} are wrong up to {ends}"
        raise AssertionError(msg)


@contextmanager
def _servers(directory: Path) -> Iterator[tuple[Any, Any]]:
    # Those of the tests; scripts/bench puts them on the path.
    from servers.running import start_kafka, start_zookeeper

    broker = start_kafka(directory / "kafka", quick=False)
    try:
        zookeeper = start_zookeeper(directory / "zookeeper")
        try:
            yield broker, zookeeper
        finally:
            zookeeper.close()
    finally:
        broker.close()
