"""Words counted from an opaque spout into tables with a given writer, run to the end of the input.

``spark-writer DATA_DIR WRITER JARS PART…``: every PART is one batch of a partition, as words joined with hyphens.
Batches that were not committed are replayed with the content of the current command line.
"""

from pathlib import Path
from typing import Any

from scenarios.words import run_to_end
from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import CountByKey, FlatMap
from txstorm.clients.spark import make_session
from txstorm.sinks import DeltaSink
from txstorm.spouts import OpaqueMemoryTransactionalSpout


def topology(writer: str, parts: list[str]) -> Any:
    spout = OpaqueMemoryTransactionalSpout({0: parts}, ["words"], take=1)
    builder = TransactionalTopologyBuilder("spark-writer", "words", spout)
    builder.set_bolt("split", FlatMap(lambda row: row["words"].split("-"), "word")).global_grouping("words")
    builder.set_bolt("counts", CountByKey("word", "counts", writer=writer)).global_grouping("split")
    builder.set_bolt("all", DeltaSink("all", {"words": str}, writer=writer)).global_grouping("words")
    return builder.build_topology()


def main(data_dir: str, writer: str, jars: str, *parts: str) -> None:
    """Run once; if `jars` is given, in a session that has Delta."""
    if jars:
        delta = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        extra = {"spark.jars": jars, "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"}
        make_session("job", extra={**extra, "spark.sql.catalog.spark_catalog": delta})
    count(Path(data_dir), writer, list(parts))


def count(data_dir: Path, writer: str, parts: list[str]) -> None:
    settings = {"max_spout_pending": 1, "max_group_txids": 1}
    run_to_end(topology(writer, parts), data_dir, settings, "local")
