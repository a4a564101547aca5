"""Checks that Spark can read a Delta table with the jars in a directory: ``_check_jars.py DIRECTORY``."""

import sys
import tempfile
from pathlib import Path

import deltalake
import pyarrow
from pyspark.sql import SparkSession


def _session(jars: Path) -> SparkSession:
    return (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def main(jars: Path) -> None:
    """Write a table with delta-rs and read it back with Spark; exit with an error if that fails."""
    rows = pyarrow.table({"n": [1, 2, 3]})
    with tempfile.TemporaryDirectory() as table:
        deltalake.write_deltalake(table, rows)
        session = _session(jars.resolve())
        found = session.read.format("delta").load(table).count()
        session.stop()
    if found != rows.num_rows:
        sys.exit(f"Spark read {found} of {rows.num_rows} rows with the jars in {jars}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
