"""Monoid bolts beside what they are compared with, each in turns in one process: ratios of processor seconds.

    python -m benchmarks.hailstorm [--quick] [--rounds N] [--only PART ...]

Parts: `once`, trending hashtags against the same stages at least once, with states in memory and positions stored each
second (`benchmarks.peers.hailstorm_loop`), without the start; `sums`, a `MonoidBolt` of sums against `SumByKey`;
`sketches`, HyperLogLog of 10,000 keys against a plain loop over sketches of Apache DataSketches; `distinct`, distinct
users per page against Structured Streaming's ``approx_count_distinct`` with its state in RocksDB.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.machine import cpu_seconds
from benchmarks.peers.hailstorm_loop import Loop
from benchmarks.streaming import Spent, Watch
from benchmarks.suite.topologies import NumberedTransactions
from jobs.trending_hashtags import HASHTAGS, make
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.bolts import SumByKey
from txstorm.clients.spark import make_session
from txstorm.monoids import HyperLogLog, MonoidBolt, Sum
from txstorm.runtime.run import run
from txstorm.topology.builder import TransactionalTopologyBuilder

KEYS, PAGES = 10_000, 1_000
Line = tuple[str, float, float]
"""A figure: its name, the ratio, and the least that it should be."""


class Pairs(TransactionalSpout):
    """Emits a record batch of `rows` random keys and values in each of `txids` transactions."""

    fields = ("k", "v")

    def __init__(self, rows: int, txids: int, keys: int = KEYS) -> None:
        self.rows, self.txids, self.keys = rows, txids, keys

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return NumberedTransactions(self.txids)

    def emitter(self, context: TaskContext) -> Emitter:
        return _Pairs(self)

    def batch(self, txid: int) -> pa.RecordBatch:
        """Return the batch of a transaction."""
        rng = np.random.default_rng(txid)
        columns = {"k": rng.integers(0, self.keys, self.rows), "v": rng.integers(0, 1 << 40, self.rows)}
        return pa.record_batch(columns)


class _Pairs(Emitter):
    def __init__(self, spout: Pairs) -> None:
        self._spout = spout

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        collector.emit_batch(self._spout.batch(int(metadata)))


def ours(
    pairs: Pairs, bolt: Any, engine: str = "local", spark: Any = None, listener: Any = None
) -> tuple[float, list[dict[str, Any]]]:
    """Run a topology of one bolt; return its processor seconds, and the rows of its table ``t``."""
    builder = TransactionalTopologyBuilder("monoids", "pairs", pairs, 1)
    builder.set_bolt("bolt", bolt, 1).fields_grouping("pairs", ["k"])
    topology, listeners = builder.build_topology(), () if listener is None else (listener,)
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
        before, data = sum(cpu_seconds()), Path(place) / "data"
        handle = run(topology, engine=engine, spark=spark, data_dir=data, available_now=True, listeners=listeners)
        handle.awaitTermination()
        return sum(cpu_seconds()) - before, handle.state("t").to_pylist()


def sketch_loop(pairs: Pairs) -> tuple[float, dict[int, Any]]:
    """Update one sketch per key in a loop over the pairs; return the processor seconds, and key → sketch."""
    import datasketches as library

    before, sketches = time.process_time(), {}
    for txid in range(1, pairs.txids + 1):
        batch = pairs.batch(txid)
        for key, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            sketch = sketches.get(key)
            if sketch is None:
                sketch = sketches[key] = library.hll_sketch(12, library.tgt_hll_type.HLL_8)
            sketch.update(value)
    return time.process_time() - before, sketches


def ratio(rounds: int, peer: Callable[[], float], mine: Callable[[], float]) -> float:
    """Return the median of the peer's seconds by ours, in turns, after a round that does not count."""
    found = [peer() / mine() for _ in range(rounds + 1)]
    return statistics.median(found[1:])


def sums(asked: argparse.Namespace) -> Iterator[Line]:
    """Compare sums."""
    pairs = Pairs(20_000, 10 if asked.quick else 40)
    by_key = SumByKey({"k": int}, "v", "t")
    for text, emit in (("", None), (", with emitted states", "batch")):
        monoid = MonoidBolt("t", Sum(), {"k": int}, to_state="v", emit=emit)
        found = ratio(asked.rounds, partial(_first, ours, pairs, by_key), partial(_first, ours, pairs, monoid))
        yield f"MonoidBolt(Sum) against SumByKey{text}", found, 0.95


def users() -> MonoidBolt:
    """Return a bolt that sketches the values of each key."""
    return MonoidBolt("t", HyperLogLog(), {"k": int}, to_state="v", emit=None)


