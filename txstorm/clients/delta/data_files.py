"""The Parquet files of one version of a Delta table: which of them a range of a column needs, and their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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

from txstorm.clients.delta.footer_digest import check_seal
from txstorm.clients.files import check_file, checked_path

BATCH_ROWS = 1 << 16
"""Rows that are read at once where not all are wanted at once."""
_PARQUET = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)

Bound = tuple[str, int | datetime]


@dataclass(frozen=True)
class Wanted:
    """Which rows of a table.

    Attributes:
        columns: which columns; None: all.
        low: only rows whose column (name) is greater than (value).
        high: only rows whose column is at most the value.
        within: only rows whose column (name) is at least (first) and at most (last).
        paths: only rows of these files; None: of all.
        threads: whether Arrow's threads help with reading all of them at once.
    """

    columns: Sequence[str] | None = None
    low: Bound | None = None
    high: Bound | None = None
    within: tuple[str, int, int] | None = None
    paths: Collection[str] | None = None
    threads: bool = True

    @property
    def condition(self) -> Any:
        """The same as a filter of rows; None for all."""
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
    """The files that may have wanted rows, as far as their statistics tell, and those rows.

    Args:
        table: the table's directory.
        schema: its columns.
        actions: its files, as its log describes them.
    """

    def __init__(self, table: Path, schema: pa.Schema, actions: pa.Table, wanted: Wanted) -> None:
        self._table = table
        self._schema = schema
        self._wanted = wanted
        if wanted.paths is not None:
            paths = [unquote(path) in wanted.paths for path in actions["path"].to_pylist()]
            actions = actions.filter(pa.array(paths, pa.bool_()))
        self._actions = _at_most(_above(actions, wanted.low), wanted.high)

    def table(self) -> pa.Table:
        """All wanted rows, in no particular order."""
        wanted, rows = self._wanted, self._dataset(self._actions)
        return rows.to_table(columns=self._columns, filter=wanted.condition, use_threads=wanted.threads)

    def batches(self, rows: int) -> Iterator[pa.Table]:
        """The same, at most `rows` at a time; where there is a lower bound in the order of its column.

        Every file is in that order by itself; where files overlap, which only others write, all is read at once.
        """
        files, low = self._actions, self._wanted.low
        if low is not None and len(files):
            files = _in_turn(files, low[0])
            if files is None:
                yield self.table().sort_by(low[0]) if self._columns is None else self.table()
                return
        scanned = self._dataset(files).to_batches(
            columns=self._columns,
            filter=self._wanted.condition,
            batch_size=rows,
            batch_readahead=2,
            fragment_readahead=1,
        )
        for batch in scanned:
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    @property
    def _columns(self) -> list[str] | None:
        return None if self._wanted.columns is None else list(self._wanted.columns)

    def row_count(self) -> int:
        """How many rows the files have, in the range or not; those that do not say count as none."""
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


def _above(actions: pa.Table, low: Bound | None) -> pa.Table:
    if low is None or f"max.{low[0]}" not in actions.column_names:
        return actions
    bound = actions[f"max.{low[0]}"]
    return actions.filter(pc.or_kleene(pc.is_null(bound), pc.greater(bound, low[1])))


def _at_most(actions: pa.Table, high: Bound | None) -> pa.Table:
    if high is None or f"min.{high[0]}" not in actions.column_names:
        return actions
    bound = actions[f"min.{high[0]}"]
    return actions.filter(pc.or_kleene(pc.is_null(bound), pc.less_equal(bound, high[1])))


def _in_turn(actions: pa.Table, column: str) -> pa.Table | None:
    """The files one behind the other by `column`; None where some overlap or do not say."""
    least, most = f"min.{column}", f"max.{column}"
    if not {least, most} <= set(actions.column_names):
        return None
    actions = actions.sort_by(least)
    starts, ends = actions[least].to_pylist(), actions[most].to_pylist()
    if None in starts or None in ends or any(start <= end for start, end in zip(starts[1:], ends, strict=False)):
        return None
    return actions
