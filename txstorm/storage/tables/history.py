"""The history table: one row per committed txid, appended in batches from the ledger; only retention removes rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm.clients.delta.archive import Archiving, Shortening
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.footer_digest import sealed
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import LOG, checkpoint_after, is_table, torn_creation
from txstorm.clients.files import sync_file, sync_names
from txstorm.errors import BlockedError, ConflictError, DataDirectoryError, TableCorrupt
from txstorm.storage.tables.identity import due, log_properties, recorded
from txstorm.storage.tables.intent import STAGED, Intent
from txstorm.storage.tables.staging import StagedName, encoded, unique, write_new
from txstorm.storage.tables.table import is_unchanged
from txstorm.storage.tables.table_log import check_tiles

log = logging.getLogger(__name__)
HISTORY = "history"
FORMAT = "1"
TRIES = 10
SCHEMA = pa.schema(
    [
        ("timeline", pa.int64()),
        ("txid", pa.int64()),
        ("attempt", pa.int64()),
        ("stamp", pa.timestamp("us", tz="UTC")),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("digest", pa.string()),
        ("extents", pa.string()),
        ("tuples", pa.int64()),
        ("versions", pa.string()),
    ]
)


_TEXT = {"extents", "versions"}
_durable: dict[Path, int] = {}
"""For each table path, the log version up to which this process has made the log durable."""


Opened = dict[Path, DeltaHandle]
"""History tables that are open: one is opened again only if another writer has changed it since."""


def append_history(data_dir: Path, rows: Sequence[Mapping[str, Any]], opened: Opened | None = None) -> int:
    """Append those of the `rows` that the history table does not contain yet; return how many were appended.

    `rows` belong to one timeline, in txid order and without gaps. Idempotent: the same or overlapping rows are not
    added twice. The table is created when the first rows are appended.

    Args:
        data_dir: the data directory.
        rows: one mapping per txid, with ``timeline``, ``txid``, ``attempt``, ``stamp`` (UTC microseconds since 1970),
            ``first`` and ``last`` (the txid range of its group), ``digest``, ``extents`` and ``versions`` (table →
            version) as JSON values, and ``tuples`` (None if unknown).
        opened: the tables that are open; the one that this call opens is added.

    Raises:
        TableCorrupt: the table cannot be read.
        BlockedError: the table cannot be written.
    """
    if not rows:
        return 0
    handle = _open_or_create(data_dir / HISTORY, opened)
    app = f"txstorm/history/{rows[0]['timeline']}"
    for _ in range(TRIES):
        last = handle.app_version(app)
        new = [row for row in rows if last is None or row["txid"] > last]
        if not new or _append(handle, app, new):
            secure_history(handle)
            for _ in Shortening(lambda: handle, HISTORY, checkpoint_after(handle.checkpointed), Archiving()).steps():
                pass
            return len(new)
        handle.refresh()
    msg = f"table {HISTORY}: cannot be appended to in {TRIES} tries: another writer changes it all the time"
    raise BlockedError(msg)


def read_history(data_dir: Path) -> pa.Table:
    """Read all rows of the history table, sorted by timeline and txid; return no rows if the table does not exist yet.

    Raises:
        TableCorrupt: the table is damaged.
        DataDirectoryError: it has a newer format.
    """
    path = data_dir / HISTORY
    if not has_history(path):
        return SCHEMA.empty_table()
    table = open_history(path).read(SCHEMA.names)
    return table.sort_by([("timeline", "ascending"), ("txid", "ascending")])


def recorded_stamp(data_dir: Path, txid: int) -> int | None:
    """Return the stamp of `txid` on its newest timeline, in UTC microseconds; None if the txid is not in the history.

    The stamp is the txid's processing time.
    """
    path = data_dir / HISTORY
    if not has_history(path):
        return None
    rows = open_history(path).read(["timeline", "txid", "stamp"], ("txid", txid - 1), ("txid", txid))
    stamps = rows["stamp"].cast(pa.int64()).to_pylist()
    return max(zip(rows["timeline"].to_pylist(), stamps, strict=True), default=(0, None))[1]


def check_history(data_dir: Path, opened: Opened | None = None) -> None:
    """Check, without writing, that the history table, if it exists, is usable; raises the errors of `read_history`."""
    if has_history(data_dir / HISTORY):
        open_history(data_dir / HISTORY, opened).check_writable()


def describe_history(data_dir: Path, wanted: Mapping[str, str], opened: Opened | None = None) -> None:
    """Set those of the `wanted` table properties that the history table lacks; values set by a user are kept.

    Does nothing if there is no history table.
    """
    if not has_history(data_dir / HISTORY):
        return
    handle = open_history(data_dir / HISTORY, opened)
    for _ in range(TRIES):
        missing = due(handle.properties, wanted)
        if not missing:
            return
        label = f"txstorm sets {', '.join(sorted(missing))}"
        try:
            handle.commit(Commit({}, {"kind": "describe"}, label=label, properties=missing))
        except ConflictError:
            handle.refresh()
            continue
        secure_history(handle)
        return


def history_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert `rows`, in the form that `append_history` takes, to an Arrow table with `SCHEMA`."""
    return pa.table([_column(field, rows) for field in SCHEMA], schema=SCHEMA)


