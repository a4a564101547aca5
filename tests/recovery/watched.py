"""Bolts that record every call in a file that survives them, and fail, hang or kill their process on request."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spout_samples import OpaquePartitionedSpout

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder, run
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import SinkTable
from txstorm.runtime.handle import RunHandle
from txstorm.spouts import MemoryTransactionalSpout

SETTINGS = {"max_spout_pending": 16, "max_pack_txids": 8, "retry_backoff": 0.01, "retry_backoff_max": 0.05}
NUMBERS = list(range(1, 21))

Trouble = Callable[[int, int], object]
"""Called with the txid and the number of its attempts so far, from 1; may raise, hang or kill."""


def at(txid: int, act: Callable[[], object], times: int = 1_000_000) -> Trouble:
    """Return the trouble that calls `act` in the first `times` attempts of `txid`."""
    return lambda now, nth: act() if now == txid and nth <= times else None


def raising(error: BaseException) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


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
        return [entry[1:] for entry in self.read() if entry[0] == what]

    def txids(self, what: str) -> list[int]:
        return [txid for txid, *_ in self.of(what)]

    def calls(self, what: str) -> dict[int, int]:
        """Return how often `what` is noted of each txid."""
        return dict(sorted(Counter(self.txids(what)).items()))


class Gathering(BatchBolt):
    """Base of batch bolts that do their work at the end of the batch: `taken` has the values of the field `takes`."""

    takes = "n"

    def prepare(self, context, collector, attempt):
        self.context, self.collector, self.attempt, self.taken = context, collector, attempt, []

    def execute(self, tuple):
        self.taken.append(tuple[self.takes])


class Watched(Gathering):
    """A batch bolt that calls its trouble, notes ``[name, txid, numbers]`` and emits, all in `finish_batch`."""

    fields = ("n",)

    def __init__(self, diary: Diary, name: str = "process", trouble: Trouble | None = None) -> None:
        self.diary, self.name, self.trouble = diary, name, trouble

    def finish_batch(self):
        self.diary.note(self.name, self.attempt.txid, self.taken)
        if self.trouble is not None:
            self.trouble(self.attempt.txid, self.diary.txids(self.name).count(self.attempt.txid))
        for number in self.taken:
            self.collector.emit(number)


class Keep(Watched, Committer):
    """A committer that stores the sum, a count per number, and one sink row per number; calls its trouble first."""

    total = KeyedState("total", key={}, value={"n": int})
    seen = KeyedState("seen", key={"n": int}, value={"times": int})
    numbers_sink = SinkTable("numbers", {"n": int})

    def finish_batch(self):
        self.context.state("total").update((), lambda old: (old or 0) + sum(self.taken))
        for number in self.taken:
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


def numbers() -> MemoryTransactionalSpout:
    """Build a spout of `NUMBERS`, two per transaction."""
    return MemoryTransactionalSpout([NUMBERS], ["n"], take=2)


class Watch:
    """Runs of the watched topology in `place`: its tables are in ``data``, its notes in ``diary``."""

    RUN = ("spark", "journal", "ledger", "listeners", "until_txid", "available_now")

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self.data_dir, self.diary = place / "data", Diary(place / "diary")

    def start(self, source: Any = None, engine: Any = "local", **options: Any) -> RunHandle:
        """Start a run, by default over `numbers`; `options` are those of `run`, the rest is for `watched_topology`."""
        chosen = {name: options.pop(name) for name in self.RUN if name in options}
        topology = watched_topology(numbers() if source is None else source, self.diary, **options)
        return run(topology, engine=engine, data_dir=self.data_dir, **chosen)

    def ends(self, source: Any = None, **options: Any) -> RunHandle:
        limit = {} if "until_txid" in options else {"available_now": True}
        handle = self.start(source, **limit, **options)
        handle.awaitTermination()
        return handle


class PlannedSpout(TransactionalSpout, SpoutCoordinator):
    """Base of spouts that are their own coordinators, and whose method `emit` is the emitter."""

    fields = ("n",)

    def coordinator(self, context):
        return self

    def emitter(self, context):
        return _PlannedEmitter(self, context)

    def emit(self, context, attempt, metadata, collector):
        """Emit a task's share of the numbers of the half-open range `metadata`."""
        for number in list(range(*metadata))[context.task :: context.parallelism]:
            collector.emit(number)


class _PlannedEmitter(Emitter):
    def __init__(self, spout, context):
        self.spout, self.context = spout, context

    def emit_batch(self, attempt, metadata, collector):
        self.spout.emit(self.context, attempt, metadata, collector)


class Endless(PlannedSpout):
    """An endless spout of the numbers from 1 on, `size` in each transaction: with two, 2N - 1 and 2N in transaction N."""

    def __init__(self, size: int = 2) -> None:
        self.size = size

    def initialize_transaction(self, txid, prev_metadata):
        return [self.size * (txid - 1) + 1, self.size * txid + 1]


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


class ShelfSpout(PlannedSpout):
    """An opaque spout over a shelf, planned in the driver: undecided transactions are planned from its new content."""

    opaque = True

    def __init__(self, shelf: Shelf) -> None:
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

    def emit(self, context, attempt, metadata, collector):
        for rows in context.payload[context.task :: context.parallelism]:
            for row in rows:
                collector.emit(row)


class PartitionedShelfSpout(OpaquePartitionedSpout):
    """An opaque partitioned spout over a shelf, planned in the tasks."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def num_partitions(self):
        return len(self.shelf.rows())

    def emit_partition_batch(self, attempt, collector, partition, last_metadata):
        start = last_metadata["end"] if last_metadata else 0
        rows = self.shelf.rows()[partition][start : start + self.shelf.take(attempt.txid)]
        for row in rows:
            collector.emit(row)
        return {"start": start, "end": start + len(rows)}
