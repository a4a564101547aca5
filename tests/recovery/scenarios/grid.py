"""The topology of the crash grid: rows of a source, stored, counted by word, and summed up, in three tables.

``grid DATA_DIR SOURCE before|after DEPTH`` runs it on threads to the end of what the source holds before or after a
fault; with ``--kafka BROKERS TOPIC TARGET`` on Spark, from one topic into another.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from crash_cells import AFTER, BEFORE, PARTITIONS, Plan, word

from scenarios.words import run_to_end
from txstorm import (
    BasicBolt,
    BatchBolt,
    Committer,
    KeyedState,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstorm.sinks import DeltaSink, KafkaSink
from txstorm.spouts import (
    FileSpout,
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    OpaqueTransactionalKafkaSpout,
    TransactionalKafkaSpout,
)

COLUMNS = {"partition": int, "offset": int, "generation": int, "word": str}
SETTINGS = {"max_group_txids": 2, "max_pack_txids": 2, "keep_intents": 1}


class Rows(BasicBolt):
    """A bolt that emits rows as the input of all committers."""

    fields = tuple(COLUMNS)

    def execute(self, tuple, collector):
        collector.emit(*(tuple[field] for field in COLUMNS))


class Records(BasicBolt):
    """A bolt that emits the records of a topic as rows; the value of a record is the word."""

    fields = tuple(COLUMNS)

    def execute(self, tuple, collector):
        collector.emit(tuple["partition"], tuple["offset"], 0, tuple["value"])


class Counts(BatchBolt, Committer):
    """A committer that counts words."""

    state = KeyedState("counts", key={"word": str}, value={"n": int})

    def prepare(self, context, collector, attempt):
        self.counts, self.words = context.state("counts"), Counter()

    def execute(self, tuple):
        self.words[tuple["word"]] += 1

    def finish_batch(self):
        self.counts.update_many(self.words, lambda old, n: (old or 0) + n)


class Totals(BatchBolt, Committer):
    """A committer that counts rows, and stores the last txid."""

    state = KeyedState("totals", key={}, value={"rows": int, "txid": int})

    def prepare(self, context, collector, attempt):
        self.totals, self.attempt, self.rows = context.state("totals"), attempt, 0

    def execute(self, tuple):
        self.rows += 1

    def finish_batch(self):
        before = self.totals.get((), {"rows": 0})["rows"]
        self.totals.put((), {"rows": before + self.rows, "txid": self.attempt.txid})


def memory(opaque: bool, plan: Plan) -> Any:
    made = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    rows = {
        partition: [
            (partition, offset, plan.generation, word(partition, offset, plan.generation))
            for offset in range(plan.size)
        ]
        for partition in PARTITIONS
    }
    return made(rows, tuple(COLUMNS), take=plan.take)


def kafka(opaque: bool, plan: Plan, brokers: str, topic: str) -> Any:
    made = OpaqueTransactionalKafkaSpout if opaque else TransactionalKafkaSpout
    fields = ("partition", "offset", "value")
    return made(topic, brokers, fields=fields, max_batch_rows=plan.take * len(PARTITIONS))


def topology(spout: Any, rows: BasicBolt, kafka: list[str] | None) -> Any:
    builder = TransactionalTopologyBuilder("grid", "source", spout, 2)
    builder.set_bolt("placed", rows, 2).local_or_shuffle_grouping("source")
    builder.set_bolt("counts", Counts(), 2).fields_grouping("placed", ["word"])
    builder.set_bolt("totals", Totals()).global_grouping("placed")
    builder.set_bolt("rows", DeltaSink("rows", COLUMNS), 2).shuffle_grouping("placed")
    if kafka:
        brokers, _, target = kafka
        # A driver that dies in the middle of a transaction must not hold up readers for longer than the test lasts.
        settings = {"transaction.timeout.ms": 10_000}
        marks = f"{target}-marks"
        sink = KafkaSink("sent", target, brokers, key="word", settings=settings, progress_topic=marks)
        builder.set_bolt("sent", sink, 2).local_or_shuffle_grouping("placed")
    return builder.build_topology()


def main(*argv: str) -> dict[str, Any]:
    """Run the topology once; return its result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("source", choices=AFTER)
    parser.add_argument("when", choices=("before", "after"))
    parser.add_argument("depth", type=int)
    parser.add_argument("--kafka", nargs=3, metavar=("BROKERS", "TOPIC", "TARGET"))
    parser.add_argument("--engine", choices=("local", "spark"), default="spark")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args(argv)
    opaque = options.source != "transactional"
    plan = BEFORE if options.when == "before" else AFTER[options.source]
    spout = kafka(opaque, plan, *options.kafka[:2]) if options.kafka else memory(opaque, plan)
    settings = {**SETTINGS, "max_spout_pending": options.depth, **dict(one.split("=", 1) for one in options.set)}
    built = topology(spout, Records() if options.kafka else Rows(), options.kafka)
    return run_to_end(built, options.data_dir, settings, options.engine if options.kafka else "local")


