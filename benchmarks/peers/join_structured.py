"""Structured Streaming: a left stream-stream join, state in RocksDB, results appended to Delta by `foreachBatch`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks.joins.results import NONE, counted, leave_digest
from benchmarks.joins.rows import BEFORE_MS, LAG_MS, SIDES, read
from benchmarks.peers.nexmark_structured import TUNED, Batches
from benchmarks.peers.structured import make_session
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve

SCHEMA = "key INT, time TIMESTAMP, id BIGINT"


def worker(session: Any) -> Work:
    """Return a function that runs joins on a session."""

    def work(job: Job) -> Outcome:
        place, meter = Path(job.directory), Meter(job)
        left, right = (_side(job, session, side) for side in SIDES)
        writer = _joined(left, right).writeStream.outputMode("append")
        writer = writer.foreachBatch(Batches(job, meter, str(place / "rows")))
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        outcome = meter.outcome()
        rows = DeltaTable(str(place / "rows")).to_pyarrow_table()
        found = [rows[name].fill_null(NONE).to_numpy() for name in ("left_id", "right_id")]
        leave_digest(job.directory, counted(job.source, job.last * job.tuples, *found))
        return outcome

    return work


def _side(job: Job, session: Any, side: str) -> Any:
    """Return the stream of a side, whose columns begin with its name, with its lag."""
    names = [f"{side}_{name}" for name in ("key", "time", "id")]
    rows = side_rows(job, session, side, job.tuples // 2).toDF(*names)
    return rows.withWatermark(names[1], f"{LAG_MS} milliseconds")


def side_rows(job: Job, session: Any, side: str, step: int) -> Any:
    """Write the rows of a side, `step` of them in one file a transaction; return the stream that reads them."""
    place = Path(job.directory) / side
    place.mkdir()
    for txid in range(1, job.last + 1):
        share, file = range((txid - 1) * step, txid * step), place / f"{txid:08d}.parquet"
        keys, times = read(job.source, side, share)
        at = pa.array(times).cast(pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table({"key": keys, "time": at, "id": np.arange(share.start, share.stop)}), file)
        os.utime(file, (1_700_000_000 + txid,) * 2)  # the source reads files in the order of their age
    return session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(place))


def _joined(left: Any, right: Any) -> Any:
    from pyspark.sql import functions as f

    bounds = f.expr(
        "left_key = right_key AND right_time <= left_time"
        f" AND right_time >= left_time - INTERVAL {BEFORE_MS // 1000} SECONDS"
    )
    return left.join(right, bounds, "leftOuter").select("left_id", "right_id")


if __name__ == "__main__":
    spark = make_session(sys.argv[1])
    try:
        for key, value in TUNED.items():
            spark.conf.set(key, value)
        serve(worker(spark))
    finally:
        spark.stop()
