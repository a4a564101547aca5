"""States, changes and sinks as Spark SQL: the same rows as `txstorm.state.read` gives, without txstorm."""

# ruff: noqa: S608 - names are quoted, all else is numbers

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from txstorm.clients.delta import DeltaHandle
from txstorm.state.declared import LETTERS_REF
from txstorm.state.intent import SINK
from txstorm.state.read import StateParts, has_letters, list_sinks, list_states, state_parts
from txstorm.state.schema import OP, REMOVED, TXID, UPDATED
from txstorm.state.table import TableRef

RANK = "_rank"


@dataclass(frozen=True)
class View:
    """A view of Spark SQL.

    Attributes:
        name: what it is called.
        query: the SELECT behind it.
    """

    name: str
    query: str

    @property
    def statement(self) -> str:
        """What makes it, for as long as the session lasts."""
        return f"CREATE OR REPLACE TEMP VIEW {quoted(self.name)} AS {self.query}"


def views(data_dir: Path, txid: int | None, committed: int, prefix: str = "") -> list[View]:
    """One view per table: ``state_<name>``, ``changes_<name>``, ``sink_<name>`` and ``dead_letters``, in this order.

    A state of the layout ``merge`` has no changes, and its view without `txid` is its table.

    With `txid` all of them stay at that transaction; without one they follow what is published. A state is read from
    the version of its table that is there now, with the changes since over it: right for as long as that version is
    kept and the topology is not rewound to before it.

    Raises:
        StateError: `txid` is not committed, or no longer kept.
    """
    directory = data_dir.absolute()
    states = {name: state_parts(directory, name, txid, committed) for name in list_states(directory)}
    made = [View(f"{prefix}state_{name}", _state(parts, txid)) for name, parts in states.items()]
    kept = {name: parts.changes for name, parts in states.items() if parts.changes is not None}
    made += [View(f"{prefix}changes_{name}", _rows(changes, txid)) for name, changes in kept.items()]
    for name in list_sinks(directory):
        made.append(View(f"{prefix}sink_{name}", _rows(_table(directory, TableRef(SINK, name)), txid)))
    if has_letters(directory):
        made.append(View(f"{prefix}dead_letters", _rows(_table(directory, LETTERS_REF), txid)))
    return made


def quoted(name: str) -> str:
    """`name` as an identifier of Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def _state(parts: StateParts, txid: int | None) -> str:
    """The newest row of every key, without removed ones; base rows carry the txid that changed them last."""
    columns = ", ".join(map(quoted, [*parts.keys, *parts.values]))
    if parts.changes is None:
        return f"SELECT {columns} FROM {_newest(parts.base) if txid is None else _at(parts.base)}"
    upper = "" if txid is None else f" AND {TXID.name} <= {txid}"
    base = f"SELECT {columns}, {TXID.name}, '{UPDATED}' AS {OP.name} FROM {_at(parts.base)}"
    later = f"SELECT {columns}, {TXID.name}, {OP.name} FROM {_newest(parts.changes)}"
    both = f"{base} UNION ALL {later} WHERE {TXID.name} > {parts.as_of}{upper}"
    keys = f"PARTITION BY {', '.join(map(quoted, parts.keys))} " if parts.keys else ""
    ranked = f"SELECT *, row_number() OVER ({keys}ORDER BY {TXID.name} DESC) AS {RANK} FROM ({both})"
    return f"SELECT {columns} FROM ({ranked}) WHERE {RANK} = 1 AND {OP.name} <> '{REMOVED}'"


def _rows(table: DeltaHandle, txid: int | None) -> str:
    upper = "" if txid is None else f" WHERE {TXID.name} <= {txid}"
    return f"SELECT * FROM {_newest(table)}{upper}"


def _table(data_dir: Path, ref: TableRef) -> DeltaHandle:
    return DeltaHandle.open(data_dir / ref.uri)


def _newest(table: DeltaHandle) -> str:
    return f"delta.{quoted(str(table.path))}"


def _at(table: DeltaHandle) -> str:
    return f"{_newest(table)} VERSION AS OF {table.version}"
