"""Parquet files whose names tell what their footers are.

Pages have checksums of their own, but the footer, which says how all pages are to be read, has none: a bit that flips
there may rename a column, which is then read as null, or move a bound, and rows are left out. So the name of a file
ends with a digest of its footer, which is looked at whenever txstorm reads the file.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pyarrow as pa

from txstorm.clients.files import check_file

_TAIL = 8
"""Bytes behind the footer: its length, little-endian, and ``PAR1``."""
_MOST = 1 << 16
"""Bytes that are read at first; the footers of nearly all files are shorter."""
_SEAL = re.compile(r"-[0-9A-Za-z]+\.([0-9a-f]{16})\.parquet")


def sealed(unique: str, data: memoryview | bytes) -> str:
    """`unique` and the seal of the Parquet file `data`, for the end of the file's name: ``<unique>.<seal>``."""
    return f"{unique}.{_seal(data)}"


def check_seal(file: Path) -> None:
    """Nothing, where the name of `file` has no seal, or the seal is that of its footer.

    Raises:
        pa.ArrowInvalid: the footer is not the one that was written.
        OSError: the file is not there, or cannot be read.
    """
    expected = _SEAL.search(file.name)
    if expected is None:
        return
    found = _seal(_end(file))
    if found != expected[1]:
        msg = (
            f"file {file}: its footer is not the one that was written (expected seal {expected[1]}, found {found}), so "
            "what its rows are cannot be told"
        )
        raise pa.ArrowInvalid(msg)


def _seal(end: memoryview | bytes) -> str:
    begin = max(0, len(end) - _TAIL - _length(end))
    return hashlib.blake2b(end[begin:], digest_size=8).hexdigest()


def _length(end: memoryview | bytes) -> int:
    return int.from_bytes(end[-_TAIL:-4], "little")


def _end(file: Path) -> bytes:
    """The end of `file`, with the whole footer if that is as long as the file says."""
    check_file(file)
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        end = _last(stream.fileno(), size, _MOST)
        needed = _length(end) + _TAIL
        return end if needed <= len(end) else _last(stream.fileno(), size, needed)


def _last(descriptor: int, size: int, length: int) -> bytes:
    length = min(size, length)
    return os.pread(descriptor, length, size - length)
