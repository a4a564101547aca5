"""Commit target of join stores: a feed's rows are put in P7 (publish), once their transaction is decided.

The mark of a store, if it keeps one, tells whether the store is the one that the ledger knows, and has all its rows. A
component that only looks rows up contacts the store at the start, but commits nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.external import Mark
from txstorm.api.join_store import JoinStore, MarkedJoinStore, StoreRow, StoreUse, same_store
from txstorm.errors import StateError, TableCorrupt, TxstormError
from txstorm.joins.delay.staged_rows import (
    NO_ROWS,
    Puts,
    TaskFeed,
    puts_of,
    rows_to_stage,
    typed_key,
)
from txstorm.joins.stores.row_text import in_order
from txstorm.state.external.mark_rules import MarkedTarget, Replayed, reached
from txstorm.state.external.targets import ExternalTarget
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import STORE, Intent, IntentTable

log = logging.getLogger(__name__)


class FilledStore(ExternalTarget[TaskFeed, list[TaskFeed]]):
    """A join store that a component of the topology fills, and the staged rows of its unpublished txids."""

    accessor = "managed"
    holds = "rows of a join store"

    def __init__(self, data_dir: Path, owner: TopologyIdentity, use: StoreUse) -> None:
        super().__init__(TableRef(STORE, use.name), NO_ROWS)
        self.place(use.name, data_dir)
        self.use = use
        self._label = f"store of {use.name!r}"
        self._owner = owner

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Check that store and ledger belong together; without a mark, nothing is checked.

        Raises:
            StateError: the store is another topology's, another format's, or has lost rows.
            FencedError: a newer coordinator fills the store.
            BlockedError: the store cannot be reached.
        """
        self.last = committed
        self.make_directory()
        if (marked := self._marked()) is not None:
            with self._complete():
                self.last = marked.lead(epoch, committed, recorded, live)

    def _new_handle(self, component: str, task: int, txid: int) -> TaskFeed:
        return TaskFeed(self.use, task)

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], TaskFeed]) -> list[TaskFeed]:
        return sorted(tasks.values(), key=lambda one: one.task)

    def _rows_of(self, ended: Mapping[int, list[TaskFeed]]) -> pa.Table | None:
        return rows_to_stage(list(ended.items()))

    def puts(self, first: int, last: int) -> Puts | None:
        """Return what publishing the txids `first` to `last` does; None if another process has run one of them."""
        with self._lock:
            ended = [self._ended.get(txid) for txid in range(first, last + 1)]
        feeds = [feed for found in ended if found is not None for feed in found]
        if None in ended:
            return None
        size = self.use.batch_size
        requests = [feed.rows[at : at + size] for feed in feeds for at in range(0, len(feed.rows), size)]
        return requests, max((feed.expiry for feed in feeds if feed.expiry is not None), default=None)

    def unpublished(self, upto: int) -> list[TaskFeed]:
        """Return the feeds of the unpublished txids up to `upto`, the oldest first."""
        with self._lock:
            found = {txid: feeds for txid, feeds in self._ended.items() if txid <= upto}
            found.update((txid, list(tasks.values())) for txid, tasks in self._open.items() if txid <= upto)
        return [feed for txid in sorted(found) for feed in found[txid]]

    def hidden(self, txid: int) -> int | None:
        """Return the time below which look-ups of `txid` see no row."""
        with self._lock:
            return max(
                (feed.hidden for feed in self._open.get(txid, {}).values() if feed.hidden is not None), default=None
            )

    def close(self) -> None:
        """Release the store's connections; it may be used again."""
        _close(self.use.store, self._label)

    def _write(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        puts = self.puts(intent.first, intent.last)
        if puts is None:
            puts = puts_of(pq.read_table(pa.BufferReader(staged)), self.use.batch_size)
        if (marked := self._marked()) is not None:
            with self._complete():
                marked.put(puts, table, intent, epoch)
        else:
            with reached(self._label, f"put txids {intent.first}-{intent.last}"):
                self._fill(puts)

    def _fill(self, puts: Puts) -> None:
        requests, expiry = puts
        store: JoinStore = self.use.store
        if expiry is not None:  # first, so that a full store has room
            store.expire(expiry)
        for rows in requests:
            store.put_many(rows)
        if expiry is not None and any(row.time < expiry for rows in requests for row in rows):
            store.expire(expiry)

    def _marked(self) -> MarkedTarget[Puts] | None:
        store = self.use.store
        if not isinstance(store, MarkedJoinStore):
            return None

        def write(puts: Puts, expected: Mark | None, mark: Mark) -> bool:
            self._fill(puts)  # repetitions are harmless, so rows and mark need not change together
            return store.replace_mark(expected, mark)

        return MarkedTarget(self._label, "store", self.ref.uri, self._owner, store.mark, write, ((), None))

    @contextmanager
    def _complete(self) -> Iterator[None]:
        """Context manager that says what it means if the mark is not where the ledger expects it."""
        try:
            yield
        except TableCorrupt as error:
            raise StateError(
                f"{self._label} has lost rows, or is another store: {error}; or fill a new store under a new component "
                "id, from a time before the oldest row that is still needed"
            ) from error


class TaskLookUps:
    """Handle of one task that looks rows up in a store, in one txid.

    Attributes:
        active: whether `finish_batch` of the task is running; set by the commit runner.
    """

    def __init__(self, use: StoreUse, feed: FilledStore | None, where: str, txid: int) -> None:
        self.active = False
        self._store = use.store
        self._feed = feed
        self._txid = txid
        self._where = where
        self._first: dict[tuple[Any, Any], list[StoreRow]] = {}

    @cached_property
    def _staged(self) -> list[dict[Any, list[StoreRow]]]:
        feeds = [] if self._feed is None else self._feed.unpublished(self._txid)
        return [feed.by_key for feed in feeds if feed.tables]

    def _staged_of(self, key: Any) -> list[StoreRow]:
        """Return the staged rows of a key, the first one of each id."""
        typed = typed_key(key)
        rows = self._first.get(typed)
        if rows is None:
            first: dict[Any, StoreRow] = {}
            for staged in self._staged:
                for row in staged.get(typed[1], ()):
                    if typed_key(row.key) == typed:
                        first.setdefault(typed_key(row.id), row)
            rows = self._first[typed] = list(first.values())
        return rows

    @cached_property
    def _hidden(self) -> int | None:
        return None if self._feed is None else self._feed.hidden(self._txid)

    def get_many(self, keys: Collection[Any], start: int, end: int) -> dict[Any, list[StoreRow]]:
        """Return key → rows from `start` to `end` by (time, id), of the store and staged ones, in one request.

        Raises:
            ReportedFailedException: the store cannot be reached; the batch is replayed.
            StateError: the store's answer lacks a key, or the handle is used outside of its turn.
        """
        if not self.active:
            raise StateError(f"{self._where}, txid {self._txid}: looked up outside of finish_batch of its transaction")
        with Replayed(f"{self._where}: the store cannot be read"):
            answer = self._store.get_many(keys, start, end)
        low = start if self._hidden is None else max(start, self._hidden)
        found = {}
        for key in keys:
            rows: Any = answer.get(key) if isinstance(answer, Mapping) else None
            try:
                found[key] = [row for row in rows if low <= row.time <= end]
            except (TypeError, AttributeError):
                got = "nothing" if rows is None else repr(rows)[:100]
                raise StateError(
                    f"{self._where}: get_many of {type(self._store).__name__} gave {got} for key {key!r}; expected its "
                    "rows, as txstorm.testing.check_join_store checks"
                ) from None
        if not self._staged:
            return found
        for key, rows in found.items():
            staged = [row for row in self._staged_of(key) if low <= row.time <= end]
            if staged:
                stored = {typed_key(row.id) for row in rows}
                found[key] = in_order([*rows, *(row for row in staged if typed_key(row.id) not in stored)])
        return found


class ReadStore(ExternalTarget[TaskLookUps, None]):
    """A join store in which a component looks rows up; nothing is committed."""

    accessor = "managed"
    holds = "look-ups in a join store"

    def __init__(self, data_dir: Path, use: StoreUse, filled: FilledStore | None = None) -> None:
        super().__init__(TableRef(STORE, use.name), NO_ROWS)
        self.place(use.name, data_dir)
        self._use = use
        self._filled = filled

    def meet(self, others: Sequence[ExternalTarget[Any, Any]]) -> None:
        """Find the one that fills the store, if the topology does: its rows are seen before they are put."""
        filled = (one for one in others if isinstance(one, FilledStore))
        self._filled = next((one for one in filled if same_store(one.use.store, self._use.store)), None)

    @property
    def keeps_rows(self) -> bool:
        """Whether it keeps what is published: nothing is."""
        return False

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Read the mark, so that a store that is no store, or rejects the token, is noticed at the start."""
        self.last = committed
        store = self._use.store
        if self._filled is None and isinstance(store, MarkedJoinStore):
            try:
                store.mark()
            except OSError as error:
                log.warning(
                    "store of %r cannot be reached: %s; look-ups are tried again until it can", self.component, error
                )

    def _new_handle(self, component: str, task: int, txid: int) -> TaskLookUps:
        return TaskLookUps(self._use, self._filled, f"{component}[{task}]", txid)

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], TaskLookUps]) -> None:
        pass

    def _rows_of(self, ended: Mapping[int, None]) -> None:
        pass

    def close(self) -> None:
        """Release the store's connections, unless the component that fills it does."""
        if self._filled is None:
            _close(self._use.store, f"store of {self.component!r}")

    def _write(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        raise StateError(f"{self.component}: an intent has rows for a component that only looks them up")


def _close(store: JoinStore, label: str) -> None:
    try:
        store.close()
    except (OSError, TxstormError) as error:
        log.warning("%s: %s", label, error)
