"""The intent of a group that some tables hold and others do not, made again from its staged files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txstorm.clients.delta.footer_digest import check_seal
from txstorm.clients.delta.log import paths_of
from txstorm.errors import TableCorrupt
from txstorm.recovery.lost_ledger import Found, Published, outside_folders
from txstorm.storage.tables.intent import MAP, STATE, UNKNOWN, Intent, IntentTable, encode_schema
from txstorm.storage.tables.staging import STAGED, Staged, digest, txid_stats
from txstorm.storage.tables.table import TableRef


def unfinished_group(data_dir: Path, found: Found) -> Intent | None:
    """The last group, if it may not be published everywhere; None when it is, or when nothing tells of it.

    All its rows were staged, under names with its epoch, txid and attempt, before the first table got them.

    Raises:
        TableCorrupt: a staged file is damaged, or there are two that differ.
    """
    if found.last <= found.recorded:  # it was completed
        return None
    published = found.groups[found.last]
    files = {one.uri: _held(data_dir, found, one) for one in published}
    if not all(files.values()):  # of the layout merge: these files leave with their intent, so it was completed
        return None
    prefix = "-".join(next(iter(files.values()))[0].name.split("-")[:3]) + "-"
    held = [
        _table(found.tables[one.uri].ref, data_dir, files[one.uri], one.first - 1)  # a range begins after the last one
        for one in published
    ]
    waiting = list(_waiting(data_dir, found, prefix, set(files)))
    if not waiting:
        return None
    epoch = int(prefix.partition("-")[0])
    records = published[0].records
    return Intent(found.topology, found.incarnation, found.timeline, epoch, records, (*held, *waiting))


def _held(data_dir: Path, found: Found, one: Published) -> list[Path]:
    """The staged files of what a table holds; none where no log refers to them and they are not needed any more."""
    if found.tables[one.uri].ref.kind != STATE:
        return _logged(data_dir, found, one)
    last = one.records[-1]
    wanted = [str(last.txid), str(last.attempt_id)]
    files = (data_dir / one.uri / STAGED).glob("*.parquet")
    return _of_each_task(data_dir / one.uri, [file for file in files if file.name.split("-")[1:3] == wanted])


def _logged(data_dir: Path, found: Found, one: Published) -> list[Path]:
    """The staged files that a commit made part of its table."""
    entry = found.tables[one.uri].handle.log_entry(one.version)
    paths = [data_dir / one.uri / path for path in paths_of(entry)]
    if not paths:
        msg = f"table {one.uri}: expected version {one.version} to add files, found none; restore it from a copy"
        raise TableCorrupt(msg)
    return paths


def _waiting(data_dir: Path, found: Found, prefix: str, published: set[str]) -> Iterable[IntentTable]:
    for uri, table in found.tables.items():
        if uri not in published and (files := _begun(data_dir / uri, prefix)):
            yield _table(table.ref, data_dir, files, table.last_txid())
    for ref in outside_folders(data_dir):
        if files := _begun(data_dir / ref.uri, prefix):
            yield _table(ref, data_dir, files, _outside_txid(data_dir / ref.uri, found))


def _begun(table: Path, prefix: str) -> list[Path]:
    """The staged files whose names begin so."""
    return _of_each_task(table, (table / STAGED).glob(f"{prefix}*.parquet"))


def _of_each_task(table: Path, found: Iterable[Path]) -> list[Path]:
    """The file of each task, one that is there twice counted once: Spark may have run it again."""
    files: dict[str, list[Path]] = {}
    for file in sorted(found):
        files.setdefault(file.name.rpartition("-")[0], []).append(file)
    for same in files.values():
        if len({digest(file.read_bytes()) for file in same}) > 1:
            names = ", ".join(file.name for file in same)
            msg = f"{table}: expected one staged file of a task, found several that differ: {names}; restore a copy"
            raise TableCorrupt(msg)
    return [same[0] for same in files.values()]


def _outside_txid(path: Path, found: Found) -> int:
    """Where a map or outlet was before the last group: the last group whose rows are still staged; `UNKNOWN` without.

    The next start asks its mark, and refuses to put anything where this is not so.
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
        msg = f"staged file {file}: cannot be read ({cause}); restore it from a copy"
        raise TableCorrupt(msg) from cause
    named = int(file.name.split("-")[1])  # of a file without rows
    txids = pc.min_max(rows["_txid"]).as_py() if rows.num_rows else {"min": named, "max": named}
    path = str(file.relative_to(data_dir / ref.uri))
    staged = Staged(path, len(data), digest(data), rows.num_rows, txid_stats(rows), txids["min"], txids["max"])
    return staged, rows.schema.remove_metadata() if ref.kind != MAP else rows.schema
