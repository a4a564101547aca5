"""Thinning of a state table's versions: which versions are retained, and when the files of the others are deleted.

Readers find the retained versions (those that *stay*) by the commit info of compactions; see `storage.tables.as_of`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from txstorm.errors import TableCorrupt
from txstorm.storage.tables.as_of import AT, BASE, STAYS, SUPERSEDED, THINNED, WHOLE, as_of
from txstorm.storage.tables.table_log import COMPACTED, CREATED, TableLog, TransactionalTable

log = logging.getLogger(__name__)

LEAST_ROWS = 500_000
"""Number of change rows between two retained versions; higher if the state itself has more rows."""
STAYS_MILLIS = 12 * 60 * 60 * 1000
"""Maximum time between two retained versions, however few rows have changed, so that the log always contains one."""
SUPERSEDED_MILLIS = 10 * 60 * 1000
"""Time for which the files of a superseded version are kept, for readers that have opened it just before."""


class _Base(NamedTuple):
    """The newest retained version; `at`: its time, in milliseconds since 1970; `rows`: change rows since then."""

    version: int
    as_of: int
    at: int
    rows: int


class _Old(NamedTuple):
    """Files superseded by `version` at the time `at` (milliseconds since 1970) that no retained version needs."""

    version: int
    at: int
    paths: Sequence[str]


class Versions:
    """Thinning of one state table's versions by its leading coordinator: which to retain, and which files to delete.

    A file is deleted only if the log entry that superseded it, a compare-and-set commit, names it. A file that was
    removed from the table and belongs to no retained version can never be needed again, so it does not matter how late,
    how often or by which process it is deleted.

    Args:
        table: the state table, at its newest version.
        now: the current time, in milliseconds since 1970.

    Attributes:
        settled: whether the newest version is retained.
    """

    def __init__(self, table: TransactionalTable, now: int) -> None:
        self._old: deque[_Old] = deque()
        self._thinned = 0
        base, self.settled = self._read(table.log, now)
        self._base = base or _Base(0, 0, now, 0)
        try:
            if base is not None and base.version == 0:
                self._files: set[str] = set()  # a table is created empty
            else:
                self._files = {file.path for file in (table.log if base is None else table.at(base.version)).files()}
        except TableCorrupt as cause:
            log.warning("table %s: its present files are never removed by thinning: %s", table.ref.uri, cause)
            self._files = {file.path for file in table.log.files()}

    def _read(self, log: TableLog, now: int) -> tuple[_Base | None, bool]:
        """Read base and `settled` from the log; collect superseded files that may not be deleted yet in `_old`."""
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
        """Decide whether the version created by a compaction is retained; return the fields for its commit info.

        Args:
            removes: paths of the files that the compaction removes from the table.
            later: number of change rows that the compaction applies.
            rows: number of rows in the table before the compaction.
            now: the current time, in milliseconds since 1970.
            stays: whether the version must be retained.
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

    @property
    def named(self) -> set[str]:
        """Files that the log names although the newest version may lack them, so that a sweep need not read the log."""
        return self._files.union(*(old.paths for old in self._old))

    def is_due(self, now: int) -> bool:
        """Whether any files were superseded long enough ago to be deleted; `now`: in milliseconds since 1970."""
        return bool(self._old) and now - self._old[0].at >= SUPERSEDED_MILLIS

    def due(self, now: int) -> Sequence[str]:
        """Return the files of the oldest superseded version, relative to the table; empty if they are not due yet.

        The caller deletes them and then calls `removed`.
        """
        return self._old[0].paths if self.is_due(now) else ()

    def removed(self) -> None:
        """Record that the files returned by `due` have been deleted."""
        self._thinned = self._old.popleft().version
