"""The side of txstorm in the benchmarks of windowed and stateful bolts: topologies, and functions that run them."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import processes, sensor_events
from benchmarks.sensor_events import LAG_MS, LENGTH_MS, SLIDE_MS
from benchmarks.suite.topologies import NumberedTransactions
from benchmarks.words import words, zipf_ranks
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import KeyedState, SinkTable
from txstorm.api.tuples import Tuple
from txstorm.monitor.progress import TransactionProgress
from txstorm.results.read import read_sink, read_state
from txstorm.runtime.run import run
from txstorm.stateful.bolt import StatefulBolt
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology
from txstorm.windows.bolt import WindowedBolt
from txstorm.windows.rules.forms import Duration

COLUMNS = {"ts": int, "sensor": int, "value": int}
TASKS = 2


class CutSpout(TransactionalSpout):
    """Emits numbered rows as record batches: transaction n those from ``cuts[n - 1]`` to ``cuts[n]``."""

    def __init__(self, cuts: Sequence[int], kind: str = "readings") -> None:
        self.cuts, self.kind = cuts, kind
        self.fields = tuple(COLUMNS) if kind == "readings" else ("word",)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return NumberedTransactions(len(self.cuts) - 1)

    def emitter(self, context: TaskContext) -> Emitter:
        return _Emitter(self, context.task, context.parallelism)


class _Emitter(Emitter):
    def __init__(self, spout: CutSpout, task: int, tasks: int) -> None:
        self._spout, self._task, self._tasks = spout, task, tasks

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        first, last = self._spout.cuts[int(metadata) - 1 : int(metadata) + 1]
        size = last - first
        first, last = first + size * self._task // self._tasks, first + size * (self._task + 1) // self._tasks
        if self._spout.kind == "readings":
            columns: list[Any] = [pa.array(column) for column in sensor_events.events(first, last)]
        else:
            columns = [words(zipf_ranks(int(metadata), range(first, last)))]
        collector.emit_batch(pa.RecordBatch.from_arrays(columns, names=list(self._spout.fields)))


class SlidingSum(WindowedBolt):
    """Sum of a sliding window, kept up to date by new and expired tuples."""

    state = KeyedState("running", key={"task": int}, value={"sum": int})
    sink = SinkTable("sums", columns={"end": int, "sum": int})

    def prepare(self, context: TaskContext, collector: Collector) -> None:
        self.task, self.running, self.sums = context.task, context.state("running"), context.sink("sums")

    def execute(self, window: Any) -> None:
        change = sum(one["value"] for one in window.get_new()) - sum(one["value"] for one in window.get_expired())
        self.sums.append(window.end_timestamp, self.running.update(self.task, lambda old: (old or 0) + change))


class CountWords(StatefulBolt):
    """Storm's stateful word count."""

    fields = ("word", "n")

    def prepare(self, context: TaskContext, collector: Collector) -> None:
        self.collector = collector

    def init_state(self, state: Any) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        word = tuple["word"]
        n = self.counts.get(word, 0) + 1
        self.counts.put(word, n)
        self.collector.emit(word, n)


class CommitWords(BatchBolt, Committer):
    """The same word count as a committer on a keyed state."""

    fields = ("word", "n")
    state = KeyedState("count", key={"word": str}, value={"n": int})

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.collector, self.counts = collector, context.state("count")
        self.words: list[str] = []

    def execute(self, tuple: Tuple) -> None:
        self.words.append(tuple["word"])

    def finish_batch(self) -> None:
        counts = self.counts.get_many(set(self.words))
        for word in self.words:
            counts[word] = n = (counts.get(word) or 0) + 1
            self.collector.emit(word, n)
        self.counts.put_many(counts)


class Ignore(BatchBolt):
    """Takes tuples and does nothing."""

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        return


def window_topology(cuts: Sequence[int], length_ms: int = LENGTH_MS) -> Topology:
    """Build the topology of the sliding sum."""
    builder = TransactionalTopologyBuilder("bench", "readings", CutSpout(cuts), 2)
    bolt = SlidingSum().with_window(Duration(length_ms), Duration(SLIDE_MS)).with_columns(COLUMNS)
    bolt.with_timestamp_field("ts").with_lag(Duration(LAG_MS))
    builder.set_bolt("sum", bolt, TASKS).fields_grouping("readings", ["sensor"])
    return builder.build_topology()


def word_topology(cuts: Sequence[int], form: str) -> Topology:
    """Build the topology of the word count: ``stateful``, or ``keyed`` for the committer."""
    builder = TransactionalTopologyBuilder("bench", "words", CutSpout(cuts, "words"), 2)
    if form == "stateful":
        builder.set_bolt("count", CountWords(), TASKS).fields_grouping("words", ["word"])
    else:
        builder.set_committer_bolt("count", CommitWords(), TASKS).fields_grouping("words", ["word"])
    builder.set_bolt("after", Ignore(), TASKS).local_or_shuffle_grouping("count")
    return builder.build_topology()


class Idle(WindowedBolt):
    """Windows of processing time that close by time alone."""

    def execute(self, window: Any) -> None:
        sum(one["value"] for one in window.get())


def heartbeat_topology(cuts: Sequence[int]) -> Topology:
    """Build a topology whose source is soon silent, and whose windows close ten times a second."""
    builder = TransactionalTopologyBuilder("bench", "readings", CutSpout(cuts), 2)
    bolt = Idle().with_window(Duration.minutes(10), Duration(100)).with_columns(COLUMNS)
    builder.set_bolt("idle", bolt, TASKS).fields_grouping("readings", ["sensor"])
    return builder.build_topology()


