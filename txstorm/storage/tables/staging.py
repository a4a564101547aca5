"""Staged files: the rows of one group for one table, written durably before an intent refers to them."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm import faults
from txstorm.clients.delta.entry import DataFile
from txstorm.clients.delta.footer_digest import sealed
from txstorm.clients.files import make_directories, read_whole, sync_file, write_synced
from txstorm.errors import TableCorrupt
from txstorm.storage.rows.eviction import words
from txstorm.storage.rows.schema import OP, SEQUENCE, UPDATED
from txstorm.storage.tables.intent import STAGED, Staged

IN_DRIVER = "all"
"""Field `task` of the name of a file with the rows of all tasks, which the driver has staged."""
_FIELDS = 6
_SMALL = 2_000
PLACED_ROWS = 1 << 14
"""Maximum number of rows of a row group in a file with rows of collections."""
_REPEATED = ("_txid", "_op")


class StagedName(NamedTuple):
    """Fields of a staged file's name: ``<epoch>-<txid>-<attempt>-<component>-<task>-<uuid>.<seal>.parquet``."""

    epoch: int
    txid: int
    attempt: int
    component: str
    task: str

    def text(self, unique: str) -> str:
        """Format the file name; `unique` is ``<uuid>.<seal>`` from `txstorm.clients.delta.footer_digest.sealed`."""
        return f"{self.epoch}-{self.txid}-{self.attempt}-{self.component}-{self.task}-{unique}.parquet"


def compact_name(epoch: int, unique: str) -> str:
    """Return the name for a file written by a compaction; `unique` as in `StagedName.text`."""
    return f"{epoch}-compact-{unique}.parquet"


def epoch_of(name: str) -> int | None:
    """Return the epoch of the coordinator that wrote the file `name`, or None if txstorm did not write it."""
    epoch, _, rest = name.partition("-")
    ours = name.endswith(".parquet") and (rest.startswith("compact-") or len(name.split("-")) >= _FIELDS)
    return int(epoch) if ours and epoch.isascii() and epoch.isdigit() else None


def staged_after(table: Path, epoch: int, txid: int) -> set[str]:
    """Find the files staged in `epoch` for txids after `txid`; return their paths relative to the table."""
    names = (file.name for file in (table / STAGED).glob(f"{epoch}-*.parquet"))
    return {f"{STAGED}/{name}" for name in names if name.split("-")[1].isdecimal() and int(name.split("-")[1]) > txid}


def unique() -> str:
    """Return a random string that makes the name of a new file unique."""
    return uuid.uuid4().hex


def stage(table: Path, rows: pa.Table, name: StagedName, unique: Callable[[], str] = unique) -> Staged:
    """Write `rows` (which have the column ``_txid`` and may be empty) durably below `table`, under a unique name.

    Called in P5 (stage); the file is unreferenced until an intent names it. Passes the fault points
    ``p5.staged.before`` and ``p5.staged.after``.
    """
    faults.point("p5.staged.before")
    txids = rows["_txid"].to_numpy() if rows.num_rows else [name.txid]
    data = encoded(rows)
    path = f"{STAGED}/{name.text(sealed(unique(), data))}"
    write_new(table / path, data)
    faults.point("p5.staged.after")
    first, last = int(np.min(txids)), int(np.max(txids))
    return Staged(path, len(data), digest(data), rows.num_rows, txid_stats(rows), first, last)


def txid_stats(rows: pa.Table) -> str:
    """Return Delta's statistics of a file with `rows`, with bounds for the column ``_txid``, as JSON."""
    return column_stats(rows, "_txid")


def column_stats(rows: pa.Table, column: str) -> str:
    """Return Delta's statistics of a file with `rows`, with bounds for one integer `column`, as JSON."""
    if not rows.num_rows:
        return json.dumps({"numRecords": 0})
    numbers = rows[column].to_numpy()
    stats = {
        "numRecords": rows.num_rows,
        "minValues": {column: int(numbers.min())},
        "maxValues": {column: int(numbers.max())},
        "nullCount": {column: 0},
    }
    return json.dumps(stats)


