"""Column statistics: the lowest and highest value of a column in each file of a Delta table, read from its log.

delta-rs (1.6.6) exposes statistics only for columns named by the property ``delta.dataSkippingStatsColumns``, and none
for a column after a struct column that is not named. The log contains all statistics, regardless of the property.
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
"""Table property: names of the columns with statistics; if not set, deltalake takes missing bounds for null."""
INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"
"""Table property: number of leading columns with statistics, if `STATS_COLUMNS` is not set."""
BOUNDED = frozenset({"_txid", "_kg"})
"""Columns for which txstorm writes statistics."""

Bounds = dict[str, tuple[Any, Any]]
"""Mapping from the path of a file, relative to the table, to its lowest and highest value."""


def stats_of(table: Path, checkpoint: Iterable[str], entries: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return the statistics, by path, of the files added in a window of a table's log, including some removed since.

    The window consists of the files of a `checkpoint` and of the later `entries`, relative to `table`, oldest first.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for part in checkpoint:
        found.update((unquote(path), parsed(stats)) for path, stats in _checkpointed(table / part))
    for entry in entries:
        found.update((unquote(path), parsed(stats)) for path, stats in entry_adds(table / entry))
    return found


def bounds_in(stats: Mapping[str, Any], column: str) -> tuple[Any, Any] | None:
    """Return the bounds of `column` in the `stats` of a file; None if it has none."""
    try:
        least, most = stats["minValues"][column], stats["maxValues"][column]
    except (LookupError, TypeError):
        return None
    return (least, most) if isinstance(least, int) and isinstance(most, int) else None


def parsed(stats: Any) -> Mapping[str, Any]:
    """Parse the statistics of a file; empty if they are missing or invalid."""
    try:
        found = json.loads(stats or "{}")
    except (ValueError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def with_bounds(actions: pa.Table, column: str, bounds: Mapping[str, tuple[Any, Any]]) -> pa.Table:
    """Append the columns ``min.<column>`` and ``max.<column>`` to `actions`; null for files without bounds."""
    pairs = [bounds.get(unquote(path), (None, None)) for path in actions["path"].to_pylist()]
    for name, i in (("min", 0), ("max", 1)):
        actions = actions.append_column(f"{name}.{column}", pa.array([pair[i] for pair in pairs], pa.int64()))
    return actions


def is_silent(stats: Iterable[Mapping[str, Any]], column: str) -> bool:
    """Return whether any file has bounds for other columns only, so that deltalake wrongly skips it in a filter."""
    return any(file.get("minValues") and bounds_in(file, column) is None for file in stats)


def _checkpointed(part: Path) -> Iterator[tuple[str, str | None]]:
    """Yield path and statistics of files that one part of a checkpoint adds, including sidecars of a v2 checkpoint."""
    if part.suffix == ".json":  # v2: adds are in sidecars
        return
    try:
        file = pq.ParquetFile(part)
        rows = file.read(["add.path", "add.stats", "sidecar.path"])
        for sidecar in rows["sidecar"].to_pylist() if "sidecar" in rows.column_names else ():
            if sidecar is not None and sidecar["path"] is not None:
                yield from _checkpointed(part.parent / "_sidecars" / Path(sidecar["path"]).name)
        for added in rows["add"].to_pylist() if "add" in rows.column_names else ():
            if added is not None and added["path"] is not None:
                yield added["path"], added.get("stats")
    except (OSError, pa.ArrowException):
        return  # moved or damaged: files without statistics are always read
