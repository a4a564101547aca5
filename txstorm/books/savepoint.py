"""A savepoint: where every table of a topology is at one txid, and what its source gave for that txid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from txstorm.display import facts, time_of
from txstorm.errors import DataDirectoryError, LedgerCorrupt

FORMAT, VERSION = "txstorm-savepoint", 1


@dataclass(frozen=True, slots=True)
class SavedTable:
    """One table of a savepoint.

    Attributes:
        version: a version of it that holds everything up to the savepoint's txid.
        as_of: of ``state/…``: the txid that version is as of; the changes after it are in ``changes/…``.
    """

    version: int
    as_of: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Savepoint:
    """A named savepoint.

    Attributes:
        name: what the user calls it.
        topology, incarnation, timeline: whose transaction it is.
        txid: the transaction right after which it is.
        document: what the source gave for it; from there it is read on.
        stamp: its processing time, UTC microseconds since 1970.
        created: when the savepoint was made, UTC microseconds since 1970.
        tables: by their directory.
        outside: maps and outlets, which are in other systems and so not in the savepoint.
    """

    name: str
    topology: str
    incarnation: str
    timeline: int
    txid: int
    document: Any
    stamp: int
    created: int
    tables: Mapping[str, SavedTable]
    outside: tuple[str, ...] = ()

    def __repr__(self) -> str:
        found = {
            "topology": self.topology,
            "after": f"txid {self.txid:,}" + (f" of timeline {self.timeline}" if self.timeline else ""),
            "time of txid": time_of(self.stamp),
            "made": time_of(self.created),
            "tables": ", ".join(f"{uri} at version {one.version}" for uri, one in self.tables.items()),
            "not in it": ", ".join(self.outside) or None,
        }
        return facts(f"savepoint {self.name}", found)

    def to_json(self) -> dict[str, Any]:
        """The savepoint as JSON values, with its format's version."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, found: Any) -> Savepoint:
        """What `to_json` made.

        Raises:
            DataDirectoryError: it was written by a newer txstorm.
            LedgerCorrupt: it is no savepoint.
        """
        try:
            fields = dict(found)
            name, version = fields.pop("format"), fields.pop("version")
            if name == FORMAT and version > VERSION:
                msg = (
                    f"savepoint: format version {version} is newer than {VERSION}, which this txstorm reads; upgrade it"
                )
                raise DataDirectoryError(msg)
            tables = {uri: SavedTable(**one) for uri, one in fields.pop("tables").items()}
            outside = tuple(fields.pop("outside"))
            return cls(**fields, tables=tables, outside=outside)
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            msg = f"savepoint: expected format {FORMAT!r}, got {str(found)[:80]!r}; the ledger is damaged, restore it"
            raise LedgerCorrupt(msg) from cause


def kept_versions(savepoints: Iterable[Savepoint]) -> dict[str, frozenset[int]]:
    """Table (its directory) → the versions that savepoints need: their files and their log must stay.

    Called by whatever removes files, log entries or rows. A savepoint reads nothing but these versions.
    """
    found: dict[str, set[int]] = {}
    for one in savepoints:
        for uri, table in one.tables.items():
            found.setdefault(uri, set()).add(table.version)
    return {uri: frozenset(versions) for uri, versions in found.items()}
