"""Thinning of a state table's versions: which ones stay readable, and when the files of the others are deleted.

The commit info of a compaction, by which readers find the versions that stay, is described in `storage.tables.as_of`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from txstorm.errors import TableCorrupt
from txstorm.storage.tables.as_of import AT, BASE, STAYS, SUPERSEDED, THINNED, WHOLE, as_of
from txstorm.storage.tables.table_log import COMPACTED, CREATED, TableLog, TransactionalTable

log = logging.getLogger("txstorm.state")

LEAST_ROWS = 500_000
"""Change rows between two versions that stay; more if the state itself has more rows."""
STAYS_MILLIS = 12 * 60 * 60 * 1000
"""Longest time between two versions that stay, however little has changed, so that other readers' log has one."""
SUPERSEDED_MILLIS = 10 * 60 * 1000
"""Time that the files of a superseded version are kept, for readers that have just opened it."""


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
            if info.get("kind") not in (COMPACTED, *WHOLE):
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
