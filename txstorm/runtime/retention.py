"""The kept history moves on: what transactions before it needed is removed, beside commits and at a clean stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.savepoint import kept_versions
from txstorm.state.store import StateStore
from txstorm.storage.tables.history import HISTORY
from txstorm.storage.tables.intent import CHANGES, STATE
from txstorm.storage.tables.table import TableRef
from txstorm.storage.upkeep.horizon import find_horizon, prune_history
from txstorm.storage.upkeep.retention import Steps, keep_only, prune_changes, retain_table

log = logging.getLogger("txstorm.retention")

LEAST_SECONDS = 60.0
"""Between two times that this is done while a run lives."""
SHARE = 10
"""So many times within `history_retention`."""


class Retention:
    """What `history_retention` asks for; all of it is called in the committer's turn, one step at a time.

    Args:
        store, books: the tables and the ledger.
        timeline: the present one.
        seconds: how long a transaction is kept.
        now: UTC microseconds since 1970.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: StateStore,
        books: Books,
        timeline: int,
        seconds: float,
        now: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._books, self._timeline = store, books, timeline
        self._seconds, self._now, self._monotonic = seconds, now, monotonic
        self._begun = monotonic()

    def is_due(self) -> bool:
        """Whether it is time again; asked by the driver thread."""
        return self._monotonic() - self._begun >= max(LEAST_SECONDS, self._seconds / SHARE)

    def steps(self) -> Steps[None]:
        """Move the beginning of the kept history, say so in the ledger, and remove what is before it.

        Savepoints are looked at after that is said: one that is made meanwhile sees it, or is seen here.

        Raises:
            FencedError: a newer coordinator has taken over.
            TableCorrupt: a log, or what a savepoint needs, is damaged.
        """
        self._begun = self._monotonic()
        data_dir = self._store.data_dir
        horizon = yield from find_horizon(data_dir, self._timeline, self._now() - int(self._seconds * 1_000_000))
        if horizon is None:
            return
        faults.point("retain.before")
        if horizon.txid > self._books.kept():
            self._books.write_kept(horizon.txid)
        faults.point("retain.announced")
        yield None
        yield from self._tables(horizon.txid)
        version = yield from prune_history(data_dir, horizon.files, self._millis)
        yield None
        yield from keep_only(data_dir, data_dir / HISTORY, version)
        faults.point("retain.after")
        log.info("the kept history begins with txid %s", horizon.txid)

    def _tables(self, txid: int) -> Steps[None]:
        store, epoch = self._store, self._books.epoch
        saved = kept_versions(self._books.savepoints().values())
        tables = sorted(store.tables.items(), key=lambda item: item[0].kind != STATE)  # states before their changes
        states: dict[str, int | None] = {}
        for ref, table in tables:
            if ref.kind == CHANGES and (as_of := states.get(ref.name)) is not None:
                table.refresh()
                prune_changes(table, as_of, epoch, self._millis)
                yield None
            kept = partial(self._kept, ref)
            as_of = yield from retain_table(store.data_dir, table, txid, epoch, saved.get(ref.uri, frozenset()), kept)
            if ref.kind == STATE:
                states[ref.name] = as_of

    def _kept(self, ref: TableRef) -> set[str]:
        return self._store.kept_files(ref, self._books.intents())

    @property
    def _millis(self) -> int:
        return self._now() // 1000
