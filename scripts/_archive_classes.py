"""Uses Spark and Delta as the tests do, in a Java process that archives its loaded classes when it ends.

``_archive_classes.py JARS``; `scripts/jars` explains the purpose.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow

from txstorm.clients.spark import make_session


def _same(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    yield from batches


def main(jars: Path) -> None:
    """Run a job with a Python stage; write, append to, replace in and read a table."""
    session = make_session(
        "classes",
        extra={
            "spark.jars": ",".join(str(jar) for jar in sorted(jars.resolve().glob("*.jar"))),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "1",
        },
    )
    rows = session.range(0, 4, 1, 2).mapInArrow(_same, "id long").repartition(2, "id")
    with tempfile.TemporaryDirectory() as table:
        for mode in ("overwrite", "append"):
            rows.write.format("delta").mode(mode).save(table)
        found = session.read.format("delta").load(table)
        found.createOrReplaceTempView("found")
        session.sql("SELECT id, count(*) AS n FROM found WHERE id > 1 GROUP BY id ORDER BY id").toArrow()
    java = session.sparkContext._gateway.proc  # noqa: SLF001 - it ends with its input, and Spark does not wait for that
    session.stop()
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
