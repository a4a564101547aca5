"""Duration of heartbeats: transactions that close windows of processing time while the source is silent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.machine import percentile
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.monitor.progress import TransactionProgress
from txstorm.runtime.run import run
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.windows.aggregates.aggregate import WindowAggregate
from txstorm.windows.rules.forms import Duration

KEYS, EVERY_MS = 100, 100
"""Number of keys, each of which has a result at every heartbeat, and the time between two of these."""


class Once(TransactionalSpout):
    """Emits one transaction with all keys, and is silent from then on."""

    fields = ("key",)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return _Coordinator()

    def emitter(self, context: TaskContext) -> Emitter:
        return _Emitter()


class _Coordinator(SpoutCoordinator):
    def __init__(self) -> None:
        self._planned = False

    def is_ready(self) -> bool:
        return not self._planned

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        self._planned = True
        return txid


class _Emitter(Emitter):
    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        collector.emit_batch(pa.RecordBatch.from_pydict({"key": list(range(KEYS))}))


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """Return median and p99 of the milliseconds from the planning of heartbeats to the end of their commits."""
    wanted = int(options["heartbeats"])
    builder = TransactionalTopologyBuilder("heartbeats", "keys", Once())
    counts = WindowAggregate({"key": int}, table="counts", n="count")
    counts.with_window(Duration.minutes(30), Duration(EVERY_MS))  # longer than the run may take
    builder.set_bolt("counts", counts).fields_grouping("keys", ["key"])
    found: list[float] = []

    def listen(progress: TransactionProgress) -> None:
        if not progress.numInputRows:
            found.append(time.time() * 1e3 - progress.stamp / 1e3)

    handle = run(
        builder.build_topology(),
        engine=options["engine"],
        data_dir=Path(options["directory"]) / "data",
        until_txid=wanted + 1,
        settings={"heartbeat_interval": EVERY_MS / 2000, "compact_on_stop": False},
        listeners=[listen],
    )
    handle.awaitTermination()
    if len(found) < wanted:
        msg = f"expected {wanted} heartbeats, got {len(found)}"
        raise RuntimeError(msg)
    return {"p50 ms": percentile(found, 0.5), "p99 ms": percentile(found, 0.99)}
