"""Spouts of Storm's three kinds over files, bolts that fail on demand, and a log of all calls.

Workers of both engines run on this machine, so they and the test share files in one directory: a source, which is one
log per partition, a log of notes, and *tickets*, each of which makes one operation fail once.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from spout_samples import OneClass, PartitionedSpout, PlainSpout

from txstorm import (
    NOT_READY,
    BasicBolt,
    BatchBolt,
    Committer,
    FailedException,
    KeyedState,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    ReportedFailedException,
    SinkTable,
    TransactionalTopologyBuilder,
    run,
)
from txstorm.engine.port import Engine
from txstorm.results.read import read_sink
from txstorm.runtime.handle import RunHandle

PATIENCE = 120.0
PENDING = {"max_spout_pending": 4, "max_pack_txids": 2}


class World:
    """The directory that a test shares with its topology; in the test process it has the `handle` of the run."""

    handle = None

    def __init__(self, directory: Path):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def __reduce__(self):
        return World, (self.directory,)

    def note(self, *words) -> None:
        line = json.dumps(words) + "\n"
        with open(self.directory / "notes", "a", encoding="utf-8", buffering=len(line) + 1) as file:
            file.write(line)

    def notes(self, first: str | None = None) -> list[list]:
        path = self.directory / "notes"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        notes = [json.loads(line) for line in lines]
        return [note for note in notes if first in (None, note[0])]

    def ticket(self, name: str, times: int = 1) -> None:
        for number in range(times):
            (self.directory / f"ticket-{name}-{number}").touch()

    def take(self, name: str) -> bool:
        """Use up one ticket of this name; return whether there was one."""
        for path in sorted(self.directory.glob(f"ticket-{name}-*")):
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            return True
        return False

    def await_ticket(self, name: str) -> None:
        """Wait until a ticket of this name exists, and use it up."""
        self.wait(lambda: self.take(name), name)

    def wait(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            if self.handle is not None and not self.handle.isActive:
                raise AssertionError(f"the run ended without {what}: {self.notes()}") from self.handle.exception()
            if time.monotonic() > end:
                raise AssertionError(f"waited {PATIENCE} s for {what}; notes: {self.notes()}")
            time.sleep(0.005)

    def hold(self, txid: int, *, fails: bool = False) -> None:
        """Let `Keep` wait in the commit of a txid until it is released, and perhaps fail once then."""
        (self.directory / f"hold-{txid}").touch()
        if fails:
            self.ticket(f"after-hold-{txid}-failed")

    def await_hold(self, more: Callable[[], bool] = lambda: True) -> None:
        """Wait until a commit is held, and `more` is true."""
        self.wait(lambda: bool(self.notes("holding")) and more(), "a commit that is held")

    def release(self, txid: int) -> None:
        """Let the commit go on, and hold later attempts at the txid no more."""
        (self.directory / f"hold-{txid}").unlink(missing_ok=True)
        self.ticket(f"release-{txid}")

    def append(self, partition: int, *lines: str) -> None:
        with open(self.directory / f"p{partition}.log", "a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def lines(self, partition: int) -> list[str]:
        path = self.directory / f"p{partition}.log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def partitions(self) -> int:
        return len(list(self.directory.glob("p*.log")))

    @property
    def amount(self) -> int:
        return int((self.directory / "amount").read_text())

    @amount.setter
    def amount(self, lines: int) -> None:
        new = self.directory / "amount.new"
        new.write_text(str(lines))
        new.replace(self.directory / "amount")  # at once: others may be reading it

    def read(self, partition: int, start: int) -> tuple[int, list[str]]:
        """Return the end offset and the lines of the next batch of a partition."""
        lines = self.lines(partition)[start : start + self.amount]
        return start + len(lines), lines


class OfWorld:
    """Base of spouts and bolts over a world."""

    def __init__(self, world: World):
        self.world = world


def fail_on(world: World, place: str, attempt) -> None:
    """Raise the error requested by a ticket for this place and txid, if any."""
    if world.take(f"{place}-{attempt.txid}-failed"):
        raise FailedException(f"{place} of {attempt.txid}")
    if world.take(f"{place}-{attempt.txid}-reported"):
        raise ReportedFailedException(f"{place} of {attempt.txid}")
    if world.take(f"{place}-{attempt.txid}-other"):
        raise ValueError(f"{place} of {attempt.txid}")


class PlainLog(OfWorld, PlainSpout):
    """A spout of the plain kind: the coordinator determines the extents, and the emitters read them."""

    fields = ("partition", "line")

    def coordinator(self, context):
        made = super().coordinator(context)
        made.close = lambda: self.world.note("coordinator closed")
        return made

    def is_ready(self):
        self.world.note("is_ready")
        return not self.world.take("not-ready")

    def initialize_transaction(self, txid, prev_metadata):
        self.world.note("initialize", txid, prev_metadata)
        if self.world.take(f"initialize-{txid}-failed"):
            raise FailedException("not now")
        starts = prev_metadata["ends"] if prev_metadata else {}
        partitions = [str(p) for p in range(self.world.partitions())]
        ends = {p: self.world.read(int(p), starts.get(p, 0))[0] for p in partitions}
        if ends == starts:
            return NOT_READY
        return {"starts": {p: starts.get(p, 0) for p in partitions}, "ends": ends}

    def latest(self):
        return [len(self.world.lines(p)) for p in range(self.world.partitions())]

    def reached(self, metadata, mark):
        ends = metadata["ends"] if metadata else {}
        return all(ends.get(str(p), 0) >= size for p, size in enumerate(mark))

    def emit_batch(self, attempt, metadata, collector):
        self.world.note("emit", *attempt, self.context.task, metadata)
        self.emit_lines(metadata, collector)
        fail_on(self.world, "emit", attempt)

    def emit_lines(self, metadata, collector):
        """Emit this task's lines of a batch; return them."""
        emitted = []
        for partition, start in metadata["starts"].items():
            if int(partition) % self.context.parallelism == self.context.task:
                for line in self.world.lines(int(partition))[start : metadata["ends"][partition]]:
                    collector.emit(int(partition), line)
                    emitted.append(line)
        return emitted

    def cleanup_before(self, txid):
        self.world.note("cleanup", txid)


