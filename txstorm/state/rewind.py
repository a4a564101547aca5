"""The rewind intent: what every table of a topology is to hold after a rewind, and how one is brought there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm.clients.delta import Commit, DataFile
from txstorm.errors import (
    BlockedError,
    ConflictError,
    DataDirectoryError,
    FencedError,
    LedgerCorrupt,
    TableCorrupt,
    TxstormError,
)
from txstorm.state.clone import written
from txstorm.state.intent import STATE
from txstorm.state.read import version_as_of
from txstorm.state.recovery import table_ref
from txstorm.state.schema import TXID, in_order
from txstorm.state.table import CREATED, RESTORED, TRIES, DeltaTableState, Owner, TableRef

FORMAT, VERSION = "txstorm-rewind", 1


@dataclass(frozen=True, slots=True)
class RewoundTable:
    """What a rewind does to one table.

    Attributes:
        uri: the table.
        as_of: the txid that it is as of afterwards; of ``state/…`` maybe an earlier one than that of the rewind.
        removes: files that leave it: those with later rows only, and those that `adds` take the place of.
        adds: files of the version that is restored, and the rows up to the txid of a group that goes on after it.
    """

    uri: str
    as_of: int
    removes: tuple[str, ...]
    adds: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class Rewind:
    """A decided rewind, complete enough to be carried out by whoever leads next.

    Attributes:
        topology, incarnation: whose it is.
        timeline: the new one; `epoch`: of the coordinator that decided.
        txid: the last transaction that stays.
        row: its row of the history; None when no transaction stays.
        tables: all of them, in the order in which they are restored.
    """

    topology: str
    incarnation: str
    timeline: int
    epoch: int
    txid: int
    row: Mapping[str, Any] | None
    tables: tuple[RewoundTable, ...]

    @property
    def owner(self) -> Owner:
        """Whose tables they are from now on."""
        return Owner(self.topology, self.incarnation, self.timeline)

    def to_json(self) -> dict[str, Any]:
        """The rewind as JSON values, with its format's version."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, found: Any) -> Rewind:
        """What `to_json` made.

        Raises:
            DataDirectoryError: it was written by a newer txstorm.
            LedgerCorrupt: it is no rewind.
        """
        try:
            fields = dict(found)
            name, version = fields.pop("format"), fields.pop("version")
            if name == FORMAT and version > VERSION:
                msg = f"rewind: format version {version} is newer than {VERSION}, which this txstorm reads; upgrade it"
                raise DataDirectoryError(msg)
            return cls(**{**fields, "tables": tuple(map(_table_from, fields["tables"]))})
        except (KeyError, TypeError, ValueError) as cause:
            msg = f"rewind: expected format {FORMAT!r}, got {str(found)[:80]!r}; the ledger is damaged, restore it"
            raise LedgerCorrupt(msg) from cause


def plan_table(data_dir: Path, owner: Owner, ref: TableRef, txid: int, epoch: int, now: int) -> RewoundTable:
    """What a rewind to `txid` does to the table `ref`; rows that have to be put back are staged, nothing else changes.

    Called by the coordinator of `epoch`, which leads the table, when all decided groups are published. `now`:
    milliseconds since 1970.

    Raises:
        StateError: a state as of `txid` is no longer kept.
        TableCorrupt: a file is missing or damaged.
    """
    table = DeltaTableState.open(data_dir, owner, ref)
    if ref.kind == STATE:
        return _state(table, txid)
    removes, rows, schema = [], [], table.handle.schema
    for file in table.handle.files():
        with _Reading(table, file.path):
            parquet = pq.ParquetFile(table.path / file.path)
            first, last = _txids(parquet)
            if last > txid:
                removes.append(file.path)
            if first <= txid < last:
                kept = parquet.read().filter(pc.field(TXID.name) <= txid)
                rows.append(kept.select(schema.names).cast(schema))
    adds = tuple(written(table.path, in_order(pa.concat_tables(rows), [TXID.name]), epoch, now)) if rows else ()
    return RewoundTable(ref.uri, txid, tuple(removes), adds)


