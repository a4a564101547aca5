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
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from txstorm.clients.files import sync_file, sync_names
from txstorm.errors import DataDirectoryError, HeldError, InputError, LedgerCorrupt, TxstormError
from txstorm.ledger.lease import LINUX, Clock, FileLease, lock_bytes, poll_free, utc_now
from txstorm.ledger.port import Entry, Op, check_ops, checked_path, child_names, outcome, pass_deleted

FORMAT = "txstorm-ledger"
FORMAT_VERSION = 1

# How long a commit waits for another process's commit, in seconds; a commit takes milliseconds.
BUSY = 30.0
# Bytes that SQLite itself keeps locked while a database in WAL mode is open: of the database, so that another process
# which closes it does not take itself for the last one and delete the log; of the shared memory, so that another one
# which opens it does not take itself for the first one and truncate it. See os_unix.c: SHARED_FIRST, UNIX_SHM_DMS.
_GUARDED = {"": (0x40000002, 510), "-shm": (128, 1)}
_SCHEMA = """
CREATE TABLE format(name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE kv(path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, crc INTEGER NOT NULL)
WITHOUT ROWID;
"""


def entry_crc(path: bytes, value: bytes, version: int) -> int:
    """What an entry is checked with: SQLite sees damage to its pages, but not a flipped bit within a value."""
    return zlib.crc32(value, zlib.crc32(b"%d %s" % (version, path)))


def create_file(path: Path) -> None:
    """Make an empty ledger at `path`; somebody else making it at the same moment is no error.

    It is made under another name and then linked, so that a crash cannot leave half a ledger, which would look
    like a damaged one.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f"{path.name}.new-", dir=path.parent) as directory:
            made = Path(directory) / path.name
            _write_empty(made)
            sync_file(made)
            os.link(made, path)
        sync_names(path.parent, [path])
    except FileExistsError:
        return
    except OSError as error:
        msg = f"ledger {path}: expected to make it, got {error.strerror}; check that the directory can be written"
        raise DataDirectoryError(msg) from error


def _write_empty(path: Path) -> None:
    with translated(path), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        connection.execute("INSERT INTO format VALUES (?, ?)", (FORMAT, FORMAT_VERSION))
        # The mode is kept in the file: readers beside a writer, and one sync a commit. It comes last, since on a full
        # disk what is in SQLite's log is left there without a word when the connection closes.
        _write_ahead(connection, path)


def _write_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Put the ledger into WAL mode; SQLite only answers with another mode where its disk does not let it."""
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        msg = f"ledger {path}: expected SQLite to keep it in WAL mode, got mode {mode!r}; check disk space, start again"
        raise TxstormError(msg)


