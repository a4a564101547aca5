"""Spark Structured Streaming with `foreachBatch` into Delta: MERGE into a table of counts, or append of changes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from benchmarks.suite.exact import leave
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve

CORES = os.cpu_count() or 1
# Settings that make small batches faster; the first three are Spark's, the others Delta's.
TUNED = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.autoBroadcastJoinThreshold": "64MB",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "100",
}
MERGE = """
    MERGE INTO delta.`{path}` AS old USING {new} AS new ON old.word = new.word
    WHEN MATCHED THEN UPDATE SET n = old.n + new.n WHEN NOT MATCHED THEN INSERT *
"""


def make_session(*jars: str | Path) -> Any:
    """Create a session with Delta on two cores, and with the jars in the directories `jars`."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.master": f"local[{CORES}]",
        "spark.jars": ",".join(str(jar) for directory in jars for jar in sorted(Path(directory).glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        **TUNED,
    }
    builder = SparkSession.builder.appName("foreachBatch")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def worker(session: Any, *, merge: bool) -> Work:
    """Return a function that runs jobs on a session, one query each."""

    def work(job: Job) -> Outcome:
        place = Path(job.directory)
        paths = [str(place / f"table-{number}") for number in range(job.tables)]
        for path in paths:
            _load(job, path)
        (place / "input").mkdir()
        for txid in range(job.loads + 1, job.last + 1):
            file = place / "input" / f"{txid:08d}.parquet"
            pq.write_table(pa.table({"word": job.words(txid)}), file)
            os.utime(file, (1_700_000_000 + txid,) * 2)  # the source reads files in the order of their age
        meter = Meter(job)
        if job.loads:
            meter.committed(job.loads, 0.0, [])
        _stream(job, session, place, _Batches(job, meter, paths, merge=merge))
        for number, path in enumerate(paths):
            _leave(job, path, number, merge=merge)
        return meter.outcome()

    return work


class _Batches:
    """Callback for `foreachBatch` that writes each batch to the Delta table."""

    def __init__(self, job: Job, meter: Meter, paths: list[str], *, merge: bool) -> None:
        self._job, self._meter, self._paths = job, meter, paths
        self._write: Callable[[Any, str, int], None] = self._merge if merge else self._append
        self._last_end = time.perf_counter()

    def __call__(self, frame: Any, batch: int) -> None:
        from pyspark.sql import functions

        txid, begun = self._job.loads + 1 + batch, time.perf_counter()
        grouped = frame.groupBy() if self._job.kind == "total" else frame.groupBy("word")
        counts = grouped.agg(functions.count("*").alias("n"))
        if self._job.kind == "total":
            counts = counts.withColumn("word", functions.lit(""))
        if len(self._paths) > 1:
            counts = counts.persist()
        for path in self._paths:
            self._write(counts, path, batch)
        if len(self._paths) > 1:
            counts.unpersist()
        ended = time.perf_counter()
        self._meter.committed(txid, (ended - begun) * 1e3, [(ended - self._last_end) * 1e3])
        self._last_end = ended

    def _merge(self, counts: Any, path: str, batch: int) -> None:
        session = counts.sparkSession
        session.conf.set("spark.databricks.delta.write.txnAppId", "counts")
        session.conf.set("spark.databricks.delta.write.txnVersion", str(batch))
        counts.createOrReplaceTempView("new_counts")
        session.sql(MERGE.format(path=path, new="new_counts"))

    def _append(self, counts: Any, path: str, batch: int) -> None:
        options = {"txnAppId": "counts", "txnVersion": str(batch)}
        counts.select("word", "n").coalesce(1).write.format("delta").mode("append").options(**options).save(path)


def _load(job: Job, path: str) -> None:
    """Write the load as one file per core, as Spark would: it is not measured, and MERGE would take minutes."""
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    DeltaTable.create(path, schema, configuration={"delta.checkpointInterval": "100"})
    if job.loads and job.kind == "total":
        write_deltalake(path, pa.table({"word": [""], "n": [job.keys]}, schema=schema), mode="append")
    elif job.loads:
        found = pa.chunked_array([job.words(txid) for txid in range(1, job.loads + 1)])
        rows = pa.table({"word": found, "n": np.ones(len(found), dtype=np.int64)}, schema=schema)
        for half in range(CORES):
            write_deltalake(path, rows.take(np.arange(half, len(rows), CORES)), mode="append")


def _stream(job: Job, session: Any, place: Path, batches: _Batches) -> None:
    source = session.readStream.schema("word STRING").option("maxFilesPerTrigger", 1).parquet(str(place / "input"))
    writer = source.writeStream.foreachBatch(batches).option("checkpointLocation", str(place / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _leave(job: Job, path: str, number: int, *, merge: bool) -> None:
    found = DeltaTable(path).to_pyarrow_table()
    if not merge:
        found = found.group_by("word").aggregate([("n", "sum")]).rename_columns(["word", "n"])
    leave(job, found.select(["n"] if job.kind == "total" else ["word", "n"]), number)


if __name__ == "__main__":
    spark = make_session(sys.argv[2])
    try:
        serve(worker(spark, merge=sys.argv[1] == "merge"))
    finally:
        spark.stop()
