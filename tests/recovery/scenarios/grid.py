"""The topology of the crash grid: rows of a source, stored, counted by word, and summed up, in three tables.

``grid DATA_DIR SOURCE before|after DEPTH`` runs it on threads to the end of what the source holds before or after a
fault; with ``--kafka BROKERS TOPIC TARGET`` on Spark, from one topic into another.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crash_cells import AFTER, BEFORE, PARTITIONS, Plan, word
from spout_samples import OpaquePartitionedSpout, PartitionedSpout
from watched import Gathering

from scenarios.words import Counts, memory_spout, run_to_end
from txstorm import Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.bolts import Map
from txstorm.sinks import DeltaSink, KafkaSink
from txstorm.spouts import FileSpout, OpaqueTransactionalKafkaSpout, TransactionalKafkaSpout

COLUMNS = {"partition": int, "offset": int, "generation": int, "word": str}
SETTINGS = {"max_group_txids": 2, "max_pack_txids": 2, "keep_intents": 1}


def row_of_row(row: Any) -> tuple[Any, ...]:
    return tuple(row[field] for field in COLUMNS)


def row_of_record(record: Any) -> tuple[Any, ...]:
    """Return the row of a record of a topic, whose value is the word."""
    return record["partition"], record["offset"], 0, record["value"]


def row_of_line(line: Any) -> tuple[Any, ...]:
    partition, offset, generation, text = line["line"].split(" ", 3)
    return int(partition), int(offset), int(generation), text


class Totals(Gathering, Committer):
    """A committer that counts rows, and stores the last txid."""

    takes = "word"
    state = KeyedState("totals", key={}, value={"rows": int, "txid": int})

    def finish_batch(self):
        totals = self.context.state("totals")
        before = totals.get((), {"rows": 0})["rows"]
        totals.put((), {"rows": before + len(self.taken), "txid": self.attempt.txid})


def rows(partition: int, plan: Plan) -> list[tuple[Any, ...]]:
    made = plan.generation
    return [(partition, offset, made, word(partition, offset, made)) for offset in range(plan.size)]


def kafka(opaque: bool, plan: Plan, brokers: str, topic: str) -> Any:
    made = OpaqueTransactionalKafkaSpout if opaque else TransactionalKafkaSpout
    fields = ("partition", "offset", "value")
    return made(topic, brokers, fields=fields, max_batch_rows=plan.take * len(PARTITIONS))


def topology(spout: Any, row: Callable[[Any], tuple[Any, ...]], topics: Sequence[str]) -> Any:
    builder = TransactionalTopologyBuilder("grid", "source", spout, 2)
    builder.set_bolt("placed", Map(row, *COLUMNS), 2).local_or_shuffle_grouping("source")
    builder.set_bolt("counts", Counts(), 2).fields_grouping("placed", ["word"])
    builder.set_bolt("totals", Totals()).global_grouping("placed")
    builder.set_bolt("rows", DeltaSink("rows", COLUMNS), 2).shuffle_grouping("placed")
    if topics:
        brokers, _, target = topics
        # A driver that dies in the middle of a transaction must not hold up readers for longer than the test lasts.
        settings = {"transaction.timeout.ms": 10_000}
        marks = f"{target}-marks"
        sink = KafkaSink("sent", target, brokers, key="word", settings=settings, progress_topic=marks)
        builder.set_bolt("sent", sink, 2).local_or_shuffle_grouping("placed")
    return builder.build_topology()


def main(*argv: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("source", choices=AFTER)
    parser.add_argument("when", choices=("before", "after"))
    parser.add_argument("depth", type=int)
    parser.add_argument("--kafka", nargs=3, default=(), metavar=("BROKERS", "TOPIC", "TARGET"))
    parser.add_argument("--engine", choices=("local", "spark"), default="spark")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args(argv)
    built = from_source(options.source, options.when, options.depth, "", *options.kafka)
    settings = dict(one.split("=", 1) for one in options.set)
    return run_to_end(built, options.data_dir, settings, options.engine if options.kafka else "local")


def _following(last: Any) -> list[int]:
    start = last[1] if last else 0
    return [start, min(start + BEFORE.take, BEFORE.size)]


class Tasks(PartitionedSpout):
    """A partitioned spout, planned by its tasks, as in Storm."""

    fields = tuple(COLUMNS)

    def num_partitions(self):
        return len(PARTITIONS)

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        metadata = _following(last_metadata)
        self.emit_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for offset in range(*metadata):
            collector.emit(partition, offset, 0, word(partition, offset, 0))


class OpaqueTasks(OpaquePartitionedSpout):
    """An opaque partitioned spout, planned by its tasks."""

    fields = tuple(COLUMNS)

    def num_partitions(self):
        return len(PARTITIONS)

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        metadata = _following(last_metadata)
        Tasks().emit_partition_batch(attempt, collector, partition, metadata)
        return metadata


TASKS = {"tasks": Tasks, "opaque-tasks": OpaqueTasks}
TOPICS = ("topic", "opaque-topic")
SOURCES = (*AFTER, "files", *TASKS, *TOPICS)
"""Sources: partitions in memory, as in the crash grid; files; partitions that tasks plan; a Kafka topic."""


def write_lines(place: Path) -> None:
    for partition in PARTITIONS:
        lines = [f"{partition} {offset} 0 {word(partition, offset, 0)}\n" for offset in range(BEFORE.size)]
        (place / f"lines-{partition}.txt").write_text("".join(lines), encoding="utf-8")


def from_source(source: str, when: str, depth: int, place: str, *topics: str) -> Any:
    """Build the topology, with the content of its source ``before`` or ``after`` the takeover.

    `depth`: most transactions in flight; `topics`: brokers, source topic (empty: none) and target topic.
    """
    plan = BEFORE if when == "before" else AFTER.get(source, BEFORE)
    opaque = source not in ("transactional", "topic")
    if topics and topics[1]:
        spout, row = kafka(opaque, plan, *topics[:2]), row_of_record
    elif source in TASKS:
        spout, row = TASKS[source](), row_of_row
    elif source == "files":
        spout, row = (
            FileSpout(f"{place}/lines-*.txt", max_batch_rows=plan.take * len(PARTITIONS), order="name"),
            row_of_line,
        )
    else:
        kind = "opaque" if opaque else "memory"
        spout = memory_spout(kind, {number: rows(number, plan) for number in PARTITIONS}, tuple(COLUMNS), plan.take)
        row = row_of_row
    return topology(spout, row, topics).with_settings({**SETTINGS, "max_spout_pending": depth})