def connect(path: Path, *, read_only: bool, busy: float = BUSY) -> sqlite3.Connection:
    """A checked connection to the ledger at `path`, usable from any thread (under a lock), in autocommit mode."""
    _check_file(path, read_only=read_only)
    with translated(path):
        connection = _open_reader(path) if read_only else _open(path, "mode=rw", busy)
        try:
            _check_content(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            if not read_only:
                _write_ahead(connection, path)  # one that an earlier start could not put into it would lock readers out
                sync_file(path.parent)  # SQLite makes its log as a file beside, and ignores whether this works
        except BaseException:
            connection.close()
            raise
    return connection


class Guard:
    """Locks beside SQLite's own on an open ledger, which no other handle in this process can release.

    SQLite's are POSIX locks: reading or copying the data directory in the process of a run (a notebook cell that calls
    `shutil.copytree`) releases them. The next command of another process that wrote to the ledger then deleted the log
    that the run went on writing to, and later commits were lost with the process. These locks belong to open file
    descriptions. Handles of one file share them, and the descriptions are closed with the last handle only, since
    closing them releases SQLite's locks, too. Without effect where the system has no such locks.

    Args:
        path: a ledger with an open connection, which has read something.
    """

    _lock = threading.Lock()
    _shared: ClassVar[dict[str, Guard]] = {}

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[int, tuple[int, int]] = {}
        self._handles = 0

    @classmethod
    def of(cls, path: Path) -> Guard:
        """The guard of the ledger at `path`, for one more handle; call `close` once for each."""
        key = os.path.realpath(path)
        with cls._lock:
            guard = cls._shared.setdefault(key, cls(Path(key)))
            guard.add_handle()
        return guard

    def add_handle(self) -> None:
        """Count one more handle, and lock the files that are not locked yet; called by `of`."""
        self._handles += 1
        if not LINUX:
            return
        held = {os.fstat(file).st_ino for file in self._files}
        for suffix, bytes_ in _GUARDED.items():
            with suppress(OSError):  # no shared memory: nobody writes, and this handle has a copy
                name = f"{self._path}{suffix}"
                if os.stat(name).st_ino in held:
                    continue
                file = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
                self._files[file] = bytes_
                lock_bytes(file, fcntl.F_RDLCK, *bytes_)

    def close(self, connection: sqlite3.Connection) -> None:
        """Close `connection`; if it is the last one, SQLite can then merge and delete its log as usual."""
        with self._lock:
            self._handles -= 1
            if self._handles:
                connection.close()
                return
            self._shared.pop(str(self._path), None)
            for file, bytes_ in self._files.items():
                lock_bytes(file, fcntl.F_UNLCK, *bytes_)
            connection.close()
            self.close_files()

    def close_files(self) -> None:
        """Close the descriptions, and release their locks with them."""
        while self._files:
            os.close(self._files.popitem()[0])

    @classmethod
    def forked(cls) -> None:
        """Close the copies of a forked child; they would keep the locks after the parent's death."""
        cls._lock = threading.Lock()  # another thread of the parent may have held it
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
    # SQLite would open it for reading, and say so at the first commit only.
    if not read_only and not os.access(path, os.W_OK):
        msg = f"ledger {path}: expected a file that this user can write, got one to read; check its permissions"
        raise DataDirectoryError(msg)


def _open(path: Path, mode: str, busy: float = BUSY) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{mode}"
    return sqlite3.connect(uri, uri=True, timeout=busy, isolation_level=None, check_same_thread=False)


def _open_reader(path: Path) -> sqlite3.Connection:
    connection = _open(path, "mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        connection.close()
        # SQLite cannot put its shared memory beside the file. Nobody writes, if there is no log to recover.
        if _refused(error) and _log_is_empty(path):
            return _snapshot(path)
        raise
    return connection


def _log_is_empty(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return not log.exists() or log.stat().st_size == 0


def _snapshot(path: Path) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with closing(_open(path, "mode=ro&immutable=1")) as source:
        source.backup(copy)
    return copy


def _check_content(connection: sqlite3.Connection, path: Path) -> None:
    """`DataDirectoryError` if this is not a ledger of a known format, `LedgerCorrupt` if it is damaged."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    _check_length(connection, path)
    if not {"format", "kv"} <= tables:
        msg = f"ledger {path}: expected a txstorm ledger, got another SQLite database; is this the data directory?"
        raise DataDirectoryError(msg)
    _check_format(connection, path)
    problems = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
    if problems != ["ok"]:
        raise _corrupt(path, "; ".join(problems))
    for name, value, version, crc in connection.execute("SELECT CAST(path AS BLOB), value, version, crc FROM kv"):
        if not isinstance(value, bytes) or not isinstance(version, int) or entry_crc(name, value, version) != crc:
            raise _corrupt(path, f"entry {name!r} with another checksum than it was written with")


def _check_length(connection: sqlite3.Connection, path: Path) -> None:
    """SQLite takes a file of less than a page for a new one, and reads zeros for the missing end of the last page."""
    page = connection.execute("PRAGMA page_size").fetchone()[0]
    size = path.stat().st_size
    if size == 0 or size % page:
        raise _corrupt(path, f"{size} bytes, not a whole number of pages of {page}")


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("SELECT name, version FROM format").fetchall()
    if found != [(FORMAT, FORMAT_VERSION)]:
        shown = ", ".join(f"{name} {version}" for name, version in found) or "none"
        msg = f"ledger {path}: expected format {FORMAT} {FORMAT_VERSION}, got {shown}; use the txstorm that wrote it"
        raise DataDirectoryError(msg)


def _corrupt(path: Path, found: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"ledger {path}: expected an intact SQLite file, got {found}; restore it from a backup together with the tables"
    )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if _code(error) is None:  # not SQLite's, but of a text that is no text any more
            raise _corrupt(path, str(error)) from error
        if _code(error) == sqlite3.SQLITE_BUSY:
            msg = f"ledger {path}: expected another process to end its commit, got {error}; see whether that one hangs"
            raise HeldError(msg) from error
        msg = f"ledger {path}: expected it to be readable and writable, got {error}; check disk space and permissions"
        raise (DataDirectoryError if _refused(error) else TxstormError)(msg) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter: a damaged text within SQLite's message
        raise _corrupt(path, str(error)) from error


def _refused(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's primary error code; None for an error that Python's module made itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


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