class Marks:
    """Listener that records when each commit group was committed, and what its steps took."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, float, float, Mapping[str, float]]] = []
        self.latencies: dict[int, float] = {}
        self._here = threading.Condition()
        self._left = 0
        self._start = 0, time.perf_counter(), cpu(os.getpid())

    def __call__(self, progress: TransactionProgress) -> None:
        self.latencies[progress.txid] = time.time() * 1e3 - progress.stamp / 1e3
        self._left = (self._left or progress.group) - 1
        if not self._left:
            with self._here:
                now = time.perf_counter(), cpu(os.getpid())
                self.groups.append((progress.txid, *now, progress.commit_ms))
                self._here.notify_all()

    @property
    def last(self) -> int:
        """The last committed txid."""
        return self.groups[-1][0] if self.groups else 0

    def wait(self, handle: Any, txid: int) -> None:
        """Wait until `txid` is committed; raise what ended the run instead."""
        with self._here:
            while self.last < txid:
                if not self._here.wait(1.0) and not handle.isActive:
                    handle.awaitTermination()
                    msg = f"the run ended at txid {self.last}"
                    raise RuntimeError(msg)

    def rate(self, rows: Sequence[int]) -> dict[str, float]:
        """Return rows per second, and per CPU second of all processes, from the start of the run to the last commit.

        The time between two commits says little: later transactions are processed before the first one commits.
        """
        (_, begin, before), (last, end, after) = self._start, self.groups[-1][:3]
        return {"tuples/s": rows[last] / (end - begin), "tuples/CPU s": rows[last] / (after - before)}


def cpu(root: int) -> float:
    """Return the CPU seconds of a process tree."""
    return sum(one.cpu for one in processes.tree(root))


def begun(options: Mapping[str, Any], topology: Topology, **more: Any) -> tuple[Any, Marks]:
    """Start a run in the data directory ``place`` of the options; return its handle and its marks."""
    session = None
    if options["engine"] == "spark":
        from txstorm.clients.spark import make_session

        session = make_session("txstorm benchmarks")
    marks = Marks()
    settings = {"compact_on_stop": False, **more.pop("settings", {})}
    handle = run(
        topology,
        engine=options["engine"],
        spark=session,
        data_dir=Path(options["place"]),
        settings=settings,
        listeners=[marks],
        **more,
    )
    return handle, marks


def sliding(options: Mapping[str, Any]) -> dict[str, Any]:
    """Run the sliding sum over `count` events; return its speed and the sums."""
    cuts = list(range(0, options["count"] + 1, options["batch"]))
    handle, marks = begun(options, window_topology(cuts), until_txid=len(cuts) - 1)
    handle.awaitTermination()
    found = read_sink(Path(options["place"]), "sums").group_by("end").aggregate([("sum", "sum")]).to_pydict()
    sums = dict(zip(found["end"], found["sum_sum"], strict=True))
    return {**marks.rate(cuts), "sums": [[end, sums[end]] for end in sorted(sums)]}


def word_count(options: Mapping[str, Any]) -> dict[str, Any]:
    """Run a word count; return its speed and a digest of the counts."""
    cuts = list(range(0, options["count"] + 1, options["batch"]))
    handle, marks = begun(options, word_topology(cuts, options["form"]), until_txid=len(cuts) - 1)
    handle.awaitTermination()
    counts = read_state(Path(options["place"]), "count")
    total = sum(map(int, counts["value" if options["form"] == "stateful" else "n"].to_pylist()))
    return {**marks.rate(cuts), "words": counts.num_rows, "total": total}


def heartbeats(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the milliseconds from begin to commit of heartbeat transactions that fire windows."""
    settings = {"heartbeat_interval": 0.05}
    handle, marks = begun(options, heartbeat_topology([0, 100]), settings=settings)
    marks.wait(handle, options["count"])
    handle.stop()
    return {"ms": [marks.latencies[txid] for txid in range(10, options["count"] + 1)]}


def buffered(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a buffer, slide it for a while, and go on waiting; return what that costs. The process is to be killed."""
    cuts = _cuts(options)
    settings = {"max_group_txids": 1, "max_spout_pending": 4}
    before = written()
    topology = window_topology(cuts, options["rows"] * 1000 // sensor_events.RATE)
    handle, marks = begun(options, topology, settings=settings)
    marks.wait(handle, len(cuts) - 1)
    steady = marks.groups[-options["slides"] + 5 :]
    return {
        "ms": [one[3]["finish"] for one in steady],
        "written": (written() - before) / (cuts[-1] * 8 * len(COLUMNS)),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "txid": len(cuts) - 1,
    }


def resumed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Commit the next transaction of a run of `buffered` that was killed."""
    cuts = _cuts(options)
    cuts.append(cuts[-1] + options["slide"])
    topology = window_topology(cuts, options["rows"] * 1000 // sensor_events.RATE)
    handle, marks = begun(options, topology)
    marks.wait(handle, len(cuts) - 1)
    return {"MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _cuts(options: Mapping[str, Any]) -> list[int]:
    rows, batch, slide = options["rows"], options["batch"], options["slide"]
    filled = list(range(0, rows + batch + 1, batch))
    return filled + [filled[-1] + slide * (n + 1) for n in range(options["slides"])]


def written() -> int:
    """Return the number of bytes that this process has written to files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))
