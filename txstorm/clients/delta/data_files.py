"""Reads of the Parquet files of one Delta table version, with file skipping by column statistics from its log.

delta-rs (1.6.6) exposes statistics only for columns named by the property ``delta.dataSkippingStatsColumns``, and none
for a column after a struct column that is not named. The log contains all statistics, regardless of the property.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from txstorm.clients.delta.footer_digest import check_seal
from txstorm.clients.delta.log import entry_adds
from txstorm.clients.files import check_file, checked_path

BATCH_ROWS = 1 << 16
"""Default number of rows in a batch."""
_RUN_BYTES = 4 << 20
"""Approximate size of the files that are scanned together; Arrow would read up to a gigabyte ahead of a slow reader."""
_PARQUET = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)

Bound = tuple[str, int | datetime]


@dataclass(frozen=True)
class Wanted:
    """Selection of rows and columns of a table.

    Attributes:
        columns: names of the columns; None: all.
        low: a column and its exclusive lower bound.
        high: a column and its inclusive upper bound.
        within: a column and its inclusive bounds (first and last value).
        paths: the only files to read; None: all files.
        threads: whether to use Arrow's threads for reading all rows at once.
    """

    columns: Sequence[str] | None = None
    low: Bound | None = None
    high: Bound | None = None
    within: tuple[str, int, int] | None = None
    paths: Collection[str] | None = None
    threads: bool = True

    @property
    def condition(self) -> Any:
        """The bounds as an Arrow filter; None if all rows are wanted."""
        conditions = []
        if self.low is not None:
            conditions.append(pc.field(self.low[0]) > self.low[1])
        if self.high is not None:
            conditions.append(pc.field(self.high[0]) <= self.high[1])
        if self.within is not None:
            name, first, last = self.within
            conditions += [pc.field(name) >= first, pc.field(name) <= last]
        return reduce(and_, conditions) if conditions else None


class Selected:
    """Selected rows of a table version, and the files that may contain them according to their statistics.

    `actions`: the table's files, one per row, as described in its log.
    """

    def __init__(self, table: Path, schema: pa.Schema, actions: pa.Table, wanted: Wanted) -> None:
        self._table = table
        self._schema = schema
        self._wanted = wanted
        if wanted.paths is not None:
            paths = [unquote(path) in wanted.paths for path in actions["path"].to_pylist()]
            actions = actions.filter(pa.array(paths, pa.bool_()))
        for bound, end, may_be_in in ((wanted.low, "max", pc.greater), (wanted.high, "min", pc.less_equal)):
            if bound is not None and f"{end}.{bound[0]}" in actions.column_names:
                known = actions[f"{end}.{bound[0]}"]
                actions = actions.filter(pc.or_kleene(pc.is_null(known), may_be_in(known, bound[1])))
        self._actions = actions

    def table(self) -> pa.Table:
        """Return all selected rows, in no particular order."""
        wanted, rows = self._wanted, self._dataset(self._actions)
        return rows.to_table(columns=self._columns, filter=wanted.condition, use_threads=wanted.threads)

    def batches(self, rows: int) -> Iterator[pa.Table]:
        """Yield the wanted rows in batches of at most `rows`; if there is a lower bound, in the order of its column.

        Each file is sorted by that column. If files overlap, which only foreign writers cause, all rows are yielded as
        one batch.
        """
        files, low = self._actions, self._wanted.low
        if low is not None and len(files):
            files = _in_turn(files, low[0])
            if files is None:
                yield self.table().sort_by(low[0]) if self._columns is None else self.table()
                return
        options = {"batch_size": rows, "batch_readahead": 2, "fragment_readahead": 1}
        for run in _runs(files):
            scanned = self._dataset(run).to_batches(columns=self._columns, filter=self._wanted.condition, **options)
            for batch in scanned:
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])

    @property
    def _columns(self) -> list[str] | None:
        return None if self._wanted.columns is None else list(self._wanted.columns)

    def row_count(self) -> int:
        """Return the total number of rows in the selected files; a file without statistics counts as 0."""
        if "num_records" not in self._actions.column_names:
            return 0
        return int(pc.sum(self._actions["num_records"]).as_py() or 0)

    def _dataset(self, actions: pa.Table) -> ds.Dataset:
        files = [self._table / checked_path(unquote(path)) for path in actions["path"].to_pylist()]
        if not files:
            return ds.dataset(self._schema.empty_table())
        for file, size in zip(files, actions["size_bytes"].to_pylist(), strict=True):
            check_file(file, size)
            check_seal(file)
        return ds.dataset([str(file) for file in files], schema=self._schema, format=_PARQUET)


def _runs(actions: pa.Table) -> Iterator[pa.Table]:
    """Split files into runs of about `_RUN_BYTES`, each at least one file."""
    begin, size = 0, 0
    for end, one in enumerate(actions["size_bytes"].to_pylist(), start=1):
        size += one
        if size >= _RUN_BYTES:
            yield actions.slice(begin, end - begin)
            begin, size = end, 0
    if begin < len(actions):
        yield actions.slice(begin)


def _in_turn(actions: pa.Table, column: str) -> pa.Table | None:
    """Return the files sorted by `column`; None if some overlap or lack statistics."""
    least, most = f"min.{column}", f"max.{column}"
    if not {least, most} <= set(actions.column_names):
        return None
    actions = actions.sort_by(least)
    starts, ends = actions[least].to_pylist(), actions[most].to_pylist()
    if None in starts or None in ends or any(start <= end for start, end in zip(starts[1:], ends, strict=False)):
        return None
    return actions


STATS_COLUMNS = "delta.dataSkippingStatsColumns"
"""Table property: names of the columns with statistics; if not set, deltalake takes missing bounds for null."""
BOUNDED = frozenset({"_txid", "_kg"})
"""Columns for which txstorm writes statistics."""


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
