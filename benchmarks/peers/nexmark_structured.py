"""Structured Streaming: a query with state in RocksDB, whose results `foreachBatch` appends to a Delta table."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.nexmark.events import LAG_MS, WINDOW_MS, campaigns, read
from benchmarks.nexmark.queries import QUERIES, Query, leave_rows
from benchmarks.peers.structured import make_session
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve

TUNED = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def worker(session: Any) -> Work:
    """Return a function that runs queries on a session."""

    def work(job: Job) -> Outcome:
        place, query, meter = Path(job.directory), QUERIES[job.kind], Meter(job)
        (place / "input").mkdir()
        for txid in range(1, job.last + 1):
            file = place / "input" / f"{txid:08d}.parquet"
            pq.write_table(_events(job, txid), file)
            os.utime(file, (1_700_000_000 + txid,) * 2)  # the source reads files in the order of their age
        source = session.readStream.schema(_schema(query)).option("maxFilesPerTrigger", 1)
        rows = _results(query, source.parquet(str(place / "input")), session, job)
        batches = Batches(job, meter, str(place / "rows"))
        writer = rows.writeStream.outputMode("append").foreachBatch(batches)
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        leave_rows(job.directory, DeltaTable(str(place / "rows")).to_pyarrow_table())
        return meter.outcome()

    return work


class Batches:
    """Callback for `foreachBatch` that appends each batch to the Delta table once, even if it is repeated."""

    def __init__(self, job: Job, meter: Meter, path: str) -> None:
        self.job, self._meter, self._path = job, meter, path
        self._last_end = time.perf_counter()

    def __call__(self, frame: Any, batch: int) -> None:
        begun = time.perf_counter()
        options = {"txnAppId": "rows", "txnVersion": str(batch)}
        self.rows(frame).write.format("delta").mode("append").options(**options).save(self._path)
        ended = time.perf_counter()
        if batch < self.job.last:  # another one follows without events, for the watermark of the last
            self._meter.committed(batch + 1, (ended - begun) * 1e3, [(ended - self._last_end) * 1e3])
        self._last_end = ended

    def rows(self, frame: Any) -> Any:
        """Return the rows of a batch to append."""
        return _top(frame) if self.job.kind in QUERIES and QUERIES[self.job.kind].top else frame


def _events(job: Job, txid: int) -> pa.Table:
    share = range((txid - 1) * job.tuples, txid * job.tuples)
    found = {name: pa.array(column) for name, column in read(job.source, share, *QUERIES[job.kind].columns).items()}
    return pa.table({**found, "time": found["time"].cast(pa.timestamp("ms", "UTC"))})


def _schema(query: Query) -> str:
    kinds = {"kind": "TINYINT", "time": "TIMESTAMP"}
    return ", ".join(f"{name} {kinds.get(name, 'INT')}" for name in query.columns)


def _results(query: Query, events: Any, session: Any, job: Job) -> Any:
    """Return the frame of the results."""
    from pyspark.sql import functions as f

    chosen = events.where(f.col("kind") == query.chosen).withWatermark("time", f"{LAG_MS} milliseconds")
    if query.key == "campaign":
        found = campaigns(job.source).tolist()
        ads = session.createDataFrame(list(enumerate(found)), "ad INT, campaign INT")
        chosen = chosen.join(f.broadcast(ads), "ad")
    size = f"{WINDOW_MS} milliseconds"
    window = f.window("time", size, f"{query.slide} milliseconds") if query.slide else f.session_window("time", size)
    value = f.max("price") if query.highest else f.lit(0)
    counts = chosen.groupBy(window.alias("window"), query.key).agg(f.count("*").alias("n"), value.alias("value"))
    return counts.select(
        f.col(query.key).cast("long").alias("key"),
        f.unix_millis(f.col("window.end")).alias("end"),
        "n",
        f.col("value").cast("long").alias("value"),
    )


def _top(frame: Any) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    ranked = Window.partitionBy("end").orderBy(f.desc("n"), "key")
    return frame.withColumn("rank", f.row_number().over(ranked)).where("rank = 1").drop("rank")


if __name__ == "__main__":
    spark = make_session(sys.argv[1])
    try:
        for key, value in TUNED.items():
            spark.conf.set(key, value)
        serve(worker(spark))
    finally:
        spark.stop()
