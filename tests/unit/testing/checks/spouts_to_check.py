"""Spouts under test for the spout checks: correct ones of each kind, and ones with typical mistakes."""

import json
import random
import time
from pathlib import Path

from spout_samples import OneClass, OpaquePartitionedSpout, PartitionedSpout, PlainSpout

from txstorm import NOT_READY, FailedException

TAKE = 3
CHANCE = random.Random(0)
"""Decides whether a source is unavailable; tests seed it and print the seed."""


class Source:
    """A source with partitions of numbers in a file; its persistent cursors are for faulty spouts only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(json.dumps([list(range(8)), list(range(10, 15))]))

    def read(self) -> list[list[int]]:
        return json.loads(self.path.read_text())

    def grow(self) -> None:
        partitions = self.read()
        for number, rows in enumerate(partitions):
            rows.append(1000 * (number + 1) + len(rows))
        self.path.write_text(json.dumps(partitions))

    def take_next(self, partition: int) -> list[int]:
        """Return the next rows of `partition` and advance its cursor, as a consumer of a queue would."""
        cursor = self.path.with_suffix(f".{partition}")
        start = int(cursor.read_text()) if cursor.exists() else 0
        rows = self.read()[partition][start : start + TAKE]
        cursor.write_text(str(start + len(rows)))
        return rows


def sometimes_failing(method):
    """Return a method that does what `method` does, and then fails a quarter of the time, after emitting the tuples."""

    def fails(self, *arguments):
        made = method(self, *arguments)
        if CHANCE.random() < 0.25:
            raise FailedException("the source is away")
        return made

    return fails


def sometimes_away(method):
    """Return a method that gives no batch half of the time, and else what `method` gives."""
    return lambda self, *arguments: None if CHANCE.random() < 0.5 else method(self, *arguments)


class OfSource(OneClass):
    """Base class of spouts of a source."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def num_partitions(self):
        return len(self.source.read())


class Plain(OfSource, PlainSpout):
    def initialize_transaction(self, txid, prev_metadata):
        starts = prev_metadata["ends"] if prev_metadata else [0, 0]
        ends = [min(start + TAKE, len(rows)) for start, rows in zip(starts, self.source.read(), strict=True)]
        return {"starts": starts, "ends": ends}

    def emit_batch(self, attempt, metadata, collector):
        for number, rows in enumerate(self.source.read()):
            if number % self.context.parallelism == self.context.task:
                for row in rows[metadata["starts"][number] : metadata["ends"][number]]:
                    collector.emit(row)


class Slow(Plain):
    """A correct spout that reports the end of its source 0.2 s before it is ready to deliver, like a busy server."""

    def coordinator(self, context):
        self.since = time.monotonic()
        return super().coordinator(context)

    def is_ready(self):
        return time.monotonic() > self.since + 0.2

    def latest(self):
        return [len(rows) for rows in self.source.read()]

    def reached(self, metadata, mark):
        return metadata is not None and metadata["ends"] == mark


class PositionInMemory(Plain):
    """Mistake: the coordinator keeps its position in memory, so it starts from 0 after a restart."""

    ends = [0, 0]

    def initialize_transaction(self, txid, prev_metadata):
        metadata = super().initialize_transaction(txid, {"ends": self.ends})
        self.ends = metadata["ends"]
        return metadata


class ReadsOn(Plain):
    """Mistake: the metadata do not include the end of the batch, so a replay includes later tuples."""

    def emit_batch(self, attempt, metadata, collector):
        ends = [start + TAKE for start in metadata["starts"]]
        super().emit_batch(attempt, {**metadata, "ends": ends}, collector)


class EveryTaskEmitsAll(Plain):
    def emit_batch(self, attempt, metadata, collector):
        for rows, start, end in zip(self.source.read(), metadata["starts"], metadata["ends"], strict=True):
            for row in rows[start:end]:
                collector.emit(row)


class LeavesOutTasks(Plain):
    """Mistake: with several tasks, counts them from 1, so that some partitions have no task."""

    def emit_batch(self, attempt, metadata, collector):
        self.context.task += self.context.parallelism > 1
        super().emit_batch(attempt, metadata, collector)
        self.context.task -= self.context.parallelism > 1


