"""The lease of a ledger: who may lead.

On a file it is a lock that the operating system releases with the process, also after SIGKILL. On Linux the lock
belongs to the open file description (``F_OFD_SETLK``): a classic POSIX record lock belongs to the process, and is
released as soon as *any* handle of the file is closed in it, so a notebook cell that reads or copies the lock file
would release the lease of the run beside it. Both kinds exclude each other, so runs of older versions are kept out as
before.
A forked child inherits the description and would keep the lock alive, so it closes its copy at once.

Whether a process is gone for certain: known only of processes that this one can see.

A lease in a store that many machines reach cannot end with its holder's process by itself. But a process of this
machine that is gone writes nothing any more, so that its lease is free at once, as that of a file would be.
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
    """The boot of this machine and the process namespace of this process; empty where the system does not say."""
    try:
        return f"{_BOOT.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_mark(pid: int | None = None) -> str:
    """What tells this process (or `pid`) from every other one, on any machine; empty where the system does not say.

    The machine's boot, the process namespace (containers see numbers of their own), the process, and when that was
    started (numbers are used again).
    """
    number = os.getpid() if pid is None else pid
    place, started = machine_mark(), started_at(number)
    return f"{place}/{number}/{started}" if place and started else ""


def is_gone(mark: str) -> bool:
    """Whether the process with this `process_mark` is gone for certain; False where that cannot be known from here."""
    place, own = mark.rsplit("/", 2), machine_mark()
    if not own or len(place) != 3 or place[0] != own or not place[1].isdecimal():
        return False
    return started_at(int(place[1])) != place[2]


def started_at(pid: int) -> str | None:
    """When a live process was started, in ticks since the boot; None when there is none."""
    try:
        # The name of the program stands in parentheses and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in _DEAD else fields[19]


Clock = Callable[[], datetime]

POLL = 0.2
"""Seconds between two looks at a lease that nobody tells about."""

LINUX = sys.platform.startswith("linux")
# struct flock, as F_GETLK and F_OFD_SETLK want it. F_GETLK names the process of a POSIX lock, and -1 for the others.
_FLOCK = "@hhqqi0q" if LINUX else "@qqihh"


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Holder:
    """Who has a lease.

    Attributes:
        owner: what the holder calls itself.
        pid: its process.
        host: its machine.
        since: when it took the lease, ISO 8601; all three are empty or 0 where unknown.
    """

    owner: str
    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"{self.owner!r} (pid {self.pid} on {self.host or 'an unknown host'}, since {self.since or 'unknown'})"


def this_process(owner: str, clock: Clock) -> Holder:
    """The holder that `owner` in this process would be."""
    return Holder(owner, os.getpid(), socket.gethostname(), clock().isoformat(timespec="seconds"))


def held_error(what: str, holder: Holder) -> HeldError:
    """The error of whoever came second."""
    return HeldError(
        f"{what} is held by {holder}; expected it to be free: one run at a time. Stop that run or wait for its end"
    )


def lost_error(what: str, found: str) -> FencedError:
    """The error of a handle whose lease is gone."""
    return FencedError(
        f"{what}: expected this run to have the lease still, got: {found}; another run may lead by now. "
        "Nothing more is written by this one; start it again to stand by or to lead"
    )


def poll_free(
    is_free: Callable[[], bool],
    seconds: float,
    *,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Ask `is_free` every `POLL` seconds until it is true or `seconds` are over; its last answer."""
    end = now() + seconds
    while not is_free():
        left = end - now()
        if left <= 0:
            return False
        pause(min(POLL, left))
    return True


