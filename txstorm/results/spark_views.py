"""Spark SQL views of states, changes and sinks: the rows of `txstorm.results.read`, for sessions without txstorm."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from txstorm.books.data_directory import topology_in
from txstorm.clients.delta.features import first_line
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import InputError
from txstorm.results.read import Stamps, StateParts, has_letters, left_out, list_sinks, list_states, state_parts
from txstorm.results.views import checked_txid, stamps_in
from txstorm.storage.rows.eviction import is_placed
from txstorm.storage.rows.schema import EVICTED, EVICTED_ALL, OP, REMOVED, STAMP, TXID, UPDATED
from txstorm.storage.rows.ttl import MICROSECOND
from txstorm.storage.tables.declared import LETTERS_REF
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import SINK, STATE

# ruff: noqa: S608 - names are quoted, everything else is a number


log = logging.getLogger(__name__)
RANK, ROW, EVICTION = "_rank", "_row", "_eviction"


@dataclass(frozen=True)
class View:
    """A Spark SQL view."""

    name: str
    query: str

    @property
    def statement(self) -> str:
        """The SQL statement that creates the view for the lifetime of the session."""
        return f"CREATE OR REPLACE TEMP VIEW {quoted(self.name)} AS {self.query}"


def views(
    data_dir: Path, txid: int | None, committed: int, prefix: str = "", stamps: Stamps = lambda txid: None
) -> list[View]:
    """Return one view per table: ``state_<name>``, ``changes_<name>``, ``sink_<name>``, ``dead_letters``, in order.

    A state of the layout ``merge`` has no changes, and its view without `txid` is its table.

    With `txid`, all views are fixed at that transaction; without it, they always show what is published. A state is
    read from a retained version of its table with the later changes applied. The view is correct for as long as that
    version is in the log (at least twelve hours, with a `log_retention` of one day) and the topology is not rewound
    to before it. Keys expire by the stamp of the last transaction at the time the view is created, or by a newer stamp
    of a row; see `read_state` for `stamps`. A table that was dropped, or begins after `txid`, has no view; this is
    logged.

    Raises:
        StateError: `txid` is not committed, or no longer kept.
    """
    directory = data_dir.absolute()
    others = left_out(directory, txid)
    for uri, why in others.items():
        log.warning("%s has no view: %s", uri, why)
    names = [name for name in list_states(directory) if TableRef(STATE, name).uri not in others]
    states = {name: _parts(directory, name, txid, committed) for name in names}
    made = [View(f"{prefix}state_{name}", _state(parts, txid, stamps)) for name, parts in states.items()]
    kept = {name: parts.changes for name, parts in states.items() if parts.changes is not None}
    made += [View(f"{prefix}changes_{name}", _rows(changes, txid)) for name, changes in kept.items()]
    for name in [name for name in list_sinks(directory) if TableRef(SINK, name).uri not in others]:
        made.append(View(f"{prefix}sink_{name}", _rows(_table(directory, TableRef(SINK, name)), txid)))
    if has_letters(directory):
        made.append(View(f"{prefix}dead_letters", _rows(_table(directory, LETTERS_REF), txid)))
    return made


def quoted(name: str) -> str:
    """Quote `name` as an identifier of Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def _parts(data_dir: Path, name: str, txid: int | None, committed: int) -> StateParts:
    """Return the parts with a retained version in the log as base; if there is none, the newest, valid for minutes."""
    parts = state_parts(data_dir, name, txid, committed, stays=True)
    in_log = parts.base.log_entry(parts.base.version).exists()
    return parts if in_log else state_parts(data_dir, name, txid, committed)


