"""Staging by tasks: files that tasks of either phase write for tables, and the driver's check of them.

A task stages what a committer has written in its share of a transaction, in one file for each table, and returns the
descriptions of the files; the driver takes them over as rows of the transaction. Nothing refers to the files of failed
attempts, and the sweep removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.attempt import TransactionAttempt
from txstorm.errors import TableCorrupt
from txstorm.state.unpublished import Unpublished
from txstorm.storage.tables.intent import Staged
from txstorm.storage.tables.staging import StagedName, digest, stage

ROWS_AT_ONCE = 50_000
"""Number of rows per batch when a staged file is read into the index."""


class StagingPlace(NamedTuple):
    """Place where tasks stage rows: the data directory, by a path that workers see, and the coordinator's epoch."""

    data_dir: str
    epoch: int

    def stage(
        self, written: Mapping[str, Unpublished[Any]], attempt: TransactionAttempt, component: str, task: int
    ) -> dict[str, Staged]:
        """Stage durably what a task has written in `attempt`: table → its rows, whose txid is ended here.

        Returns table → its staged file, for tables with rows.

        Raises:
            StateError: a row does not match its table.
            OSError: the disk is full.
        """
        files, name = {}, StagedName(self.epoch, *attempt, component, str(task))
        for uri, group in written.items():
            group.end_txid(attempt.txid)
            rows = group.changes(attempt.txid, attempt.txid)
            if rows is not None and rows.num_rows:
                files[uri] = stage(Path(self.data_dir) / uri, rows, name)
        return files


@dataclass(frozen=True)
class TaskStagedFiles:
    """Rows of one table and one txid that tasks have staged.

    Attributes:
        table: the table's directory.
        files: the staged files; empty if there are no rows.
    """

    table: Path
    files: Sequence[Staged]

    def check(self) -> None:
        """Raise `TableCorrupt` unless all files exist with exactly the bytes that their tasks have written."""
        for one in self.files:
            file = self.table / one.path
            found = digest(file.read_bytes()) if file.is_file() else None
            if found != one.digest:
                what = "is not there" if found is None else f"has digest {found[:16]}…, expected {one.digest[:16]}…"
                raise TableCorrupt(
                    f"staged file {file}: a task has written it, but here it {what}; workers must see the data "
                    "directory under the same path as the driver: mount it there, or have rows staged in the driver "
                    "with large_commit_rows=none, large_commit_bytes=none and a high spill_bytes"
                )

    def rows(self) -> Iterator[pa.Table]:
        """Read all rows, in batches."""
        for one in self.files:
            with pq.ParquetFile(self.table / one.path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE):
                    yield pa.Table.from_batches([batch])
