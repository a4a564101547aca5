"""Files of a local disk, opened only if they are files: never a pipe that nobody writes to, nor a device without end.

Every other module, and every library that txstorm gives a path to, would wait for ever there, or read until there is no
memory left.
"""

from __future__ import annotations

import errno
import os
import re
import stat
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
