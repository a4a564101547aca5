"""Bytes by key on the local disk, through RocksDB: the key index of a state that is too large to be read at a start.

There is no write-ahead log: what is lost with the process is read again from the tables. What is there after a crash
is what some number of first batches left: batches are applied whole and in order.
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
"""Of the write buffer: to look through the buffer for a key that is not in it takes as long as the rest of a read."""
_SYNC_BYTES = 1 << 20
"""What is rewritten goes to the disk in parts, as commits wait for the same disk."""


class KeyStoreError(TxstormError):
    """The store cannot be read or written: damaged, gone, or on a disk that is full; its content can be made again."""


class KeyStore:
    """One store, open; a directory has one at most. May be read by several threads while one writes."""

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
        """Open the store at `path`, which is made when there is none.

        Raises:
            HeldError: it is open already, here or in another process.
            KeyStoreError: it is damaged, or cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            store = Rdict(str(path), _options())
        except Exception as cause:
            if "lock" in str(cause).lower():
                msg = f"index {path}: it is open already ({cause}); only one process may use it"
                raise HeldError(msg) from cause
            raise _failed(path, "be opened", cause) from cause
        return cls(path, store)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each of `keys`, None where there is none; one look-up for all."""
        with self._using("be read"):
            return list(self._store[list(keys)] or ())

    def scan(
        self, first: bytes, before: bytes, most: int | None = None, *, backwards: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Keys and values from key `first` up to `before`, which is not included, in order, or `backwards`.

        `most` of them at most, those that come first.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(before)
        with self._using("be read"):
            # Without a name for the iterator: one that is left over would keep a closed store open.
            return list(islice(self._items(options, first, backwards=backwards), most))

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Set and delete keys: all of that, or nothing."""
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            batch[key] = value
        for key in deletes:
            del batch[key]
        with self._using("be written"):
            self._store.write(batch, self._unlogged)

    def sync(self) -> None:
        """Make durable what was written so far."""
        with self._using("be written"):
            self._store.flush()

    def close(self) -> None:
        """Let go of it, if that was not done already; what was not made durable may be lost.

        Waits for the threads that are just reading or writing: RocksDB would refuse to close, and stay open for good.
        From then on every call but this one raises `KeyStoreError`.
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
        # Not by set_iterate_lower_bound: rocksdict 0.3 takes that as the upper one.
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
    """Remove the store at `path`, which is not open."""
    shutil.rmtree(path, ignore_errors=True)


def _options() -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(_BLOCK_CACHE))
    blocks.set_bloom_filter(_FILTER_BITS, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.none())  # rows are small, and reading them is what costs
    options.set_allow_mmap_reads(True)  # a third of the time of a look-up; the system may take the pages back
    options.set_write_buffer_size(_WRITE_BUFFER)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_BUFFER_FILTER)
    options.set_level_zero_file_num_compaction_trigger(2)  # every file that overlaps is looked into
    options.set_bytes_per_sync(_SYNC_BYTES)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    return options


def _failed(path: Path, what: str, cause: Exception) -> KeyStoreError:
    return KeyStoreError(f"index {path}: cannot {what}: {str(cause).strip()}")
