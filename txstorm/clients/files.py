"""Files that survive a power failure: written to a new file, synced, and only then given their name.

A failed sync is never made good by another one. Linux marks the pages of a file as clean when they could not be
written, so every later sync of that file succeeds, in this process and in the next one, although the bytes are lost.
So a file is synced once, before anything refers to it; one whose sync fails is thrown away, and the bytes are written
again into another one.

Files of a local disk, opened only if they are files: never a pipe that nobody writes to, nor a device without end.

Every other module, and every library that txstorm gives a path to, would wait for ever there, or read until there is no
memory left.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MOST = 1 << 30
"""Bytes that a file may have which is read as a whole and whose size is written nowhere."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_whole(path: Path, most: int = MOST) -> bytes:
    """The bytes of the file at `path`.

    Raises:
        OSError: it is not there, cannot be read, is no file, or has more than `most` bytes.
    """
    # O_NONBLOCK: to open a pipe that nobody writes to would wait for somebody.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = _checked(os.fstat(handle), path).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"expected at most {most} bytes, got {size}", str(path))
        with open(handle, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(handle)


def checked_path(path: Any) -> str:
    """`path`, if it names something below the directory it is relative to; else raises `ValueError`.

    For paths that were read somewhere: stored bytes do not choose where files are read or removed (design rule R10).
    """
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/") or _SCHEME.match(path):
        msg = f"expected a path below the table, got {path!r}"
        raise ValueError(msg)
    return path


def check_file(path: Path | str, size: int | None = None, most: int | None = None) -> None:
    """Raise `OSError` unless there is a file at `path`, of `size` bytes where that is known, and at most `most`."""
    found = _checked(os.stat(path), path).st_size
    if size is not None and found != size:
        raise OSError(errno.EIO, f"expected {size} bytes, got {found}", str(path))
    if most is not None and found > most:
        raise OSError(errno.EFBIG, f"expected at most {most} bytes, got {found}", str(path))


def check_files(directory: Path, suffixes: Iterable[str]) -> None:
    """Raise `OSError` unless all that is in `directory` under a name that ends so is a file of a sensible size.

    For what a library is about to read by itself. Nothing where there is no such directory.
    """
    wanted = tuple(suffixes)
    try:
        with os.scandir(directory) as entries:
            found = [Path(entry.path) for entry in entries if entry.name.endswith(wanted)]
    except FileNotFoundError:
        return
    for path in found:
        size = _checked(path.stat(), path).st_size
        if size > MOST:
            raise OSError(errno.EFBIG, f"expected at most {MOST} bytes, got {size}", str(path))


def _checked(found: os.stat_result, path: Path | str) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"expected a file, got {kind}", str(path))
    return found


def sync(handle: int, path: Path) -> None:
    """``os.fsync`` of an open file; its error names the file."""
    try:
        os.fsync(handle)
    except OSError as error:
        what = f"{error.strerror}: it cannot be synced to the disk, so what was written last may be lost"
        raise OSError(error.errno, what, os.fspath(path)) from error


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable, or the creations, renames and removals in a directory.

    Where it fails, calling it again proves nothing: write the file again (`rewrite`), or its name (`renew`).
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle, path)
    finally:
        os.close(handle)


def write_durably(path: Path, data: bytes) -> None:
    """Put `data` at `path`, replacing what is there; a crash leaves the old file or the new one, never a part."""
    made = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write_synced(made, data)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync_names(path.parent, [path])


def write_synced(path: Path, data: bytes | memoryview, like: os.stat_result | None = None) -> None:
    """Write the new file `path` and sync its bytes, not its name; with the mode and the time of `like`."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        if like is not None:
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
            os.utime(file.fileno(), ns=(like.st_atime_ns, like.st_mtime_ns))
        sync(file.fileno(), path)


def rewrite(path: Path) -> None:
    """Write the bytes of the file at `path` again, into a new, synced file that takes its name.

    Afterwards sync the directory.

    For a file that is complete, never changes, and whose sync failed, or was never seen to succeed: the caller has
    checked that its content is what was written. Nothing where the file is gone.
    """
    try:
        data, like = read_whole(path), path.stat()
    except FileNotFoundError:
        return
    made = path.with_name(f"_again_{uuid.uuid4().hex}.tmp")
    try:
        write_synced(made, data, like)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def renew(path: Path) -> None:
    """Give what is at `path` its name once more, after the sync of its directory has failed."""
    aside = path.with_name(f"_again_{uuid.uuid4().hex}.tmp")
    path.rename(aside)
    aside.rename(path)


PRIVATE = 0o700
"""The mode of directories that nobody else is to look into."""


def make_directories(directory: Path, mode: int = 0o777) -> None:
    """Make `directory`, with `mode`, and the parents it lacks, durably; raises `OSError`. One that is there stays."""
    if directory.is_dir():  # as with every commit
        return
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode, parents=True, exist_ok=True)
    for path in missing:
        sync_names(path.parent, [path])


def sync_names(directory: Path, made: Iterable[Path]) -> None:
    """Sync `directory`, in which the names `made` are new; where that fails, give them once more, and sync again.

    Raises:
        OSError: that failed, too.
    """
    try:
        sync_file(directory)
    except OSError:
        for path in made:
            renew(path)
        sync_file(directory)