class OpaquePlainLog(PlainLog):
    opaque = True


class PartitionedLog(OfWorld, PartitionedSpout):
    """A spout of the partitioned kind, with metadata ``[start, end]`` for each partition."""

    fields = ("partition", "line")

    def num_partitions(self):
        return self.world.partitions()

    def is_ready(self):
        return not self.world.take("not-ready")

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        start = last_metadata[1] if last_metadata else 0
        if self.world.take(f"away-{partition}-{attempt.txid}"):
            self.world.note("away", *attempt, self.context.task, partition, last_metadata)
            return None
        end, lines = self.world.read(partition, start)
        self.world.note("new", *attempt, self.context.task, partition, [start, end])
        self.emit(attempt, collector, partition, lines)
        return [start, end]

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        start, end = metadata
        self.world.note("again", *attempt, self.context.task, partition, metadata)
        self.emit(attempt, collector, partition, self.world.lines(partition)[start:end])

    def emit(self, attempt, collector, partition, lines):
        for line in lines:
            collector.emit(partition, line)
        fail_on(self.world, "emit", attempt)


class OpaqueLog(OfWorld, OpaquePartitionedTransactionalSpout, OpaquePartitionedEmitter):
    """A spout of the opaque kind without a coordinator of its own, with metadata ``{"end": index}`` for each partition."""

    fields = ("partition", "line")
    emitter = OneClass.emitter

    def num_partitions(self):
        return self.world.partitions()

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        self.world.note("opaque", *attempt, self.context.task, partition, last_metadata)
        if self.world.take(f"null-{partition}-{attempt.txid}"):
            return None
        if self.world.take(f"away-{partition}-{attempt.txid}"):
            return last_metadata
        end, lines = self.world.read(partition, last_metadata["end"] if last_metadata else 0)
        for line in lines:
            collector.emit(partition, line)
        fail_on(self.world, "emit", attempt)
        return {"end": end}


