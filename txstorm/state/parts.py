"""What the tasks of a job have staged of one table for a large commit: a file each, not written by the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.state.staging import STAGED, Staged, StagedName, check_digest

ROWS_AT_ONCE = 50_000
"""Of a staged file, when its rows enter the index."""


@dataclass(frozen=True)
class Parts:
    """The staged rows of one table in one txid.

    Attributes:
        table: its directory.
        names: how the names of the files begin, relative to it.
        files: the files; empty while tasks are writing, and when there are no rows.
    """

    table: Path
    names: str
    files: Sequence[Staged] = ()

    @classmethod
    def of(cls, table: Path, name: StagedName) -> Parts:
        """What tasks are about to stage below `table`, under names like `name` but for component and task."""
        return cls(table, f"{STAGED}/{name.epoch}-{name.txid}-{name.attempt}-")

    def paths(self) -> set[str]:
        """The files that are there, also those that a task is still writing or that belong to no answer."""
        folder = self.table / STAGED
        found = (f"{STAGED}/{file.name}" for file in folder.glob("*.parquet"))
        return {path for path in found if path.startswith(self.names)}

    def check(self) -> None:
        """Raise `TableCorrupt` unless all files are here, with the bytes their tasks have written."""
        for one in self.files:
            check_digest(self.table, one)

    def rows(self) -> Iterator[pa.Table]:
        """All rows, piece by piece."""
        for one in self.files:
            with pq.ParquetFile(self.table / one.path) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE):
                    yield pa.Table.from_batches([batch])
