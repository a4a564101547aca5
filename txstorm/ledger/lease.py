"""The lease of a ledger, which a process must hold to lead: file leases, holders, and checks whether a holder is alive.

On a file the lease is a lock that the operating system releases with the process, even after SIGKILL. On Linux the
lock belongs to the open file description (``F_OFD_SETLK``). A classic POSIX record lock belongs to the process and is
released as soon as *any* handle of the file is closed in it, so a notebook cell that reads or copies the lock file
would release the lease of the run beside it. The two kinds exclude each other, so runs of older versions are still
kept out. A forked child inherits the description and would keep the lock alive, so it closes its copy at once.

A lease in a store shared by many machines does not end by itself when the holder's process dies. But a process
that is known to have died on this machine writes nothing more, so its lease is free at once, like a file's. Only a
lease in a Delta table has to be renewed (`delta/ledger.py`): a session of ZooKeeper does it by itself.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from txstorm.errors import DataDirectoryError, FencedError, HeldError, TxstormError

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_DEAD = "ZXx"


def machine_mark() -> str:
    """Return an identifier of this machine's boot and this process's PID namespace; empty if unknown."""
    try:
        return f"{_BOOT.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_mark(pid: int | None = None) -> str:
    """Return a globally unique identifier of this process, or of process `pid`; empty if unknown.

    It consists of the machine's boot, the PID namespace (containers number their own processes), the pid, and the
    start time of the process (pids are reused).
    """
    number = os.getpid() if pid is None else pid
    place, started = machine_mark(), started_at(number)
    return f"{place}/{number}/{started}" if place and started else ""


def process_has_ended(mark: str) -> bool:
    """Return whether the process with this `process_mark` has definitely ended; False if that cannot be determined."""
    place, own = mark.rsplit("/", 2), machine_mark()
    if not own or len(place) != 3 or place[0] != own or not place[1].isdecimal():
        return False
    return started_at(int(place[1])) != place[2]


def started_at(pid: int) -> str | None:
    """Return the start time of a live process, in ticks since boot; None if there is no such process."""
    try:
        # The program's name is in parentheses and may contain any character.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in _DEAD else fields[19]


Clock = Callable[[], datetime]

POLL = 0.2
"""Seconds between two polls of a lease whose store sends no notification."""

LINUX = sys.platform.startswith("linux")
# struct flock for F_GETLK and F_OFD_SETLK. F_GETLK returns the pid of a POSIX lock's process, and -1 for other locks.
_FLOCK = "@hhqqi0q" if LINUX else "@qqihh"


def utc_now() -> datetime:
    """Return the wall-clock time, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Holder:
    """Holder of a lease.

    Attributes:
        owner: the holder's name for itself.
        pid: the holder's process id; 0 if unknown.
        host: the holder's machine; empty if unknown.
        since: when the holder acquired the lease, ISO 8601; empty if unknown.
    """

    owner: str
    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"{self.owner!r} (pid {self.pid} on {self.host or 'an unknown host'}, since {self.since or 'unknown'})"


def this_process(owner: str, clock: Clock) -> Holder:
    """Return the `Holder` that represents `owner` in this process, holding a lease from now on."""
    return Holder(owner, os.getpid(), socket.gethostname(), clock().isoformat(timespec="seconds"))


def held_error(what: str, holder: Holder) -> HeldError:
    """Return the error for a process that tries to acquire the lease of `what` while `holder` has it."""
    return HeldError(
        f"{what} is held by {holder}; only one run can use it at a time. Stop that run or wait for its end"
    )


def lost_error(what: str, found: str) -> FencedError:
    """Return the error for a handle that has lost the lease of `what`; `found` is the cause."""
    return FencedError(
        f"{what}: expected this run to still hold the lease, got: {found}; another run may lead by now. "
        "This run writes nothing more; start it again to stand by or to lead"
    )


def not_held_by_us(holder: Holder | None) -> str:
    """Return the cause, for `lost_error`, of a lease that another `holder` has now, or that is free (None)."""
    return "it is free" if holder is None else f"it is held by {holder}"


