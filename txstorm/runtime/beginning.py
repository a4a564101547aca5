"""Beginning of a new data directory with the states of a snapshot, as of txid 0, and with the clock they hold.

The rows are put into the state tables first; the metadata of txid 0 in the ledger, from which txid 1 is planned, is
what decides. A start that is cut short before has decided nothing: the next one chooses again, and fills them anew.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from txstorm import faults, keys
from txstorm.books.books import Books
from txstorm.errors import InputError
from txstorm.recovery.clone import written
from txstorm.runtime.batches.planning import Planning
from txstorm.runtime.companion import Companion
from txstorm.state.store import StateStore
from txstorm.storage.rows.schema import KEY_GROUP, PREV, TXID
from txstorm.storage.tables.identity import TableRef, key_names_of
from txstorm.storage.tables.intent import STATE
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import RewriteFiles

log = logging.getLogger("txstorm.open")


def begin(companion: Companion, store: StateStore, books: Books, planning: Planning, timeline: int) -> None:
    """Let a directory in which nothing was planned yet begin with what `companion` returns, if anything.

    Raises:
        InputError: the source cannot begin at that clock, or the states are not those of the topology.
        FencedError: another coordinator has taken over.
    """
    beginning = companion.begin()
    rows = {} if beginning is None else beginning.states
    for ref, table in store.tables.items():
        if ref.kind == STATE and (ref.name in rows or table.log.files()):
            books.check_lease()
            _fill(table, rows.get(ref.name), books.epoch, planning.now() // 1000)
    if beginning is None:
        return
    if unknown := sorted(name for name in rows if TableRef(STATE, name) not in store.tables):
        msg = f"{beginning.origin}: has states of {unknown[0]!r}, which is no state of the topology"
        raise InputError(msg)
    faults.point("begin.filled")
    planning.begin_at(beginning.clock, timeline)
    faults.point("begin.after")
    log.warning("begins with the snapshot at %s of %s; the source is read behind it", beginning.clock, beginning.origin)


def _fill(table: DeltaTableState, rows: pa.Table | None, epoch: int, now: int) -> None:
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
