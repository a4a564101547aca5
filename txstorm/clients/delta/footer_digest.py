"""Seal of a Parquet file: a digest of the footer, at the end of the file name, checked whenever txstorm reads the file.

Parquet pages have checksums, but the footer, which describes how to read them, has none: a flipped bit there may rename
a column, whose values are then read as null, or alter a bound, so that rows are skipped.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pyarrow as pa

from txstorm.clients.files import check_file

_TAIL = 8
"""Number of bytes after the footer: its length (four bytes, little-endian) and ``PAR1``."""
_MOST = 1 << 16
"""Number of bytes to read in the first attempt; nearly all footers are shorter."""
_SEAL = re.compile(r"-[0-9A-Za-z]+\.([0-9a-f]{16})\.parquet")


def sealed(unique: str, data: memoryview | bytes) -> str:
    """Return the name part ``<unique>.<seal>``, with the seal of the Parquet file content `data`."""
    return f"{unique}.{_seal(data)}"


def check_seal(file: Path) -> None:
    """Check the footer of `file` against the seal in its name, if it has one.

    Raises:
        pa.ArrowInvalid: the footer differs from what was written.
        OSError: the file is missing, or cannot be read.
    """
    expected = _SEAL.search(file.name)
    if expected is None:
        return
    found = _seal(_end(file))
    if found != expected[1]:
        raise pa.ArrowInvalid(
            f"file {file}: its footer is not the one that was written (expected seal {expected[1]}, found {found}), so "
            "its rows cannot be read correctly"
        )


def _seal(end: memoryview | bytes) -> str:
    begin = max(0, len(end) - _TAIL - _length(end))
    return hashlib.blake2b(end[begin:], digest_size=8).hexdigest()


def _length(end: memoryview | bytes) -> int:
    return int.from_bytes(end[-_TAIL:-4], "little")


def _end(file: Path) -> bytes:
    """Read the end of `file`: the whole footer, if the file is that long."""
    check_file(file)
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        end = _last(stream.fileno(), size, _MOST)
        needed = _length(end) + _TAIL
        return end if needed <= len(end) else _last(stream.fileno(), size, needed)


def _last(descriptor: int, size: int, length: int) -> bytes:
    length = min(size, length)
    return os.pread(descriptor, length, size - length)
