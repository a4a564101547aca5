"""A savepoint: the version of every table of a topology right after one txid, and the spout document of that txid.

A snapshot at a clock of the source is a savepoint with a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from txstorm.books.records import clock_of
from txstorm.clocks import Clock
from txstorm.display import facts, time_of
from txstorm.errors import DataDirectoryError, LedgerCorrupt

FORMAT, VERSION = "txstorm-savepoint", 2
WANTED_VERSION = 1


@dataclass(frozen=True, slots=True)
class SavedTable:
    """One table of a savepoint.

    Attributes:
        version: a version that contains everything up to the savepoint's txid.
        as_of: for ``state/…``, the txid that the version is as of; later changes are in ``changes/…``.
    """

    version: int
    as_of: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Savepoint:
    """A named savepoint.

    Attributes:
        name: the user's name for it.
        topology, incarnation, timeline: identity of the topology, and its timeline.
        txid: the last transaction that the savepoint contains.
        document: the spout document of that transaction; reading of the source continues from its end.
        stamp: processing time of that transaction, UTC microseconds since 1970.
        created: time of the savepoint, UTC microseconds since 1970.
        tables: saved tables, by directory.
        outside: maps and outlets, which are in external systems and not part of the savepoint.
        number: number of the snapshot at a clock that it is; None: it is none.
        automatic: whether it may be deleted when there are newer snapshots.
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
    number: int | None = None
    automatic: bool = False

    @property
    def snapshot(self) -> ClockSnapshot | None:
        """The snapshot at a clock that the savepoint is; None if it is none."""
        clock = clock_of(self.document)
        if self.number is None or clock is None:
            return None
        return ClockSnapshot(self.number, clock, self.txid, self.name, self.created)

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
        """Return the savepoint as JSON values, with the version of the format."""
        found = {"format": FORMAT, "version": VERSION, **asdict(self)}
        if self.number is None:  # as older versions of txstorm read it, too
            del found["number"], found["automatic"]
            found["version"] = 1
        return found

    @classmethod
    def from_json(cls, found: Any) -> Savepoint:
        """Read the result of `to_json`.

        Raises:
            DataDirectoryError: it was written by a newer txstorm.
            LedgerCorrupt: it is not a savepoint.
        """
        try:
            fields = dict(found)
            name, version = fields.pop("format"), fields.pop("version")
            if name == FORMAT and version > VERSION:
                raise DataDirectoryError(
                    f"savepoint: format version {version} is newer than {VERSION}, which this txstorm reads; upgrade it"
                )
            tables = {uri: SavedTable(**one) for uri, one in fields.pop("tables").items()}
            outside = tuple(fields.pop("outside"))
            return cls(**fields, tables=tables, outside=outside)
        except (KeyError, TypeError, ValueError, AttributeError) as cause:
            msg = f"savepoint: expected format {FORMAT!r}, got {str(found)[:80]!r}; the ledger is damaged, restore it"
            raise LedgerCorrupt(msg) from cause


@dataclass(frozen=True)
class ClockSnapshot:
    """A complete snapshot at a clock of the source.

    Attributes:
        number: 1 for the topology's first one.
        clock: the clock of the source.
        txid: the transaction that has this clock.
        name: name of its savepoint.
        stamp: when it was made, microseconds since 1970 (UTC).
    """

    number: int
    clock: Clock
    txid: int
    name: str
    stamp: int

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as commands show it."""
        return {**asdict(self), "clock": dict(self.clock)}


@dataclass(frozen=True)
class ChosenClock:
    """A clock at which a snapshot is to be made.

    Attributes:
        number, clock, name: those of the snapshot; it has the clock of `txid`, if that is planned otherwise.
        since: when it was asked for, microseconds since 1970 (UTC).
        wait: seconds that a run waits for the data; None: the setting ``snapshot_wait``.
        txid: the planned transaction that has the clock; None: no transaction may pass the clock until one has it.
        automatic: see `Savepoint`.
    """

    number: int
    clock: Clock
    name: str
    since: int
    wait: float | None = None
    txid: int | None = None
    automatic: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return a clock that no transaction may pass as JSON values, with the version of the format."""
        found = {"number": self.number, "clock": dict(self.clock), "name": self.name}
        return {"version": WANTED_VERSION, **found, "since": self.since, "wait": self.wait}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ChosenClock:
        """Read the result of `to_json`; raise `DataDirectoryError` if a newer txstorm wrote it."""
        if found["version"] > WANTED_VERSION:
            raise DataDirectoryError(
                f"the wanted clock: format version {found['version']} is newer than {WANTED_VERSION}, which this "
                "txstorm reads; upgrade it"
            )
        return cls(found["number"], Clock(found["clock"]), found["name"], found["since"], found.get("wait"))


def kept_versions(savepoints: Iterable[Savepoint]) -> dict[str, frozenset[int]]:
    """Return, by table directory, the versions that savepoints need, whose files and log entries must be kept.

    Everything that removes files, log entries or rows calls this first. A savepoint reads only these versions.
    """
    found: dict[str, set[int]] = {}
    for savepoint in savepoints:
        for uri, table in savepoint.tables.items():
            found.setdefault(uri, set()).add(table.version)
    return {uri: frozenset(versions) for uri, versions in found.items()}
