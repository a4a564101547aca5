"""Where the kept history begins: told by the stamps of transactions in the history table, never by ages of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from txstorm import faults
from txstorm.clients.delta.handle import Commit, DeltaHandle, is_table
from txstorm.errors import ConflictError
from txstorm.storage.tables.history import HISTORY, secure_history
from txstorm.storage.tables.table import CHECKPOINT_EVERY, PRUNED, Archiving, Shortening
from txstorm.storage.upkeep.retention import Steps, beside


@dataclass(frozen=True, slots=True)
class Horizon:
    """The beginning of the kept history.

    Attributes:
        txid: its first transaction.
        files: of the history table, with rows of earlier ones only.
    """

    txid: int
    files: tuple[str, ...]


def find_horizon(data_dir: Path, timeline: int, cutoff: int) -> Steps[Horizon | None]:
    """The last transaction of `timeline` that is not younger than `cutoff` (UTC microseconds since 1970), in steps.

    None when the history table has none. Of a rewound topology it is none before that to which it was rewound.

    Raises:
        TableCorrupt: the history table cannot be read.
    """
    if not is_table(data_dir / HISTORY):
        return None
    handle = yield from beside(partial(DeltaHandle.open, data_dir / HISTORY))
    older: list[tuple[str, pa.Table]] = []
    txid = None
    for path in _in_order(handle):
        rows = handle.read(["timeline", "txid", "stamp"], paths={path})
        old = rows.filter(pc.less_equal(rows["stamp"].cast(pa.int64()), cutoff))
        own = pc.max(old.filter(pc.equal(old["timeline"], timeline))["txid"]).as_py()
        txid = txid if own is None else max(own, txid or 0)
        if old.num_rows < rows.num_rows:
            break
        older.append((path, rows))
        yield None
    if txid is None:
        return None
    return Horizon(txid, tuple(path for path, rows in older if not _any_kept(rows, timeline, txid)))


def prune_history(data_dir: Path, files: Sequence[str], now: int) -> Steps[int]:
    """Let `files` leave the history table; returns its version. `now`: milliseconds since 1970.

    In steps of the committer's turn; where somebody else has just written to the table, nothing is done this time.
    """
    handle = yield from beside(partial(DeltaHandle.open, data_dir / HISTORY))
    leaving = [file for file in handle.files() if file.path in set(files)]
    if leaving:
        try:
            handle.commit(Commit({}, {"kind": PRUNED}, removes=leaving, removed_at=now))
        except ConflictError:
            return handle.version
        handle.refresh()
        secure_history(handle)
        faults.point("retain.history")
    work = Shortening(lambda: handle, HISTORY, CHECKPOINT_EVERY, Archiving())
    yield from beside(lambda: list(work.steps()))
    return handle.version


def _in_order(handle: DeltaHandle) -> list[str]:
    """The files as they were written."""
    times = handle.actions()["modification_time"].to_pylist()
    return [path for _, path in sorted(zip(times, (file.path for file in handle.files()), strict=True))]


def _any_kept(rows: pa.Table, timeline: int, txid: int) -> bool:
    kept = pc.and_(pc.equal(rows["timeline"], timeline), pc.greater_equal(rows["txid"], txid))
    return bool(pc.any(kept).as_py())
