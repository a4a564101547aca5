"""Local files: durable writes that survive a power failure, and reads of regular files only.

Writing: the bytes are written to a new file, which is synced before it gets its name. After a failed sync, a second
sync proves nothing: Linux marks the pages that could not be written as clean, so every later sync of that file
succeeds, in this process and in others, although the bytes are lost. So a file is synced once, before anything refers
to it; if that fails, the file is discarded and the bytes are written again, to another file.

Reading: a path is checked before this package or a library opens it, since a pipe without a writer would block
forever, and an endless device would exhaust the memory.
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
"""Maximum size, in bytes, of a file to be read as a whole if its size is not recorded anywhere."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_whole(path: Path | str, most: int = MOST) -> bytes:
    """Read the file at `path`.

    Raises:
        OSError: the file is missing, unreadable, not regular, or larger than `most` bytes.
    """
    # O_NONBLOCK: opening a pipe without a writer would block.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = _checked(os.fstat(handle), path).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"expected at most {most} bytes, got {size}", str(path))
        return b"".join(iter(lambda: os.read(handle, size + 1), b""))
    finally:
        os.close(handle)


def checked_path(path: Any) -> str:
    """Return the relative `path` unchanged; raise `ValueError` if it leads outside its directory.

    Use it for paths that were read from files: stored bytes must not determine where files are read or deleted (R10,
    stored bytes are data only).
    """
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/") or _SCHEME.match(path):
        raise ValueError(f"expected a path below the table, got {path!r}")
    return path


def check_file(path: Path | str, size: int | None = None, most: int | None = None) -> None:
    """Raise `OSError` unless `path` is a regular file of exactly `size` and at most `most` bytes (None: any size)."""
    found = _checked(os.stat(path), path).st_size
    if size is not None and found != size:
        raise OSError(errno.EIO, f"expected {size} bytes, got {found}", str(path))
    if most is not None and found > most:
        raise OSError(errno.EFBIG, f"expected at most {most} bytes, got {found}", str(path))


def check_files(directory: Path, suffixes: Iterable[str]) -> None:
    """Raise `OSError` unless all names in `directory` that end with one of `suffixes` are regular files up to `MOST`.

    Use it for files that a library is about to read on its own. The directory may be missing.
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
    """Sync an open file (``os.fsync``); raise `OSError` with `path` on failure."""
    try:
        os.fsync(handle)
    except OSError as error:
        what = f"{error.strerror}: it cannot be synced to the disk, so what was written last may be lost"
        raise OSError(error.errno, what, os.fspath(path)) from error


def sync_file(path: Path) -> None:
    """Sync a file or a directory; syncing a directory makes names created, renamed or removed in it durable.

    After a failure, a second call proves nothing: rewrite the file (`rewrite`) or its name (`renew`) instead.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle, path)
    finally:
        os.close(handle)


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically and durably; a crash leaves either the old file or the new one."""
    made = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write_synced(made, data)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync_names(path.parent, [path])


def write_synced(path: Path, data: bytes | memoryview, like: os.stat_result | None = None) -> None:
    """Create the file `path` and sync its content, but not its name; copy mode and times from `like`, if given."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        if like is not None:
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
            os.utime(file.fileno(), ns=(like.st_atime_ns, like.st_mtime_ns))
        sync(file.fileno(), path)


def rewrite(path: Path) -> None:
    """Replace the file at `path` with a new, synced copy; do nothing if it is missing.

    For a complete, immutable file whose sync has failed, or may have failed. The caller must have checked that the
    content is what was written, and has to sync the directory afterwards.
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
    """Rename `path` away and back, so that its name is synced again after a failed sync of its directory."""
    aside = path.with_name(f"_again_{uuid.uuid4().hex}.tmp")
    path.rename(aside)
    aside.rename(path)


PRIVATE = 0o700
"""Mode of directories that only their owner may access."""


def make_directories(directory: Path, mode: int = 0o777) -> None:
    """Create `directory` with `mode`, and missing parents, durably, unless it exists; raise `OSError` on failure."""
    if directory.is_dir():  # the usual case, in every commit
        return
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode, parents=True, exist_ok=True)
    for path in missing:
        sync_names(path.parent, [path])


def secure_directories(directory: Path, below: Path, mode: int = 0o777) -> None:
    """Create `directory`, somewhere below `below`; make its name, and those of its parents, durable even if it exists.

    For the start of a process: one that was killed may have created a directory and not synced its name, and then a
    power failure would take everything in it, however often that is synced.
    """
    directory.mkdir(mode, parents=True, exist_ok=True)
    for path in (directory, *directory.parents):
        if path == below:
            break
        sync_names(path.parent, [path])


def sync_names(directory: Path, made: Iterable[Path]) -> None:
    """Sync `directory`, in which the names `made` are new; after a failure, renew these names and sync again.

    Raises:
        OSError: the second sync failed, too.
    """
    try:
        sync_file(directory)
    except OSError:
        for path in made:
            renew(path)
        sync_file(directory)