class FileLease:
    """A lease on the file `path`, exclusive among processes and within this one."""

    def __init__(self, path: Path, clock: Clock = utc_now) -> None:
        self._path = path
        self._key = os.path.realpath(path)
        self._clock = clock
        self._file: int | None = None

    def acquire(self, owner: str) -> None:
        """Take it; `HeldError` if it is taken, `DataDirectoryError` if the file cannot be made."""
        with _registry_lock:
            ours = _ours(self._key)
            if ours is not None:
                raise held_error(self._key, ours)
            file = _open_lock_file(self._path)
            try:
                _lock(file)
            except OSError as error:
                theirs = _theirs(file)
                os.close(file)
                raise _refusal(self._key, error, theirs) from None
            self._file = _files[self._key] = file
            _registry[self._key] = me = this_process(owner, self._clock)
            _write(file, me)

    def release(self) -> None:
        """Give it back if this object has it."""
        with _registry_lock:
            # In a forked child the lease, and the content of the file, are the parent's.
            if self._file is not None and _ours(self._key) is not None:
                os.ftruncate(self._file, 0)
                os.close(self._file)
                del _registry[self._key], _files[self._key]
            self._file = None

    def check(self) -> None:
        """`FencedError` if it was taken and is lost: in a forked child, or when its file was removed."""
        with _registry_lock:
            if self._file is None:
                return
            if _ours(self._key) is None:
                raise lost_error(self._key, "a copy of it in a forked process, whose parent has the lease")
            # The lock lives on the removed file; whoever makes a new one gets a lock of his own.
            if os.fstat(self._file).st_nlink == 0:
                raise lost_error(self._key, "its lock file was removed")

    def holder(self) -> Holder | None:
        """Who has it; a look that disturbs nobody."""
        with _registry_lock:
            ours = _ours(self._key)
            return ours if ours is not None else self._elsewhere()

    def _elsewhere(self) -> Holder | None:
        try:
            file = _opened(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            msg = f"{self._path}: expected a lock file that this user can read, got {error.strerror}; check the data"
            raise DataDirectoryError(f"{msg} directory") from error
        try:
            return _theirs(file)
        finally:
            os.close(file)


_registry_lock = threading.Lock()
_registry: dict[str, Holder] = {}
_files: dict[str, int] = {}


def _forked() -> None:
    """Close the parent's lock files in a forked child: it would keep the leases held after the parent's death."""
    global _registry_lock
    _registry_lock = threading.Lock()  # another thread of the parent may have held it
    for file in _files.values():
        os.close(file)
    _files.clear()


os.register_at_fork(after_in_child=_forked)


def _ours(key: str) -> Holder | None:
    holder = _registry.get(key)
    return holder if holder is not None and holder.pid == os.getpid() else None


def _open_lock_file(path: Path) -> int:
    try:
        return _opened(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        msg = f"{path}: expected a lock file that this user can write, got {error.strerror}; check the data directory"
        raise DataDirectoryError(msg) from error


def _opened(path: Path, mode: int) -> int:
    """An open file; never a pipe, which would wait for somebody at its other end."""
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


def _theirs(file: int) -> Holder | None:
    """Who in another process has the lock on `file`: the system knows the process, the content knows the rest."""
    pid = _locking_pid(file)
    if pid is None:
        return None
    written = _read(file)
    # The pid is -1 of a lock that belongs to a file description, and 0 or negative across containers. The content is
    # that of an earlier holder while the new one has not written yet.
    if written is not None and (pid == written.pid or (pid <= 0 and not _has_ended(written))):
        return written
    return Holder("another run", max(pid, 0), "", "")


def _has_ended(holder: Holder) -> bool:
    """Whether the process of `holder` has certainly ended: it was one of this host, and none has its pid now."""
    return holder.pid > 0 and holder.host == socket.gethostname() and started_at(holder.pid) is None


def _lock(file: int) -> None:
    """Lock the open file description, or, where the system has no such locks, the file for this process."""
    if LINUX:
        lock_bytes(file, fcntl.F_WRLCK, 0, 0)
    else:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_bytes(file: int, kind: int, start: int, length: int) -> None:
    """Lock (or unlock, ``F_UNLCK``) bytes of an open file description of this process, on Linux; 0 bytes: to the end.

    Raises:
        OSError: another description, or a process, has a lock that excludes this one.
    """
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0))


def _locking_pid(file: int) -> int | None:
    answer = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, _flock_request()))
    kind, pid = (answer[0], answer[4]) if LINUX else (answer[3], answer[2])
    return None if kind == fcntl.F_UNLCK else int(pid)


def _flock_request() -> bytes:
    if LINUX:
        return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    return struct.pack(_FLOCK, 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)


def _read(file: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(file, 65536, 0)))
    except (ValueError, TypeError):
        return None
