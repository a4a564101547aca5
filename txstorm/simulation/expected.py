"""Expected content of the tables of a simulated world, and checks against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from txstorm.simulation.schedule import INCARNATION
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import STATE, TxidRecord
from txstorm.storage.tables.table_log import COMMITTED, COMPACTED, CREATED, RESTORED

if TYPE_CHECKING:
    from txstorm.simulation.delta.tables import Row, Stored


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: int, what: str) -> None:
        self.invariant = invariant
        super().__init__(f"invariant {invariant}: {what}")


@cache
def txid_app(ref: TableRef, timeline: int) -> str:
    """Under which name a table keeps its last txid."""
    return ref.txid_app(TopologyIdentity("", INCARNATION, timeline))


def needed(stored: Stored) -> list[int]:
    """The versions whose files must be there: of a state the newest one and those that stay, else all."""
    newest = len(stored.versions) - 1
    if stored.ref.kind != STATE:
        return [*range(newest + 1)]
    return [number for number, one in enumerate(stored.versions) if number == newest or stays(one.info)]


def stays(info: Mapping[str, object]) -> bool:
    """Whether the version of a state with this commit info is one that stays."""
    return info.get("kind") in (CREATED, RESTORED) or (info.get("kind") == COMPACTED and info["stays"] is True)


def check_files(stored: Stored, saved: Sequence[int]) -> None:
    """Files that a version names are there, if it stays or a savepoint names it."""
    seen: Mapping[str, object] | None = None
    for number in sorted({*needed(stored), *saved}):
        version = stored.versions[number]
        if version.files is seen:
            continue
        seen = version.files
        if not seen.keys() <= stored.rows.keys():
            gone = [path for path in version.files if path not in stored.rows]
            raise Violation(6, f"{gone} of version {number} of {stored.uri} is missing")


def check_ranges(stored: Stored) -> None:
    """Ranges of txids tile every timeline."""
    ends: dict[int, int] = {}
    for version in stored.versions:
        info = version.info
        if info.get("kind") == COMMITTED:
            end = ends.get(info["timeline"])
            if end is not None and info["first"] != end + 1:
                raise Violation(2, f"{stored.uri}: a range begins at {info}, the one before it ends at {end}")
            ends[info["timeline"]] = info["last"]


def check_rows(stored: Stored, start: Sequence[int], ends: Sequence[int]) -> None:
    """All offsets from `start` to `ends` are in it once, in order."""
    for partition, found in enumerate(frontier(rows_of(stored), start, stored.uri)):
        expected = (start if skips(stored.number, partition, len(ends)) else ends)[partition]
        if found != expected:
            raise Violation(1, f"{stored.uri} has partition {partition} up to {found}, not {expected}")


def check_state(stored: Stored, changes: Stored, txid: int, start: Sequence[int]) -> None:
    """A state table as of `txid` is what its changes from `start` on up to that are."""
    rows = rows_of(stored)
    expected = frontier([row for row in rows_of(changes) if row[0] <= txid], start, stored.uri)
    found = [max((row[3] for row in rows if row[1] == part), default=at) for part, at in enumerate(start)]
    if found != expected:
        raise Violation(1, f"{stored.uri} as of txid {txid} holds {found}, not {expected}")


def newest_until(stored: Stored, txid: int, timeline: int) -> int:
    """As of which txid a rewind to `txid` that made `timeline` restores a state; `txid` if there was none then.

    That is the newest version before it, where that is not ahead of `txid`, else the newest one that stays and is not.
    """
    before = [one for one in stored.versions if txid_app(stored.ref, timeline) not in one.apps]
    for number, version in enumerate(reversed(before)):
        if number and not stays(version.info):
            continue
        apps = version.apps
        at: int = next(apps[app] for one in range(timeline - 1, -1, -1) if (app := txid_app(stored.ref, one)) in apps)
        if at <= txid:
            return at
    return txid


def rows_of(stored: Stored) -> list[Row]:
    """The rows of the newest version, by txid."""
    return sorted([row for path in stored.versions[-1].files for row in stored.rows[path]])


def frontier(rows: Sequence[Row], start: Sequence[int], uri: str) -> list[int]:
    """The end of each partition; raises unless every offset from `start` on occurs once, in order."""
    ends = list(start)
    for txid, partition, begin, end in rows:
        if begin != ends[partition]:
            raise Violation(1, f"{uri}: txid {txid} goes on at {begin}, not at {ends[partition]}")
        ends[partition] = end
    return ends


def skips(table: int, partition: int, partitions: int) -> bool:
    """Whether a table gets nothing of a partition: so that some txids do not change it."""
    return table > 0 and partitions > 1 and partition == (table - 1) % partitions


def rows_from(records: Sequence[TxidRecord], stored: Stored) -> tuple[Row, ...]:
    """The rows that the committers of one table write for a group."""
    rows = [
        (one.txid, part, start, end)
        for one in records
        for part, (start, end) in enumerate(one.extents)
        if start < end and not skips(stored.number, part, len(one.extents))
    ]
    return tuple(rows)
