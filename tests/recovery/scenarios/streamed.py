"""A streaming query feeds a topology: ``streamed PLACE TABLES SOURCE JARS``, to the end of its source.

SOURCE: ``files``, ``delta``, or broker and topic, as BOOTSTRAP/TOPIC; see `lakes`.
"""

from pathlib import Path
from types import SimpleNamespace

from lakes import Lake, Table, Topic

from txstorm.clients.spark import make_session

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def main(place: str, tables: str, source: str, jars: str) -> None:
    """Run the query in a session of its own."""
    extra = {} if source == "files" else {"spark.jars": jars, **(DELTA if source == "delta" else {})}
    spark, (bootstrap, _, name) = make_session("streamed", extra=extra), source.partition("/")
    if name:
        lake: Lake = Topic(spark, Path(place), SimpleNamespace(bootstrap=bootstrap), name)
        lake.options["maxOffsetsPerTrigger"] = "6"
    else:
        lake = (Table if source == "delta" else Lake)(spark, Path(place))
    error, _ = lake.query(tables=int(tables))
    assert error == "", error