def poll_free(
    is_free: Callable[[], bool],
    seconds: float,
    *,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Call `is_free` every `POLL` seconds until it returns True or `seconds` have passed; return its last result."""
    end = now() + seconds
    while not is_free():
        left = end - now()
        if left <= 0:
            return False
        pause(min(POLL, left))
    return True


class FileLease:
    """Lease on the file `path`, exclusive among processes and among objects of this process."""

    def __init__(self, path: Path, clock: Clock = utc_now) -> None:
        self._path = path
        self._key = os.path.realpath(path)
        self._clock = clock
        self._file: int | None = None

    def acquire(self, owner: str) -> None:
        """Acquire the lease.

        Raises:
            HeldError: another process, or another object of this process, holds it.
            DataDirectoryError: the file cannot be created or locked.
        """
        with _registry_lock:
            ours = _holder_here(self._key)
            if ours is not None:
                raise held_error(self._key, ours)
            file = _open_lock_file(self._path)
            try:
                _lock(file)
            except OSError as error:
                theirs = _holder_elsewhere(file)
                os.close(file)
                raise _refusal(self._key, error, theirs) from None
            self._file = _files[self._key] = file
            _registry[self._key] = me = this_process(owner, self._clock)
            _write(file, me)

    def release(self) -> None:
        """Release the lease if this object holds it."""
        with _registry_lock:
            # In a forked child the lease, and the content of the file, are the parent's.
            if self._file is not None and _holder_here(self._key) is not None:
                os.ftruncate(self._file, 0)
                os.close(self._file)
                del _registry[self._key], _files[self._key]
            self._file = None

    def check(self) -> None:
        """Raise `FencedError` if the lease was acquired and then lost: in a forked child, or by removal of its file."""
        with _registry_lock:
            if self._file is None:
                return
            if _holder_here(self._key) is None:
                raise lost_error(self._key, "a copy of it in a forked process, whose parent has the lease")
            # The lock is on the removed file; another process could create a new file and lock that.
            if os.fstat(self._file).st_nlink == 0:
                raise lost_error(self._key, "its lock file was removed")

    def holder(self) -> Holder | None:
        """Return the holder of the lease, or None; the check does not interfere with other processes."""
        with _registry_lock:
            ours = _holder_here(self._key)
            return ours if ours is not None else self._read_holder()

    def _read_holder(self) -> Holder | None:
        try:
            file = _opened(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            msg = f"{self._path}: expected a lock file that this user can read, got {error.strerror}; check the data"
            raise DataDirectoryError(f"{msg} directory") from error
        try:
            return _holder_elsewhere(file)
        finally:
            os.close(file)


_registry_lock = threading.Lock()
_registry: dict[str, Holder] = {}
_files: dict[str, int] = {}


def _forked() -> None:
    """Close the parent's lock files in a forked child: they would keep leases held after the parent's death."""
    global _registry_lock
    _registry_lock = threading.Lock()  # another thread of the parent may have held the old lock
    for file in _files.values():
        os.close(file)
    _files.clear()


os.register_at_fork(after_in_child=_forked)


def _holder_here(key: str) -> Holder | None:
    holder = _registry.get(key)
    return holder if holder is not None and holder.pid == os.getpid() else None


def _open_lock_file(path: Path) -> int:
    try:
        return _opened(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise DataDirectoryError(
            f"{path}: expected a lock file that this user can write, got {error.strerror}; check the data directory"
        ) from error


def _opened(path: Path, mode: int) -> int:
    """Open a regular file; refuse a pipe, because opening one blocks until a process opens the other end."""
    file = os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "something else than a file", str(path))
    return file


def _refusal(path: str, error: OSError, theirs: Holder | None) -> TxstormError:
    if error.errno in (errno.EAGAIN, errno.EACCES):
        return held_error(path, theirs or Holder("another run", 0, "", ""))
    return DataDirectoryError(
        f"{path}: expected a file system with locks, got {error.strerror}; put the data directory on a local disk"
    )


def _write(file: int, holder: Holder) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(asdict(holder)).encode(), 0)


def _holder_elsewhere(file: int) -> Holder | None:
    """Identify the process that holds the lock on `file`: its pid from the system, the rest from the file's content."""
    pid = _locking_pid(file)
    if pid is None:
        return None
    written = _read(file)
    # The pid is -1 for a lock of an open file description, and 0 or negative across containers. Until the holder has
    # written the content, it is that of an earlier holder.
    if written is not None and (pid == written.pid or (pid <= 0 and not _has_ended(written))):
        return written
    return Holder("another run", max(pid, 0), "", "")


def _has_ended(holder: Holder) -> bool:
    """Return whether the process of `holder` has definitely ended: it ran on this host, and its pid is unused now."""
    return holder.pid > 0 and holder.host == socket.gethostname() and started_at(holder.pid) is None


def _lock(file: int) -> None:
    """Lock the open file description or, on systems without such locks, the file for this process."""
    if LINUX:
        lock_bytes(file, fcntl.F_WRLCK, 0, 0)
    else:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_bytes(file: int, kind: int, start: int, length: int) -> None:
    """Lock (or unlock, ``F_UNLCK``) bytes of an open file description on Linux; length 0 means to the end.

    Raises:
        OSError: another description, or a process, holds a conflicting lock.
    """
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0))


def _locking_pid(file: int) -> int | None:
    request = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0) if LINUX else (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    answer = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, *request)))
    kind, pid = (answer[0], answer[4]) if LINUX else (answer[3], answer[2])
    return None if kind == fcntl.F_UNLCK else int(pid)


def _read(file: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(file, 65536, 0)))
    except (ValueError, TypeError):
        return None
