"""The sample tables of `store_cases`, two of them written by Spark."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from store_cases import COUNTS, OUT, TOTALS, open_store

from txstorm.clients.delta.spark_delta import SparkDelta
from txstorm.state.store import StateStore
from txstorm.storage.tables.spark_writer import SparkWriter

SPARK_COUNTS, SPARK_OUT = replace(COUNTS, writer="spark"), replace(OUT, writer="spark")


def open_spark_store(data_dir: Path, delta: SparkDelta, **changes: Any) -> StateStore:
    arguments: dict[str, Any] = {
        "states": {"count": [SPARK_COUNTS, TOTALS]},
        "sinks": {"count": [SPARK_OUT]},
        "spark": SparkWriter(delta),
    }
    return open_store(data_dir, **{**arguments, **changes})
