"""The key index: the published rows of a state by key, behind a port; in memory as far as a bound allows, else on disk.

What is written reaches the disk later, in the background, many rows at a time, and is found in memory until then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Event, Lock, RLock
from typing import Protocol, TypeVar

import pyarrow as pa

from txstorm.api.state import KeyedState
from txstorm.errors import BlockedError, StoppedError, TxstormError
from txstorm.state.index.packed_cache import PackedCache
from txstorm.state.index.row_cache import Cache, RowCache, WholeCache
from txstorm.state.index.row_codec import RowCodec
from txstorm.storage.rows.forms import Key, KeyForm, ValueForm
from txstorm.storage.rows.schema import OP, PREV, REMOVED, TXID, in_order
from txstorm.storage.rows.semantics import Gone, Stored

log = logging.getLogger("txstorm.index")

_GONE: Gone = (None, 0, None)
A = TypeVar("A")
_MOST_BEHIND = 4
_TRY_AGAIN = 1.0
_REST = 3.0
"""Seconds of rest for each second in which rows are encoded and written: that holds up the threads that commit."""
LOOKED_AT = 2
"""Rows on disk that are looked at for each row that is written, so that what has expired does not pile up."""


class KeyIndex(Protocol):
    """The published rows of one state, rebuildable from its tables at any time. Keys are what users see.

    `apply` may run while another thread reads: a reader sees each key before or after it, and looks first at the
    writes of its group, so it does not matter which.
    """

    @property
    def last_txid(self) -> int:
        """The highest txid of a row that was ever applied; 0 at first."""

    def rows(self, keys: Sequence[Key], *, keep: bool = True) -> list[Stored | None]:
        """The row of each of `keys`, None where there is none.

        Without `keep` those that were not in memory do not stay there: they will be applied anew.
        """

    def apply(self, changed: Mapping[Key, Stored], removed: Sequence[Key], last: int) -> None:
        """Take over published rows, those of keys that are gone too; `last` is the highest txid of them."""


class DiskRows(Protocol):
    """The rows of a state on disk, as `txstorm.state.index.disk.RowStore`; every method may raise `TxstormError`."""

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """The row of each of `keys`, None where there is none."""

    def put(self, rows: Mapping[Key, Stored | Gone], rest: Callable[[float], object] = lambda worked: None) -> None:
        """Take over the newest rows of keys; calls `rest` now and then, with the seconds of work since the last."""

    def put_table(self, table: pa.Table) -> None:
        """Take over the rows of a state table, or of later changes over it."""

    def expire(self, upto: datetime, most: int) -> None:
        """Look at the next `most` rows and forget those with a stamp up to `upto`."""

    def note(self, last: int) -> None:
        """All rows up to txid `last` are there."""

    def sync(self) -> None:
        """Make durable what was written."""

    def close(self) -> None:
        """Make it durable and let go of it."""

    def remove(self) -> None:
        """Let go of it and of its files."""


@dataclass(frozen=True)
class Bounds:
    """What of a state is where.

    Attributes:
        memory: bytes of its rows in memory, about.
        kept_from: keys from which on its rows are on disk too; a smaller state is read from its table as quickly.
        behind: rows that wait for being written to disk, and `seconds` that they wait, at which that is begun.
        sync_seconds: how often what was written is made durable; the rest is read from the tables after a crash.
    """

    memory: int = 1 << 30
    kept_from: int = 20_000
    behind: int = 50_000
    seconds: float = 10.0
    sync_seconds: float = 60.0


class StateIndex:
    """The `KeyIndex` of one state: filled with `load` and `loaded`, or resumed; then read, and added to.

    Args:
        make: gives an empty place on disk, when the state has become large enough for one; None: all is in memory.
        refill: fills an empty place on disk from the tables, after one could not be read.
        behind: has a call made, soon and elsewhere.
        monotonic: seconds.
    """

    def __init__(
        self,
        state: KeyedState,
        make: Callable[[], DiskRows] | None = None,
        refill: Callable[[DiskRows], None] = lambda disk: None,
        bounds: Bounds | None = None,
        behind: Callable[[Callable[[], None]], None] = lambda call: call(),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = state.name
        self._keys, self._values = KeyForm(state), ValueForm(state)
        self._make, self._refill, self._call = make, refill, behind
        self._bounds = bounds or Bounds()
        self._monotonic = monotonic
        self._disk: DiskRows | None = None
        self._whole: WholeCache | None = self._new_cache(state)
        self._cache: Cache = self._whole
        # What the disk has not got yet, and what is just being written to it: one value, so that it changes at once.
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
        """The highest txid of a row that was ever loaded or applied; 0 at first."""
        return self._last_txid

    def _new_cache(self, state: KeyedState) -> WholeCache:
        codec, limit = RowCodec(state), self._bounds.memory
        return RowCache(limit, (lambda: PackedCache(codec, limit)) if codec.is_fixed else None)

    def _pending(self, rows: Mapping[Key, Stored | Gone]) -> dict[Key, Stored | Gone]:
        """Rows that wait for being written to disk."""
        return dict(rows)

    # -- the start ----------------------------------------------------------------------------------------------

    def resume(self, disk: DiskRows) -> None:
        """Go on with rows on disk; those that came later are then loaded over them."""
        self._disk = disk
        self._let_go()
        self._cache.forget()

    def load(self, table: pa.Table) -> None:
        """Take over the rows of a state table, or of a changes table over it.

        Called with the state table first, then with the later changes in txid order; a table may hold many txids.
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
            self._cache.forget()  # what is here may be older than what is loaded
        self._last_txid = max(self._last_txid, _last(table))

    def loaded(self, last: int) -> None:
        """Everything up to txid `last` has been loaded."""
        self._last_txid = max(self._last_txid, last)
        if self._disk is not None:
            self._disk.note(self._last_txid)

    def _keep(self, table: pa.Table) -> None:
        if isinstance(self._cache, PackedCache):
            self._cache.put_table(table)
            return
        values, before = self._values.of_table(table), self._values.of_struct(table[PREV])
        rows = zip(
            self._keys.of_table(table), zip(values, table[TXID.name].to_pylist(), before, strict=True), strict=True
        )
        ops = set(table[OP.name].unique().to_pylist()) if OP.name in table.column_names else set()
        if REMOVED not in ops:
            self._cache.put(rows)
            return
        newest = {
            key: None if op == REMOVED else row for (key, row), op in zip(rows, table[OP.name].to_pylist(), strict=True)
        }
        self._cache.put({key: row for key, row in newest.items() if row is not None})
        self._cache.remove(key for key, row in newest.items() if row is None)

    # -- while it runs ------------------------------------------------------------------------------------------

    def rows(self, keys: Sequence[Key], *, keep: bool = True) -> list[Stored | None]:
        """The row of each of `keys`, None where there is none; those read from disk stay in memory with `keep`.

        Raises:
            TxstormError: the disk cannot be read, nor be filled again from the tables.
        """
        found = self._cache.get(keys)
        if self._cache.complete or None not in found:
            return found
        return self._looked_up(keys, found, keep=keep)

    def apply(self, changed: Mapping[Key, Stored], removed: Sequence[Key], last: int) -> None:
        """Take over published rows, those of keys that are gone too; `last` is the highest txid of them.

        Raises:
            BlockedError: what waits to be written to disk has become too much; the tables hold it.
        """
        with self._lock:
            self._cache.put(changed)
            self._cache.remove(removed)
            if self._disk is not None:
                self._behind[0].update(changed)
                self._behind[0].update(dict.fromkeys(removed, _GONE))
            self._applied += 1  # last: a reader that has missed any of it is not to keep what it reads from disk
            self._last_txid = max(self._last_txid, last)
            if self._ttl is not None and changed:
                self._expired = newest_stamp(changed.values()) - self._ttl
        if self._disk is not None or self._begin_disk():
            self._write_soon()

    def flush(self) -> None:
        """Write what waits, and make it durable; what fails goes on waiting."""
        if self._disk is not None and not self._closed:
            self._write(sync=True)

    def close(self) -> None:
        """Write what waits, and let go of the disk; what is not in memory cannot be looked up any more."""
        self._hurry.set()
        with self._writing:
            self.flush()
            self._closed = True
            if self._disk is not None:
                try:
                    self._disk.close()
                except TxstormError as error:  # the next start makes it again from the tables
                    log.warning("%s", error)

    def _looked_up(self, keys: Sequence[Key], found: list[Stored | None], *, keep: bool) -> list[Stored | None]:
        applied = self._applied
        pending, writing = self._behind  # before the disk: what leaves these is there
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
                    if applied == self._applied:  # else one may be older than what was applied and written meanwhile
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
                msg = f"state {self._name!r}: its index is closed; the run has ended"
                raise StoppedError(msg) from cause
            log.warning("%s; it is made again from the tables", cause)
        with self._writing:
            if self._disk is disk:  # else another reader was here before
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

    # -- behind the commits -------------------------------------------------------------------------------------

    def _begin_disk(self) -> bool:
        """Keep the rows on disk too, once there are many; False when they are not."""
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
        """There is a disk now: what was kept until then goes over into what keeps to the bound, or there."""
        assert self._whole is not None
        self._cache, self._whole = self._whole.let_go(), None

    def _forget_expired(self, upto: datetime) -> bool:
        """Forget rows in memory with a stamp up to `upto`; whether that was most of them."""
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
                msg = (
                    f"state {self._name!r}: {waiting} rows wait to be written to the index: {self._failure}; nothing "
                    "is lost, as the tables hold them: mend the cause (free disk space) and start again"
                )
                raise BlockedError(msg) from self._failure
        elif not self._asked and self._is_due(waiting):
            self._asked = True
            self._call(self._write)

    def _is_due(self, waiting: int) -> bool:
        waited = self._monotonic() - self._written_at
        if self._failure is not None:
            return waited >= _TRY_AGAIN
        return waiting >= self._bounds.behind or waited >= self._bounds.seconds

    def _write(self, sync: bool = False) -> None:
        """Write what waits; what fails goes on waiting."""
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
    """The highest stamp of some rows, at least one of which has a value."""
    newest: datetime = max(value[-1] for value, _, _ in rows if value is not None)
    return newest
