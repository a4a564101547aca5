"""Reading states and sinks without a run, without the topology's code and beside a live run."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.names import near
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import is_table
from txstorm.errors import StateError, TableCorrupt
from txstorm.misfits import decimal_digits
from txstorm.storage.rows.schema import OP, PREV, STAMP, TXID, in_order
from txstorm.storage.rows.ttl import alive, moment, ttl_of
from txstorm.storage.tables.as_of import bound_as_of, check_right, too_old, version_as_of, why_not
from txstorm.storage.tables.declared import LETTERS_REF
from txstorm.storage.tables.identity import KEYS, VALUES, TableRef, is_merged, table_ref
from txstorm.storage.tables.intent import CHANGES, MAP, SINK, STATE
from txstorm.storage.tables.merge_layout import no_changes
from txstorm.storage.tables.rewrite import folded
from txstorm.storage.tables.table import DeltaTableState, open_table
from txstorm.storage.upkeep.read_guard import reads

Stamps = Callable[[int], int | None]
"""Function that returns the stamp of a committed txid, UTC microseconds; None if it is unknown."""
_STATE, _TXID = b"txstorm.state", b"txstorm.txid"


@dataclass(frozen=True)
class StateParts:
    """Parts of a state as of one txid: a version of ``state/<name>``, and the later changes to apply to it.

    Attributes:
        base: the state table, at a version that is not ahead of `txid`.
        as_of: the txid that `base` is as of.
        changes: ``changes/<name>``, whose rows after `as_of` up to `txid` are applied; None if there is no such table.
        keys, values: names of the columns.
        ttl: time to live of keys after their last write.
    """

    base: DeltaHandle
    as_of: int
    changes: DeltaHandle | None
    txid: int
    keys: list[str]
    values: list[str]
    ttl: timedelta | None = None


@reads
def list_states(data_dir: Path) -> list[str]:
    """Return the names of the states in a data directory."""
    return _names(data_dir, CHANGES)


@reads
def list_sinks(data_dir: Path) -> list[str]:
    """Return the names of the sinks in a data directory."""
    return _names(data_dir, SINK)


@reads
def read_state(
    data_dir: Path,
    name: str,
    txid: int | None = None,
    committed: int = 0,
    stamps: Stamps = lambda txid: None,
    *,
    whole: bool = False,
) -> pa.Table:
    """Read the key and value columns of a state: one row per key, sorted by key with None first.

    Equal states have equal rows in the same order. The table's metadata contains the state's name and the txid. Keys
    that have expired at the stamp of the transaction are omitted. Pass the topology's last `committed` txid if it is
    known, as the last ones may not have changed this state. `stamps` returns the stamp of the transaction, if keys
    expire; if that is unknown, the newest stamp of a row is used. With `whole`, the stamps of rows and rows of expired
    keys are included.

    Raises:
        StateError: there is no such state; or the txid is not committed, older than the state, or no longer kept.
        TableCorrupt: a table or file is damaged.
    """
    parts = state_parts(data_dir, name, txid, committed)
    try:
        rows = _rows(parts)
    except TableCorrupt:  # if this reader paused for minutes, its version may have been superseded and removed
        stood, parts = parts, state_parts(data_dir, name, parts.txid, committed)
        if parts.base.version == stood.base.version:
            raise
        rows = _rows(parts)
    shown = [*parts.keys, *parts.values]
    if parts.ttl is not None and not whole:
        known = stamps(parts.txid)
        rows = alive(rows, parts.ttl, None if known is None else moment(known)).select(shown).combine_chunks()
    return rows.replace_schema_metadata({_STATE: name.encode(), _TXID: str(parts.txid).encode()})


def _rows(parts: StateParts) -> pa.Table:
    """Read keys, values and stamps of the rows, sorted by key."""
    columns = [*parts.keys, *parts.values, *([] if parts.ttl is None else [STAMP.name])]
    rows = parts.base.read()
    if parts.changes is None:
        return in_order(rows, parts.keys).select(columns).combine_chunks()
    later = parts.changes.read(low=(TXID.name, parts.as_of), high=(TXID.name, parts.txid))
    return in_order(folded(rows, later, parts.keys), parts.keys).select(columns).combine_chunks()


def state_parts(
    data_dir: Path, name: str, txid: int | None = None, committed: int = 0, *, stays: bool = False
) -> StateParts:
    """Find the parts from which the state `name` as of `txid` is read; see `read_state`.

    With `stays`, choose a version whose files are retained, for readers that use the parts later.
    """
    # Open the state table first: rows published in between are then in the changes, and never missing from both.
    kept = _open(data_dir, STATE, name)
    changes = None if is_merged(kept.handle.properties) else _open(data_dir, CHANGES, name)
    newest = changes or kept
    last = max(newest.last_txid(), committed)
    wanted = (last if (until := newest.until()) is None else until) if txid is None else txid
    check_txid(f"state {name!r}", wanted, last)
    check_right(f"state {name!r}", newest, wanted)
    version, as_of = version_as_of(kept, wanted, stays=stays)
    if changes is not None and as_of < changes.floor():
        raise too_old(name, wanted, changes.floor())
    keys, values = _columns(kept.handle, KEYS), _columns(kept.handle, VALUES)
    ttl = ttl_of(kept.handle.properties)
    return StateParts(kept.at(version), as_of, None if changes is None else changes.handle, wanted, keys, values, ttl)


@reads
def read_bound(data_dir: Path, name: str, txid: int, committed: int = 0) -> int:
    """Read the eviction bound of all collections of a collection state as of `txid`; `NO_BOUND` if there is none.

    Raises the errors of `read_state`.
    """
    parts = state_parts(data_dir, name, txid, committed)
    assert parts.changes is not None  # collections always have the layout `changes`
    return bound_as_of(parts.base, parts.changes, parts.as_of, parts.txid)


def check_txid(what: str, wanted: int, last: int) -> None:
    """Raise `StateError` unless txid `wanted` is committed; `last` is the last committed one."""
    if not 0 <= wanted <= last:
        raise StateError(f"{what}: txid {wanted} is not committed; the last one is {last}: ask for 0 to {last}")


@reads
def read_changes(data_dir: Path, name: str, first: int, last: int, committed: int | None = None) -> pa.Table:
    """Read the change rows of txids `first` to `last`: keys, values, ``_txid``, ``_prev``, ``_op``; by txid, then key.

    If keys have a time to live, ``_stamp`` follows the values. If the topology's last `committed` txid is given, the
    range is checked against it.

    Raises:
        StateError: there is no such state; `last` is not committed; `first` is greater than `last`, or below 1; or the
            state has the layout ``merge``.
    """
    if keeps_no_changes(data_dir, name):
        raise no_changes(name)
    table = _open(data_dir, CHANGES, name)
    if committed is not None:
        check_txid(f"changes of state {name!r}", last, max(table.last_txid(), committed))
        if not 1 <= first <= last:
            raise StateError(f"changes of state {name!r}: expected 1 <= from <= to, got from txid {first} to {last}")
        for txid in (first - 1, last):
            check_right(f"changes of state {name!r}", table, txid)
    if first <= table.floor():
        raise StateError(
            f"changes of state {name!r}: the rows up to txid {table.floor()} are no longer kept (history_retention), "
            f"got from txid {first}; ask for {table.floor() + 1} or later"
        )
    keys, values = _columns(table.handle, KEYS), _columns(table.handle, VALUES)
    values += [] if ttl_of(table.handle.properties) is None else [STAMP.name]
    rows = table.handle.read([*keys, *values, TXID.name, PREV, OP.name], (TXID.name, first - 1), (TXID.name, last))
    return in_order(rows, [TXID.name, *keys])


@reads
def read_kept_changes(data_dir: Path, name: str, last: int, columns: Sequence[str]) -> tuple[int, pa.Table]:
    """Read some columns, ``_txid`` and ``_op`` of all change rows that are kept, up to txid `last`, in order of txids.

    Returns:
        The txid after which changes are kept, and the rows.

    Raises:
        StateError: there is no such state, or it has the layout ``merge``.
    """
    if keeps_no_changes(data_dir, name):
        raise no_changes(name)
    table = _open(data_dir, CHANGES, name)
    rows = table.handle.read([*columns, TXID.name, OP.name], (TXID.name, table.floor()), (TXID.name, last))
    return table.floor(), in_order(rows, [TXID.name])


@reads
def keeps_no_changes(data_dir: Path, name: str) -> bool:
    """Return whether there is a state `name` with the layout ``merge``, which has no table of changes."""
    path = data_dir / TableRef(STATE, name).uri
    return is_table(path) and is_merged(DeltaHandle.open(path, once=True).properties)


@reads
def key_names(data_dir: Path, name: str) -> list[str]:
    """Return the key columns of a state, in declaration order; raise `StateError` if there is no such state."""
    return _columns(_open(data_dir, STATE, name).handle, KEYS)


@reads
def read_sink(data_dir: Path, name: str, first: int = 1, last: int | None = None) -> pa.Table:
    """Read the rows of a sink with their ``_txid``, for txids `first` to `last`, by txid and then in append order.

    Raises:
        StateError: there is no such sink.
    """
    return _appended(_open(data_dir, SINK, name), first, last)


@reads
def read_letters(data_dir: Path, last: int | None = None) -> pa.Table | None:
    """Read the dead letters up to txid `last` with their ``_txid``, by txid and then in append order.

    Returns None if there is no table of dead letters.
    """
    return _appended(open_table(data_dir, LETTERS_REF), 1, last) if has_letters(data_dir) else None


@reads
def left_out(data_dir: Path, txid: int | None) -> dict[str, str]:
    """Return table (``state/…``, ``sinks/…``) → why a consistent cut at `txid` (None: the last one) must omit it."""
    refs = [TableRef(STATE if keeps_no_changes(data_dir, name) else CHANGES, name) for name in list_states(data_dir)]
    found = {}
    for ref in [*refs, *(TableRef(SINK, name) for name in list_sinks(data_dir))]:
        table = open_table(data_dir, ref)
        half = ref.kind == CHANGES and not is_table(data_dir / TableRef(STATE, ref.name).uri)
        if half and table.is_untouched(recorded=False):
            found[TableRef(STATE, ref.name).uri] = "the start that was to create it was interrupted"
        elif fault := why_not(table, txid):
            found[ref.uri if ref.kind == SINK else TableRef(STATE, ref.name).uri] = fault
    return found


@reads
def has_letters(data_dir: Path) -> bool:
    """Return whether a data directory contains a table of dead letters."""
    return is_table(data_dir / LETTERS_REF.uri)


def check_appended(what: str, data_dir: Path, uri: str, txid: int) -> None:
    """Raise `StateError` unless the sink, or table of dead letters, at `uri` is complete as of `txid`."""
    if is_table(data_dir / uri):
        check_right(what, open_table(data_dir, table_ref(uri)), txid)


def _appended(table: DeltaTableState, first: int, last: int | None) -> pa.Table:
    high = None if last is None else (TXID.name, last)
    rows = table.handle.read(low=(TXID.name, first - 1), high=high)
    return rows.take(pa.array(np.argsort(rows[TXID.name].to_numpy(), kind="stable")))


def txid_of(table: pa.Table) -> int:
    """Return the txid that a result of `read_state` is as of."""
    return int((table.schema.metadata or {})[_TXID])


def rows_json(table: pa.Table) -> str:
    """Format a result of `read_state` as one line ``{"state": …, "txid": …, "rows": [{column: value, …}, …]}``.

    Equal states give equal bytes: times are ISO 8601 in UTC with microseconds, decimals are strings with all digits
    of their scale, bytes are base64, and floats without a JSON form are strings.
    """
    name = (table.schema.metadata or {})[_STATE].decode()
    document = {"state": name, "txid": txid_of(table), "rows": [json_value(row) for row in table.to_pylist()]}
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def _open(data_dir: Path, kind: str, name: str) -> DeltaTableState:
    known = _names(data_dir, kind)
    if name not in known:
        what = "sink" if kind == SINK else "state"
        if (data_dir / TableRef(MAP, name).uri).is_dir():
            raise StateError(f"{data_dir}: {name!r} is a map in an external store; read it there")
        raise StateError(f"{data_dir}: no {what} {name!r}{near(name, known)}; it has {', '.join(known) or 'none'}")
    return open_table(data_dir, TableRef(kind, name))


def _names(data_dir: Path, kind: str) -> list[str]:
    # Either table suffices for a state to be known: a state that lacks the other one is damaged, not unknown.
    kinds = (SINK,) if kind == SINK else (CHANGES, STATE)
    found = (path for one in kinds for path in (data_dir / TableRef(one, "").uri).glob("*") if is_table(path))
    return sorted({path.name for path in found})


def _columns(handle: DeltaHandle, prop: str) -> list[str]:
    return list(json.loads(handle.properties.get(prop, "[]")))


def json_value(value: Any) -> Any:
    """Convert a value of a row to its JSON form; see `rows_json`."""
    if isinstance(value, Mapping):
        return {name: json_value(one) for name, one in value.items()}
    if isinstance(value, list):
        return [json_value(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        plain, zone = (value, "") if value.tzinfo is None else (value.astimezone(UTC).replace(tzinfo=None), "Z")
        return plain.isoformat(timespec="microseconds") + zone  # `strftime` writes the year 1 as "1"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return decimal_digits(value)
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
