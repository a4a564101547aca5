"""Files that are there, whole, after a power failure: nothing but fsync does that."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def sync(handle: int, path: Path) -> None:
    """``os.fsync`` of an open file; its error says which one."""
    try:
        os.fsync(handle)
    except OSError as error:
        error.filename = os.fspath(path)
        raise


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable, or the creations, renames and removals in a directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle, path)
    finally:
        os.close(handle)


def write_durably(path: Path, data: bytes) -> None:
    """Put `data` at `path`, replacing what is there; a crash leaves the old file or the new one, never a part."""
    made = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with made.open("xb") as file:
            file.write(data)
            file.flush()
            sync(file.fileno(), made)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    sync_file(path.parent)
