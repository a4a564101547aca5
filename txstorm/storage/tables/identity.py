"""Table identity: owning topology, kind and name, and the properties readers need without the topology's code.

A table gets its properties when it is created; a coordinator that takes the lead adds the ones it lacks. Values set by
a user stay: the property `SET` records the values that txstorm gave, and only those follow a changed setting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from txstorm.api.state import MERGE
from txstorm.clients.delta.entry import LOG_RETENTION
from txstorm.errors import DataDirectoryError
from txstorm.storage.tables.intent import CHANGES, DIRECTORIES, OUTSIDE, STATE, check_place

FORMAT = "1"
KEYS, VALUES, LAYOUT = "txstorm.keys", "txstorm.values", "txstorm.layout"


class TopologyIdentity(NamedTuple):
    """The owner of a table: one incarnation of a topology, on one timeline.

    Attributes:
        topology: the topology's id.
        incarnation: random id created at the first run of the data directory.
        timeline: 0 at first; every rewind adds 1.
    """

    topology: str
    incarnation: str
    timeline: int = 0

    def __str__(self) -> str:
        return f"topology {self.topology}, incarnation {self.incarnation}, timeline {self.timeline}"

    @property
    def epoch_app(self) -> str:
        """The app id under which tables keep the coordinator's epoch."""
        return f"txstorm/{self.incarnation}/epoch"

    @property
    def floor_app(self) -> str:
        """The app id under which a table keeps the txid up to which its rows were removed."""
        return f"txstorm/{self.incarnation}/floor"

    @property
    def since_app(self) -> str:
        """The app id under which a table keeps the txid it begins after."""
        return f"txstorm/{self.incarnation}/since"

    @property
    def until_app(self) -> str:
        """The app id under which a dropped table keeps the last txid it is complete for."""
        return f"txstorm/{self.incarnation}/until"

    def properties(self) -> dict[str, str]:
        """Return the properties of every table of this owner."""
        return {
            "txstorm.format": FORMAT,
            "txstorm.topology": self.topology,
            "txstorm.incarnation": self.incarnation,
        }


class TableRef(NamedTuple):
    """Kind and name of a table: ``changes``, ``state`` or ``sink``, or ``dead-letters``, whose name is empty."""

    kind: str
    name: str

    @property
    def uri(self) -> str:
        """The table's directory, relative to the data directory; also its name in ledger and messages."""
        return f"{DIRECTORIES[self.kind]}/{self.name}" if self.name else DIRECTORIES[self.kind]

    @property
    def bounded(self) -> str:
        """The one column for which its files have min/max statistics."""
        return "_kg" if self.kind == STATE else "_txid"

    def txid_app(self, owner: TopologyIdentity) -> str:
        """Return the app id under which the table keeps its last txid."""
        table = f"{self.kind}-{self.name}" if self.name else self.kind
        return f"txstorm/{owner.incarnation}/{owner.timeline}/{table}"


def key_names_of(properties: Mapping[str, str]) -> list[str]:
    """Return the names of the key columns of a state's table, from its `properties`."""
    return list(json.loads(properties.get(KEYS, "[]")))


def is_merged(properties: Mapping[str, str]) -> bool:
    """Whether the table with these `properties` is a state of the layout ``merge``: it has no table of changes."""
    return properties.get(LAYOUT) == MERGE


def check_owner(table: Path | str, properties: Mapping[str, str], owner: TopologyIdentity) -> None:
    """Raise `DataDirectoryError` unless a table with these `properties` is `owner`'s, in a supported format."""
    if "txstorm.incarnation" not in properties:
        msg = f"table {table}: expected a table of txstorm, found a foreign one; use another name or directory"
        raise DataDirectoryError(msg)
    if properties.get("txstorm.format") != FORMAT:
        msg = (
            f"table {table}: has format {properties.get('txstorm.format')!r}, this txstorm reads {FORMAT!r}; "
            "use the txstorm that wrote it, or a newer one"
        )
        raise DataDirectoryError(msg)
    if properties["txstorm.incarnation"] != owner.incarnation:
        msg = (
            f"table {table}: belongs to topology {properties.get('txstorm.topology')!r}, incarnation "
            f"{properties['txstorm.incarnation']}; expected {owner.topology!r}, incarnation {owner.incarnation}; one "
            "data directory belongs to one topology: use another one"
        )
        raise DataDirectoryError(msg)


SET = "txstorm.set"
MAX_LAG = "txstorm.stateMaxLag"
DEFAULT_SECONDS = 86_400.0
_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def log_properties(seconds: float = DEFAULT_SECONDS) -> dict[str, str]:
    """Return the properties of a table whose log keeps its entries for `seconds`.

    Other writers must not shorten the log: Spark and delta-rs would delete entries, where txstorm archives them.
    """
    whole = max(1, math.ceil(seconds))
    unit, size = next((unit, size) for unit, size in _UNITS if whole % size == 0)
    return {LOG_RETENTION: f"interval {whole // size} {unit}", "delta.enableExpiredLogCleanup": "false"}


def lag_properties(seconds: float | None) -> dict[str, str]:
    """Return the property that records by how many seconds a state table may lag behind its changes; None: no bound."""
    return {MAX_LAG: "none" if seconds is None else f"{seconds:g}"}


def recorded(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a new table: `wanted`, and the record of the values that txstorm set."""
    return {**wanted, SET: json.dumps(wanted, sort_keys=True)}


def due(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the `wanted` properties that a table with the properties `found` lacks; empty if it has them all.

    A value that txstorm did not set is a user's, and stays.
    """
    ours = _set_before(found)
    changed = {
        name: value
        for name, value in wanted.items()
        if found.get(name) != value and (name not in found or found[name] == ours.get(name))
    }
    return changed and {**changed, SET: json.dumps({**ours, **changed}, sort_keys=True)}


def _set_before(found: Mapping[str, str]) -> Mapping[str, str]:
    try:
        ours = json.loads(found.get(SET, "{}"))
    except (ValueError, RecursionError):
        return {}
    return ours if isinstance(ours, dict) else {}


_KINDS = {directory: kind for kind, directory in DIRECTORIES.items()}


def table_ref(uri: str) -> TableRef:
    """Parse a table name of ledger or intents: ``changes/…``, ``sinks/…``, ``maps/…``, ``outlets/…``, ``dead_letters``.

    States of the layout ``merge`` are called ``state/…`` there. Raises `LedgerCorrupt` for anything else, so that the
    content of a ledger cannot choose a directory.
    """
    directory, _, name = uri.partition("/")
    ref = TableRef(_KINDS.get(directory, ""), name)
    check_place(ref.kind, ref.name, uri)
    return ref


def tables_of(recorded: Iterable[str]) -> list[TableRef]:
    """List all tables of the `recorded` names: a state has two (layout merge: one), maps and outlets have none."""
    refs = [ref for ref in map(table_ref, recorded) if ref.kind not in OUTSIDE]
    return [*refs, *(TableRef(STATE, ref.name) for ref in refs if ref.kind == CHANGES)]
