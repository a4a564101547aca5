"""Retention: remove change rows, versions and files that precede the kept history.

The kept history begins with a transaction, the horizon, which is determined by the stamps in the history table, never
by the age of files. A table can be read as of the horizon and every later transaction as long as it has the newest
retained version that is not ahead of the horizon, all later retained versions and, for a state, the change rows after
that version. The versions of named savepoints and the files named by an intent in the ledger are kept, too.

All work is done in steps, so that commits can run in between: `Steps` yields after each step. A crash between two steps
leaves unneeded files, which the next retention run removes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from txstorm import faults
from txstorm.clients.delta.archive import Archiving, Shortening, expired_files, remove_archived
from txstorm.clients.delta.entry import Commit
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import PRUNED, checkpoint_after
from txstorm.errors import ConflictError
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.as_of import staying
from txstorm.storage.tables.history import HISTORY, has_history, secure_history
from txstorm.storage.tables.intent import STATE
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import RewriteFiles
from txstorm.storage.upkeep.read_guard import removing
from txstorm.storage.upkeep.sweep import unlogged

Answer = TypeVar("Answer")
Steps = Generator[Callable[[], Any] | None, Any, Answer]
"""Steps for the committer's turn; a yielded callable requests its result, which may be computed alongside commits."""

AT_ONCE = 64
"""Number of files removed, or log entries read, per step."""


def retain_table(
    data_dir: Path,
    table: DeltaTableState,
    txid: int,
    epoch: int,
    saved: Collection[int],
    kept: Callable[[], set[str]],
) -> Steps[int | None]:
    """Remove the versions and files that are not needed to read `table` as of transaction `txid` or a later one.

    Returns the txid that the oldest kept version is as of; None if all versions are ahead of `txid`.

    Args:
        data_dir: the data directory.
        table: the table, led by this coordinator; whatever is committed to it meanwhile is kept.
        txid: the first transaction of the kept history.
        epoch: the coordinator's epoch.
        saved: versions that savepoints need.
        kept: returns the staged files, relative to the table, that an intent names or this run uses; called in a
            separate step.

    Raises:
        TableCorrupt: the log, or a version that belongs to a savepoint, is damaged.
    """
    handle = yield from in_background(partial(DeltaHandle.open, table.path))
    found = yield from _newest_until(handle, txid, state=table.ref.kind == STATE)
    if found is None:
        return None
    version, as_of = found
    yield from _remove_versions(data_dir, table.path, version, saved)
    yield None
    handle = yield from in_background(partial(DeltaHandle.open, table.path))

    def needed() -> set[str]:
        older = (DeltaHandle.open(table.path, number) for number in saved if number < version)
        return {*kept(), *(file.path for saved_version in older for file in saved_version.files())}

    doomed = yield from unlogged(table.path, epoch, needed, handle, AT_ONCE)
    yield from _remove_files(data_dir, [table.path / path for path in doomed])
    return as_of


def in_background(call: Callable[[], Answer]) -> Steps[Answer]:
    """Run `call`, in parallel to commits if the caller that drives the steps supports it; for directory listings."""
    found = yield call
    return call() if found is None else found


def prune_changes(table: DeltaTableState, as_of: int, epoch: int, now: int) -> None:
    """Remove from a changes table the files whose rows are all contained in the state table as of txid `as_of`.

    Called in the committer's turn. The files remain on disk while a kept version or savepoint refers to them. `now`:
    milliseconds since 1970. Passes the fault point ``retain.pruned``.

    Raises:
        FencedError: a newer coordinator leads this table.
    """
    lasts = _lasts(table.handle)
    leaving = {path: last for path, last in lasts if last is not None and last <= as_of}
    if leaving:
        table.exchange(RewriteFiles([], list(leaving), now, floor=max(leaving.values())), epoch)
        faults.point("retain.pruned")


