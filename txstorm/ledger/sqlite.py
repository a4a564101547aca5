"""The SQLite ledger: a file on the driver's disk, beside the tables.

It is one module: creating, locking, checking and using the file depend on the same details of SQLite.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import tempfile
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import ClassVar

from txstorm.clients.files import sync_file, sync_names
from txstorm.errors import DataDirectoryError, HeldError, LedgerCorrupt, TxstormError
from txstorm.ledger.core import StoredLedger
from txstorm.ledger.lease import LINUX, Clock, FileLease, Holder, lock_bytes, utc_now
from txstorm.ledger.port import Entry, Op, changes_of, pass_deleted, replace

FORMAT = "txstorm-ledger"
FORMAT_VERSION = 1

# Seconds that a commit waits for another process's commit, which takes milliseconds.
BUSY = 30.0
# Bytes that SQLite itself keeps locked while a database in WAL mode is open: in the database, so that another process
# that closes it does not consider itself the last one and delete the log; in the shared memory, so that another one
# that opens it does not consider itself the first one and truncate it. See os_unix.c: SHARED_FIRST, UNIX_SHM_DMS.
_GUARDED = {"": (0x40000002, 510), "-shm": (128, 1)}
_SCHEMA = """
CREATE TABLE format(name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE kv(path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, crc INTEGER NOT NULL)
WITHOUT ROWID;
"""


def entry_crc(path: bytes, value: bytes, version: int) -> int:
    """Return the checksum of an entry; SQLite detects damage to its pages, but not a flipped bit within a value."""
    return zlib.crc32(value, zlib.crc32(b"%d %s" % (version, path)))


def create_file(path: Path) -> None:
    """Create an empty ledger at `path`, unless another process creates it at the same moment.

    It is written under another name and then linked, so that a crash cannot leave half a ledger, which would look
    like a damaged one.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f"{path.name}.new-", dir=path.parent) as directory:
            made = Path(directory) / path.name
            with closing(sqlite3.connect(made, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                connection.execute("INSERT INTO format VALUES (?, ?)", (FORMAT, FORMAT_VERSION))
                # The mode is stored in the file: it lets readers work beside a writer, with one sync per commit. It is
                # set last, since on a full disk SQLite silently leaves data in its log when the connection closes.
                _write_ahead(connection, made)
            sync_file(made)
            os.link(made, path)
        sync_names(path.parent, [path])
    except FileExistsError:
        return
    except _ERRORS as error:
        raise translated(made, error) from error
    except OSError as error:
        raise DataDirectoryError(
            f"ledger {path}: expected to make it, got {error.strerror}; check that the directory can be written"
        ) from error


def _write_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Put the ledger into WAL mode, and check the result: on failure SQLite does not raise but returns another mode."""
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise TxstormError(
            f"ledger {path}: expected SQLite to keep it in WAL mode, got mode {mode!r}; check disk space, start again"
        )


def connect(path: Path, *, read_only: bool, busy: float = BUSY) -> sqlite3.Connection:
    """Open and check the ledger at `path`; the connection autocommits and works in any thread, under a lock."""
    _check_file(path, read_only=read_only)
    try:
        connection = _open_reader(path) if read_only else _open(path, "mode=rw", busy)
        try:
            _check_content(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            if not read_only:
                _write_ahead(connection, path)  # an earlier start may have failed to; other modes lock readers out
                sync_file(path.parent)  # SQLite creates its log beside the file and ignores whether it is synced
        except BaseException:
            connection.close()
            raise
    except _ERRORS as error:
        raise translated(path, error) from error
    return connection


class Guard:
    """Locks on an open ledger, in addition to SQLite's, that no other handle in this process can release.

    SQLite uses POSIX locks: reading or copying the data directory in the process of a run (such as a notebook cell
    that calls `shutil.copytree`) releases them. The next command of another process that writes to the ledger would
    then delete the log that the run continues to write to, and later commits would be lost with the process. The locks
    of this class belong to open file descriptions. Handles of one file share them, and the descriptions are closed
    only with the last handle, since closing them releases SQLite's locks too. No effect on systems without such locks.

    Args:
        path: a ledger with an open connection that has read something.
    """

    _lock = threading.Lock()
    _shared: ClassVar[dict[str, Guard]] = {}

    def __init__(self, path: Path) -> None:
        self._path = path
        self.files: dict[int, tuple[int, int]] = {}
        self.handles = 0

    @classmethod
    def of(cls, path: Path) -> Guard:
        """Return the shared guard of the ledger at `path`, counting one more handle; call `close` once per handle."""
        key = os.path.realpath(path)
        with cls._lock:
            guard = cls._shared.setdefault(key, cls(Path(key)))
            guard.handles += 1
            held = {os.fstat(file).st_ino for file in guard.files}
            for suffix, bytes_ in _GUARDED.items() if LINUX else ():
                with suppress(OSError):  # no shared memory: no process is writing, and this handle has a copy
                    if os.stat(key + suffix).st_ino not in held:
                        file = os.open(key + suffix, os.O_RDONLY | os.O_CLOEXEC)
                        guard.files[file] = bytes_
                        lock_bytes(file, fcntl.F_RDLCK, *bytes_)
        return guard

    def close(self, connection: sqlite3.Connection) -> None:
        """Close `connection`; with the last one the locks are released, so that SQLite can merge and delete its log."""
        with self._lock:
            self.handles -= 1
            if self.handles:
                connection.close()
                return
            self._shared.pop(str(self._path), None)
            for file, bytes_ in self.files.items():
                lock_bytes(file, fcntl.F_UNLCK, *bytes_)
            connection.close()
            self.close_files()

    def close_files(self) -> None:
        """Close the file descriptions, which releases their locks."""
        while self.files:
            os.close(self.files.popitem()[0])

    @classmethod
    def forked(cls) -> None:
        """Close inherited descriptions in a forked child, where they would hold the locks after the parent's death."""
        cls._lock = threading.Lock()  # another thread of the parent may have held the old lock
        while cls._shared:
            cls._shared.popitem()[1].close_files()


os.register_at_fork(after_in_child=Guard.forked)


def _check_file(path: Path, *, read_only: bool) -> None:
    try:
        found = None if stat.S_ISREG(path.stat().st_mode) else "something else"
    except OSError as error:
        found = error.strerror
    if found:
        msg = f"ledger {path}: expected a file, got: {found}; "
        raise DataDirectoryError(msg + "check the data directory; where tables are left, restore their ledger first")
    # SQLite would open it read-only and fail only at the first commit.
    if not read_only and not os.access(path, os.W_OK):
        raise DataDirectoryError(
            f"ledger {path}: expected a file that this user can write, got one to read; check its permissions"
        )


def _open(path: Path, mode: str, busy: float = BUSY) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{mode}"
    return sqlite3.connect(uri, uri=True, timeout=busy, isolation_level=None, check_same_thread=False)


def _open_reader(path: Path) -> sqlite3.Connection:
    connection, log = _open(path, "mode=ro"), path.with_name(f"{path.name}-wal")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        connection.close()
        # SQLite cannot create its shared memory beside the file. If there is no log to recover, no process writes.
        if not _refused(error) or (log.exists() and log.stat().st_size):
            raise
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        with closing(_open(path, "mode=ro&immutable=1")) as source:
            source.backup(connection)
    return connection


def _check_content(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `DataDirectoryError` unless this is a ledger of a known format, `LedgerCorrupt` if it is damaged."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    page, size = connection.execute("PRAGMA page_size").fetchone()[0], path.stat().st_size
    # SQLite treats a file shorter than a page as new, and reads the missing end of the last page as zeros.
    if size == 0 or size % page:
        raise _corrupt(path, f"{size} bytes, not a whole number of pages of {page}")
    if not {"format", "kv"} <= tables:
        raise DataDirectoryError(
            f"ledger {path}: expected a txstorm ledger, got another SQLite database; is this the data directory?"
        )
    found = connection.execute("SELECT name, version FROM format").fetchall()
    if found != [(FORMAT, FORMAT_VERSION)]:
        shown = ", ".join(f"{name} {version}" for name, version in found) or "none"
        raise DataDirectoryError(
            f"ledger {path}: expected format {FORMAT} {FORMAT_VERSION}, got {shown}; use the txstorm that wrote it"
        )
    problems = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
    if problems != ["ok"]:
        raise _corrupt(path, "; ".join(problems))
    entries_of(connection, path)


def entries_of(connection: sqlite3.Connection, path: Path) -> dict[str, Entry]:
    """Read all entries; raise `LedgerCorrupt` if one of them has another checksum than it was written with."""
    entries = {}
    for name, value, version, crc in connection.execute("SELECT CAST(path AS BLOB), value, version, crc FROM kv"):
        if not isinstance(value, bytes) or not isinstance(version, int) or entry_crc(name, value, version) != crc:
            raise _corrupt(path, f"entry {name!r} with another checksum than it was written with")
        entries[name.decode()] = Entry(value, version)
    return entries


def _corrupt(path: Path, found: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"ledger {path}: expected an intact SQLite file, got {found}; restore it from a backup together with the tables"
    )


_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)  # the latter for damaged text in SQLite's message


def translated(path: Path, error: Exception) -> TxstormError:
    """Return the error of txstorm for one of SQLite's, an instance of `_ERRORS`."""
    # Python's sqlite3 module gives no code if text cannot be decoded.
    if not isinstance(error, sqlite3.OperationalError) or _code(error) is None:
        return _corrupt(path, str(error))
    if _code(error) == sqlite3.SQLITE_BUSY:
        return HeldError(
            f"ledger {path}: expected another process to end its commit, got {error}; check whether it hangs"
        )
    msg = f"ledger {path}: expected it to be readable and writable, got {error}; check disk space and permissions"
    return (DataDirectoryError if _refused(error) else TxstormError)(msg)


def _refused(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


def _code(error: sqlite3.Error) -> int | None:
    """Return SQLite's primary error code; None for an error raised by Python's own module."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


class SqliteLedger(StoredLedger):
    """A `Ledger` in the SQLite file `path`, with its lease in ``<path>.lock``.

    Commits are synced to the disk before they return, even without `durable`: otherwise a later sync that fails could
    lose data that was written to SQLite's log but not synced. Readers in other processes never wait for the writer, nor
    the writer for them. With `read_only` nothing is written, even if no run is active or the directory is not writable
    (then the handle shows the content as of opening).

    Args:
        path: a file on a local disk.
        create: whether to create a missing file; otherwise that is an error.
        read_only: for readers beside a run.
        busy: seconds for which a commit waits for that of another process, which takes milliseconds unless it hangs.
        clock: wall clock, for the time at which the lease was acquired.

    Raises:
        DataDirectoryError: the file is missing, not a ledger, unreadable, or of a newer format.
        LedgerCorrupt: the file is damaged.
    """

    def __init__(
        self, path: Path, *, create: bool, read_only: bool = False, busy: float = BUSY, clock: Clock = utc_now
    ) -> None:
        super().__init__(f"ledger {path}", read_only=read_only)
        self._path = path
        if create and not read_only and not os.path.lexists(path):
            create_file(path)
        self._connection = connect(path, read_only=read_only, busy=busy)
        self._guard = Guard.of(path)
        self._lease = FileLease(path.with_name(path.name + ".lock"), clock)
        self._entries: dict[str, Entry] = {}
        self._seen: int | None = None  # SQLite's number for the content that the entries were read from; None: unknown

    def _load(self, path: str, depth: int) -> Mapping[str, Entry]:
        self._check_usable()  # it may have been closed while this call waited
        try:
            seen = self._connection.execute("PRAGMA data_version").fetchone()[0]
            if seen != self._seen:  # another connection has committed since
                self._entries = entries_of(self._connection, self._path)
                self._seen = seen
        except _ERRORS as error:
            raise translated(self._path, error) from error
        return self._entries

    def _write(self, ops: Sequence[Op], *, fresh: bool, durable: bool) -> bool:
        self._check_usable()
        connection = self._connection
        try:
            # IMMEDIATE: versions are read under the lock they are written with, so that no other commit comes between.
            connection.execute("BEGIN IMMEDIATE")
            self._lease.check()
            changed = changes_of(ops, self._load("", 2))
            seen, self._seen = self._seen, None  # after a failure, they are read again
            for path, entry in changed.items():
                if entry is None:
                    connection.execute("DELETE FROM kv WHERE path = ?", (path,))
                else:
                    row = (path, *entry, entry_crc(path.encode(), *entry))
                    connection.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?, ?)", row)
            pass_deleted(ops)
            connection.execute("COMMIT")
        except _ERRORS as error:
            raise translated(self._path, error) from error
        finally:
            # Unless it is committed; SQLite rolls back by itself after some errors, such as a full disk. The error that
            # led here is the one to tell.
            if connection.in_transaction:
                with suppress(*_ERRORS):
                    connection.execute("ROLLBACK")
        replace(self._entries, changed)
        self._seen = seen
        return True

    def _acquire(self, owner: str) -> None:
        self._lease.acquire(owner)

    def _check_lease(self) -> None:
        self._lease.check()

    def _release(self) -> None:
        self._lease.release()

    def _holder(self) -> Holder | None:
        return self._lease.holder()

    def _close(self) -> None:
        with self._lock:
            self._lease.release()
            self._guard.close(self._connection)
