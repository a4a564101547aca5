"""Commit target of join stores: a feed's rows are put in P7 (publish), once their transaction is decided.

The mark of a store, if it keeps one, tells whether the store is the one that the ledger knows, and has all its rows. A
component that only looks rows up contacts the store at the start, but commits nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.external import Mark
from txstorm.api.join_store import JoinStore, MarkedJoinStore, StoreUse, same_store
from txstorm.errors import StateError, TableCorrupt, TxstormError
from txstorm.joins.delay.staged_rows import FeedGroup, LookUpGroup, Puts, puts_of
from txstorm.state.external.mark_rules import MarkedTarget, reached
from txstorm.state.external.targets import ExternalTarget
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import STORE, Intent, IntentTable

log = logging.getLogger(__name__)


class FilledStore(ExternalTarget):
    """A join store that a component of the topology fills."""

    def __init__(self, data_dir: Path, owner: TopologyIdentity, use: StoreUse) -> None:
        super().__init__(data_dir, use.name, TableRef(STORE, use.name))
        self.use = use
        self.groups: list[FeedGroup] = []
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

    def group(self) -> FeedGroup:
        """Create the group that holds the target's unpublished rows."""
        self.groups.append(FeedGroup(self.use))
        return self.groups[-1]

    def close(self) -> None:
        """Release the store's connections; it may be used again."""
        _close(self.use.store, self._label)

    def _put(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        puts = self.groups[-1].puts(intent.first, intent.last, self.use.batch_size) if self.groups else None
        if puts is None:
            puts = puts_of(pq.read_table(pa.BufferReader(staged)), self.use.batch_size)
        if (marked := self._marked()) is not None:
            with self._complete():
                marked.put(puts, table, intent, epoch)
        else:
            with reached(self._label, f"put txids {intent.first}-{intent.last}"):
                self._write(puts)

    def _write(self, puts: Puts) -> None:
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
            self._write(puts)  # repetitions are harmless, so rows and mark need not change together
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


class ReadStore(ExternalTarget):
    """A join store in which a component looks rows up; nothing is committed."""

    def __init__(self, data_dir: Path, use: StoreUse, filled: FilledStore | None) -> None:
        super().__init__(data_dir, use.name, TableRef(STORE, use.name))
        self._use = use
        self._filled = filled

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

    def group(self) -> LookUpGroup:
        """Create the group of the component's handles."""
        return LookUpGroup(self._use, None if self._filled is None else self._filled.groups[-1])

    def close(self) -> None:
        """Release the store's connections, unless the component that fills it does."""
        if self._filled is None:
            _close(self._use.store, f"store of {self.component!r}")

    def _put(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        raise StateError(f"{self.component}: an intent has rows for a component that only looks them up")


def store_targets(uses: Mapping[str, StoreUse], data_dir: Path, owner: TopologyIdentity) -> list[ExternalTarget]:
    """Return the targets of the join stores of a topology, those that are filled first."""
    filled = [FilledStore(data_dir, owner, use) for use in uses.values() if use.fills]
    read = [
        ReadStore(data_dir, use, next((one for one in filled if same_store(one.use.store, use.store)), None))
        for use in uses.values()
        if not use.fills
    ]
    return [*filled, *read]


def _close(store: JoinStore, label: str) -> None:
    try:
        store.close()
    except (OSError, TxstormError) as error:
        log.warning("%s: %s", label, error)
