"""Reading a table as of a txid: the choice of its version, and whether it is complete.

A state as of a txid is a version of its table at that txid or earlier, with the change rows after it applied.
Compaction makes a new version every few seconds, so most versions are *superseded*: their files are deleted some
minutes after the next version exists. Other versions *stay*: their files are kept for as long as the history is. The
commit info of every compaction says whether its version stays, and names the previous version that does, so a reader
goes from one to the next without reading those between. Versions of other kinds, and all versions of tables that were
written before thinning (`storage.upkeep.thinning`) was introduced, stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from txstorm.clients.delta.entry import LogEntry
from txstorm.errors import StateError
from txstorm.storage.tables.identity import is_merged
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
"""Kinds of commits whose versions always stay: earlier versions may have other rows or other columns."""


def staying(log: TableLog) -> Iterator[tuple[LogEntry, int]]:
    """Yield the versions of a state table that stay, newest first, each with the txid that it is as of."""
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
    """Return the txid that a state table's version is as of, from its commit info."""
    return int(info["as_of"] if info["kind"] in (COMPACTED, RESTORED, BEGUN) else info["last"])


def version_as_of(table: TransactionalTable, wanted: int, *, stays: bool = False) -> tuple[int, int]:
    """Find the version of a state table to read for txid `wanted`; return it with the txid that it is as of.

    This is the newest version if it is not ahead of `wanted` (with `stays` only if it stays), otherwise the newest
    version that stays and is not ahead. Versions of earlier timelines count too: a version that was rolled back
    is never found, since the rewind created a newer one.

    Raises:
        StateError: there is no such version, it is no longer retained, or `wanted` is inside a group (layout
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


def why_not(table: TransactionalTable, txid: int | None) -> str | None:
    """Return the reason why `table` is incomplete as of `txid` (None: the last one); None if it is complete.

    A table added to a running topology begins after a txid; a dropped one ends with one.
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
    """Return the error for a txid before `oldest`, the first as of which a state can be read."""
    return StateError(
        f"state {name!r}: txid {wanted} is older than what is kept of it (or than the state itself); ask for txid "
        f"{oldest} or later"
    )
