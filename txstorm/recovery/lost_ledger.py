"""Reconstruction of a lost ledger's content, as far as it is recorded in the tables of its data directory.

Every commit of a table records its txids, with attempts, extents and stamps. Information that only the ledger held is
lost: metadata of undecided transactions, and decided groups that no table contains yet. Their output was
never visible, so they are planned and processed again. The intent of a group that only some tables contain is rebuilt
from its staged files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm.clients.delta.footer_digest import check_seal
from txstorm.clients.delta.log import paths_of
from txstorm.errors import DataDirectoryError, TableCorrupt
from txstorm.storage.tables.directory import outside_refs, table_refs
from txstorm.storage.tables.history import read_history
from txstorm.storage.tables.identity import TableRef, is_merged
from txstorm.storage.tables.intent import (
    CHANGES,
    MAP,
    STAGED,
    STATE,
    UNKNOWN,
    Intent,
    IntentTable,
    Staged,
    TxidRecord,
    encode_schema,
)
from txstorm.storage.tables.staging import IN_DRIVER, digest, txid_stats
from txstorm.storage.tables.table import DeltaTableState, open_table


@dataclass(frozen=True)
class Published:
    """One commit to a table, and the group of txids that it published.

    Attributes:
        first: the first txid of the range that the commit covers, which may begin before the group.
        version: the table version that the commit created.
    """

    uri: str
    first: int
    version: int
    records: tuple[TxidRecord, ...]

    @property
    def last(self) -> int:
        """The last txid of the group."""
        return self.records[-1].txid


@dataclass(frozen=True)
class Found:
    """The tables found in a data directory, and the position of the topology derived from them.

    Attributes:
        tables: by uri, all except ``state/…`` tables that have a change table.
        groups: last txid → the group's commits to all tables; for groups missing from the history table, and for the
            newest group of every table.
        history: the rows of the history table on this timeline, in txid order.
        dropped: uri → last valid txid of each dropped table; dropped tables are not in `tables`.
    """

    topology: str
    incarnation: str
    timeline: int
    epoch: int
    tables: Mapping[str, DeltaTableState]
    groups: Mapping[int, Sequence[Published]]
    history: Sequence[Mapping[str, Any]]
    dropped: Mapping[str, int]

    @property
    def recorded(self) -> int:
        """The last txid in the history table; 0 if it has none."""
        return int(self.history[-1]["txid"]) if self.history else 0

    @property
    def last(self) -> int:
        """The last txid recorded by the history table or any other table; 0 if there is none."""
        return max([self.recorded, *self.groups])


def find_tables(data_dir: Path) -> Found:
    """Read all tables of `data_dir` and check that they belong together, without writing.

    Raises:
        DataDirectoryError: there are no tables, or they belong to several topologies or timelines.
        TableCorrupt: a table is missing, damaged or older than the history table, or tables disagree about a txid.
    """
    refs = list(table_refs(data_dir))
    if not refs:
        msg = f"data directory {data_dir}: expected tables to rebuild its ledger from, found none; start in a new one"
        raise DataDirectoryError(msg)
    opened = _without_left([open_table(data_dir, ref) for ref in refs])
    owner = opened[0].owner
    for table in opened:
        if table.owner != owner:
            raise DataDirectoryError(
                f"table {table.ref.uri}: belongs to {table.owner}, but {opened[0].ref.uri} to {owner}; expected tables "
                "of one topology from one moment: restore them from the same copy"
            )
    _check_pairs(data_dir, opened)
    rows = read_history(data_dir)  # with stamps as in the ledger and in commit infos: UTC microseconds
    rows = rows.set_column(rows.schema.get_field_index("stamp"), "stamp", rows["stamp"].cast(pa.int64()))
    history = [row for row in rows.to_pylist() if row["timeline"] == owner.timeline]
    known = {table.ref.uri: table for table in opened if table.ref.kind != STATE or _is_merged(table)}
    groups = _groups(known, int(history[-1]["txid"]) if history else 0)
    _check_history(known, groups, history)
    epoch = max(table.epoch() for table in opened)
    dropped = {uri: until for uri, table in known.items() if (until := table.until()) is not None}
    tables = {uri: table for uri, table in known.items() if uri not in dropped}
    return Found(owner.topology, owner.incarnation, owner.timeline, epoch, tables, groups, history, dropped)


def _without_left(tables: Sequence[DeltaTableState]) -> list[DeltaTableState]:
    """Omit what coordinators left that were killed or fenced while they started; the next start takes it over.

    These are empty tables: of an earlier timeline than others, or of changes without the table of the state, which is
    created after them.
    """
    newest = max(table.owner.timeline for table in tables)
    tables = [one for one in tables if one.owner.timeline == newest or not one.is_untouched(recorded=False)]
    states = {table.ref.name for table in tables if table.ref.kind == STATE}
    return [
        one
        for one in tables
        if one.ref.kind != CHANGES or one.ref.name in states or not one.is_untouched(recorded=False)
    ]


def _is_merged(table: DeltaTableState) -> bool:
    return table.ref.kind == STATE and is_merged(table.handle.properties)


def _check_pairs(data_dir: Path, tables: Sequence[DeltaTableState]) -> None:
    refs = [table.ref for table in tables if not _is_merged(table)]
    changes, states = ({ref.name for ref in refs if ref.kind == kind} for kind in (CHANGES, STATE))
    for name in sorted(changes ^ states):
        there, gone = ("changes", "state") if name in changes else ("state", "changes")
        msg = f"{data_dir}: there is a table {there}/{name}, but none {gone}/{name}; restore it from a copy"
        raise TableCorrupt(msg)


def _groups(tables: Mapping[str, DeltaTableState], recorded: int) -> dict[int, list[Published]]:
    groups: dict[int, list[Published]] = {}
    for uri, table in tables.items():
        for version, info in table.commits():  # newest first
            one = Published(uri, info["first"], version, tuple(map(TxidRecord.from_json, info["txids"])))
            groups.setdefault(one.last, []).append(one)
            if one.last <= recorded:
                break
    for last, (first, *others) in groups.items():
        for one in others:
            if _attempts(one.records) != _attempts(first.records):
                raise _disagreed(last, one.uri, _attempts(one.records), first.uri, _attempts(first.records))
    return dict(sorted(groups.items()))


def _check_history(
    tables: Mapping[str, DeltaTableState],
    groups: Mapping[int, Sequence[Published]],
    history: Sequence[Mapping[str, Any]],
) -> None:
    known = {row["txid"]: (row["txid"], row["attempt"], row["digest"]) for row in history}
    for last, published in groups.items():
        for one in _attempts(published[0].records):
            if known.get(one[0], one) != one:
                raise _disagreed(last, published[0].uri, [one], "history", [known[one[0]]])
    newest: dict[str, int] = {}
    for row in history:
        newest.update(json.loads(row["versions"] or "{}"))
    for uri, version in newest.items():
        if uri not in tables or tables[uri].version < version:
            found = f"it at version {tables[uri].version}" if uri in tables else "no such table"
            msg = f"table {uri}: the history knows it at version {version}, found {found}; restore it from a copy"
            raise TableCorrupt(msg)


def _attempts(records: Sequence[TxidRecord]) -> list[tuple[int, int, str]]:
    return [(one.txid, one.attempt_id, one.digest) for one in records]


def _disagreed(last: int, table: str, found: object, other: str, expected: object) -> TableCorrupt:
    return TableCorrupt(
        f"tables disagree on the group that ends with txid {last}: (txid, attempt, digest) is {found} in {table}, but "
        f"{expected} in {other}; they are not from the same moment: restore them from the same copy"
    )


def unfinished_group(data_dir: Path, found: Found) -> Intent | None:
    """Return the intent of the last group if some table may lack it; None if all contain it, or if no table records it.

    All of the group's rows were staged, in files named after epoch, txid and attempt, before any table was published.

    Raises:
        TableCorrupt: a staged file is damaged, or two files of one task differ.
    """
    if found.last <= found.recorded:  # the group was completed
        return None
    published = found.groups[found.last]
    files = {one.uri: _held(data_dir, found, one) for one in published}
    if not all(files.values()):  # layout merge: these files are removed with their intent, so the group was completed
        return None
    epoch, records = next(iter(files.values()))[0].name.partition("-")[0], published[0].records
    held = [
        _table(found.tables[one.uri].ref, data_dir, files[one.uri], one.first - 1)  # ranges have no gaps
        for one in published
    ]
    begins = tuple(f"{epoch}-{one.txid}-{one.attempt_id}-" for one in records)
    waiting = list(_waiting(data_dir, found, begins, set(files)))
    if not waiting:
        return None
    return Intent(found.topology, found.incarnation, found.timeline, int(epoch), records, (*held, *waiting))


def _held(data_dir: Path, found: Found, one: Published) -> list[Path]:
    """Return the staged files of a commit; empty for a state of the layout ``merge`` whose files were deleted."""
    if found.tables[one.uri].ref.kind != STATE:
        return _logged(data_dir, found, one)
    last = one.records[-1]
    wanted = [str(last.txid), str(last.attempt_id)]
    files = (data_dir / one.uri / STAGED).glob("*.parquet")
    return _of_each_task(data_dir / one.uri, [file for file in files if file.name.split("-")[1:3] == wanted])


def _logged(data_dir: Path, found: Found, one: Published) -> list[Path]:
    """Return the staged files that a commit added to its table's log."""
    entry = found.tables[one.uri].handle.log_entry(one.version)
    paths = [data_dir / one.uri / path for path in paths_of(entry)]
    if not paths:
        msg = f"table {one.uri}: expected version {one.version} to add files, found none; restore it from a copy"
        raise TableCorrupt(msg)
    return paths


