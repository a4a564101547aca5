"""Topologies of txstorm for the joins, as a user would write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.joins.results import NONE, digest, until
from benchmarks.joins.rows import BEFORE_MS, LAG_MS, LEFT, RIGHT, SIDES, read
from benchmarks.suite.job import Job
from benchmarks.suite.topologies import NumberedTransactions
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.composite import CompositeSpout
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.api.state import KeyedState
from txstorm.joins import IntervalJoin, Side
from txstorm.results.read import read_sink, read_state
from txstorm.sinks.delta import DeltaSink
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology
from txstorm.windows.rules.forms import Duration

RESULTS = "results"
"""Name of the sink or state with the results."""


class SideRows(TransactionalSpout):
    """Emits rows of one side as record batches: in each transaction the next `step` rows, from the row `first` on."""

    fields = ("key", "time", "id")

    def __init__(self, source: Mapping[str, Any], side: str, txids: int, step: int, first: int = 0) -> None:
        self.source, self.side, self.txids, self.step, self.first = source, side, txids, step, first

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return NumberedTransactions(self.txids)

    def emitter(self, context: TaskContext) -> Emitter:
        return _Emitter(self, context.task, context.parallelism)


class _Emitter(Emitter):
    def __init__(self, rows: SideRows, task: int, tasks: int) -> None:
        self._rows, self._task, self._tasks = rows, task, tasks

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        rows = self._rows
        begin = rows.first + (int(metadata) - 1) * rows.step
        share = range(
            begin + rows.step * self._task // self._tasks, begin + rows.step * (self._task + 1) // self._tasks
        )
        keys, times = read(rows.source, rows.side, share)
        columns = [keys.astype(np.int64), times, np.arange(share.start, share.stop)]
        arrays = [pa.array(one) for one in columns]
        collector.emit_batch(pa.RecordBatch.from_arrays(arrays, names=rows.fields))


class AddUp(BatchBolt, Committer):
    """Adds up the result rows of left rows older than `limit`."""

    state = KeyedState(RESULTS, key={}, value={"rows": int, "pairs": int, "sum": int})

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.total, self.found = context.state(RESULTS), np.zeros(3, np.int64)

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        chosen = batch.filter(pc.less(batch.column("time"), self.limit))
        right = pc.fill_null(chosen.column("right_id"), NONE).to_numpy(zero_copy_only=False)
        self.found += digest(chosen.column("left_id").to_numpy(zero_copy_only=False), right)

    def finish_batch(self) -> None:
        before = self.total.get(()) or dict.fromkeys(("rows", "pairs", "sum"), 0)
        self.total.put((), {name: before[name] + n for name, n in zip(before, self.found.tolist(), strict=True)})


def both_sides(job: Job) -> CompositeSpout:
    """Return a spout of two sources, of each of which a transaction takes as many rows."""
    return CompositeSpout({side: SideRows(job.source, side, job.last, job.tuples // 2) for side in SIDES})


def interval_join() -> IntervalJoin:
    """Return the left join of the streams of a spout named ``rows``."""
    typed = {"columns": dict.fromkeys(SideRows.fields, int), "lag": Duration(LAG_MS)}
    left, right = (Side("rows", side, key="key", time="time", id="id", **typed) for side in SIDES)
    select = ["left:id", "right:id", "left:time"]
    return IntervalJoin(left, right, before=Duration(BEFORE_MS), how="left", select=select)


def topology_of(job: Job) -> Topology:
    """Build the topology of a job: the join, and a bolt that adds up its results, or with the form ``sink`` a sink."""
    columns = {"left_id": int, "right_id": int, "time": int}
    sink = DeltaSink(RESULTS, columns) if job.form == "sink" else None
    return joined(both_sides(job), sink or AddUp(until(job.source, job.last * job.tuples)))


def joined(spout: CompositeSpout, keep: BatchBolt) -> Topology:
    """Build a topology of a spout, the join, and the committer `keep` of its results."""
    builder = TransactionalTopologyBuilder("bench", "rows", spout, 2)
    join = builder.set_bolt("join", interval_join(), 1)
    join.fields_grouping("rows", LEFT, ["key"]).fields_grouping("rows", RIGHT, ["key"])
    builder.set_committer_bolt("keep", keep).global_grouping("join")
    return builder.build_topology()


def digest_of(job: Job, data: Path) -> list[int]:
    """Return the digest of the results in a data directory."""
    if job.form != "sink":
        [row] = read_state(data, RESULTS).to_pylist()
        return [int(row[name]) for name in ("rows", "pairs", "sum")]
    found = read_sink(data, RESULTS)
    found = found.filter(pc.less(found["time"], until(job.source, job.last * job.tuples)))
    return digest(found["left_id"].to_numpy(), pc.fill_null(found["right_id"], NONE).to_numpy())
