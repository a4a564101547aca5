"""Rewind of tables to an earlier txid: plan each table's target, restore it, and roll a decided rewind forward.

A decided rewind is carried out by the process that decided it or, if that process died, by the next coordinator before
it does anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.rewind import Rewind, RewoundTable
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.features import append_only_text
from txstorm.clients.delta.footer_digest import check_seal
from txstorm.clients.files import check_file
from txstorm.errors import (
    BlockedError,
    ConflictError,
    FencedError,
    TableCorrupt,
    TableRefused,
    TxstormError,
)
from txstorm.lanes import THREADS, Lanes
from txstorm.recovery.clone import written
from txstorm.storage.rows.eviction import NO_BOUND
from txstorm.storage.rows.schema import TXID, in_order
from txstorm.storage.tables.as_of import version_as_of
from txstorm.storage.tables.directory import Directory, TableDirectory, placed
from txstorm.storage.tables.identity import TableRef, TopologyIdentity, is_merged, table_ref
from txstorm.storage.tables.intent import STATE
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import RESTORED, TRIES, TransactionalTable
from txstorm.typed import restored


def plan_table(
    place: Directory, owner: TopologyIdentity, ref: TableRef, txid: int, epoch: int, now: int
) -> RewoundTable:
    """Plan the rewind of the table `ref` to `txid`; stage the rows to restore, and change nothing else.

    Called once all decided groups are published, by the coordinator of `epoch`, which leads the table. `now` is in
    milliseconds since 1970.

    Raises:
        StateError: the state as of `txid` is no longer retained, or `txid` is inside a group (layout ``merge``).
        TableCorrupt: a file is missing or damaged.
        TableRefused: the table is append-only, but rows would have to be removed.
    """
    table = place.table(owner, ref)
    todo = planned(table, txid, _Files(table, epoch, now))
    if todo.removes and table.handle.append_only:
        raise TableRefused(append_only_text(table.path))
    return todo


class Rows(Protocol):
    """Port to the rows in a table's data files."""

    def txids(self, path: str) -> tuple[int, int]:
        """Return the lowest and highest txid of a file's rows; (0, 0) if the file has no rows."""

    def kept(self, paths: Sequence[str], txid: int) -> tuple[DataFile, ...]:
        """Stage the rows of the given files up to `txid` as new files; return these."""


def planned(table: TransactionalTable, txid: int, rows: Rows) -> RewoundTable:
    """Plan the rewind of an open `table` to `txid`; raise the errors of `plan_table`.

    A table that was dropped before `txid` keeps its content and its txid.
    """
    if (until := table.until()) is not None:
        txid = min(txid, until)
    left = table.log.app_version(table.ref.txid_app(table.owner)) is None and table.is_untouched(recorded=False)
    if table.ref.kind == STATE and not left:  # an empty one of an earlier timeline is left by a fenced coordinator
        return _state(table, txid)
    spans = {file.path: rows.txids(file.path) for file in table.log.files()}
    removes = [path for path, (_, last) in spans.items() if last > txid]
    cut = [path for path in removes if spans[path][0] <= txid]
    return RewoundTable(table.ref.uri, txid, tuple(removes), rows.kept(cut, txid) if cut else ())


def restore_table(where: Path | TableDirectory, rewind: Rewind, todo: RewoundTable, epoch: int, now: int) -> None:
    """Restore one table as decided by `rewind`; idempotent, so it may be retried after any failure.

    Raises:
        FencedError: a newer coordinator leads the table.
        TableCorrupt: the table, or a file to restore, is missing or damaged.
        BlockedError: the table cannot be committed to.
    """
    ref, owner = table_ref(todo.uri), rewind.owner
    table = placed(where).table(owner, ref)
    for _ in range(TRIES):
        if (found := table.epoch()) > epoch:
            msg = f"table {ref.uri}: a coordinator with epoch {found} has taken over from this one with epoch {epoch}"
            raise FencedError(f"{msg}; the other one carries the rewind out")
        if table.log.app_version(ref.txid_app(owner)) is not None:
            table.secure()
            if todo.properties:
                table.describe(todo.properties, epoch)
            return
        table.secure()  # no power failure may lose a version before the one that is committed now
        try:
            table.log.commit(_commit(table, rewind, todo, epoch, now))
        except ConflictError:
            pass
        except TableCorrupt as cause:
            _check_moved(table, cause)
        table.refresh()
    msg = f"table {ref.uri}: cannot rewind it to txid {rewind.txid} in {TRIES} tries: another writer changes it"
    raise BlockedError(f"{msg} all the time; stop that one")


def is_restored(data_dir: Path, rewind: Rewind, todo: RewoundTable) -> bool | None:
    """Return whether the table has been restored as decided by `rewind`; None if the table cannot be read."""
    ref, owner = table_ref(todo.uri), rewind.owner
    try:
        return DeltaTableState.open(data_dir, owner, ref).handle.app_version(ref.txid_app(owner)) is not None
    except TxstormError:
        return None


