"""Key index: the published rows of a state, by key; in memory up to a limit, and beyond it on disk.

Rows are written to disk in the background, many at a time; until then they are read from memory. This is one module,
since the cache, the rows that wait and the store change together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Event, Lock, RLock
from typing import Protocol, TypeVar

import pyarrow as pa

from txstorm.api.state import KeyedState
from txstorm.errors import BlockedError, StoppedError, TxstormError
from txstorm.lanes import THREADS
from txstorm.state.index.newest_rows import GatheredRows, newest_rows
from txstorm.state.index.packed_cache import PackedCache
from txstorm.state.index.row_cache import Cache, RowCache, WholeCache
from txstorm.state.index.row_codec import RowCodec
from txstorm.storage.rows.forms import Key, KeyForm, ValueForm
from txstorm.storage.rows.schema import OP, TXID, in_order
from txstorm.storage.rows.update_rules import Gone, Stored

log = logging.getLogger(__name__)

_GONE: Gone = (None, 0, None)
A = TypeVar("A")
_MOST_BEHIND = 4
_TRY_AGAIN = 1.0
_REST = 3.0
"""Seconds of pause for each second of encoding and writing rows, since that slows down the threads that commit."""
LOOKED_AT = 2
"""Number of rows on disk that are checked for expiry per row written, so that expired rows do not accumulate."""


class KeyIndex(Protocol):
    """Port: the published rows of one state by key, in the form that users see; can be rebuilt from the tables.

    `apply` may run while another thread reads: the reader sees each key as it was either before or after `apply`. Both
    are correct, since the reader reads the overlay of unpublished txids first.
    """

    @property
    def last_txid(self) -> int:
        """The highest txid applied so far; initially 0."""

    def rows(self, keys: Sequence[Key], *, keep: bool = True) -> list[Stored | None]:
        """Read the row of each of `keys`; None for a key without a row.

        `keep`: whether to cache rows read from disk; False if they are about to be overwritten.
        """

    def everything(self) -> Mapping[Key, Stored]:
        """Return all published rows; costs as much as the state is large."""

    def apply(self, changed: Mapping[Key, Stored], removed: Sequence[Key], last: int) -> None:
        """Add published rows, tombstones included; `last` is their highest txid."""


class Fillable(Protocol):
    """Port: an empty store that is filled from the tables of a state."""

    def put_table(self, table: pa.Table) -> None:
        """Write rows of a state table, or later change rows in txid order."""

    def note(self, last: int) -> None:
        """Record that all rows up to txid `last` are written."""


class DiskRows(Fillable, Protocol):
    """Port: the rows of a state on disk (`txstorm.state.index.disk.RowStore`); methods may raise `TxstormError`."""

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """Read the row of each of `keys`; None for a key without a row."""

    def put(self, rows: Mapping[Key, Stored | Gone], rest: Callable[[float], object] = lambda worked: None) -> None:
        """Write the latest row of each key; call `rest` at intervals with the seconds of work since its last call."""

    def put_table(self, table: pa.Table) -> None:
        """Write rows of a state table, or later change rows in txid order."""

    def expire(self, upto: datetime, most: int) -> None:
        """Check the next `most` rows and delete those with a stamp up to `upto`."""

    def note(self, last: int) -> None:
        """Record that all rows up to txid `last` are written."""

    def sync(self) -> None:
        """Make all writes durable."""

    def close(self) -> None:
        """Make all writes durable and close the store."""

    def remove(self) -> None:
        """Close the store and delete its files."""


@dataclass(frozen=True)
class Bounds:
    """Limits for the memory and the write-behind of a state's index.

    Attributes:
        memory: approximate memory budget for rows, in bytes.
        kept_from: number of keys at which rows are also written to disk; a smaller state loads just as fast from its
            table.
        behind: number of pending rows at which they are written to disk.
        seconds: number of seconds after which pending rows are written to disk in any case.
        sync_seconds: seconds between two syncs; after a crash, rows that were not synced are read from the tables.
    """

    memory: int = 1 << 30
    kept_from: int = 20_000
    behind: int = 50_000
    seconds: float = 10.0
    sync_seconds: float = 60.0


class StateIndex:
    """`KeyIndex` of one state: loaded from its tables or resumed from a store on disk, then read and extended.

    Args:
        make: creates an empty store on disk once the state is large enough; None: keep all rows in memory.
        refill: fills an empty store from the tables, if the previous store could not be read.
        bounds: limits for memory and write-behind; None: the defaults.
        behind: schedules a call on the background thread.
        monotonic: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        state: KeyedState,
        make: Callable[[], DiskRows] | None = None,
        refill: Callable[[Fillable], None] = lambda disk: None,
        bounds: Bounds | None = None,
        behind: Callable[[Callable[[], None]], None] = lambda call: call(),
        monotonic: Callable[[], float] = THREADS.monotonic,
    ) -> None:
        self._name = state.name
        self._keys, self._values = KeyForm(state), ValueForm(state)
        self._make, self._refill, self._call = make, refill, behind
        self._bounds = bounds or Bounds()
        self._monotonic = monotonic
        self._disk: DiskRows | None = None
        self._whole: WholeCache | None = self._new_cache(state)
        self._cache: Cache = self._whole
        # Pending rows, and rows being written to disk: one tuple, so that both change atomically.
        self._behind: tuple[dict[Key, Stored | Gone], dict[Key, Stored | Gone]] = self._pending({}), self._pending({})
        self._ttl = state.ttl
        self._expired: datetime | None = None
        self._lock, self._writing, self._hurry = Lock(), RLock(), Event()
        self._written_at = self._synced_at = monotonic()
        self._make_at = self._bounds.kept_from
        self._asked = self._closed = False
        self._failure: TxstormError | None = None
        self._applied = 0
        self._last_txid = 0

    @property
    def last_txid(self) -> int:
        """The highest txid loaded or applied so far; initially 0."""
        return self._last_txid

    def _new_cache(self, state: KeyedState) -> WholeCache:
        codec, limit = RowCodec(state), self._bounds.memory
        return RowCache(limit, (lambda: PackedCache(codec, limit)) if codec.is_fixed else None)

    def _pending(self, rows: Mapping[Key, Stored | Gone]) -> dict[Key, Stored | Gone]:
        """Create a dictionary of pending rows, which wait to be written to disk; initially `rows`."""
        return dict(rows)

    # -- the start ----------------------------------------------------------------------------------------------

    def resume(self, disk: DiskRows) -> None:
        """Use the rows in the existing store `disk`; only later rows have to be loaded afterwards."""
        self._disk = disk
        self._let_go()
        self._cache.forget()

    def load(self, table: pa.Table) -> None:
        """Load rows of the state table, or later change rows.

        Call with the rows of the state table first, then with later change rows in txid order, any number per call.
        """
        if OP.name in table.column_names:
            table = in_order(table, [TXID.name])
        if self._disk is not None:
            self._disk.put_table(table)
        if self._cache.complete:
            self._keep(table)
            if self._disk is None and self._begin_disk():
                self._write()
        if not self._cache.complete:
            self._cache.forget()  # cached rows may be older than the loaded ones
        self._last_txid = max(self._last_txid, _last(table))

    def loaded(self, last: int) -> None:
        """Finish loading; call after all rows up to txid `last` have been loaded."""
        self._last_txid = max(self._last_txid, last)
        if self._disk is not None:
            self._disk.note(self._last_txid)

    def _keep(self, table: pa.Table) -> None:
        if isinstance(self._cache, PackedCache):
            self._cache.put_table(table)
            return
        put, removed = newest_rows(self._keys, self._values, table)
        self._cache.put(put)
        self._cache.remove(removed)

    # -- while it runs ------------------------------------------------------------------------------------------

    def rows(self, keys: Sequence[Key], *, keep: bool = True) -> list[Stored | None]:
        """Read the row of each of `keys`; None for a key without a row. `keep`: cache rows read from disk.

        Raises:
            TxstormError: the store on disk can neither be read nor be rebuilt from the tables.
        """
        found = self._cache.get(keys)
        if self._cache.complete or None not in found:
            return found
        return self._looked_up(keys, found, keep=keep)

    def everything(self) -> Mapping[Key, Stored]:
        """Return all published rows, from memory or from the tables; costs as much as the state is large."""
        if (whole := self._whole) is not None:
            with self._lock:
                return dict(whole.rows())
        gathered = GatheredRows(self._keys, self._values)
        self._refill(gathered)
        return gathered.found

    def apply(self, changed: Mapping[Key, Stored], removed: Sequence[Key], last: int) -> None:
        """Add published rows, tombstones included; `last` is their highest txid.

        Raises:
            BlockedError: too many rows wait to be written to disk; no data is lost, since the tables contain them.
        """
        with self._lock:
            self._cache.put(changed)
            self._cache.remove(removed)
            if self._disk is not None:
                self._behind[0].update(changed)
                self._behind[0].update(dict.fromkeys(removed, _GONE))
            self._applied += 1  # last: a reader that missed one of these rows must not cache its row from disk
            self._last_txid = max(self._last_txid, last)
            if self._ttl is not None and changed:
                self._expired = newest_stamp(changed.values()) - self._ttl
        if self._disk is not None or self._begin_disk():
            self._write_soon()

    def flush(self) -> None:
        """Write the pending rows to disk and make them durable; if that fails, they stay pending."""
        if self._disk is not None and not self._closed:
            self._write(sync=True)

    def close(self) -> None:
        """Write the pending rows to disk and close the store; afterwards, only rows in memory can be read."""
        self._hurry.set()
        with self._writing:
            self.flush()
            self._closed = True
            if self._disk is not None:
                try:
                    self._disk.close()
                except TxstormError as error:  # the next start rebuilds it from the tables
                    log.warning("%s", error)

    def _looked_up(self, keys: Sequence[Key], found: list[Stored | None], *, keep: bool) -> list[Stored | None]:
        applied = self._applied
        pending, writing = self._behind  # read before the disk: rows that are no longer here are there
        absent = [key for key, row in zip(keys, found, strict=True) if row is None]
        waiting: list[Stored | Gone | None] = list(map(pending.get, absent))
        if writing:
            waiting = [row or writing.get(key) for key, row in zip(absent, waiting, strict=True)]
        wanted = [key for key, row in zip(absent, waiting, strict=True) if row is None]
        if wanted:
            read = self._read(lambda disk: disk.get(wanted))
            there = {key: row for key, row in zip(wanted, read, strict=True) if row}
            if keep:
                with self._lock:
                    if applied == self._applied:  # otherwise a row may be older than one applied and written meanwhile
                        self._cache.put(there)
            waiting = [there.get(key) if row is None else row for key, row in zip(absent, waiting, strict=True)]
        rest = iter(waiting)
        return [_present(next(rest)) if row is None else row for row in found]

    def _read(self, ask: Callable[[DiskRows], A]) -> A:
        disk = self._disk
        assert disk is not None
        try:
            return ask(disk)
        except TxstormError as cause:
            if self._closed:
                raise StoppedError(f"state {self._name!r}: its index is closed; the run has ended") from cause
            log.warning("%s; it is rebuilt from the tables", cause)
        with self._writing:
            if self._disk is disk:  # otherwise another reader has already replaced it
                self._disk = self._made_again(disk)
            made = self._disk
        assert made is not None
        return ask(made)

    def _made_again(self, disk: DiskRows) -> DiskRows:
        disk.remove()
        assert self._make is not None
        made = self._make()
        self._refill(made)
        return made

    # -- in the background --------------------------------------------------------------------------------------

    def _begin_disk(self) -> bool:
        """Create the store on disk if there are enough rows; return whether it was created."""
        if self._make is None or len(self._cache) < self._make_at:
            return False
        if self._expired is not None and self._forget_expired(self._expired):
            return False
        try:
            self._disk = self._make()
        except TxstormError as error:
            self._make_at = 2 * len(self._cache)
            log.warning("%s; state %r stays in memory", error, self._name)
            return False
        with self._lock:
            assert self._whole is not None
            self._behind = self._pending(self._whole.rows()), self._pending({})
            self._let_go()
        return True

    def _let_go(self) -> None:
        """Replace the unbounded cache with one that has a memory limit, since all rows are or will be on disk."""
        assert self._whole is not None
        self._cache, self._whole = self._whole.let_go(), None

    def _forget_expired(self, upto: datetime) -> bool:
        """Evict rows with a stamp up to `upto` from memory; return whether at least half of all rows were evicted."""
        with self._lock:
            assert self._whole is not None
            before = len(self._cache)
            self._cache.remove([key for key, (value, _, _) in self._whole.rows().items() if value[-1] <= upto])
            return len(self._cache) <= before // 2

    def _write_soon(self) -> None:
        waiting = len(self._behind[0])
        if waiting > _MOST_BEHIND * self._bounds.behind:
            self._hurry.set()
            self._write()
            self._hurry.clear()
            if self._failure is not None and len(self._behind[0]) >= waiting:
                raise BlockedError(
                    f"state {self._name!r}: {waiting} rows wait to be written to the index: {self._failure}; nothing "
                    "is lost, as the tables hold them: mend the cause (free disk space) and start again"
                ) from self._failure
        elif not self._asked and self._is_due(waiting):
            self._asked = True
            self._call(self._write)

    def _is_due(self, waiting: int) -> bool:
        waited = self._monotonic() - self._written_at
        if self._failure is not None:
            return waited >= _TRY_AGAIN
        return waiting >= self._bounds.behind or waited >= self._bounds.seconds

    def _write(self, sync: bool = False) -> None:
        """Write the pending rows to disk; if that fails, they stay pending."""
        with self._writing:
            with self._lock:
                writing, last = self._behind[0], self._last_txid
                self._behind = self._pending({}), writing
            try:
                self._put(writing, last, sync)
            except TxstormError as error:
                log.warning("%s; tried again later", error)
                with self._lock:
                    self._behind = self._pending({**writing, **self._behind[0]}), self._pending({})
                    self._failure = error
            else:
                with self._lock:
                    self._behind, self._failure = (self._behind[0], self._pending({})), None
            self._written_at, self._asked = self._monotonic(), False

    def _put(self, rows: Mapping[Key, Stored | Gone], last: int, sync: bool) -> None:
        assert self._disk is not None
        if rows:
            if self._expired is not None:
                self._disk.expire(self._expired, LOOKED_AT * len(rows))
            self._disk.put(rows, lambda worked: self._hurry.wait(_REST * worked))
            self._disk.note(last)
        if sync or self._monotonic() - self._synced_at >= self._bounds.sync_seconds:
            self._disk.sync()
            self._synced_at = self._monotonic()


def _present(row: Stored | Gone | None) -> Stored | None:
    return row if row and row[0] is not None else None


def _last(table: pa.Table) -> int:
    txids = table[TXID.name]
    return int(txids.to_numpy().max()) if len(txids) else 0


def newest_stamp(rows: Iterable[Stored | Gone]) -> datetime:
    """Return the highest stamp in `rows`, at least one of which must have a value."""
    newest: datetime = max(value[-1] for value, _, _ in rows if value is not None)
    return newest