def _waiting(data_dir: Path, found: Found, begins: tuple[str, ...], published: set[str]) -> Iterable[IntentTable]:
    for uri, table in found.tables.items():
        if uri not in published and (files := _begun(data_dir / uri, begins)):
            yield _table(table.ref, data_dir, files, table.last_txid())
    for ref in outside_refs(data_dir):
        if files := _begun(data_dir / ref.uri, begins):
            yield _table(ref, data_dir, files, _outside_txid(data_dir / ref.uri, found))


def _begun(table: Path, begins: tuple[str, ...]) -> list[Path]:
    """List the staged files of a group, given how their names begin for each of its txids.

    Tasks stage the rows of each txid, and the driver those of the group, in a file named after its last txid.
    """
    staged = (file for file in (table / STAGED).glob("*.parquet") if file.name.startswith(begins))
    return _of_each_task(
        table, (one for one in staged if one.name.startswith(begins[-1]) or one.name.rsplit("-", 2)[1] != IN_DRIVER)
    )


def _of_each_task(table: Path, found: Iterable[Path]) -> list[Path]:
    """Select one staged file per task: one that Spark reran has left several with the same rows, in some order."""
    files: dict[str, list[Path]] = {}
    for file in sorted(found):
        files.setdefault(file.name.rpartition("-")[0], []).append(file)
    for same in files.values():
        if len({digest(file.read_bytes()) for file in same}) > 1 and len(set(map(_content, same))) > 1:
            names = ", ".join(file.name for file in same)
            msg = f"{table}: expected one staged file of a task, found several that differ: {names}; restore a copy"
            raise TableCorrupt(msg)
    return [same[0] for same in files.values()]