def _state(parts: StateParts, txid: int | None, stamps: Stamps) -> str:
    """Build the query for the newest row of every key, omitting removed keys; base rows carry their own txid."""
    shown = ", ".join(map(quoted, [*parts.keys, *parts.values]))
    if parts.changes is None:
        return f"SELECT {shown} FROM {_newest(parts.base) if txid is None else _at(parts.base)}"
    columns = shown if parts.ttl is None else f"{shown}, {STAMP.name}"
    upper = "" if txid is None else f" AND {TXID.name} <= {txid}"
    base = f"SELECT {columns}, {TXID.name}, '{UPDATED}' AS {OP.name} FROM {_at(parts.base)}"
    later = f"SELECT {columns}, {TXID.name}, {OP.name} FROM {_newest(parts.changes)}"
    new = f"WHERE {TXID.name} > {parts.as_of}{upper}"
    both = f"{base} UNION ALL {later} {new}"
    keys = f"PARTITION BY {', '.join(map(quoted, parts.keys))} " if parts.keys else ""
    ranked = f"SELECT *, row_number() OVER ({keys}ORDER BY {TXID.name} DESC) AS {RANK} FROM ({both})"
    there, row = f"{RANK} = 1 AND {OP.name} <> '{REMOVED}'", ""
    if is_placed(parts.keys):
        evicted = _not_evicted(parts, f"{_newest(parts.changes)} {new}")
        there, row = f"{RANK} = 1 AND {OP.name} = '{UPDATED}'{evicted}", f" {ROW}"
    if parts.ttl is not None:
        newest = f"SELECT max(unix_micros({STAMP.name})) FROM ({later} {new})"
        there += f" AND {_alive(parts.ttl, stamps(parts.txid) or 0, '' if txid is not None else newest)}"
    return f"SELECT {shown} FROM ({ranked}){row} WHERE {there}"


def _not_evicted(parts: StateParts, changes: str) -> str:
    """Build the condition that a row of a collection has not been evicted by a tombstone among the `changes`."""
    *owners, order, _ = map(quoted, parts.keys)
    general = f"SELECT max({order}) FROM {changes} AND {OP.name} = '{EVICTED_ALL}'"
    tombstones = f"SELECT * FROM {changes} AND {OP.name} = '{EVICTED}'"
    of_key = "".join(f"{EVICTION}.{name} <=> {ROW}.{name} AND " for name in owners)
    later = f"{EVICTION}.{TXID.name} >= {ROW}.{TXID.name} AND {EVICTION}.{order} > {ROW}.{order}"
    evicted = f"EXISTS (SELECT 1 FROM ({tombstones}) {EVICTION} WHERE {of_key}{later})"
    return f" AND coalesce({ROW}.{order} >= ({general}), true) AND NOT {evicted}"


def _alive(ttl: timedelta, stamp: int, newest: str) -> str:
    """Build the condition that a row has not expired at `stamp`, or at the result of the query `newest` if later."""
    now = f"greatest({stamp}, ({newest}))" if newest else f"{stamp}"
    return f"unix_micros({STAMP.name}) > {now} - {ttl // MICROSECOND}"


def _rows(table: DeltaHandle, txid: int | None) -> str:
    upper = "" if txid is None else f" WHERE {TXID.name} <= {txid}"
    return f"SELECT * FROM {_newest(table)}{upper}"


def _table(data_dir: Path, ref: TableRef) -> DeltaHandle:
    return DeltaHandle.open(data_dir / ref.uri, once=True)


def _newest(table: DeltaHandle) -> str:
    return f"delta.{quoted(str(table.path))}"


def _at(table: DeltaHandle) -> str:
    return f"{_newest(table)} VERSION AS OF {table.version}"


def sql_views(data_dir: str | Path, txid: int | None = None, name_prefix: str = "") -> list[View]:
    """Return the Spark SQL views of the topology in `data_dir`; see `views`.

    Raises:
        DataDirectoryError: there is no topology in `data_dir`.
        StateError: `txid` is not committed, or no longer kept.
    """
    directory = topology_in(data_dir)
    return views(directory, txid, checked_txid(directory), name_prefix, stamps_in(directory))


def register_views(spark: Any, data_dir: str | Path, txid: int | None = None, name_prefix: str = "") -> list[str]:
    """Create the views in the session `spark`, which must have been started with Delta; return their names.

    ``state_<name>``, ``changes_<name>``, ``sink_<name>`` and ``dead_letters``, each with the prefix `name_prefix`. With
    `txid`, they are fixed at that transaction, one consistent cut; without it, they always show what is published. A
    new call replaces earlier views.

    Raises:
        InputError: Spark refuses a view, for example because the session lacks Delta.
        DataDirectoryError, StateError: as for `sql_views`.
    """
    made = sql_views(data_dir, txid, name_prefix)
    for view in made:
        try:
            spark.sql(view.statement)
        except Exception as cause:
            raise InputError(
                f"view {view.name}: expected Spark to create it, got {first_line(cause)}; the session needs Delta: "
                "spark.sql.extensions, spark.sql.catalog.spark_catalog and the jar of io.delta:delta-spark"
            ) from cause
    return [view.name for view in made]
