"""Whose a table is, which one it is, and what it says about itself for readers without the topology's code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from txstorm.api.state import MERGE
from txstorm.errors import DataDirectoryError
from txstorm.storage.tables.intent import DIRECTORIES, STATE

FORMAT = "1"
KEYS, VALUES, LAYOUT = "txstorm.keys", "txstorm.values", "txstorm.layout"


class Owner(NamedTuple):
    """Whose table it is.

    Attributes:
        topology: its id.
        incarnation: made at the first run of the data directory.
        timeline: 0, and one more after every rewind.
    """

    topology: str
    incarnation: str
    timeline: int = 0

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
        """The app id under which a dropped table keeps the last txid it is right for."""
        return f"txstorm/{self.incarnation}/until"

    def properties(self) -> dict[str, str]:
        """What every table of this owner says about itself."""
        return {
            "txstorm.format": FORMAT,
            "txstorm.topology": self.topology,
            "txstorm.incarnation": self.incarnation,
        }


class TableRef(NamedTuple):
    """Which table: ``changes``, ``state`` or ``sink`` and its name, or ``dead-letters``, which has none."""

    kind: str
    name: str

    @property
    def uri(self) -> str:
        """Its directory, relative to the data directory; also its name in ledger and messages."""
        return f"{DIRECTORIES[self.kind]}/{self.name}" if self.name else DIRECTORIES[self.kind]

    @property
    def bounded(self) -> str:
        """The one column that its files have statistics of."""
        return "_kg" if self.kind == STATE else "_txid"

    def txid_app(self, owner: Owner) -> str:
        """The app id under which it keeps its last txid."""
        table = f"{self.kind}-{self.name}" if self.name else self.kind
        return f"txstorm/{owner.incarnation}/{owner.timeline}/{table}"


def key_names_of(properties: Mapping[str, str]) -> list[str]:
    """The key columns that a state's table names among its `properties`."""
    return list(json.loads(properties.get(KEYS, "[]")))


def is_merged(properties: Mapping[str, str]) -> bool:
    """Whether the table with these `properties` is a state of the layout ``merge``: it has no table of changes."""
    return properties.get(LAYOUT) == MERGE


def check_owner(table: Path | str, properties: Mapping[str, str], owner: Owner) -> None:
    """Raise `DataDirectoryError` unless a table with these `properties` is the owner's, and in a format read here."""
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