def sketches(asked: argparse.Namespace) -> Iterator[Line]:
    """Compare sketches, and check that they estimate the same."""
    for rows, txids in ((20_000, 10), (200_000, 4), (1_000_000, 2)):
        pairs = Pairs(rows // 10 if asked.quick else rows, txids)
        _, loop = sketch_loop(pairs)
        for row in ours(pairs, users())[1]:
            known = loop[row["k"]].get_estimate()
            if abs(HyperLogLog.value(row["state"]) - known) > 3 + 0.1 * known:
                raise SystemExit(f"key {row['k']}: {HyperLogLog.value(row['state'])}, but the loop has {known}")
        found = ratio(asked.rounds, partial(_first, sketch_loop, pairs), partial(_first, ours, pairs, users()))
        yield f"HyperLogLog against a loop, {pairs.rows:,} rows a txid", found, 0.7


def _first(measure: Callable[..., tuple[float, Any]], *given: Any) -> float:
    return measure(*given)[0]


def distinct(asked: argparse.Namespace) -> Iterator[Line]:
    """Compare distinct users per page with a streaming query whose state is in RocksDB; per transaction, warm."""
    rows, txids = 100_000, 6 if asked.quick else 13
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    options = {"spark.sql.streaming.stateStore.providerClass": provider, "spark.sql.shuffle.partitions": "2"}
    spark = make_session("distinct", extra=options)
    peer = _approximate(spark, rows, txids)
    for engine in ("local", "spark"):
        watch, pairs = Watch(), Pairs(rows, txids, PAGES)
        ours(pairs, users(), engine, spark if engine == "spark" else None, watch)
        mine = watch.spent()
        text = f"distinct users per page against approx_count_distinct, {engine}"
        yield f"{text}, processors", peer.cpu / mine.cpu, 3
        yield f"{text}, clock", peer.clock / mine.clock, 3
    spark.stop()


def _approximate(spark: Any, rows: int, txids: int) -> Spent:
    """Return what a batch of the streaming query takes after the first ones."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    stream = source.selectExpr(f"(value * 7919) % {PAGES} AS page", "hash(value) AS user")
    counts = stream.groupBy("page").agg({"user": "approx_count_distinct"})
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
        writer = counts.writeStream.outputMode("update").format("noop").option("checkpointLocation", place)
        query, watch, batch = writer.start(), Watch(), 1
        while batch <= txids:
            query.awaitTermination(0.01)
            if (query.lastProgress or {"batchId": -1})["batchId"] >= batch:
                watch()
                batch = query.lastProgress["batchId"] + 1
        query.stop()
    return watch.spent()


def once(asked: argparse.Namespace) -> Iterator[Line]:
    """Compare trending hashtags exactly once with the same stages at least once; tuples a processor second."""
    for rows, txids, least in ((200_000, 12, 0.85), (20_000, 60, 0.8), (1_000, 600, 0.6)):
        with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
            read = _copies(Path(place), rows * txids)
            peer, mine = partial(_at_least_once, read, rows, txids), partial(_exactly_once, read, rows, txids)
            yield f"exactly once against at least once, {rows:,} tuples a txid", ratio(asked.rounds, peer, mine), least


def _copies(place: Path, records: int) -> list[Path]:
    """Return four files with as many hashtags as are asked for."""
    tags = b"".join(path.read_bytes() for path in HASHTAGS)
    paths = [place / f"tags-{number}.txt" for number in range(4)]
    for path in paths:
        path.write_bytes(tags * (records // 4 // tags.count(b"\n") + 1))
    return paths


def _at_least_once(paths: list[Path], rows: int, txids: int) -> float:
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
        before, loop = time.process_time(), Loop(paths, Path(place))
        loop.run(txids, rows)
        return (time.process_time() - before) / txids


def _exactly_once(paths: list[Path], rows: int, txids: int) -> float:
    ends: list[float] = []  # of this process, which does all the work: a walk through /proc costs 10 ms a transaction
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
        topology, data = make(paths, max_batch_rows=rows), Path(place) / "data"
        listener = partial(_process_time, ends)
        run(topology, engine="local", data_dir=data, until_txid=txids, listeners=(listener,)).awaitTermination()
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def _process_time(ends: list[float], progress: Any) -> None:
    ends.append(time.process_time())


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "once": once,
    "sums": sums,
    "sketches": sketches,
    "distinct": distinct,
}


def main() -> None:
    """Print the figures of the parts asked for."""
    parser = argparse.ArgumentParser("benchmarks.hailstorm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (3)")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; repeatable")
    asked = parser.parse_args()
    for name in asked.only or PARTS:
        for text, found, least in PARTS[name](asked):
            print(f"{text:70} {found:6.2f}  (at least {least})", flush=True)


if __name__ == "__main__":
    main()
