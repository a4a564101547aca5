"""A decided rewind as a value object: the transaction to return to, and the changes to each table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from txstorm.clients.delta.entry import DataFile
from txstorm.clients.files import checked_path
from txstorm.errors import DataDirectoryError, LedgerCorrupt
from txstorm.storage.tables.identity import TopologyIdentity

FORMAT, VERSION = "txstorm-rewind", 1
MIGRATION = "migration"
"""Field of a rewind that is a migration; an older release, which would leave out its properties, does not read it."""


@dataclass(frozen=True, slots=True)
class RewoundTable:
    """The changes of a rewind to one table.

    Attributes:
        uri: the table.
        as_of: the txid that the table is as of afterwards; for ``state/…`` it may be earlier than the rewind's.
        removes: files to remove from the table: those with later rows only, and those that `adds` replace.
        adds: files of the restored version and, if a group extends beyond the txid, its rows up to the txid.
        bound: the eviction bound that the restored version of a collection state's table has; None if it has none.
        floor: the txid up to which a migration leaves no change rows; None: the rewind is no migration.
        properties: the table properties that a migration sets.
    """

    uri: str
    as_of: int
    removes: tuple[str, ...]
    adds: tuple[DataFile, ...]
    bound: int | None = None
    floor: int | None = None
    properties: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """A decided rewind, with everything that the next coordinator needs to carry it out.

    Attributes:
        topology, incarnation: identity of the topology.
        timeline: the new timeline.
        epoch: the epoch of the coordinator that decided it.
        txid: the last transaction that stays.
        row: its row in the history; None if no transaction stays.
        tables: all tables, in the order in which they are restored.
    """

    topology: str
    incarnation: str
    timeline: int
    epoch: int
    txid: int
    row: Mapping[str, Any] | None
    tables: tuple[RewoundTable, ...]

    @property
    def owner(self) -> TopologyIdentity:
        """The identity of the tables' owner after the rewind."""
        return TopologyIdentity(self.topology, self.incarnation, self.timeline)

    def to_json(self) -> dict[str, Any]:
        """Return the rewind as JSON values, with the version of the format."""
        migrates = {MIGRATION: True} if any(table.properties for table in self.tables) else {}
        return {"format": FORMAT, "version": VERSION, **migrates, **asdict(self)}

    @classmethod
    def from_json(cls, found: Any) -> Rewind:
        """Read the result of `to_json`.

        Raises:
            DataDirectoryError: it was written by a newer txstorm.
            LedgerCorrupt: it is not a rewind.
        """
        try:
            fields = dict(found)
            name, version = fields.pop("format"), fields.pop("version")
            fields.pop(MIGRATION, None)
            if name == FORMAT and version > VERSION:
                msg = f"rewind: format version {version} is newer than {VERSION}, which this txstorm reads; upgrade it"
                raise DataDirectoryError(msg)
            return cls(**{**fields, "tables": tuple(map(_table_from, fields["tables"]))})
        except (KeyError, TypeError, ValueError) as cause:
            msg = f"rewind: expected format {FORMAT!r}, got {str(found)[:80]!r}; the ledger is damaged, restore it"
            raise LedgerCorrupt(msg) from cause


def _table_from(found: Mapping[str, Any]) -> RewoundTable:
    adds = tuple(DataFile(**{**one, "path": checked_path(one["path"])}) for one in found["adds"])
    removes, bound = tuple(map(checked_path, found["removes"])), found.get("bound")
    if bound is not None and not isinstance(bound, int):
        raise ValueError(f"expected a bound that is an int, got {bound!r}")
    more = found.get("floor"), found.get("properties")
    return RewoundTable(found["uri"], found["as_of"], removes, adds, bound, *more)
