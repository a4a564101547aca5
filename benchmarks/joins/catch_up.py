"""A right side that is 10^6 rows behind: the time until it is joined, against the time to read both sides alone.

The left side is at the present and goes on, with few rows in each transaction. Nine of ten right rows are older than
any left row can match, so that they expire when they come; the others fill the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.joins.results import NONE, RightRows, digest, pairs
from benchmarks.joins.rows import LEFT, RIGHT, SIDES, read, stored
from benchmarks.joins.topologies import AddUp, SideRows, digest_of, joined
from benchmarks.nexmark.queries import WrongResult
from benchmarks.peers.ours import Watch, measured
from benchmarks.suite.bare import Recording
from benchmarks.suite.job import Job
from benchmarks.suite.meter import Meter
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.composite import CompositeSpout
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import KeyedState
from txstorm.runtime.run import make_engine
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

KIND = "join-narrow"
BEHIND, MARGIN, STEPS = 1_000_000, 200_000, {LEFT: 10_000, RIGHT: 100_000}
"""Rows by which the right side is behind, rows that it is ahead at the end, and rows in a transaction."""
TXIDS = (BEHIND + MARGIN) // STEPS[RIGHT]
LEFTS = range(BEHIND, BEHIND + TXIDS * STEPS[LEFT])
ALL = 1 << 62
"""A time after that of all rows."""


class Count(BatchBolt, Committer):
    """Counts the rows of both sides."""

    state = KeyedState("read", key={}, value={"n": int})

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        self.total, self.n = context.state("read"), 0

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self.n += batch.num_rows

    def finish_batch(self) -> None:
        self.total.update((), lambda old: (old or 0) + self.n)


def _spout(source: Mapping[str, Any]) -> CompositeSpout:
    begin = {LEFT: BEHIND, RIGHT: 0}
    return CompositeSpout({side: SideRows(source, side, TXIDS, STEPS[side], begin[side]) for side in SIDES})


def _read_alone(source: Mapping[str, Any]) -> Topology:
    builder = TransactionalTopologyBuilder("bench", "rows", _spout(source), 2)
    count = builder.set_committer_bolt("count", Count(), 1)
    count.fields_grouping("rows", LEFT, ["key"]).fields_grouping("rows", RIGHT, ["key"])
    return builder.build_topology()


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure in turns, after a round that does not count; return seconds and ratios.

    Raises:
        WrongResult: the results of the join are wrong.
    """
    engine, session = options["engine"], None
    if engine == "spark":
        from txstorm.clients.spark import make_session

        session = make_session("txstorm benchmarks")
    found: dict[str, list[float]] = {"joined": [], "alone": []}
    with stored(KIND, 2 * (BEHIND + MARGIN)) as source:
        wanted = _wanted(source)
        job = Job(KIND, sum(STEPS.values()), TXIDS, loaded=False, source=source)
        for number in range(int(options["rounds"]) + 1):
            for name, times in found.items():
                topology = joined(_spout(source), AddUp(ALL)) if name == "joined" else _read_alone(source)
                placed = replace(job, directory=str(Path(options["directory"]) / f"{name}-{number}"))
                seconds = _seconds(placed, topology, engine, session)
                if number:
                    times.append(seconds)
                if name == "joined" and (got := digest_of(job, Path(placed.directory) / "data")) != wanted:
                    msg = f"txstorm, a right side behind: WRONG: expected {wanted}, got {got}"
                    raise WrongResult(msg)
    ratios = [mine / alone for mine, alone in zip(found["joined"], found["alone"], strict=True)]
    return {**found, "ratios": ratios}


def _seconds(job: Job, topology: Topology, engine: str, session: Any) -> float:
    meter = Meter(job)
    recording = Recording(make_engine(engine, session, topology.settings.max_jobs), meter.begin, engine)
    measured(job, topology, recording, session, Watch(meter))
    return meter.outcome().seconds


def _wanted(source: Mapping[str, Any]) -> list[int]:
    """Return the digest of the results: all left rows are older than the right side's last position."""
    held = RightRows(*read(source, RIGHT, range(BEHIND + MARGIN)))
    left, right = pairs(*held.matches(*read(source, LEFT, LEFTS)))
    return digest(left + LEFTS.start, np.where(right == NONE, NONE, held.order[right]))
