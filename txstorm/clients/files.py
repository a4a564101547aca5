"""Files that survive a power failure: written to a new file, synced, and only then given their name.

A failed sync is never made good by another one. Linux marks the pages of a file as clean when they could not be
written, so every later sync of that file succeeds, in this process and in the next one, although the bytes are lost.
So a file is synced once, before anything refers to it; one whose sync fails is thrown away, and the bytes are written
again into another one.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path

from txstorm.clients.local_file import read_whole


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