def encoded(rows: pa.Table) -> memoryview:
    """Encode `rows` as a Parquet file with page checksums.

    Rows of collections, which are read by ranges of the order column, get small row groups. Their integers, mostly
    sorted or of many values, are stored as differences: dictionaries take twice the time and the space.
    """
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
    cuts = [0, rows.num_rows]
    if SEQUENCE.name in rows.column_names:
        order = rows.column_names[rows.column_names.index(SEQUENCE.name) - 1]
        deltas = [field.name for field in rows.schema if field.name == order or pa.types.is_integer(field.type)]
        flat = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
        options["use_dictionary"] = [name for name in flat if name not in deltas]
        options["column_encoding"] = dict.fromkeys(deltas, "DELTA_BINARY_PACKED")
        cuts = _cuts(rows, order)
    elif rows.num_rows <= _SMALL:  # with few rows, dictionaries cost space and time
        options["use_dictionary"] = [name for name in _REPEATED if name in rows.column_names]
    with pq.ParquetWriter(sink, rows.schema, **options) as writer:
        for first, last in pairwise(cuts):
            writer.write_table(rows.slice(first, last - first), max(last - first, 1))
    return memoryview(sink.getvalue())


@cache
def is_kept(schema: pa.Schema) -> bool:
    """Return whether a file can hold columns of these types: not decimals with a negative scale, for example."""
    with suppress(pa.ArrowException, OSError):
        encoded(schema.empty_table())
        return True
    return False


def _cuts(rows: pa.Table, order: str) -> list[int]:
    """Return where row groups of rows of collections begin, and where the last one ends.

    A long run of rows of one collection gets row groups of its own, without the tombstone before it or rows of another
    collection: with either, their bounds would span the whole collection, and every scan would read them.
    """
    if not rows.num_rows:
        return [0, 0]
    orders = words(rows[order])
    begins = orders[1:] < orders[:-1]
    if OP.name in rows.column_names:
        plain = pc.equal(rows[OP.name], UPDATED).to_numpy()
        begins |= plain[1:] != plain[:-1]
    edges = np.concatenate([[0], np.flatnonzero(begins) + 1, [rows.num_rows]])
    long = np.flatnonzero(np.diff(edges) >= max(PLACED_ROWS // 16, 1))
    parts = np.unique(np.concatenate([edges[[0, -1]], edges[long], edges[long + 1]])).tolist()
    cuts = [0]
    for first, last in pairwise(parts):
        number = -(-(last - first) // PLACED_ROWS)
        cuts += [first + (last - first) * part // number for part in range(1, number + 1)]
    return cuts


def write_new(path: Path, data: memoryview) -> None:
    """Create a new file, and make its content and its name durable; raise `OSError` with the path if that fails.

    After an error the file is unusable: write the rows again under another name.
    """
    make_directories(path.parent)
    try:
        write_synced(path, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_file(path.parent)


def digest(data: memoryview | bytes) -> str:
    """Return the BLAKE2b digest of `data`, as hex."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def data_file(table: Path, staged: Staged) -> DataFile:
    """Describe a staged file as a data file, for the table's log.

    Raises:
        TableCorrupt: the file is missing or unreadable, or has another size.
    """
    file = table / staged.path
    try:
        found = file.stat()
    except FileNotFoundError:
        raise _damaged(file, "it is missing") from None
    except OSError as error:
        raise _damaged(file, f"it cannot be read: {error.strerror}") from error
    if found.st_size != staged.size:
        raise _damaged(file, f"expected {staged.size} bytes, found {found.st_size}")
    return DataFile(staged.path, staged.size, int(found.st_mtime * 1000), staged.stats)


def checked_bytes(table: Path, staged: Staged) -> bytes:
    """Read a staged file; raise `TableCorrupt` unless its content is unchanged since it was staged."""
    data_file(table, staged)
    if (table / staged.path).resolve() != table.resolve() / staged.path:
        raise _damaged(table / staged.path, "it is a symbolic link, or below one")
    data = read_whole(table / staged.path, staged.size)
    found = digest(data)
    if found != staged.digest:
        raise _damaged(table / staged.path, f"expected digest {staged.digest[:16]}…, found {found[:16]}…")
    return data


def _damaged(file: Path, what: str) -> TableCorrupt:
    return TableCorrupt(
        f"staged file {file}: {what}, so the decided transaction that names it cannot be published; "
        "restore the file from a copy and start again"
    )