def _content(file: Path) -> str:
    """Return a digest of the rows of a staged file, whatever their order; of a damaged one, its name."""
    try:
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            rows = (repr(row).encode() for batch in opened.iter_batches() for row in batch.to_pylist())
            return str(sum(int.from_bytes(blake2b(row, digest_size=16).digest()) for row in rows))
    except (OSError, pa.ArrowException):
        return file.name


def _outside_txid(path: Path, found: Found) -> int:
    """Return the last txid of a map or outlet before the last group, from its staged rows; `UNKNOWN` if it has none.

    The next start compares this txid with the commit mark in the map or outlet, and refuses to write if they differ.
    """
    attempts: Mapping[int, int] = {
        **{row["txid"]: row["attempt"] for row in found.history},
        **{one.txid: one.attempt_id for group in found.groups.values() for one in group[0].records},
    }
    names = [file.name.split("-") for file in (path / STAGED).glob("*.parquet")]
    known = [int(one[1]) for one in names if len(one) > 3 and one[1].isdecimal() and one[2].isdecimal()]
    kept = [txid for txid, one in zip(known, names, strict=True) if attempts.get(txid) == int(one[2])]
    return max((txid for txid in kept if txid < found.last), default=UNKNOWN)


def _table(ref: TableRef, data_dir: Path, files: Sequence[Path], previous: int) -> IntentTable:
    (staged, schema), *more = [_read(ref, data_dir, file) for file in files]
    return IntentTable(
        ref.kind, ref.name, ref.uri, encode_schema(schema), previous, staged, tuple(one for one, _ in more)
    )


def _read(ref: TableRef, data_dir: Path, file: Path) -> tuple[Staged, pa.Schema]:
    data = file.read_bytes()
    try:
        check_seal(file)
        rows = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as cause:
        raise TableCorrupt(f"staged file {file}: cannot be read ({cause}); restore it from a copy") from cause
    named = int(file.name.split("-")[1])  # used if the file has no rows
    txids = pc.min_max(rows["_txid"]).as_py() if rows.num_rows else {"min": named, "max": named}
    path = str(file.relative_to(data_dir / ref.uri))
    staged = Staged(path, len(data), digest(data), rows.num_rows, txid_stats(rows), txids["min"], txids["max"])
    return staged, rows.schema.remove_metadata() if ref.kind != MAP else rows.schema
