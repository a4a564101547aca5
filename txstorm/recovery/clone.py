"""Tables that begin with content: clones of a savepoint's tables for another topology, states of a new directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from txstorm import keys
from txstorm.books.savepoint import SavedTable, Savepoint
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.footer_digest import sealed
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.storage.rows.eviction import NO_BOUND, is_placed
from txstorm.storage.rows.schema import KEY_GROUP, PREV, TXID, in_order
from txstorm.storage.tables.as_of import bound_as_of
from txstorm.storage.tables.identity import FORMAT, TableRef, TopologyIdentity, key_names_of, table_ref
from txstorm.storage.tables.intent import CHANGES, STAGED, STATE
from txstorm.storage.tables.rewrite import FILE_ROWS, folded
from txstorm.storage.tables.staging import column_stats, compact_name, encoded, unique, write_new
from txstorm.storage.tables.table import DeltaTableState, open_table
from txstorm.storage.tables.table_log import RESTORED, RewriteFiles


def clone_tables(source: Path, savepoint: Savepoint, target: Path, owner: TopologyIdentity, now: int) -> dict[str, int]:
    """Copy the tables of `savepoint` from `source` to `target`; return table → last txid, for the new ledger.

    Every new table begins at the savepoint's txid and cannot be read as of an earlier one. `now` is in milliseconds
    since 1970. No other process may read `target` yet; after a crash, discard it.

    Raises:
        TableCorrupt: a version or file that the savepoint needs is missing or damaged.
    """
    for uri in savepoint.tables:
        _clone(source, savepoint, target, owner, table_ref(uri), now)
    refs = map(table_ref, savepoint.tables)
    return {ref.uri: savepoint.txid for ref in refs if ref.kind != STATE or _changes_of(savepoint, ref) is None}


def _changes_of(savepoint: Savepoint, ref: TableRef) -> SavedTable | None:
    """Return the changes table that belongs to the state table `ref`; None in the layout ``merge``, which has none."""
    return savepoint.tables.get(TableRef(CHANGES, ref.name).uri)


def saved_rows(source: Path, savepoint: Savepoint, ref: TableRef) -> pa.Table:
    """Read a table's rows, with all columns, as of the savepoint; none for ``changes/…``, which the state includes."""
    handle = DeltaHandle.open(source / ref.uri, savepoint.tables[ref.uri].version)
    if ref.kind == CHANGES:
        return handle.schema.empty_table()
    if ref.kind != STATE:
        return in_order(handle.read(high=(TXID.name, savepoint.txid)), [TXID.name])
    saved = _changes_of(savepoint, ref)
    if saved is None:
        return handle.read()
    changes = DeltaHandle.open(source / TableRef(CHANGES, ref.name).uri, saved.version)
    as_of = savepoint.tables[ref.uri].as_of
    later = changes.read(low=(TXID.name, as_of or 0), high=(TXID.name, savepoint.txid))
    keys = key_names_of(handle.properties)
    return in_order(folded(handle.read(), later, keys), keys).combine_chunks()


def _clone(source: Path, savepoint: Savepoint, target: Path, owner: TopologyIdentity, ref: TableRef, now: int) -> None:
    old = DeltaHandle.open(source / ref.uri, savepoint.tables[ref.uri].version)
    about = {key: text for key, text in old.properties.items() if key.startswith("txstorm.")}
    about = {key: text for key, text in about.items() if key == FORMAT or key not in owner.properties()}
    # A sink is copied with all its rows and keeps its first txid; a state begins with the savepoint's txid.
    since = savepoint.txid if ref.kind in (STATE, CHANGES) else open_table(source, ref).since()
    made = DeltaTableState.create(target, owner, ref, old.schema, savepoint.txid, about, since)
    files = list(written(made.path, saved_rows(source, savepoint, ref), 0, now, ref.bounded))
    bound = _bound(source, savepoint, ref, old)
    if not files and bound <= NO_BOUND:
        return
    before = {"incarnation": savepoint.incarnation, "timeline": savepoint.timeline}
    info = {"kind": RESTORED, "epoch": 0, "as_of": savepoint.txid, "savepoint": savepoint.name, "from": before}
    apps = {made.ref.txid_app(owner): savepoint.txid, owner.epoch_app: 0}
    if bound > NO_BOUND:
        apps[owner.bound_app] = bound
    label = f"txstorm savepoint {savepoint.name} of {savepoint.topology}, txid {savepoint.txid}"
    made.handle.commit(Commit(apps, {**owner.info(), **info}, files, label=label))
    made.handle.make_durable(range(1, 2))


def _bound(source: Path, savepoint: Savepoint, ref: TableRef, handle: DeltaHandle) -> int:
    """Return the eviction bound of all collections of a state as of the savepoint; `NO_BOUND` if there is none."""
    saved = _changes_of(savepoint, ref) if ref.kind == STATE else None
    if saved is None or not is_placed(key_names_of(handle.properties)):
        return NO_BOUND
    changes = DeltaHandle.open(source / TableRef(CHANGES, ref.name).uri, saved.version)
    return bound_as_of(handle, changes, savepoint.tables[ref.uri].as_of or 0, savepoint.txid)


def written(table: Path, rows: pa.Table, epoch: int, now: int, column: str) -> Iterator[DataFile]:
    """Write `rows` durably to data files of `table`, with statistics of `column`; no log entry refers to them yet.

    `epoch`: the coordinator's epoch. `now`: milliseconds since 1970.
    """
    for start in range(0, rows.num_rows, FILE_ROWS):
        part = rows.slice(start, FILE_ROWS)
        data = encoded(part)
        path = f"{STAGED}/{compact_name(epoch, sealed(unique(), data))}"
        write_new(table / path, data)
        yield DataFile(path, len(data), now, column_stats(part, column))


def fill_state(table: DeltaTableState, rows: pa.Table | None, epoch: int, now: int) -> None:
    """Make `rows` the whole content of a state table as of txid 0; None: no rows. `now` is in milliseconds."""
    adds = []
    if rows is not None and rows.num_rows:
        adds = list(written(table.path, _stored(table, rows), epoch, now, table.ref.bounded))
    removes = [file.path for file in table.log.files()]
    table.exchange(RewriteFiles(adds, removes, now, base=0, as_of=0), epoch)


def _stored(table: DeltaTableState, rows: pa.Table) -> pa.Table:
    """Return rows as the table stores them, sorted by key group, as its files are."""
    schema = table.handle.schema
    columns = [rows[name].combine_chunks() for name in key_names_of(table.handle.properties)]
    groups = keys.key_groups(columns, rows.num_rows)
    own = {TXID.name: np.zeros(rows.num_rows, np.int64), KEY_GROUP.name: groups.astype(np.int32)}
    own[PREV] = pa.nulls(rows.num_rows, schema.field(PREV).type)
    found = pa.table([own[name] if name in own else rows[name] for name in schema.names], schema.names).cast(schema)
    return found.take(pa.array(np.argsort(groups, kind="stable")))
