"""Versions of a state table: which of them stay, and which one a state as of a txid is read from.

Compaction makes a new version every few seconds, so most of them are *superseded*: their files are removed some
minutes after the next version is there. Some *stay*: their files are kept for as long as the history is. A state as of
an earlier txid is a version that stays with the change rows after it. The commit info of every compaction says whether
its version stays, and names the version before it that does, so a reader goes from one to the next and never looks at
those between. Versions of other kinds, and of tables that were written before versions were thinned, stay.
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
"""Kinds of commits whose versions always stay: what was before them may have other rows, or other columns."""
LEAST_ROWS = 500_000
"""Change rows after a version that stays before the next one does; more where the state has more rows."""
STAYS_MILLIS = 12 * 60 * 60 * 1000
"""After this long a version stays, however little has changed, so that one is in the log that other readers see."""
SUPERSEDED_MILLIS = 10 * 60 * 1000
"""The files of a superseded version are kept for this long, for readers that have just opened it."""


def staying(log: TableLog) -> Iterator[tuple[LogEntry, int]]:
    """The versions of a state table that stay, newest first, each with the txid it is as of."""
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
    """The txid that the version of a state table with this commit info is as of."""
    return int(info["as_of"] if info["kind"] in (COMPACTED, RESTORED, BEGUN) else info["last"])


def version_as_of(table: TransactionalTable, wanted: int, *, stays: bool = False) -> tuple[int, int]:
    """The version of a state table to read for txid `wanted`, and the txid it is as of.

    It is the newest one where that is not ahead (but with `stays` only if it stays), else the newest one that stays and
    is not ahead. Versions of earlier timelines count too: before one that a rewind took back there is a newer one that
    it made.

    Raises:
        StateError: there is none, or none that is kept; or `wanted` is inside a group of the layout ``merge``.
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
    """Why `table` does not hold what the transactions up to `txid` put into it (None: up to the last one); else None.

    A table made later than the topology begins after a txid, a dropped one ends with one.
    """
    until, since = table.until(), table.since()
    if until is not None and (txid is None or txid > until):
        return f"it was dropped after txid {until} and lacks what was committed since"
    if txid is not None and txid < since and table.ref.kind != LETTERS:  # before there was none, none was left out
        return f"it begins after txid {since}"
    return None


def check_right(what: str, table: TransactionalTable, txid: int) -> None:
    """Raise `StateError` where `table` cannot say what was in it at `txid`; see `why_not`."""
    if fault := why_not(table, txid):
        until = table.until()
        wanted = f"{table.since()} or later" if until is None else f"{table.since()} to {until}"
        raise StateError(f"{what}: cannot be read as of txid {txid}: {fault}; ask for txid {wanted}")


def too_old(name: str, wanted: int, oldest: int | None) -> StateError:
    """What to raise for a txid before `oldest`, the first that a state can be read as of."""
    return StateError(
        f"state {name!r}: txid {wanted} is older than what is kept of it (or than the state itself); ask for txid "
        f"{oldest} or later"
    )


class _Base(NamedTuple):
    """The newest version that stays; `at`: when it was made, ms since 1970; `rows`: change rows since."""

    version: int
    as_of: int
    at: int
    rows: int


class _Old(NamedTuple):
    """Files that version `version` has superseded at `at`, ms since 1970, and that no version that stays has."""

    version: int
    at: int
    paths: Sequence[str]


class Versions:
    """The versions of one state table, as its leader thins them: which ones stay, and which files are to be removed.

    What is removed was named by the log entry that superseded it, made by compare-and-set when it was decided; a file
    that left the table and is in no version that stays can never come back into it, so it does not matter how late,
    how often or by whom it is removed.

    Args:
        table: at its newest version.
        now: ms since 1970.
    """

    def __init__(self, table: TransactionalTable, now: int) -> None:
        self._old: deque[_Old] = deque()
        self._thinned = 0
        base, self.settled = self._read(table.log, now)
        self._base = base or _Base(0, 0, now, 0)
        try:
            self._files = {file.path for file in (table.log if base is None else table.at(base.version)).files()}
        except TableCorrupt as cause:
            log.warning("table %s: the files that it has now stay for good: %s", table.ref.uri, cause)
            self._files = {file.path for file in table.log.files()}

    def _read(self, log: TableLog, now: int) -> tuple[_Base | None, bool]:
        """Also what was superseded lately and may not be removed yet: from the last entry that says how far that is."""
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
        """What the commit info of a compaction says of its version.

        Args:
            removes: the files that leave the table.
            later: change rows that it brings into the table.
            rows: rows of the table before.
            now: ms since 1970.
            stays: whether it has to stay.
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
        """The version that `table` is at was made, with what `decide` has said about it."""
        self._old.append(_Old(table.version, about[AT], about[SUPERSEDED]))
        self.settled = about[STAYS]
        self._base = _Base(*about[BASE])
        if self.settled:
            self._base = _Base(table.version, table.last_txid(), about[AT], 0)
            self._files = {file.path for file in table.log.files()}

    def is_due(self, now: int) -> bool:
        """Whether files were superseded long enough ago; `now`: ms since 1970."""
        return bool(self._old) and now - self._old[0].at >= SUPERSEDED_MILLIS

    def due(self, now: int) -> Sequence[str]:
        """The files of the oldest version whose turn it is, relative to the table; then call `removed`."""
        return self._old[0].paths if self.is_due(now) else ()

    def removed(self) -> None:
        """The files that `due` has named are removed."""
        self._thinned = self._old.popleft().version


def folded(base: pa.Table, later: pa.Table, keys: list[str], columns: list[str]) -> pa.Table:
    """`base` with the `later` changes over it: the row of the highest txid of each key, without removed ones.

    `columns` are those of the answer, which is sorted by `keys`, None first.
    """
    ops = pa.repeat(pa.scalar(UPDATED, OP.type), base.num_rows)
    wanted = list(dict.fromkeys([*columns, TXID.name, OP.name]))
    rows = pa.concat_tables([base.append_column(OP.name, ops).select(wanted), later.select(wanted)])
    rows = rows.take(pc.sort_indices(rows[TXID.name])).append_column("_row", pa.array(np.arange(rows.num_rows)))
    newest = rows.group_by(keys).aggregate([("_row", "max")])["_row_max"] if keys and rows else rows["_row"][-1:]
    rows = rows.take(newest)
    return in_order(rows.filter(pc.not_equal(rows[OP.name], REMOVED)), keys).select(columns).combine_chunks()
