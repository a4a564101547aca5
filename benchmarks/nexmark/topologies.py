"""Topologies of txstorm for the queries, as a user would write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.events import LAG_MS, WINDOW_MS, campaigns, columns_of, read
from benchmarks.nexmark.queries import QUERIES, Query
from benchmarks.suite.job import Job
from benchmarks.suite.topologies import NumberedTransactions
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.joins import IntervalJoin, Side
from txstorm.results.read import read_sink, read_state
from txstorm.sinks.delta import DeltaSink
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology
from txstorm.windows.aggregates.aggregate import WindowAggregate
from txstorm.windows.aggregates.top import TopPerWindow
from txstorm.windows.rules.forms import Duration

RESULTS = "results"
"""Name of the state or sink with the results."""


class EventSpout(TransactionalSpout):
    """Emits the events of a job as record batches."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.fields = tuple(columns_of(job.source["form"]))

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return NumberedTransactions(self.job.last)

    def emitter(self, context: TaskContext) -> Emitter:
        return _Emitter(self.job, context.task, context.parallelism)


class _Emitter(Emitter):
    def __init__(self, job: Job, task: int, tasks: int) -> None:
        self._job, self._task, self._tasks = job, task, tasks

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        events = self._job.tuples
        first = (int(metadata) - 1) * events
        share = range(first + events * self._task // self._tasks, first + events * (self._task + 1) // self._tasks)
        collector.emit_batch(pa.RecordBatch.from_pydict(read(self._job.source, share)))


class Chosen(BatchBolt):
    """Passes on the events that a query reads."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.fields = query.columns[1:]

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.collector = collector

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        chosen = pc.equal(batch.column("kind"), self.query.chosen)
        self.collector.emit_batch(batch.select(self.fields).filter(chosen))


class Campaigns(Chosen):
    """Passes on the times and campaigns of the events that a query reads."""

    def __init__(self, query: Query, source: Mapping[str, Any]) -> None:
        self.query, self.source = query, source
        self.fields = ("time", "campaign")

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.collector, self.campaigns = collector, pa.array(campaigns(self.source))

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        views = batch.filter(pc.equal(batch.column("kind"), self.query.chosen))
        joined = [views.column("time"), self.campaigns.take(views.column("ad"))]
        self.collector.emit_batch(pa.RecordBatch.from_arrays(joined, names=self.fields))


def topology_of(job: Job) -> Topology:
    """Build the topology of a job: the events chosen, a window aggregate, and for q5 the top of each window."""
    query = QUERIES[job.kind]
    if query.joined is not None:
        return _joined(job, query)
    builder = TransactionalTopologyBuilder("bench", "events", EventSpout(job), 2)
    chosen = Campaigns(query, job.source) if query.key == "campaign" else Chosen(query)
    builder.set_bolt("chosen", chosen, 2).local_or_shuffle_grouping("events")
    builder.set_bolt("counts", _aggregate(query), 1).fields_grouping("chosen", [query.key])
    if query.top:
        builder.set_bolt("top", TopPerWindow(1, "n")).global_grouping("counts")
        columns = {query.key: int, "end": datetime, "n": int}
        builder.set_bolt("keep", DeltaSink(RESULTS, columns)).global_grouping("top")
    return builder.build_topology()


def _joined(job: Job, query: Query) -> Topology:
    """Build the topology of a join of two window aggregates, by key and window."""
    builder = TransactionalTopologyBuilder("bench", "events", EventSpout(job), 2)
    for name, kind in (("auctions", query.chosen), ("persons", query.joined)):
        chosen = replace(query, chosen=kind)
        builder.set_bolt(f"chosen-{name}", Chosen(chosen), 2).local_or_shuffle_grouping("events")
        builder.set_bolt(name, _aggregate(chosen), 1).fields_grouping(f"chosen-{name}", [query.key])
    left, right = (Side(name, key=query.key, time="end") for name in ("auctions", "persons"))
    select = [f"auctions:{name}" for name in (query.key, "end", "n")]
    joined = builder.set_bolt("join", IntervalJoin(left, right, before=Duration(0), how="inner", select=select), 1)
    joined.fields_grouping("auctions", [query.key]).fields_grouping("persons", [query.key])
    columns = {query.key: int, "end": datetime, "n": int}
    builder.set_bolt("keep", DeltaSink(RESULTS, columns)).global_grouping("join")
    return builder.build_topology()


def _aggregate(query: Query) -> WindowAggregate:
    more = {"value": ("price", "max")} if query.highest else {}
    made = WindowAggregate(
        {query.key: int}, table=None if query.top or query.joined is not None else RESULTS, n="count", **more
    )
    made.with_timestamp_field("time").with_lag(Duration(LAG_MS))
    if query.slide:
        return made.with_window(Duration(WINDOW_MS), Duration(query.slide))
    return made.with_session_window(Duration(WINDOW_MS))


def results_of(query: Query, data: Path) -> pa.Table:
    """Return the result rows of a query in a data directory."""
    rows = (read_sink if query.top or query.joined is not None else read_state)(data, RESULTS)
    ends = rows["end"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    values = rows["value"] if query.highest else pa.array(np.zeros(rows.num_rows, np.int64))
    return pa.table({"key": rows[query.key].cast(pa.int64()), "end": ends, "n": rows["n"], "value": values})