# --- the same topology behind every kind of source, for ``txstorm run`` ----------------------------------------------


class Lines(BasicBolt):
    """A bolt that parses rows from lines of files."""

    fields = tuple(COLUMNS)

    def execute(self, tuple, collector):
        partition, offset, generation, text = tuple["line"].split(" ", 3)
        collector.emit(int(partition), int(offset), int(generation), text)


class Tasks(PartitionedTransactionalSpout):
    """A partitioned spout, planned by its tasks, as in Storm."""

    fields = tuple(COLUMNS)

    def coordinator(self, context):
        return _Partitions()

    def emitter(self, context):
        return _Again()


class OpaqueTasks(OpaquePartitionedTransactionalSpout):
    """An opaque partitioned spout, planned by its tasks."""

    fields = tuple(COLUMNS)

    def emitter(self, context):
        return _Anew()


class _Partitions(PartitionedCoordinator):
    def num_partitions(self):
        return len(PARTITIONS)


class _Again(PartitionedEmitter):
    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        metadata = _following(last_metadata)
        self.emit_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        _emit(collector, partition, metadata)


class _Anew(OpaquePartitionedEmitter):
    def num_partitions(self):
        return len(PARTITIONS)

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        metadata = _following(last_metadata)
        _emit(collector, partition, metadata)
        return metadata


def _following(last: Any) -> list[int]:
    start = last[1] if last else 0
    return [start, min(start + BEFORE.take, BEFORE.size)]


def _emit(collector: Any, partition: int, extent: list[int]) -> None:
    for offset in range(*extent):
        collector.emit(partition, offset, 0, word(partition, offset, 0))


TASKS = {"tasks": Tasks, "opaque-tasks": OpaqueTasks}
TOPICS = {"topic": False, "opaque-topic": True}
SOURCES = (*AFTER, "files", *TASKS, *TOPICS)
"""Sources: partitions in memory, as in the crash grid; files; partitions that tasks plan; a Kafka topic."""


def write_lines(place: Path) -> None:
    """Write the files of the source ``files``."""
    for partition in PARTITIONS:
        lines = [f"{partition} {offset} 0 {word(partition, offset, 0)}\n" for offset in range(BEFORE.size)]
        (place / f"lines-{partition}.txt").write_text("".join(lines), encoding="utf-8")


def from_source(source: str, when: str, depth: int, place: str, *topics: str) -> Any:
    """Build the topology, with the content of its source before or after the takeover.

    Args:
        source: one of `SOURCES`.
        when: ``before`` or ``after``.
        depth: maximum number of transactions in flight.
        place: directory of files.
        topics: brokers, source topic and target topic; if given, the topology reads from and sends to Kafka.
    """
    spout, rows = _source(source, BEFORE if when == "before" else AFTER.get(source, BEFORE), place, topics)
    return topology(spout, rows, list(topics)).with_settings({**SETTINGS, "max_spout_pending": depth})


def _source(source: str, plan: Plan, place: str, topics: tuple[str, ...]) -> tuple[Any, BasicBolt]:
    if source in TOPICS:
        return kafka(TOPICS[source], plan, *topics[:2]), Records()
    if source in TASKS:
        return TASKS[source](), Rows()
    if source == "files":
        return FileSpout(f"{place}/lines-*.txt", max_batch_rows=plan.take * len(PARTITIONS)), Lines()
    return memory(source != "transactional", plan), Rows()