class EndsByChance(Plain):
    """Mistake: a replay emits fewer tuples, and a constant declared digest hides it from the framework."""

    def emit_batch(self, attempt, metadata, collector):
        collector.digest("all", "always the same")
        less = attempt.attempt_id % (1 << 32) != attempt.txid
        ends = [max(start, end - less) for start, end in zip(metadata["starts"], metadata["ends"], strict=True)]
        super().emit_batch(attempt, {**metadata, "ends": ends}, collector)


class Unstorable(Plain):
    def initialize_transaction(self, txid, prev_metadata):
        return {"starts": {0, 1}}


class SkipsOne(Plain):
    def initialize_transaction(self, txid, prev_metadata):
        metadata = super().initialize_transaction(txid, prev_metadata)
        starts = [min(start + 1, end) for start, end in zip(metadata["starts"], metadata["ends"], strict=True)]
        return {**metadata, "starts": starts if txid == 2 else metadata["starts"]}


class OpaquePlain(Plain):
    opaque = True


class OpaquePositionInMemory(PositionInMemory):
    opaque = True


class SeldomReady(Plain):
    """A correct spout that is seldom ready, and half of whose transactions are empty."""

    def is_ready(self):
        return CHANCE.random() < 0.5

    def initialize_transaction(self, txid, prev_metadata):
        if CHANCE.random() < 0.5:
            ends = prev_metadata["ends"] if prev_metadata else [0, 0]
            return {"starts": ends, "ends": ends}
        if CHANCE.random() < 0.5:
            return NOT_READY
        return super().initialize_transaction(txid, prev_metadata)


class FailsToEmit(Plain):
    """A correct spout some of whose attempts fail."""

    emit_batch = sometimes_failing(Plain.emit_batch)


class Partitioned(OfSource, PartitionedSpout):
    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        start = last_metadata["end"] if last_metadata else 0
        end = min(start + TAKE, len(self.source.read()[partition]))
        self.emit_partition_batch(attempt, collector, partition, {"start": start, "end": end})
        return {"start": start, "end": end}

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for row in self.source.read()[partition][metadata["start"] : metadata["end"]]:
            collector.emit(row)


class PartitionedAway(Partitioned):
    """A correct spout whose partitions sometimes have no new batch."""

    emit_partition_batch_new = sometimes_away(Partitioned.emit_partition_batch_new)


class PartitionedFails(Partitioned):
    """A correct spout whose reads of a partition sometimes fail."""

    emit_partition_batch = sometimes_failing(Partitioned.emit_partition_batch)


class ReplaysTooLittle(Partitioned):
    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        metadata = super().emit_partition_batch_new(attempt, collector, partition, last_metadata)
        return {**metadata, "start": metadata["start"] + 1} if metadata["end"] > TAKE else metadata


class Opaque(OfSource, OpaquePartitionedSpout):
    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        start = last_metadata or 0
        rows = self.source.read()[partition][start : start + TAKE]
        for row in rows:
            collector.emit(row)
        return start + len(rows)


class OpaqueAway(Opaque):
    """A correct spout: sometimes a partition has no batch, and half of the time the last one is missing."""

    emit_partition_batch = sometimes_away(Opaque.emit_partition_batch)

    def num_partitions(self):
        return super().num_partitions() - (CHANCE.random() < 0.5)


class OpaqueFails(OpaqueAway):
    """A correct spout like `OpaqueAway` whose reads also fail sometimes."""

    emit_partition_batch = sometimes_failing(OpaqueAway.emit_partition_batch)


class OpaqueSeldomReady(SeldomReady):
    opaque = True


class Consumes(Opaque):
    """Mistake: consumes its tuples as from a queue, so that those of a failed attempt are lost."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        for cursor in source.path.parent.glob(f"{source.path.stem}.[0-9]"):
            cursor.unlink()

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        rows = self.source.take_next(partition)
        for row in rows:
            collector.emit(row)
        return (last_metadata or 0) + len(rows)


class Overlaps(Opaque):
    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        end = super().emit_partition_batch(attempt, collector, partition, last_metadata)
        return max(end - 1, last_metadata or 0)


class ForgetsThePosition(Opaque):
    """Mistake: returns None, which means "no position", although it has emitted tuples."""

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        end = super().emit_partition_batch(attempt, collector, partition, last_metadata)
        return None if end == TAKE else end
