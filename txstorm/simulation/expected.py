"""Expected content of the tables of a simulated world, and checks against it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from txstorm.simulation.schedule import INCARNATION
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import STATE
from txstorm.storage.tables.table_log import COMMITTED, COMPACTED, CREATED, RESTORED

if TYPE_CHECKING:
    from txstorm.simulation.delta.tables import Row, Stored

SINCE_APP = TopologyIdentity("", INCARNATION).since_app


class Violation(Exception):
    """An invariant of a simulated world does not hold."""

    def __init__(self, invariant: int, what: str) -> None:
        self.invariant = invariant
        super().__init__(f"invariant {invariant}: {what}")


@cache
def txid_app(ref: TableRef, timeline: int) -> str:
    """Return the app id under which a table records its last txid."""
    return ref.txid_app(TopologyIdentity("", INCARNATION, timeline))


@cache
def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_of(digests: Mapping[str, str]) -> str:
    """Return the digest of a batch, given those of its partitions."""
    return _digest(json.dumps(digests, sort_keys=True))


def needed(stored: Stored) -> list[int]:
    """Return the versions whose files must exist: for a state the newest and the permanent ones, otherwise all."""
    newest = len(stored.versions) - 1
    if stored.ref.kind != STATE:
        return [*range(newest + 1)]
    return [number for number, one in enumerate(stored.versions) if number == newest or stays(one.info)]


def stays(info: Mapping[str, object]) -> bool:
    """Return whether the version of a state with this commit info is permanent."""
    return info.get("kind") in (CREATED, RESTORED) or (info.get("kind") == COMPACTED and info["stays"] is True)


def check_files(stored: Stored, saved: Sequence[int]) -> None:
    """Check that the files of permanent versions, and of the `saved` versions that savepoints name, exist."""
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
    """Check that the ranges of txids tile every timeline without gaps."""
    ends: dict[int, int] = {}
    for version in stored.versions:
        info = version.info
        if info.get("kind") == COMMITTED:
            end = ends.get(info["timeline"])
            if end is not None and info["first"] != end + 1:
                raise Violation(2, f"{stored.uri}: a range begins at {info}, the one before it ends at {end}")
            ends[info["timeline"]] = info["last"]


def check_rows(stored: Stored, start: Sequence[int], ends: Sequence[int]) -> None:
    """Check that a table contains all offsets from `start` to `ends` exactly once, in order."""
    for partition, found in enumerate(frontier(rows_of(stored), start, stored.uri)):
        expected = (start if skips(stored.number, partition, len(ends)) else ends)[partition]
        if found != expected:
            raise Violation(1, f"{stored.uri} has partition {partition} up to {found}, not {expected}")


def check_state(stored: Stored, changes: Stored, txid: int, start: Sequence[int]) -> None:
    """Check that a state table as of `txid` equals its changes from `start` up to that txid."""
    rows = rows_of(stored)
    expected = frontier([row for row in rows_of(changes) if row[0] <= txid], start, stored.uri)
    found = [max((row[3] for row in rows if row[1] == part), default=at) for part, at in enumerate(start)]
    if found != expected:
        raise Violation(1, f"{stored.uri} as of txid {txid} holds {found}, not {expected}")


def newest_until(stored: Stored, txid: int, timeline: int) -> int:
    """Return the txid to which a rewind to `txid`, which created `timeline`, restores a state.

    It is the txid of the newest version before the rewind or, if that is ahead of `txid`, of the newest permanent
    version that is not; `txid` itself if the state did not exist then, or began later than it was created. Where it
    began counts as permanent: a version before that, of a start that was fenced, is as empty.
    """
    before = [one for one in stored.versions if txid_app(stored.ref, timeline) not in one.apps]
    since: int = before[-1].apps[SINCE_APP]
    if txid < since:
        return txid
    for number, version in enumerate(reversed(before)):
        if number and not stays(version.info):
            continue
        apps = version.apps
        at: int = next(apps[app] for one in range(timeline - 1, -1, -1) if (app := txid_app(stored.ref, one)) in apps)
        if at <= txid:
            return max(at, since)
    return txid


def rows_of(stored: Stored) -> list[Row]:
    """Return the rows of the newest version, ordered by txid."""
    return sorted([row for path in stored.versions[-1].files for row in stored.rows[path]])


def frontier(rows: Sequence[Row], start: Sequence[int], uri: str) -> list[int]:
    """Return each partition's end offset; raise `Violation` unless every offset from `start` occurs once, in order."""
    ends = list(start)
    for txid, partition, begin, end in rows:
        if begin != ends[partition]:
            raise Violation(1, f"{uri}: txid {txid} continues at {begin}, not at {ends[partition]}")
        ends[partition] = end
    return ends


def skips(table: int, partition: int, partitions: int) -> bool:
    """Return whether a table receives no rows from a partition, so that some txids do not change the table."""
    return table > 0 and partitions > 1 and partition == (table - 1) % partitions
