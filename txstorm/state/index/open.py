"""Open a key index as of the last txid of its tables, from the store on disk or by loading the tables."""

from __future__ import annotations

import logging
from pathlib import Path

from txstorm.api.state import CollectionState, KeyedState
from txstorm.errors import TableCorrupt
from txstorm.lanes import Call, Lanes
from txstorm.state.index.collection_index import CollectionIndex, RowForm, memory_share
from txstorm.state.index.disk import RowStore, RowStores, belonging
from txstorm.state.index.index import Bounds, Fillable, StateIndex
from txstorm.state.index.row_groups import Opened, TableFiles
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.upkeep.read_guard import reading

log = logging.getLogger(__name__)

INDEX = "index"


def opened_index(
    data_dir: Path,
    state: KeyedState,
    kept: DeltaTableState,
    changes: DeltaTableState | None,
    bounds: Bounds,
    lanes: Lanes,
) -> StateIndex | CollectionIndex:
    """Open the index of `state` as of the last txid in its tables.

    Called at startup, by the only run of the data directory. Nothing is loaded for a collection state, whose rows are
    read from the tables when they are needed. For other states, the store in ``index/…`` is used if it belongs to this
    state and is not ahead of its table; then only later changes are read from the tables. Otherwise the index is
    rebuilt from the tables.

    Args:
        data_dir: the data directory.
        state: the state.
        kept: its table ``state/…``.
        changes: its table ``changes/…``; None with the layout ``merge``.
        bounds: limits of the index.
        lanes: run the writing to disk.

    Raises:
        TableCorrupt: a table cannot be read, or the two tables are not consistent.
    """
    as_of, last = kept.last_txid(), (changes or kept).last_txid()
    _check_not_ahead(kept, changes or kept, as_of, last)
    if isinstance(state, CollectionState):
        assert changes is not None  # collections always have the layout `changes`
        files = TableFiles(RowForm(state), data_dir, Opened(kept, changes), memory_share(bounds))
        return CollectionIndex(state, files, bounds)
    owner = belonging(state, kept.owner.incarnation, kept.owner.timeline)
    stores = RowStores(data_dir / INDEX / state.name, state, owner)

    def refill(disk: Fillable) -> None:
        _refill(disk, data_dir, kept, changes)

    def in_background(call: Call) -> None:
        # Not a daemon: a thread that is still writing when the interpreter exits would crash the process.
        lanes.start(call, "txstorm-index", daemon=False)

    index = StateIndex(state, stores.make, refill, bounds, in_background, lanes.monotonic)
    found = _nearer(stores.find(last), kept, changes, as_of)
    if found is not None:
        index.resume(found)
    else:
        for table in kept.handle.batches():
            index.load(table)
    after = as_of if found is None or found.last is None else found.last
    if changes is not None and after < last:
        for table in changes.handle.batches(low=(TXID.name, after)):
            index.load(table)
    index.loaded(last)
    return index


def state_index(state: KeyedState) -> StateIndex | CollectionIndex:
    """Create an empty index of `state` in memory."""
    return CollectionIndex(state) if isinstance(state, CollectionState) else StateIndex(state)


def _nearer(
    found: RowStore | None, kept: DeltaTableState, changes: DeltaTableState | None, as_of: int
) -> RowStore | None:
    """Return the store `found`; remove it and return None if it is better to load the newer state table.

    That is so if loading the table takes fewer rows, or if change rows that the store lacks are no longer kept.
    """
    if found is None or found.last is None or found.last >= as_of:
        return found
    if changes is not None and found.last >= changes.floor():
        whole = kept.handle.row_count() + changes.handle.row_count((TXID.name, as_of))
        if changes.handle.row_count((TXID.name, found.last)) <= whole:
            return found
    log.info("index %s: it is as of txid %d, the state table as of %d; it is rebuilt", found.path, found.last, as_of)
    found.remove()
    return None


def _refill(disk: Fillable, data_dir: Path, kept: DeltaTableState, changes: DeltaTableState | None) -> None:
    """Fill an empty store from the current tables; opens separate handles, since it may run on any thread."""
    with reading(data_dir):
        _fill(disk, data_dir, kept, changes)


def _fill(disk: Fillable, data_dir: Path, kept: DeltaTableState, changes: DeltaTableState | None) -> None:
    base = DeltaTableState.open(data_dir, kept.owner, kept.ref)
    # Opened after the state table, so that it includes groups published in the meantime.
    later = base if changes is None else DeltaTableState.open(data_dir, changes.owner, changes.ref)
    as_of, last = base.last_txid(), later.last_txid()
    for table in base.handle.batches():
        disk.put_table(table)
    if as_of < last:
        for table in later.handle.batches(low=(TXID.name, as_of)):
            disk.put_table(table)
    disk.note(last)


def _check_not_ahead(kept: DeltaTableState, changes: DeltaTableState, as_of: int, last: int) -> None:
    if as_of > last:
        raise TableCorrupt(
            f"table {kept.ref.uri}: is as of txid {as_of}, but {changes.ref.uri} ends at {last}; "
            "restore both from the same copy"
        )
