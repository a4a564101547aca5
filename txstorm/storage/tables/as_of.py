"""Time travel: choose the version to read of a table as of a txid, and check that the table is complete as of it.

A state as of a txid is a version of its table at that txid or an earlier one, with the later change rows applied.
Compaction creates a new version every few seconds, so most versions are *superseded*: their files are deleted a few
minutes after the next version has been created. Other versions *stay*: their files are kept for as long as the history
is. The commit info of every compaction records whether its version stays, and names the previous version that does, so
a reader can walk from one to the next and skip the versions in between. Versions of other kinds, and all versions of
tables that were written before thinning (`storage.upkeep.thinning`) was introduced, stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from txstorm.clients.delta.entry import LogEntry
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import StateError
from txstorm.storage.rows.eviction import NO_BOUND, split_changes
from txstorm.storage.rows.schema import OP, PLACE, SEQUENCE, TXID
from txstorm.storage.tables.identity import INCARNATION, TopologyIdentity, is_merged, key_names_of
from txstorm.storage.tables.intent import LETTERS
from txstorm.storage.tables.merge_layout import check_group_end
from txstorm.storage.tables.table_log import (
    BEGUN,
    COMMITTED,
    COMPACTED,
    CREATED,
    REDEFINED,
    RESTORED,
    TableLog,
    TransactionalTable,
)

STAYS, BASE, SUPERSEDED, THINNED, AT = "stays", "base", "superseded", "thinned", "at"
WHOLE = (CREATED, RESTORED, BEGUN, REDEFINED)
"""Kinds of commits whose versions always stay, since earlier versions may have different rows or columns."""


def staying(log: TableLog) -> Iterator[tuple[LogEntry, int]]:
    """Yield the retained versions of a state table (those that stay), newest first, each with the txid it is as of."""
    newest: int | None = None
    while True:
        below = None
        for entry in log.history(newest):
            kind = entry.info.get("kind")
            if kind not in (COMPACTED, COMMITTED, *WHOLE):
                continue
            if entry.info.get(STAYS, True):
                yield entry, as_of(entry.info)
            if BASE in entry.info:
                below = int(entry.info[BASE][0])
                break
        if below is None:
            return
        newest = below


def as_of(info: Mapping[str, Any]) -> int:
    """Return the txid that a version of a state table is as of, given the version's commit info."""
    return int(info["as_of"] if info["kind"] in (COMPACTED, RESTORED, BEGUN) else info["last"])


def version_as_of(table: TransactionalTable, wanted: int, *, stays: bool = False) -> tuple[int, int]:
    """Find the version of a state table to read as of txid `wanted`; return it with the txid that it is as of.

    This is the newest version if it is not ahead of `wanted` (and, if `stays` is true, is retained), otherwise the
    newest retained version that is not ahead. Versions of earlier timelines count too: a version that was rolled back
    is never found, since the rewind created a newer one.

    Raises:
        StateError: there is no such version, it is no longer retained, or `wanted` lies within a group (layout
            ``merge``).
    """
    last = table.last_txid()
    if last <= wanted and not (stays and not is_merged(table.log.properties)):
        return table.version, last
    oldest = None
    for entry, txid in staying(table.log):
        if entry.info["kind"] == COMMITTED:
            check_group_end(table.ref.name, entry.info, wanted)
        if txid <= wanted:
            return entry.version, txid
        oldest = txid
    raise too_old(table.ref.name, wanted, oldest)


def bound_as_of(base: DeltaHandle, changes: DeltaHandle, as_of: int, txid: int) -> int:
    """Return the bound of all collections of a collection state as of `txid`; `NO_BOUND` if there is none.

    Args:
        base: the state table, at a version that is as of txid `as_of`.
        changes: the changes table.
        as_of: see `base`.
        txid: the transaction.
    """
    owner = TopologyIdentity("", base.properties.get(INCARNATION, ""))
    known, order = base.app_version(owner.bound_app), key_names_of(base.properties)[-PLACE]
    later = changes.batches((TXID.name, as_of), (TXID.name, txid), [order, SEQUENCE.name, TXID.name, OP.name])
    return max([NO_BOUND if known is None else known, *(split_changes(part).bound for part in later)])


def why_not(table: TransactionalTable, txid: int | None) -> str | None:
    """Return the reason why `table` is incomplete as of `txid` (None: the last txid); None if it is complete.

    A table that was added to a running topology begins after some txid; a dropped table ends with one.
    """
    until, since = table.until(), table.since()
    if until is not None and (txid is None or txid > until):
        return f"it was dropped after txid {until} and lacks what was committed since"
    if txid is not None and txid < since and table.ref.kind != LETTERS:  # dead letters: no rows are missing before it
        return f"it begins after txid {since}"
    return None


def check_right(what: str, table: TransactionalTable, txid: int) -> None:
    """Raise `StateError` if `table` is incomplete as of `txid`; see `why_not`."""
    if fault := why_not(table, txid):
        until = table.until()
        wanted = f"{table.since()} or later" if until is None else f"{table.since()} to {until}"
        raise StateError(f"{what}: cannot be read as of txid {txid}: {fault}; ask for txid {wanted}")


def too_old(name: str, wanted: int, oldest: int | None) -> StateError:
    """Return the error for a txid before `oldest`, the earliest txid as of which the state can still be read."""
    return StateError(
        f"state {name!r}: txid {wanted} is older than what is kept of it (or than the state itself); ask for txid "
        f"{oldest} or later"
    )
