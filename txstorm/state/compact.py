"""Compaction: bring ``state/<name>`` up to the last published txid, so that a plain reader sees it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from txstorm import faults
from txstorm.clients.delta import DataFile
from txstorm.state.staging import STAGED, compact_name, encoded, unique, write_new
from txstorm.state.table import DeltaTableState

FILE_ROWS = 1_000_000


def compact_state(table: DeltaTableState, rows: pa.Table, as_of: int, epoch: int, now: int) -> bool:
    """Make `rows`, all rows of the state as of txid `as_of`, the content of the state table; False if it is already.

    Called in the committer's turn, when nothing is decided that is not published. A crash leaves the table as it was
    or as it is to be; written files that nothing refers to are swept later. `now`: milliseconds since 1970. Passes
    the fault points ``compact.before``, ``compact.staged`` and ``compact.after``.

    Raises:
        FencedError: a newer coordinator leads this table.
    """
    faults.point("compact.before")
    files = [_write(table.path, part, epoch, now) for part in _parts(rows)]
    faults.point("compact.staged")
    done = table.replace(files, as_of, epoch, now)
    faults.point("compact.after")
    return done


def _parts(rows: pa.Table) -> list[pa.Table]:
    return [rows.slice(start, FILE_ROWS) for start in range(0, rows.num_rows, FILE_ROWS)]


def _write(table: Path, rows: pa.Table, epoch: int, now: int) -> DataFile:
    path, data = f"{STAGED}/{compact_name(epoch, unique())}", encoded(rows)
    write_new(table / path, data)
    return DataFile(path, len(data), now, f'{{"numRecords": {rows.num_rows}}}')
