"""The topology of the crash grid behind every kind of source, for ``txstorm run "zombie_job:zombie(…)"``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crash_cells import AFTER, BEFORE, PARTITIONS, Plan, word
from grid_job import COLUMNS, SETTINGS, Records, Rows, kafka, memory, topology

from txstorm import (
    BasicBolt,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
)
from txstorm.spouts import FileSpout


class Lines(BasicBolt):
    """The rows that lines of files say."""

    fields = tuple(COLUMNS)

    def execute(self, tuple, collector):
        partition, offset, generation, found = tuple["line"].split(" ", 3)
        collector.emit(int(partition), int(offset), int(generation), found)


class Tasks(PartitionedTransactionalSpout):
    """Its tasks say what they have read, in Storm's way."""

    fields = tuple(COLUMNS)

    def coordinator(self, context):
        return _Partitions()

    def emitter(self, context):
        return _Again()


class OpaqueTasks(OpaquePartitionedTransactionalSpout):
    """The same, opaque."""

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
"""What may be read: partitions in memory, as in the crash grid; files; partitions that tasks plan; a topic of Kafka."""


def write_lines(place: Path) -> None:
    """The files of the source ``files``."""
    for partition in PARTITIONS:
        lines = [f"{partition} {offset} 0 {word(partition, offset, 0)}\n" for offset in range(BEFORE.size)]
        (place / f"lines-{partition}.txt").write_text("".join(lines), encoding="utf-8")


def zombie(source: str, when: str, depth: int, place: str, *topics: str) -> Any:
    """The topology, with what its source holds before or after the takeover.

    Args:
        source: one of `SOURCES`.
        when: ``before`` or ``after``.
        depth: transactions at once.
        place: where files are.
        topics: brokers, the topic to read and the one to send to; from Kafka and to it where they are given.
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