def _append(handle: DeltaHandle, app: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    first, last = rows[0]["txid"], rows[-1]["txid"]
    data = encoded(history_table(rows))
    path = f"{STAGED}/{StagedName(0, last, rows[-1]['attempt'], HISTORY, 'all').text(sealed(unique(), data))}"
    write_new(handle.path / path, data)
    modified = int((handle.path / path).stat().st_mtime * 1000)
    file = DataFile(path, len(data), modified, json.dumps({"numRecords": len(rows)}))
    info = {"kind": HISTORY, "timeline": rows[0]["timeline"], "first": first, "last": last}
    try:
        handle.commit(Commit({app: last}, info, [file]))
    except ConflictError:
        return False
    return True


def secure_history(handle: DeltaHandle) -> None:
    """Make durable all entries of the history table's log that this process has not made durable yet.

    Earlier entries are rewritten, since an earlier process or call may have failed to sync them.
    """
    version = handle.version
    if handle.path not in _durable:
        staged = handle.path / STAGED
        staged.mkdir(parents=True, exist_ok=True)
        sync_names(staged.parent, [staged])
        sync_names(handle.path, [staged.parent, handle.log_entry(0).parent])  # a failed sync may have lost both
        sync_names(handle.path.parent, [handle.path])
    known = _durable.get(handle.path, handle.checkpointed - 1)
    handle.make_durable(range(known + 1, version), again=True)
    handle.make_durable(range(version, version + 1), again=known >= version)
    _durable[handle.path] = version


def _column(field: pa.Field, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    cells = [row[field.name] for row in rows]
    return pa.array([json.dumps(cell, sort_keys=True) for cell in cells] if field.name in _TEXT else cells, field.type)


def has_history(path: Path) -> bool:
    """Return whether there is a history table at `path`, and not just the torn first entry of a power failure."""
    return is_table(path) and _torn(path) is None


def _torn(path: Path) -> Path | None:
    return torn_creation(path / LOG, last="metaData")


def _open_or_create(path: Path, opened: Opened | None) -> DeltaHandle:
    if has_history(path):
        return open_history(path, opened)
    (path / STAGED).mkdir(parents=True, exist_ok=True)
    properties = {"txstorm.history": FORMAT, **recorded(log_properties())}
    if (entry := _torn(path)) is not None:
        log.warning("table %s: its creation was interrupted by a power failure; it is created again", HISTORY)
        entry.unlink()
        sync_file(entry.parent)
    try:
        handle = DeltaHandle.create(path, SCHEMA, properties, Commit({}, {"kind": "create"}))
    except TableCorrupt:
        if not has_history(path):
            raise
        handle = open_history(path)  # a coordinator that is fenced by now has just created it
    secure_history(handle)  # no later entry of the log survives a power failure without the first one
    return handle


def open_history(path: Path, opened: Opened | None = None) -> DeltaHandle:
    """Open the history table at its newest version, and check it; raises the errors of `read_history`."""
    known = None if opened is None else opened.get(path)
    if known is not None and is_unchanged(known):
        return known
    handle = DeltaHandle.open(path)
    found = handle.properties.get("txstorm.history")
    if found != FORMAT:
        msg = f"{path}: expected a history table of format {FORMAT}, found {found!r}; use a newer txstorm"
        raise DataDirectoryError(msg)
    check_tiles(HISTORY, handle.checked_infos())
    if opened is not None:
        opened[path] = handle
    return handle


def history_rows(
    intent: Intent, versions: Mapping[str, int], tuples: Mapping[int, int] | None = None
) -> list[dict[str, Any]]:
    """Build the history rows of a decided group, one per txid.

    `tuples`: the number of tuples of each txid; None if unknown, as after a roll-forward.
    """
    first, last = intent.first, intent.last
    return [
        {
            "txid": record.txid,
            "attempt": record.attempt_id,
            "stamp": record.stamp,
            "first": first,
            "last": last,
            "digest": record.digest,
            "extents": record.extents,
            "tuples": None if tuples is None else tuples[record.txid],
            "versions": dict(versions),
            "timeline": intent.timeline,
        }
        for record in intent.txids
    ]
