"""Thinning of a state table's versions, and the choice of the version from which a state as of a txid is read.

Compaction makes a new version every few seconds, so most versions are *superseded*: their files are deleted some
minutes after the next version exists. Some versions *stay*: their files are kept for as long as the history is. A state
as of an earlier txid is a version that stays, with the change rows after it applied. The commit info of every
compaction says whether its version stays, and names the previous version that does, so a reader goes from one to the
next without reading those between. Versions of other kinds, and all versions of tables that were written before
thinning was introduced, stay.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.clients.delta.entry import LogEntry
from txstorm.errors import StateError, TableCorrupt
from txstorm.storage.rows.schema import OP, REMOVED, TXID, UPDATED, in_order
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

log = logging.getLogger("txstorm.state")

STAYS, BASE, SUPERSEDED, THINNED, AT = "stays", "base", "superseded", "thinned", "at"
_WHOLE = (CREATED, RESTORED, BEGUN, REDEFINED)
"""Kinds of commits whose versions always stay: earlier versions may have other rows or other columns."""
LEAST_ROWS = 500_000
"""Change rows between two versions that stay; more if the state itself has more rows."""
STAYS_MILLIS = 12 * 60 * 60 * 1000
"""Longest time between two versions that stay, however little has changed, so that other readers' log has one."""
SUPERSEDED_MILLIS = 10 * 60 * 1000
"""Time that the files of a superseded version are kept, for readers that have just opened it."""


def staying(log: TableLog) -> Iterator[tuple[LogEntry, int]]:
    """Yield the versions of a state table that stay, newest first, each with the txid that it is as of."""
    newest: int | None = None
    while True:
        below = None
        for entry in log.history(newest):
            kind = entry.info.get("kind")
            if kind not in (COMPACTED, COMMITTED, *_WHOLE):
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


class _Base(NamedTuple):
    """The newest version that stays; `at`: its time, milliseconds since 1970; `rows`: change rows since then."""

    version: int
    as_of: int
    at: int
    rows: int


class _Old(NamedTuple):
    """Files that `version` superseded at `at` (milliseconds since 1970) and that belong to no version that stays."""

    version: int
    at: int
    paths: Sequence[str]


class Versions:
    """Thinning of one state table's versions by its leading coordinator: which stay, and which files to delete.

    A file is deleted only if the log entry that superseded it, a compare-and-set commit, has named it. A file that left
    the table and is in no version that stays can never come back, so it does not matter how late, how often or by
    which process it is deleted.

    Args:
        table: the state table, at its newest version.
        now: milliseconds since 1970.

    Attributes:
        settled: whether the newest version stays.
    """

    def __init__(self, table: TransactionalTable, now: int) -> None:
        self._old: deque[_Old] = deque()
        self._thinned = 0
        base, self.settled = self._read(table.log, now)
        self._base = base or _Base(0, 0, now, 0)
        try:
            self._files = {file.path for file in (table.log if base is None else table.at(base.version)).files()}
        except TableCorrupt as cause:
            log.warning("table %s: its present files are never removed by thinning: %s", table.ref.uri, cause)
            self._files = {file.path for file in table.log.files()}

    def _read(self, log: TableLog, now: int) -> tuple[_Base | None, bool]:
        """Read the base and `settled` from the log; collect superseded files that may not be deleted yet in `_old`."""
        base, settled = None, False
        for entry in log.history():
            info = entry.info
            if info.get("kind") not in (COMPACTED, *_WHOLE):
                continue
            stays = info.get(STAYS, True)
            if base is None and stays:
                base, settled = _Base(entry.version, as_of(info), info.get(AT, now), 0), True
            if BASE in info:
                base = base or _Base(*info[BASE])
                self._thinned = self._thinned or info[THINNED]
                self._old.appendleft(_Old(entry.version, info[AT], info[SUPERSEDED]))
            if entry.version <= self._thinned or (BASE not in info and info["kind"] in (COMPACTED, CREATED)):
                break
        return base, settled

    def decide(self, removes: Sequence[str], later: int, rows: int, now: int, *, stays: bool) -> Mapping[str, Any]:
        """Decide whether the version created by a compaction stays; return the fields for its commit info.

        Args:
            removes: the files that leave the table.
            later: number of change rows that the compaction applies.
            rows: number of rows in the table before.
            now: milliseconds since 1970.
            stays: whether the version has to stay.
        """
        since = self._base.rows + later
        stays = stays or since >= max(LEAST_ROWS, rows) or not 0 <= now - self._base.at < STAYS_MILLIS
        return {
            STAYS: stays,
            BASE: [*self._base._replace(rows=since)],
            SUPERSEDED: sorted(path for path in removes if path not in self._files),
            THINNED: self._thinned,
            AT: now,
        }

    def made(self, table: TransactionalTable, about: Mapping[str, Any]) -> None:
        """Record that the current version of `table` was committed with the fields `about`, as returned by `decide`."""
        self._old.append(_Old(table.version, about[AT], about[SUPERSEDED]))
        self.settled = about[STAYS]
        self._base = _Base(*about[BASE])
        if self.settled:
            self._base = _Base(table.version, table.last_txid(), about[AT], 0)
            self._files = {file.path for file in table.log.files()}

    def is_due(self, now: int) -> bool:
        """Whether any files were superseded long enough ago to be deleted; `now`: milliseconds since 1970."""
        return bool(self._old) and now - self._old[0].at >= SUPERSEDED_MILLIS

    def due(self, now: int) -> Sequence[str]:
        """Return relative paths of the oldest version's files if due; the caller deletes them and calls `removed`."""
        return self._old[0].paths if self.is_due(now) else ()

    def removed(self) -> None:
        """Record that the files named by `due` are deleted."""
        self._thinned = self._old.popleft().version


def folded(base: pa.Table, later: pa.Table, keys: list[str], columns: list[str]) -> pa.Table:
    """Apply the `later` changes to `base`: for each key the row of its highest txid, removed keys dropped.

    The result has the given `columns` and is sorted by `keys`, None first.
    """
    ops = pa.repeat(pa.scalar(UPDATED, OP.type), base.num_rows)
    wanted = list(dict.fromkeys([*columns, TXID.name, OP.name]))
    rows = pa.concat_tables([base.append_column(OP.name, ops).select(wanted), later.select(wanted)])
    rows = rows.take(pc.sort_indices(rows[TXID.name])).append_column("_row", pa.array(np.arange(rows.num_rows)))
    newest = rows.group_by(keys).aggregate([("_row", "max")])["_row_max"] if keys and rows else rows["_row"][-1:]
    rows = rows.take(newest)
    return in_order(rows.filter(pc.not_equal(rows[OP.name], REMOVED)), keys).select(columns).combine_chunks()