def keep_only(data_dir: Path, table: Path, version: int) -> Steps[None]:
    """Remove archived versions before `version`, and unreferenced files, from a table that has no savepoints."""
    yield from _remove_versions(data_dir, table, version, ())
    handle = yield from in_background(partial(DeltaHandle.open, table))
    doomed = yield from unlogged(table, 0, set, handle, AT_ONCE)
    yield from _remove_files(data_dir, [table / path for path in doomed])


def _lasts(handle: DeltaHandle) -> Iterable[tuple[str, int | None]]:
    actions = handle.actions(TXID.name)
    if f"max.{TXID.name}" not in actions.column_names:
        return []
    return zip([file.path for file in handle.files()], actions[f"max.{TXID.name}"].to_pylist(), strict=True)


def _newest_until(handle: DeltaHandle, txid: int, *, state: bool) -> Steps[tuple[int, int] | None]:
    """Find the newest retained version that is not ahead of `txid`; return it with the txid it is as of, or None."""
    if state:
        return next(((entry.version, as_of) for entry, as_of in staying(handle) if as_of <= txid), None)
    for number, entry in enumerate(handle.history(), start=1):
        as_of = entry.info.get("as_of", entry.info.get("last"))
        if as_of is not None and as_of <= txid:
            return entry.version, as_of
        if number % AT_ONCE == 0:
            yield None
    return None


def _remove_versions(data_dir: Path, table: Path, version: int, saved: Collection[int]) -> Steps[None]:
    doomed = yield from in_background(partial(expired_files, table, version, saved))
    while doomed:
        with removing(data_dir) as free:
            if not free:
                return
            remove_archived(table, doomed[:AT_ONCE])
        doomed = doomed[AT_ONCE:]
        faults.point("retain.log")
        yield None


def _remove_files(data_dir: Path, files: list[Path]) -> Steps[None]:
    while files:
        with removing(data_dir) as free:
            if not free:
                return
            for file in files[:AT_ONCE]:
                file.unlink(missing_ok=True)
        files = files[AT_ONCE:]
        faults.point("retain.files")
        yield None


@dataclass(frozen=True, slots=True)
class Horizon:
    """Beginning of the kept history.

    Attributes:
        txid: the first transaction of the kept history.
        files: files of the history table that hold rows of earlier transactions only.
    """

    txid: int
    files: tuple[str, ...]


def find_horizon(data_dir: Path, timeline: int, cutoff: int) -> Steps[Horizon | None]:
    """Find the last transaction of `timeline` with a stamp up to `cutoff` (UTC microseconds since 1970), in steps.

    Returns None if the history table has no such transaction. In a rewound topology, the horizon is never earlier than
    the transaction to which the topology was rewound.

    Raises:
        TableCorrupt: the history table cannot be read.
    """
    if not has_history(data_dir / HISTORY):
        return None
    handle = yield from in_background(partial(DeltaHandle.open, data_dir / HISTORY))
    older: list[tuple[str, pa.Table]] = []
    txid = None
    times = handle.actions()["modification_time"].to_pylist()
    for _, path in sorted(zip(times, (file.path for file in handle.files()), strict=True)):  # oldest first
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
    """Remove `files` from the history table, in steps of the committer's turn; return the table's version.

    Does nothing if another writer has just written to the table. `now`: milliseconds since 1970.
    """
    handle = yield from in_background(partial(DeltaHandle.open, data_dir / HISTORY))
    leaving = [file for file in handle.files() if file.path in set(files)]
    if leaving:
        try:
            handle.commit(Commit({}, {"kind": PRUNED}, removes=leaving, removed_at=now))
        except ConflictError:
            return handle.version
        handle.refresh()
        secure_history(handle)
        faults.point("retain.history")
    work = Shortening(lambda: handle, HISTORY, checkpoint_after(0), Archiving())
    yield from in_background(lambda: list(work.steps()))
    return handle.version


def _any_kept(rows: pa.Table, timeline: int, txid: int) -> bool:
    kept = pc.and_(pc.equal(rows["timeline"], timeline), pc.greater_equal(rows["txid"], txid))
    return bool(pc.any(kept).as_py())
