"""Deletion vectors of Delta tables: which rows of a data file are deleted.

A vector is a bitmap of 64-bit row numbers, in the portable serialization of Roaring bitmaps: sixteen-bit containers,
each of them a list, a bit set, or runs. It is in the log entry itself, or in a file that many vectors share.
"""

from __future__ import annotations

import os
import struct
import zlib
from base64 import b85decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from txstorm.clients.files import MOST, check_file, checked_path

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(_Z85, _B85)
_UUID_LENGTH = 20
_MAGIC = 1681511377
_RUNS, _NO_RUNS = 12347, 12346
_OFFSETS_FROM, _LIST_MOST, _BITS = 4, 4096, 8192


class Vector(NamedTuple):
    """A deletion vector as a log describes it.

    Attributes:
        place: path of its file below the table; of one that is in the log itself, empty.
        inline: the vector itself, if it is in the log, else empty.
        offset: where it begins in the file.
        size: number of its bytes.
    """

    place: str
    inline: str
    offset: int
    size: int

    @classmethod
    def of(cls, described: Mapping[str, Any] | None) -> Vector | None:
        """Return the vector of an action's `deletionVector`; raise `ValueError` if its file is not of the table."""
        if described is None:
            return None
        kind, text, size = described["storageType"], described["pathOrInlineDv"], int(described["sizeInBytes"])
        if kind == "i":
            return cls("", text, 0, size)
        if kind != "u":
            return cls(checked_path(text), "", int(described["offset"]), size)
        folder, name = text[:-_UUID_LENGTH], UUID(bytes=_decoded(text[-_UUID_LENGTH:]))
        path = os.path.join(folder, f"deletion_vector_{name}.bin")
        return cls(checked_path(path), "", int(described["offset"] or 0), size)

    def rows(self, table: Path) -> np.ndarray[Any, Any]:
        """Return the numbers of the rows, ascending; raise `OSError`, or `ValueError` if it is damaged."""
        try:
            return _rows_of(_decoded(self.inline)[: self.size] if self.inline else self._stored(table / self.place))
        except (struct.error, IndexError, ValueError) as error:
            msg = f"the deletion vector at {self.offset} of {self.place or 'the log'} is damaged: {error}"
            raise ValueError(msg) from None

    def _stored(self, path: Path) -> bytes:
        check_file(path, most=MOST)
        with path.open("rb") as file:
            file.seek(self.offset)
            stored = file.read(self.size + 8)
        size, found = int.from_bytes(stored[:4], "big"), stored[4:-4]
        if size != self.size or len(found) != size or zlib.crc32(found) != int.from_bytes(stored[-4:], "big"):
            raise ValueError(f"the deletion vector at {self.offset} of {path} does not match its checksum")
        return found


def _decoded(text: str) -> bytes:
    return b85decode(text.translate(_TO_B85))


def _rows_of(data: bytes) -> np.ndarray[Any, Any]:
    magic, count = struct.unpack_from("<IQ", data)
    if magic != _MAGIC:
        raise ValueError(f"a deletion vector of unknown format {magic}")
    found, at = [np.empty(0, np.int64)], 12
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        at, parts = _bitmap(data, at + 4)
        found += [part + (high << 32) for part in parts]
    return np.concatenate(found)


def _bitmap(data: bytes, at: int) -> tuple[int, list[np.ndarray[Any, Any]]]:
    """Read one 32-bit bitmap that begins at `at`; return where it ends, and its rows."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at, with_runs = at + 4, b""
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        with_runs = data[at : at + (count + 7) // 8]
        at += len(with_runs)
    elif cookie == _NO_RUNS:
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise ValueError(f"a deletion vector with unknown bitmap {cookie}")
    heads = np.frombuffer(data, "<u2", 2 * count, at).astype(np.int64)
    at += 4 * count + (4 * count if not with_runs or count >= _OFFSETS_FROM else 0)
    found = []
    for number, (high, last) in enumerate(heads.reshape(-1, 2).tolist()):
        if with_runs and with_runs[number // 8] >> number % 8 & 1:
            (runs,) = struct.unpack_from("<H", data, at)
            pairs = np.frombuffer(data, "<u2", 2 * runs, at + 2).astype(np.int64).reshape(-1, 2)
            low = np.concatenate([np.arange(start, start + more + 1) for start, more in pairs.tolist()])
            at += 2 + 4 * runs
        elif last < _LIST_MOST:
            low = np.frombuffer(data, "<u2", last + 1, at).astype(np.int64)
            at += 2 * (last + 1)
        else:
            bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITS, at), bitorder="little")
            low, at = np.flatnonzero(bits), at + _BITS
        found.append(low + (high << 16))
    return at, found