class _Files:
    """Implementation of `Rows` for the Parquet files of a table."""

    def __init__(self, table: DeltaTableState, epoch: int, now: int) -> None:
        self._table, self._epoch, self._now = table, epoch, now

    def txids(self, path: str) -> tuple[int, int]:
        """Read the txid range from the file's footer or, if that lacks statistics, from its rows."""
        with _reading(self._table, path):
            file = self._file(path)
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
            columns = [group.column(number) for group in groups for number in range(group.num_columns)]
            found = [column.statistics for column in columns if column.path_in_schema == TXID.name]
            if found and all(one is not None and one.has_min_max for one in found):
                return min(one.min for one in found), max(one.max for one in found)
            ends = pc.min_max(file.read([TXID.name])[TXID.name]).as_py()
            return (0, 0) if ends["max"] is None else (ends["min"], ends["max"])

    def kept(self, paths: Sequence[str], txid: int) -> tuple[DataFile, ...]:
        """Write the rows of the given files up to `txid` durably to one new file; return it."""
        rows = in_order(pa.concat_tables([self._rows(path, txid) for path in paths]), [TXID.name])
        return tuple(written(self._table.path, rows, self._epoch, self._now, TXID.name))

    def _rows(self, path: str, txid: int) -> pa.Table:
        with _reading(self._table, path):
            schema = self._table.handle.schema
            kept = self._file(path).read().filter(pc.field(TXID.name) <= txid)
            return restored(kept.select(schema.names), schema)

    def _file(self, path: str) -> pq.ParquetFile:
        file = self._table.path / path
        check_file(file)
        check_seal(file)
        return pq.ParquetFile(file, page_checksum_verification=True)


def _state(table: TransactionalTable, txid: int) -> RewoundTable:
    """Plan the rewind of a state table to its newest version not after `txid`; a state added later becomes empty."""
    now = {file.path for file in table.log.files()}
    if txid < table.since():
        return RewoundTable(table.ref.uri, txid, tuple(sorted(now)), ())
    version, as_of = version_as_of(table, txid)
    restored = table.at(version)
    then = {file.path: file for file in restored.files()}
    adds = tuple(file for path, file in sorted(then.items()) if path not in now)
    for file in adds:
        if not table.has_file(file.path):
            raise _unreadable(table, file.path, "it is missing")
    if is_merged(table.log.properties):
        as_of = txid  # the txids in between changed nothing; the ledger will record this txid
    bound = restored.app_version(table.owner.bound_app)
    return RewoundTable(table.ref.uri, as_of, tuple(sorted(now - then.keys())), adds, bound)


def _commit(table: TransactionalTable, rewind: Rewind, todo: RewoundTable, epoch: int, now: int) -> Commit:
    owner = rewind.owner
    current = {file.path: file for file in table.log.files()}
    info = {**owner.info(), "kind": RESTORED, "epoch": epoch, "as_of": todo.as_of, "rewind": rewind.txid}
    adds = [file for file in todo.adds if file.path not in current]
    removes = [current[path] for path in todo.removes if path in current]
    since, until = min(table.since(), rewind.txid), table.until()
    apps = {table.ref.txid_app(owner): todo.as_of, owner.epoch_app: epoch, owner.since_app: since}
    if todo.floor is not None:
        apps[owner.floor_app] = todo.floor
    if todo.bound is not None or table.log.app_version(owner.bound_app) is not None:
        apps[owner.bound_app] = NO_BOUND if todo.bound is None else todo.bound
    if until is not None:
        apps[owner.until_app] = min(until, rewind.txid)
    return Commit(apps, info, adds, removes, now, f"txstorm rewind to txid {rewind.txid}")


def _check_moved(table: TransactionalTable, cause: TableCorrupt) -> None:
    """Reopen the log after a commit with unknown outcome; raise `BlockedError` if there is no new version."""
    before = table.version
    table.log.reopen()
    if table.version == before:
        raise BlockedError(f"table {table.ref.uri}: cannot rewind it: {cause}") from cause


@contextmanager
def _reading(table: DeltaTableState, path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(table, path, str(error)) from error


def _unreadable(table: TransactionalTable, path: str, why: str) -> TableCorrupt:
    return TableCorrupt(
        f"table {table.ref.uri}: file {path} cannot be read, so the table cannot be rewound: {why}; restore the "
        "table's directory from a copy"
    )


log = logging.getLogger(__name__)


def finish_rewind(where: Path | TableDirectory, books: Books, lanes: Lanes = THREADS) -> Rewind | None:
    """Complete a decided rewind, if there is one, and return it; call with the lease held, before checking the tables.

    Raises:
        FencedError: a newer coordinator has taken over.
        TableCorrupt, BlockedError: a table cannot be restored.
    """
    if books.rewind() is None:
        return None
    books.raise_epoch()
    rewind = books.rewind()  # read again with the new epoch: another process may have completed it meanwhile
    if rewind is None:
        return None
    log.warning("rolling the rewind to txid %s forward", rewind.txid)
    carry_out(where, books, rewind, lanes)
    return rewind


def carry_out(where: Path | TableDirectory, books: Books, rewind: Rewind, lanes: Lanes = THREADS) -> None:
    """Carry out a decided rewind: restore every table, then the history, then the ledger; every step is idempotent."""
    place, now = placed(where, books.check_leads), lanes.now() // 1000
    for number, table in enumerate(rewind.tables, start=1):
        books.check_lease()
        restore_table(place, rewind, table, books.epoch, now)
        faults.point(f"rewind.{number}.restored")
    place.append_history([row for rows in books.history().values() for row in rows])
    if rewind.row is not None:
        place.append_history([dict(rewind.row)])
    faults.point("rewind.history")
    books.rewound(rewind, dict.fromkeys(books.tables(), rewind.txid))
    faults.point("rewind.after")
    log.warning("rewound to txid %s, on timeline %s", rewind.txid, rewind.timeline)