def restore_table(data_dir: Path, rewind: Rewind, todo: RewoundTable, epoch: int, now: int) -> None:
    """Bring one table to where `rewind` has decided it to be, once; may be called again after any failure.

    Raises:
        FencedError: a newer coordinator leads the table.
        TableCorrupt: the table, or a file that comes back, is gone or damaged.
        BlockedError: the commit cannot be made.
    """
    ref, owner = table_ref(todo.uri), rewind.owner
    table = DeltaTableState.open(data_dir, owner, ref)
    for _ in range(TRIES):
        if (found := table.epoch()) > epoch:
            msg = f"table {ref.uri}: a coordinator with epoch {found} has taken over from this one with epoch {epoch}"
            raise FencedError(f"{msg}; the other one carries the rewind out")
        if table.handle.app_version(ref.txid_app(owner)) is not None:
            table.sync(table.version)
            return
        try:
            table.handle.commit(_commit(table, rewind, todo, epoch, now))
        except ConflictError:
            pass
        except TableCorrupt as cause:
            _check_moved(table, cause)
        table.refresh()
    msg = f"table {ref.uri}: cannot rewind it to txid {rewind.txid} in {TRIES} tries: another writer changes it"
    raise BlockedError(f"{msg} all the time; stop that one")


def is_restored(data_dir: Path, rewind: Rewind, todo: RewoundTable) -> bool | None:
    """Whether the table is where `rewind` wants it; None if it cannot be asked."""
    ref, owner = table_ref(todo.uri), rewind.owner
    try:
        return DeltaTableState.open(data_dir, owner, ref).handle.app_version(ref.txid_app(owner)) is not None
    except TxstormError:
        return None


def _table_from(found: Mapping[str, Any]) -> RewoundTable:
    adds = tuple(DataFile(**one) for one in found["adds"])
    return RewoundTable(found["uri"], found["as_of"], tuple(found["removes"]), adds)


def _txids(file: pq.ParquetFile) -> tuple[int, int]:
    """The lowest and the highest txid of a file's rows, from its footer where that says so."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    found = [column.statistics for column in columns if column.path_in_schema == TXID.name]
    if found and all(one is not None and one.has_min_max for one in found):
        return min(one.min for one in found), max(one.max for one in found)
    ends = pc.min_max(file.read([TXID.name])[TXID.name]).as_py()
    return (0, 0) if ends["max"] is None else (ends["min"], ends["max"])


def _state(table: DeltaTableState, txid: int) -> RewoundTable:
    """The newest version that is not ahead of `txid`; of a state that was added later, nothing."""
    now = {file.path for file in table.handle.files()}
    if txid < _created(table):
        return RewoundTable(table.ref.uri, txid, tuple(sorted(now)), ())
    base, as_of = version_as_of(table, txid)
    then = {file.path: file for file in base.files()}
    adds = tuple(file for path, file in sorted(then.items()) if path not in now)
    for file in adds:
        if not (table.path / file.path).exists():
            raise _unreadable(table, file.path, "it is missing")
    return RewoundTable(table.ref.uri, as_of, tuple(sorted(now - then.keys())), adds)


def _created(table: DeltaTableState) -> int:
    """The txid that the table's range starts after, as far as its log tells."""
    return next((entry.info["last"] for entry in table.handle.history() if entry.info.get("kind") == CREATED), 0)


def _commit(table: DeltaTableState, rewind: Rewind, todo: RewoundTable, epoch: int, now: int) -> Commit:
    owner = rewind.owner
    current = {file.path: file for file in table.handle.files()}
    info = {
        "topology": owner.topology,
        "incarnation": owner.incarnation,
        "timeline": owner.timeline,
        "kind": RESTORED,
        "epoch": epoch,
        "as_of": todo.as_of,
        "rewind": rewind.txid,
    }
    adds = [file for file in todo.adds if file.path not in current]
    removes = [current[path] for path in todo.removes if path in current]
    apps = {table.ref.txid_app(owner): todo.as_of, owner.epoch_app: epoch}
    return Commit(apps, info, adds, removes, now, f"txstorm rewind to txid {rewind.txid}")


def _check_moved(table: DeltaTableState, cause: TableCorrupt) -> None:
    """The commit may have been made or not: read again, and only when nothing has moved give up."""
    before = table.version
    table.handle.reopen()
    if table.version == before:
        raise BlockedError(f"table {table.ref.uri}: cannot rewind it: {cause}") from cause


class _Reading:
    """Names the file that cannot be read."""

    def __init__(self, table: DeltaTableState, path: str) -> None:
        self._table, self._path = table, path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | pa.ArrowException):
            raise _unreadable(self._table, self._path, str(error)) from error


def _unreadable(table: DeltaTableState, path: str, why: str) -> TableCorrupt:
    return TableCorrupt(
        f"table {table.ref.uri}: file {path} cannot be read, so the table cannot be rewound: {why}; restore the "
        "table's directory from a copy"
    )
