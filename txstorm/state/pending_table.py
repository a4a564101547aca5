"""What the tasks of a job stage of one table for a large commit: a file each, not written by the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.errors import TableCorrupt
from txstorm.storage.tables.staging import STAGED, Staged, StagedName, digest

ROWS_AT_ONCE = 50_000
"""Of a staged file, when its rows enter the index."""


@dataclass(frozen=True)
class Parts:
    """The staged rows of one table in one txid.

    Attributes:
        table: its directory.
        files: the files; none when there are no rows.
    """

    table: Path
    files: Sequence[Staged]

    def check(self) -> None:
        """Raise `TableCorrupt` unless all files are here, with the bytes their tasks have written."""
        for one in self.files:
            file = self.table / one.path
            found = digest(file.read_bytes()) if file.is_file() else None
            if found != one.digest:
                what = "is not there" if found is None else f"has digest {found[:16]}…, expected {one.digest[:16]}…"
                msg = (
                    f"staged file {file}: a task of a large commit has written it, but here it {what}; workers must "
                    "see the data directory under the same path as the driver: mount it there, or have commits made in "
                    "the driver with large_commit_rows=none and large_commit_bytes=none"
                )
                raise TableCorrupt(msg)

    def rows(self) -> Iterator[pa.Table]:
        """All rows, piece by piece."""
        for one in self.files:
            with pq.ParquetFile(self.table / one.path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE):
                    yield pa.Table.from_batches([batch])


def staged_like(table: Path, name: StagedName) -> set[str]:
    """The files staged below `table` with the epoch, txid and attempt of `name`, relative to it."""
    found = (table / STAGED).glob(f"{name.epoch}-{name.txid}-{name.attempt}-*.parquet")
    return {f"{STAGED}/{file.name}" for file in found}
