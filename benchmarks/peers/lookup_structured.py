"""Structured Streaming: batches joined with a Delta table by a broadcast join in `foreachBatch`, appended to Delta."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from benchmarks.joins.lookups import table_of
from benchmarks.joins.results import NONE, digest, leave_digest
from benchmarks.joins.rows import LEFT
from benchmarks.peers.join_structured import side_rows
from benchmarks.peers.nexmark_structured import Batches
from benchmarks.peers.structured import make_session
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve


class LookUps(Batches):
    """Callback for `foreachBatch` that joins each batch with the table's newest version."""

    def rows(self, frame: Any) -> Any:
        from pyspark.sql import functions as f

        table = frame.sparkSession.read.format("delta").load(table_of(self.job.source))
        return frame.join(f.broadcast(table), "key", "left").select("id", "number")


def worker(session: Any) -> Work:
    """Return a function that runs look-ups on a session."""

    def work(job: Job) -> Outcome:
        place, meter = Path(job.directory), Meter(job)
        writer = side_rows(job, session, LEFT, job.tuples).writeStream
        writer = writer.foreachBatch(LookUps(job, meter, str(place / "rows")))
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        outcome = meter.outcome()
        found = DeltaTable(str(place / "rows")).to_pyarrow_table()
        leave_digest(job.directory, digest(found["id"].to_numpy(), found["number"].fill_null(NONE).to_numpy()))
        return outcome

    return work


if __name__ == "__main__":
    spark = make_session(sys.argv[1])
    try:
        serve(worker(spark))
    finally:
        spark.stop()
