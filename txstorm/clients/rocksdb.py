"""Key-value store on the local disk, backed by RocksDB: the key index of states too large to reload at every start.

There is no write-ahead log: rows lost in a crash are read again from the tables. Batches are applied atomically and in
order, so after a crash the store contains the first N batches for some N.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from pathlib import Path
from threading import Condition
from typing import cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from txstorm.errors import HeldError, TxstormError

_BLOCK_CACHE = 16 << 20
_WRITE_BUFFER = 16 << 20
_FILTER_BITS = 10
_BUFFER_FILTER = 0.1
"""Share of the write buffer used for a Bloom filter, which avoids expensive searches of the buffer for missing keys."""
_SYNC_BYTES = 1 << 20
"""Number of bytes after which RocksDB's compaction syncs, in small steps since commits wait for the same disk."""


class KeyStoreError(TxstormError):
    """A store cannot be read or written (it is damaged or missing, or the disk is full); its content can be rebuilt."""


class KeyStore:
    """An open key-value store, which can be opened only once at a time. Several threads may read while one writes."""

    def __init__(self, path: Path, store: Rdict) -> None:
        self.path = path
        self._store = store
        self._idle = Condition()
        self._users = 0
        self._closed = False
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # the stub calls it a method

    @classmethod
    def open(cls, path: Path) -> KeyStore:
        """Open the store at `path`; create it if it does not exist.

        Raises:
            HeldError: the store is already open, in this or another process.
            KeyStoreError: the store is damaged, or cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            store = Rdict(str(path), _options())
        except Exception as cause:
            if "lock" in str(cause).lower():
                raise HeldError(f"index {path}: it is open already ({cause}); only one process may use it") from cause
            raise _failed(path, "be opened", cause) from cause
        return cls(path, store)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Look up all `keys` at once; None for a missing key."""
        with self._using("be read"):
            return list(self._store[list(keys)] or ())

    def scan(
        self, first: bytes, before: bytes, most: int | None = None, *, backwards: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Scan keys and values from key `first` (inclusive) to `before` (exclusive), in order or `backwards`.

        Returns at most `most` pairs, the first ones in that order; None: no limit.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(before)
        with self._using("be read"):
            # Keep no reference to the iterator: it would keep a closed store open.
            return list(islice(self._items(options, first, backwards=backwards), most))

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Set and delete keys atomically."""
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            batch[key] = value
        for key in deletes:
            del batch[key]
        with self._using("be written"):
            self._store.write(batch, self._unlogged)

    def sync(self) -> None:
        """Make everything written so far durable."""
        with self._using("be written"):
            self._store.flush()

    def close(self) -> None:
        """Close the store; idempotent. Writes that were not synced may be lost.

        Blocks until other threads have finished reading and writing, since RocksDB would otherwise refuse to close and
        stay open forever. Afterwards, every other call raises `KeyStoreError`.
        """
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: not self._users)
        with self._trying("be closed"), suppress(DbClosedError):
            self._store.close()

    def _items(self, options: ReadOptions, first: bytes, *, backwards: bool) -> Iterable[tuple[bytes, bytes]]:
        start = None if backwards else first
        found = self._store.items(backwards=backwards, from_key=start, read_opt=options)
        items = cast("Iterable[tuple[bytes, bytes]]", found)
        # Not with set_iterate_lower_bound, which rocksdict 0.3 treats as the upper bound.
        return takewhile(lambda item: item[0] >= first, items) if backwards else items

    @contextmanager
    def _using(self, what: str) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise _failed(self.path, what, ValueError("it is closed"))
            self._users += 1
        try:
            with self._trying(what):
                yield
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as cause:
            raise _failed(self.path, what, cause) from cause


def remove_store(path: Path) -> None:
    """Delete the store at `path`, which must not be open."""
    shutil.rmtree(path, ignore_errors=True)


def _options() -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(_BLOCK_CACHE))
    blocks.set_bloom_filter(_FILTER_BITS, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())  # rows are small, and reading them is the main cost
    options.set_allow_mmap_reads(True)  # look-ups take a third of the time, and the system may reclaim the pages
    options.set_write_buffer_size(_WRITE_BUFFER)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_BUFFER_FILTER)
    options.set_level_zero_file_num_compaction_trigger(2)  # a look-up searches every overlapping file
    options.set_bytes_per_sync(_SYNC_BYTES)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    return options


def _failed(path: Path, what: str, cause: Exception) -> KeyStoreError:
    return KeyStoreError(f"index {path}: cannot {what}: {str(cause).strip()}")
