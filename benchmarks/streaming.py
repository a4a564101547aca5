"""Streaming queries that feed topologies, beside the same query with ``foreachBatch`` and MERGE.

``python -m benchmarks.streaming [--batches N] [--rows N] [--keys N] [--tables N]``: each side takes the same batches;
the first quarter of them does not count. Delta is that of `.cache/jars` (``scripts/jars``).

``--frames ROWS`` compares, instead, transactions of so many rows, each a version of a Delta table: a frame sink with
Spark's own append to a Delta table, and a frame bolt (filter, join, aggregation) with the same plan alone and with
bolts on tuples.

With ``--delta``, the batches are versions of a Delta table, which a `DeltaSpout` reads, and a query that feeds the
same topology.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import cpu_seconds
from txstorm import BasicBolt, TransactionalTopologyBuilder, foreach_batch, run, write_stream
from txstorm.bolts import SumByKey
from txstorm.clients.spark import make_session
from txstorm.sinks import FrameSink
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


COLUMNS = "k BIGINT, country STRING, v BIGINT"
KEYS = 1000


class Spent(NamedTuple):
    """Time that a transaction takes, after the first one, in seconds: on the clock, and of all processors."""

    clock: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.clock:6.2f} s a transaction, {self.cpu:6.2f} s of processors"


class Watch:
    """Takes the time at the end of each transaction."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, float]] = []

    def __call__(self, progress: Any = None) -> None:
        self._ends.append((time.monotonic(), sum(cpu_seconds())))

    def spent(self) -> Spent:
        (first, used), (last, all_used), number = self._ends[0], self._ends[-1], len(self._ends) - 1
        return Spent((last - first) / number, (all_used - used) / number)


def good(rows: Any) -> Any:
    return rows.where("v > 0")


def totals(rows: Any) -> Any:
    names = rows.sparkSession.range(KEYS).selectExpr("id AS k", "concat('name ', id) AS name")
    return good(rows).join(names, "k").groupBy("name").sum("v").toDF("name", "v")


class Named(BasicBolt):
    """The filter and the join of `totals`, on tuples."""

    fields = ("name", "v")

    def execute(self, tuple: Any, collector: Any) -> None:
        if tuple["v"] > 0 and tuple["k"] < KEYS:
            collector.emit(f"name {tuple['k']}", tuple["v"])


def ours(spark: Any, table: Path, place: Path, kind: str) -> Spent:
    """Run a topology with a frame ``sink``, a frame ``bolt`` or bolts on ``tuples``, one transaction per job."""
    builder = TransactionalTopologyBuilder(kind, "rows", DeltaSpout(table, start=0, max_batch_files=1), 2)
    if kind == "sink":
        builder.set_frame_bolt("good", good).reads("rows")
        builder.set_bolt("kept", FrameSink("kept", COLUMNS)).shuffle_grouping("good")
    elif kind == "bolt":
        builder.set_frame_bolt("named", totals).reads("rows")
    else:
        builder.set_bolt("named", Named(), 2).local_or_shuffle_grouping("rows")
    if kind != "sink":
        builder.set_bolt("sums", SumByKey("name", "v", "sums"), 2).fields_grouping("named", ["name"])
    watch = Watch()
    topology = builder.set_settings({"max_pack_txids": 1}).build_topology()
    run(topology, spark=spark, data_dir=place, available_now=True, listeners=[watch]).awaitTermination()
    return watch.spent()


def alone(spark: Any, table: Path, place: Path, kind: str) -> Spent:
    """Append each file to a Delta table (``sink``), or collect the totals of each (``bolt``)."""
    watch = Watch()
    for file in sorted(table.glob("*.parquet")):
        rows = spark.read.parquet(str(file))
        if kind == "sink":
            good(rows).write.format("delta").mode("append").save(str(place))
        else:
            totals(rows).toArrow()
        watch()
    return watch.spent()


def compare_frames(spark: Any, place: Path, rows: int, rounds: int) -> None:
    """Print the times of both sides, in turns, and the ratios of their medians."""
    sides = {
        "FrameSink": (ours, "sink"),
        "append by Spark": (alone, "sink"),
        "frame bolt": (ours, "bolt"),
        "the plan alone": (alone, "bolt"),
        "tuple bolts": (ours, "tuples"),
    }
    table = place / "table"
    for number in range(6):
        made = spark.range(number * rows, (number + 1) * rows, 1, 1)
        columns = (f"(id * 7919) % {KEYS} AS k", "concat('country ', id % 200) AS country", "id % 100 AS v")
        made.selectExpr(*columns).write.format("delta").mode("append").save(str(table))
    found: dict[str, list[Spent]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, (side, kind) in sides.items():
            found[name].append(side(spark, table, place / f"{name}{number}", kind))
            print(f"{name:16} {found[name][-1]}", flush=True)
    clock, cpu = ({name: statistics.median(one[at] for one in some) for name, some in found.items()} for at in (0, 1))
    for one, other in (
        ("append by Spark", "FrameSink"),
        ("frame bolt", "the plan alone"),
        ("tuple bolts", "frame bolt"),
    ):
        print(
            f"{one} / {other}: {clock[one] / clock[other]:.2f} in time, {cpu[one] / cpu[other]:.2f} in processor time"
        )


def sums_of(rows: Any) -> Any:
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
        builder.set_frame_bolt("totals", sums_of, 2).reads("rows")
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
    parser.add_argument("--frames", type=int, help="rows of a transaction, to compare frame sinks and frame bolts")
    parser.add_argument("--delta", action="store_true", help="compare DeltaSpout with a query over the same table")
    asked = parser.parse_args()
    spark = make_session("streaming", extra={**DELTA, "spark.jars": ",".join(map(str, sorted(JARS.glob("*.jar"))))})
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
        if asked.delta:
            ours, query = delta_sides(spark, Path(place), asked)
            print(f"DeltaSpout {ours * 1000:.0f} ms, query {query * 1000:.0f} ms a transaction: {query / ours:.2f}")
            return
        if asked.frames:
            compare_frames(spark, Path(place), asked.frames, asked.rounds)
            return
        found: dict[str, list[float]] = {name: [] for name in SIDES}
        for number in range(asked.rounds):
            for name, side in SIDES.items():
                found[name].append(measure(spark, side, Path(place) / f"{name}{number}", asked))
                print(f"{name:14} {found[name][-1] * 1000:7.0f} ms a batch", flush=True)
    own, merged, bare = (statistics.median(found[name]) for name in SIDES)
    print(f"batches per second against MERGE: {merged / own:.2f}; time against collecting only: {own / bare:.2f}")


if __name__ == "__main__":
    main()
