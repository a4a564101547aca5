"""Bolts that record every call in a file that survives them, and fail, hang or kill their process on request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txstorm import (
    BatchBolt,
    Committer,
    Emitter,
    KeyedState,
    OpaquePartitionedEmitter,
    OpaquePartitionedTransactionalSpout,
    SpoutCoordinator,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstorm.api.state import SinkTable

Trouble = Callable[[int, int], object]
"""Called with the txid and the number of its attempts so far, from 1; may raise, hang or kill."""

SETTINGS = {"max_spout_pending": 16, "max_pack_txids": 8, "retry_backoff": 0.01, "retry_backoff_max": 0.05}


class Diary:
    """A shared log: a file of JSON lines to which any process may append."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)

    def note(self, *entry: Any) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def read(self) -> list[list[Any]]:
        if not os.path.exists(self.path):
            return []
        with open(self.path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def of(self, what: str) -> list[list[Any]]:
        """Return the entries that begin with `what`, without it."""
        return [entry[1:] for entry in self.read() if entry[0] == what]


class Watched(BatchBolt):
    """A batch bolt that calls its trouble, notes ``[name, txid, numbers]`` and emits, all in `finish_batch`."""

    fields = ("n",)

    def __init__(self, diary: Diary, name: str = "process", trouble: Trouble | None = None) -> None:
        self.diary, self.name, self.trouble = diary, name, trouble

    def prepare(self, context, collector, attempt):
        self.context, self.collector, self.attempt, self.numbers = context, collector, attempt, []

    def execute(self, tuple):
        self.numbers.append(tuple["n"])

    def finish_batch(self):
        self.diary.note(self.name, self.attempt.txid, self.numbers)
        if self.trouble is not None:
            self.trouble(self.attempt.txid, [txid for txid, _ in self.diary.of(self.name)].count(self.attempt.txid))
        for number in self.numbers:
            self.collector.emit(number)


class Keep(Watched, Committer):
    """A committer that stores the sum, a count per number, and one sink row per number; calls its trouble first."""

    total = KeyedState("total", key={}, value={"n": int})
    seen = KeyedState("seen", key={"n": int}, value={"times": int})
    numbers_sink = SinkTable("numbers", {"n": int})

    def finish_batch(self):
        self.context.state("total").update((), lambda old: (old or 0) + sum(self.numbers))
        for number in self.numbers:
            self.context.state("seen").update(number, lambda old: (old or 0) + 1)
            self.context.sink("numbers").append(number)
        super().finish_batch()


def watched_topology(
    source: Any, diary: Diary, process: Trouble | None = None, commit: Trouble | None = None, **settings: Any
) -> Any:
    """Build spout → a watched bolt → a watched committer, each with one task."""
    builder = TransactionalTopologyBuilder("watched", "numbers", source)
    builder.set_bolt("process", Watched(diary, "process", process)).global_grouping("numbers")
    builder.set_bolt("commit", Keep(diary, "commit", commit)).global_grouping("process")
    return builder.build_topology().with_settings({**SETTINGS, **settings})


class Endless(TransactionalSpout):
    """An endless spout whose transaction N has the numbers 2N - 1 and 2N."""

    fields = ("n",)

    def coordinator(self, context):
        return _EndlessCoordinator()

    def emitter(self, context):
        return _EndlessEmitter()


class _EndlessCoordinator(SpoutCoordinator):
    def initialize_transaction(self, txid, prev_metadata):
        return [2 * txid - 1, 2 * txid + 1]


class _EndlessEmitter(Emitter):
    def emit_batch(self, attempt, metadata, collector):
        for number in range(*metadata):
            collector.emit(number)


class Shelf:
    """A source stored in a file, read again at every access: ``{"rows": [[…], …], "take": n or {txid: n}}``."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)

    def write(self, *partitions: list[Any], take: int | dict[str, int] = 2) -> Shelf:
        new = f"{self.path}.new"
        Path(new).write_text(json.dumps({"rows": partitions, "take": take}))
        os.replace(new, self.path)
        return self

    def rows(self) -> list[list[Any]]:
        return json.loads(Path(self.path).read_text())["rows"]

    def take(self, txid: int) -> int:
        take = json.loads(Path(self.path).read_text())["take"]
        return take.get(str(txid), take["else"]) if isinstance(take, dict) else take


class ShelfSpout(TransactionalSpout):
    """An opaque spout over a shelf, planned in the driver: undecided transactions are planned from its new content."""

    opaque = True
    fields = ("n",)

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def coordinator(self, context):
        return _ShelfCoordinator(self.shelf)

    def emitter(self, context):
        return _ShelfEmitter(context)


class _ShelfCoordinator(SpoutCoordinator):
    def __init__(self, shelf):
        self.shelf = shelf

    def initialize_transaction(self, txid, prev_metadata):
        starts = [end for _, end in prev_metadata] if prev_metadata else [0] * len(self.shelf.rows())
        take = self.shelf.take(txid)
        return [[start, min(start + take, len(rows))] for start, rows in zip(starts, self.shelf.rows(), strict=True)]

    def payload(self, metadata):
        return [rows[start:end] for rows, (start, end) in zip(self.shelf.rows(), metadata, strict=True)]

    def latest(self):
        return [len(rows) for rows in self.shelf.rows()]

    def reached(self, metadata, mark):
        return metadata is not None and all(end >= size for (_, end), size in zip(metadata, mark, strict=True))


class _ShelfEmitter(Emitter):
    def __init__(self, context):
        self.context = context

    def emit_batch(self, attempt, metadata, collector):
        for rows in self.context.payload[self.context.task :: self.context.parallelism]:
            for row in rows:
                collector.emit(row)


class PartitionedShelfSpout(OpaquePartitionedTransactionalSpout):
    """An opaque partitioned spout over a shelf, planned in the tasks."""

    fields = ("n",)

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def emitter(self, context):
        return _PartitionedShelfEmitter(self.shelf)


class _PartitionedShelfEmitter(OpaquePartitionedEmitter):
    def __init__(self, shelf):
        self.shelf = shelf

    def num_partitions(self):
        return len(self.shelf.rows())

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        start = last_metadata["end"] if last_metadata else 0
        rows = self.shelf.rows()[partition][start : start + self.shelf.take(attempt.txid)]
        for row in rows:
            collector.emit(row)
        return {"start": start, "end": start + len(rows)}
