"""Streaming queries that feed topologies, beside the same query with ``foreachBatch`` and MERGE.

``python -m benchmarks.streaming [--batches N] [--rows N] [--keys N] [--tables N]``: each side takes the same batches;
the first quarter of them does not count. Delta is that of `.cache/jars` (``scripts/jars``). With ``--delta``, the
batches are versions of a Delta table, which a `DeltaSpout` reads, and a query that feeds the same topology.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txstorm import TransactionalTopologyBuilder, foreach_batch, run, write_stream
from txstorm.bolts import SumByKey
from txstorm.clients.spark import make_session
from txstorm.spouts import DeltaSpout, StreamSpout

JARS = Path(__file__).resolve().parents[1] / ".cache" / "jars"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
Side = Callable[[Any, Any, Path, int], Any]


def txstorm(spark: Any, stream: Any, place: Path, tables: int) -> Any:
    """Return the writer of a query that feeds a topology with sums in each of `tables`."""
    builder = TransactionalTopologyBuilder("sums", "rows", StreamSpout("k BIGINT, v BIGINT"), 2)
    for table in range(tables):
        builder.set_bolt(f"sum{table}", SumByKey({"k": int}, "v", f"sums{table}"), 2).fields_grouping("rows", ["k"])
    return write_stream(stream, builder.build_topology(), data_dir=place)


def merge(spark: Any, stream: Any, place: Path, tables: int) -> Any:
    """Return the writer of a query with one MERGE per batch and table: not exactly once, one table after the other."""
    names = [f"delta.`{place / f'sums{table}'}`" for table in range(tables)]
    for name in names:
        spark.sql(f"CREATE TABLE {name} (k BIGINT, v BIGINT) USING delta")

    def upsert(frame: Any, batch: int) -> None:
        frame.persist()
        for name in names:
            frame.groupBy("k").sum("v").toDF("k", "v").createOrReplaceTempView("batch")
            frame.sparkSession.sql(
                f"MERGE INTO {name} t USING batch s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = t.v + s.v "
                "WHEN NOT MATCHED THEN INSERT *"
            )
        frame.unpersist()

    return stream.writeStream.foreachBatch(upsert).option("checkpointLocation", str(place / "checkpoint"))


def collect(spark: Any, stream: Any, place: Path, tables: int) -> Any:
    """Return the writer of a query that only aggregates and collects each batch."""

    def gather(frame: Any, batch: int) -> None:
        frame.groupBy("k").sum("v").toArrow()

    return stream.writeStream.foreachBatch(gather).option("checkpointLocation", str(place / "checkpoint"))


SIDES: dict[str, Side] = {"txstorm": txstorm, "MERGE": merge, "collect only": collect}


def measure(spark: Any, side: Side, place: Path, asked: Any) -> float:
    """Return the seconds that a batch takes at the median, as Spark reports them."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", asked.rows).load()
    stream = source.selectExpr(f"(value * 7919) % {asked.keys} AS k", "value % 100 AS v")
    query = side(spark, stream, place, asked.tables).start()
    try:
        while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < asked.batches:
            query.awaitTermination(0.2)
        if query.exception() is not None:
            raise query.exception()
        taken = [one["durationMs"]["triggerExecution"] for one in query.recentProgress]
    finally:
        query.stop()
    return statistics.median(taken[len(taken) // 4 :]) / 1000


def totals(rows: Any) -> Any:
    """Frame bolt: the sums of one transaction."""
    return rows.groupBy("k").agg({"v": "sum"}).toDF("k", "v")


def delta_sides(spark: Any, place: Path, asked: Any) -> tuple[float, float]:
    """Return the seconds for a transaction of a Delta table's version, read by a `DeltaSpout` and by a query."""
    table, taken = place / "table", []
    for number in range(asked.batches):
        rows = spark.range(number * asked.rows, (number + 1) * asked.rows, 1, 1)
        rows = rows.selectExpr(f"(id * 7919) % {asked.keys} AS k", "id % 100 AS v")
        rows.write.format("delta").mode("append").save(str(table))
    for spout in (DeltaSpout(table, start=0, max_batch_files=1), StreamSpout("k BIGINT, v BIGINT")):
        builder = TransactionalTopologyBuilder("sums", "rows", spout, 2)
        builder.set_frame_bolt("totals", totals, 2).reads("rows")
        builder.set_bolt("sums", SumByKey({"k": int}, "v", "sums"), 2).fields_grouping("totals", ["k"])
        topology, data_dir, times = builder.build_topology(), place / type(spout).__name__, list[float]()
        listeners = [lambda done, times=times: times.append(time.monotonic())]
        if isinstance(spout, StreamSpout):
            stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).option("startingVersion", 0)
            function = foreach_batch(topology, data_dir=data_dir, listeners=listeners)
            write_stream(stream.load(str(table)), function).trigger(availableNow=True).start().awaitTermination()
            function.handle.awaitTermination(60)  # it ends with its query, a little later
        else:
            run(topology, spark=spark, data_dir=data_dir, available_now=True, listeners=listeners).awaitTermination()
        begin = len(times) // 4
        taken.append((times[-1] - times[begin]) / (len(times) - 1 - begin))
    return taken[0], taken[1]


def main() -> None:
    """Print the time per batch of each side, and the ratios."""
    parser = argparse.ArgumentParser("python -m benchmarks.streaming", description=__doc__)
    for name, default in (("batches", 40), ("rows", 1000), ("keys", 10_000), ("tables", 1), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--delta", action="store_true")
    asked = parser.parse_args()
    spark = make_session("streaming", extra={**DELTA, "spark.jars": ",".join(map(str, sorted(JARS.glob("*.jar"))))})
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
        if asked.delta:
            ours, query = delta_sides(spark, Path(place), asked)
            print(f"DeltaSpout {ours * 1000:.0f} ms, query {query * 1000:.0f} ms a transaction: {query / ours:.2f}")
            return
        found: dict[str, list[float]] = {name: [] for name in SIDES}
        for number in range(asked.rounds):
            for name, side in SIDES.items():
                found[name].append(measure(spark, side, Path(place) / f"{name}{number}", asked))
                print(f"{name:14} {found[name][-1] * 1000:7.0f} ms a batch", flush=True)
    ours, merged, bare = (statistics.median(found[name]) for name in SIDES)
    print(f"batches per second against MERGE: {merged / ours:.2f}; time against collecting only: {ours / bare:.2f}")


if __name__ == "__main__":
    main()
