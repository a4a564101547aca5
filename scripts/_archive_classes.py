"""Archives the classes of a Spark session with Delta, started as those of the tests: ``_archive_classes.py JARS FILE``.

`scripts/jars` explains the purpose.
"""

import sys
from pathlib import Path

from txstorm.clients.class_archive import make_archive
from txstorm.clients.spark import make_session


def main(jars: Path, file: Path) -> None:
    """Make the archive."""
    extra = {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.resolve().glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    make_archive(
        lambda java: make_session("classes", extra=extra, java=f"-XX:+UseSerialGC {java}"),
        file.resolve(),
        table_format="delta",
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
