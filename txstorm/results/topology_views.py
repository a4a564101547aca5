"""Views of a topology's tables in a Spark session; their SQL is of `txstorm.results.spark_views`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from txstorm.clients.delta.handle import first_line
from txstorm.errors import InputError
from txstorm.operations.status import topology_in
from txstorm.results.spark_views import View, views
from txstorm.results.views import checked_txid, stamps_in


def sql_views(data_dir: str | Path, txid: int | None = None, name_prefix: str = "") -> list[View]:
    """The views of the topology in `data_dir`, for a session to make; see `txstorm.results.spark_views.views`.

    Raises:
        DataDirectoryError: there is no topology in `data_dir`.
        StateError: `txid` is not committed, or no longer kept.
    """
    directory = topology_in(data_dir)
    return views(directory, txid, checked_txid(directory), name_prefix, stamps_in(directory))


def register_views(spark: Any, data_dir: str | Path, txid: int | None = None, name_prefix: str = "") -> list[str]:
    """Make the views in the session `spark`, which must have been started with Delta; returns their names.

    ``state_<name>``, ``changes_<name>``, ``sink_<name>`` and ``dead_letters``, each with `name_prefix` before it. With
    `txid` they stay at that transaction, one consistent cut; without one they follow what is published. Made again,
    they replace the earlier ones.

    Raises:
        InputError: Spark refuses a view; a session without Delta does.
        DataDirectoryError, StateError: as `sql_views`.
    """
    made = sql_views(data_dir, txid, name_prefix)
    for view in made:
        try:
            spark.sql(view.statement)
        except Exception as cause:
            msg = (
                f"view {view.name}: expected Spark to make it, got {first_line(cause)}; the session needs Delta: "
                "spark.sql.extensions, spark.sql.catalog.spark_catalog and the jar of io.delta:delta-spark"
            )
            raise InputError(msg) from cause
    return [view.name for view in made]