class Watch(OfWorld, BatchBolt):
    """A batch bolt that emits its tuples in `finish_batch`, records its calls, and fails if a ticket requests it."""

    fields = ("partition", "line")

    def prepare(self, context, collector, attempt):
        self.context, self.collector, self.attempt, self.rows = context, collector, attempt, []

    def execute(self, tuple):
        self.rows.append(tuple.values)
        fail_on(self.world, f"{self.context.component}-execute", self.attempt)

    def finish_batch(self):
        self.world.note("finish", self.context.component, self.context.task, *self.attempt, len(self.rows))
        fail_on(self.world, f"{self.context.component}-finish", self.attempt)
        for row in self.rows:
            self.collector.emit(*row)


class WatchEach(OfWorld, BasicBolt):
    """A basic bolt that records its call for each tuple, and fails if a ticket requests it."""

    fields = ("partition", "line")

    def prepare(self, context):
        self.context = context

    def execute(self, tuple, collector):
        self.world.note("execute", self.context.component, self.context.task, *tuple.attempt, tuple["line"])
        fail_on(self.world, f"{self.context.component}-execute", tuple.attempt)
        collector.emit(*tuple)


class Keep(Watch, Committer):
    """A committer that writes every line to a sink, and counts equal lines in a state."""

    rows_sink = SinkTable("rows", {"partition": int, "line": str, "attempt": int})
    state = KeyedState("counts", {"line": str}, {"n": int})

    def finish_batch(self):
        super().finish_batch()
        sink, counts = self.context.sink("rows"), self.context.state("counts")
        for partition, line in self.rows:
            sink.append(partition, line, self.attempt.attempt_id)
            counts.update(line, lambda old: (old or 0) + 1)
        self.world.note("kept", *self.attempt)
        fail_on(self.world, "after-keep", self.attempt)
        if os.path.exists(self.world.directory / f"hold-{self.attempt.txid}"):
            self.world.note("holding", self.attempt.txid)
            self.world.await_ticket(f"release-{self.attempt.txid}")
            fail_on(self.world, "after-hold", self.attempt)


def start_net(
    world: World, data_dir: Path, make_engine: Callable[[], Engine], spout, *, tasks=1, settings=PENDING, **options
) -> RunHandle:
    """Run spout → watch → keep; `spout` is one, or a class of spouts over logs.

    Of the `options`, `streams` are those that are read (default: all), `watch` and `keep` classes of bolts; others are those of `run`.
    """
    bolts = [options.pop(name, kind)(world) for name, kind in (("watch", Watch), ("keep", Keep))]
    builder = TransactionalTopologyBuilder("logs", "log", spout(world) if isinstance(spout, type) else spout, tasks)
    watch = builder.set_bolt("watch", bolts[0], 1)
    for stream in options.pop("streams", getattr(spout, "sources", ["default"])):
        watch.global_grouping("log", stream)
    builder.set_committer_bolt("keep", bolts[1], 1).global_grouping("watch")
    builder.set_settings({"retry_backoff": 0.001, "compact_on_stop": False, **settings})
    world.handle = run(builder.build_topology(), engine=make_engine(), data_dir=data_dir, **options)
    return world.handle


def finished(handle: RunHandle) -> None:
    assert handle.awaitTermination(120)


def lines_by_txid(data_dir: Path) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for row in read_sink(data_dir, "rows").to_pylist():
        found.setdefault(row["_txid"], []).append(row["line"])
    return found
