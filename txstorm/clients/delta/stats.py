"""Bounds of a column in each file of a Delta table, read from the statistics in its log.

delta-rs (1.6.6) shows only the statistics of columns that the property ``delta.dataSkippingStatsColumns`` names, and
none of a column behind a struct column that is not named: the log has them all, whatever the property says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.clients.delta.log import entry_adds

STATS_COLUMNS = "delta.dataSkippingStatsColumns"
"""Table property: the columns that statistics are of. Without it deltalake takes missing bounds for null."""
INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"
"""Table property: of how many columns there are statistics, where the other one does not name any."""
BOUNDED = frozenset({"_txid", "_kg"})
"""Columns that txstorm writes statistics of."""

Bounds = dict[str, tuple[Any, Any]]
"""Path of a file, relative to the table → its lowest and highest value."""


def stats_of(table: Path, checkpoint: Iterable[str], entries: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Path → statistics of the files that a part of the log of `table` adds, also of some that left again.

    It has the files of a `checkpoint` and the `entries` since, relative to the table, oldest first.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for part in checkpoint:
        found.update((unquote(path), parsed(stats)) for path, stats in _checkpointed(table / part))
    for entry in entries:
        found.update((unquote(path), parsed(stats)) for path, stats in entry_adds(table / entry))
    return found


def bounds_in(stats: Mapping[str, Any], column: str) -> tuple[Any, Any] | None:
    """The bounds of `column` in the `stats` of a file; None where they do not say."""
    try:
        least, most = stats["minValues"][column], stats["maxValues"][column]
    except (LookupError, TypeError):
        return None
    return (least, most) if isinstance(least, int) and isinstance(most, int) else None


def parsed(stats: Any) -> Mapping[str, Any]:
    """The statistics of a file as JSON values; nothing where they are none."""
    try:
        found = json.loads(stats or "{}")
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def with_bounds(actions: pa.Table, column: str, bounds: Mapping[str, tuple[Any, Any]]) -> pa.Table:
    """`actions` with the columns ``min.<column>`` and ``max.<column>``; null for files that do not say."""
    found = [bounds.get(unquote(path), (None, None)) for path in actions["path"].to_pylist()]
    for name, place in (("min", 0), ("max", 1)):
        actions = actions.append_column(f"{name}.{column}", pa.array([one[place] for one in found], pa.int64()))
    return actions


def is_silent(stats: Iterable[Mapping[str, Any]], column: str) -> bool:
    """Whether files have bounds of other columns but none of `column`: deltalake would find no row of theirs by it."""
    return any(one.get("minValues") and bounds_in(one, column) is None for one in stats)


def _checkpointed(part: Path) -> Iterator[tuple[str, str | None]]:
    """The files of one part of a checkpoint, also of those that it refers to (v2)."""
    if part.suffix == ".json":  # v2, whose adds are in files that it refers to
        return
    try:
        file = pq.ParquetFile(part)
        rows = file.read(["add.path", "add.stats", "sidecar.path"])
        for one in rows["sidecar"].to_pylist() if "sidecar" in rows.column_names else ():
            if one is not None and one["path"] is not None:
                yield from _checkpointed(part.parent / "_sidecars" / Path(one["path"]).name)
        for one in rows["add"].to_pylist() if "add" in rows.column_names else ():
            if one is not None and one["path"] is not None:
                yield one["path"], one.get("stats")
    except (OSError, pa.ArrowException):
        return  # moved, or damaged: nothing is known of these files, and who needs the rows reads all of them
