"""The ledger of one machine: an SQLite file on the driver's disk, beside the tables."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from txstorm.errors import InputError, TxstormError
from txstorm.ledger.lease import Clock, FileLease, poll_free, utc_now
from txstorm.ledger.port import Entry, Op, check_ops, checked_path, child_names, outcome, pass_deleted
from txstorm.ledger.sqlite_file import BUSY, Guard, connect, create_file, entry_crc, translated

_PATHS = "SELECT path FROM kv"
_ENTRIES = "SELECT path, value, version FROM kv"


class SqliteLedger:
    """A `Ledger` in the SQLite file `path`, with its lease in ``<path>.lock``.

    Commits are synced to the disk before they return. Readers in other processes never wait for the writer nor it
    for them. With `read_only` nothing is written, also where nobody runs or the directory cannot be written (then
    it shows the moment of opening).

    Args:
        path: a file on a local disk.
        create: whether a missing file is made; otherwise it is an error.
        read_only: for readers beside a run.
        busy: seconds that a commit waits for one of another process, which takes milliseconds unless that one hangs.
        clock: wall clock, for the lease's record of since when.

    Raises:
        DataDirectoryError: missing, not a ledger, unreadable, or of a newer format.
        LedgerCorrupt: damaged.
    """

    def __init__(
        self, path: Path, *, create: bool, read_only: bool = False, busy: float = BUSY, clock: Clock = utc_now
    ) -> None:
        self._path = path
        self._read_only = read_only
        self._lock = threading.RLock()
        if create and not read_only and not os.path.lexists(path):
            create_file(path)
        self._connection: sqlite3.Connection | None = connect(path, read_only=read_only, busy=busy)
        self._guard = Guard.of(path)
        self._lease = FileLease(path.with_name(path.name + ".lock"), clock)

    def get(self, path: str) -> Entry | None:
        """The entry at `path`, or None."""
        checked_path(path)
        with self._working() as connection:
            return _entry(connection, path)

    def children(self, path: str) -> list[str]:
        """Names directly below `path`."""
        where, bounds = _below(checked_path(path, root=True))
        with self._working() as connection:
            rows = connection.execute(_PATHS + where, bounds).fetchall()
        return child_names(path, [row[0] for row in rows])

    def scan(self, path: str) -> dict[str, Entry]:
        """The entries directly below `path`."""
        where, bounds = _below(checked_path(path, root=True))
        start = len(path) + 1 if path else 0
        with self._working() as connection:
            rows = connection.execute(_ENTRIES + where, bounds).fetchall()
        found = {row[0][start:]: Entry(row[1], row[2]) for row in rows if "/" not in row[0][start:]}
        return {name: found[name] for name in child_names("", found)}

    def commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        """Carry out `ops`, all or nothing, synced to the disk, also without `durable`.

        A later sync that fails would take with it what had been written to SQLite's log and not synced.
        """
        self._check_writable()
        check_ops(ops)
        with self._working() as connection, _transaction(connection):
            self._lease.check()
            for op in ops:
                _apply(connection, op)
                pass_deleted(op)

    def acquire(self, owner: str) -> None:
        """Take the lease."""
        self._check_writable()
        with self._working():
            self._lease.acquire(owner)

    def check_lease(self) -> None:
        """Raise `FencedError` if the lease of this handle is lost."""
        with self._working():
            self._lease.check()

    def wait_free(self, seconds: float) -> bool:
        """Wait until nobody has the lease; looks again and again."""
        return poll_free(lambda: self.holder() is None, seconds)

    def release(self) -> None:
        """Give the lease back."""
        self._lease.release()

    def holder(self) -> str | None:
        """Who has the lease."""
        with self._working():
            holder = self._lease.holder()
        return None if holder is None else str(holder)

    def close(self) -> None:
        """Release the lease and close the file."""
        with self._lock:
            self._lease.release()
            if self._connection is not None:
                self._guard.close(self._connection)
                self._connection = None

    @contextmanager
    def _working(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                msg = f"ledger {self._path}: expected an open handle, got a closed one; open it again"
                raise TxstormError(msg)
            with translated(self._path):
                yield self._connection

    def _check_writable(self) -> None:
        if self._read_only:
            msg = f"ledger {self._path}: expected a handle that may write, got one opened with read_only=True"
            raise InputError(msg)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE: the versions are read under the lock they are written with, so a commit has nothing to lose midway.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _apply(connection: sqlite3.Connection, op: Op) -> None:
    before = _entry(connection, op.path)
    after = outcome(op, before)
    if after is None:
        connection.execute("DELETE FROM kv WHERE path = ?", (op.path,))
    elif after is not before:
        crc = entry_crc(op.path.encode(), after.value, after.version)
        row = (op.path, after.value, after.version, crc)
        connection.execute("INSERT OR REPLACE INTO kv(path, value, version, crc) VALUES (?, ?, ?, ?)", row)


def _entry(connection: sqlite3.Connection, path: str) -> Entry | None:
    row = connection.execute("SELECT value, version FROM kv WHERE path = ?", (path,)).fetchone()
    return None if row is None else Entry(row[0], row[1])


def _below(path: str) -> tuple[str, tuple[str, ...]]:
    # The character after "/" is "0": all paths below are one range of the primary key.
    return (" WHERE path > ? AND path < ?", (f"{path}/", f"{path}0")) if path else ("", ())
