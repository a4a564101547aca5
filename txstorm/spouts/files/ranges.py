"""Metadata of a file spout's batch: the ranges of files it reads, and the position where the next batch begins.

Ranges count bytes in text formats and rows in Parquet; they are half-open and lie on record boundaries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from txstorm.errors import SpoutError

BY_NAME, BY_ARRIVAL = 1, 2
"""Versions of the metadata: files are read in the order of their names, or as they arrive."""
DIGEST_BYTES = 16


@dataclass(frozen=True)
class Segment:
    """A range of one file that one task emits, with the digest of its content when it was planned."""

    file: str
    start: int
    stop: int
    rows: int
    digest: str

    @property
    def name(self) -> str:
        """The range as ``file:from-to``, for messages."""
        return f"{self.file}:{self.start}-{self.stop}"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the metadata of a txid stores."""
        return {"file": self.file, "from": self.start, "to": self.stop, "rows": self.rows, "digest": self.digest}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Segment:
        """Rebuild a segment from the result of `to_json`."""
        return cls(stored["file"], stored["from"], stored["to"], stored["rows"], stored["digest"])

    def verify(self, digest: str) -> None:
        """Raise `SpoutError` unless `digest`, that of the current content, is the planned one."""
        if digest != self.digest:
            raise self.changed(f"expected digest {self.digest}, got {digest}")

    def changed(self, how: str) -> SpoutError:
        """Return the error for a range that has changed; `how` says what was expected and what was found."""
        return SpoutError(
            f"{self.file}: range {self.start}-{self.stop} changed since its range was planned: {how}; "
            "restore the file, or start in a new data directory"
        )


@dataclass(frozen=True)
class Position:
    """Position in the files at which the next batch begins.

    Attributes:
        file: the file read last; None at the very beginning.
        offset: the offset up to which it has been read; 0 if nothing, not even a header, has been read.
        open: whether the last record read had no line end yet.
        behind: number of files that have been read completely.
        trail: running digest of the names and sizes of these files.
    """

    file: str | None = None
    offset: int = 0
    open: bool = False
    behind: int = 0
    trail: str = ""
    done: ClassVar[bool] = False  # the last file may grow

    def resumed(self, offset: int) -> Position:
        """Return the position at `offset`, after the line end that the last record lacked."""
        return replace(self, offset=offset, open=False)

    def moved(self, file: str, size: int) -> Position:
        """Return the position at the beginning of `file`, which follows the current file of `size` bytes."""
        if self.file is None:
            return Position(file)
        return Position(file, behind=self.behind + 1, trail=extend_trail(self.trail, self.file, size))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the metadata of a txid stores."""
        return {
            "file": self.file, "offset": self.offset, "open": self.open, "behind": self.behind, "trail": self.trail,
        }  # fmt: skip

    @classmethod
    def after(cls, metadata: Any) -> Position:
        """Return the position after the batch of `metadata`; the very beginning for None.

        Raises:
            SpoutError: the metadata was written by a newer version, or for files in the order of their arrival.
        """
        if metadata is None:
            return cls()
        if checked(metadata)["v"] != BY_NAME:
            raise SpoutError(
                "file spout: the files of this directory were read as they arrived, which cannot go on in the order "
                "of names; give order='arrival'"
            )
        return cls(**metadata["position"])


def checked(metadata: Any) -> Any:
    """Return `metadata` if this version of txstorm can read it; raise `SpoutError` if not."""
    version = metadata["v"]
    if version not in (BY_NAME, BY_ARRIVAL):
        msg = f"file spout: metadata of format {version!r}, this txstorm knows {BY_ARRIVAL}; run the newer txstorm"
        raise SpoutError(msg)
    return metadata


def extend_trail(trail: str, file: str, size: int) -> str:
    """Return the running digest `trail` extended by one file."""
    return blake2b(f"{trail}\0{file}\0{size}".encode("utf-8", "surrogateescape"), digest_size=DIGEST_BYTES).hexdigest()


@dataclass(frozen=True)
class Block:
    """The complete records in one block read from a file.

    Attributes:
        path: the file.
        start: offset at which the first record begins.
        ends: offsets at which the records end.
        size: offset at which the block ends; the size of the file if the block reaches its end.
        open: whether the last record has no line end.
        whole: whether the block reaches the end of the file.
        width: bytes per unit of offset.
        raw: function that returns the bytes over which the digest of a range is computed.
    """

    path: str
    start: int
    ends: npt.NDArray[np.int64]
    size: int
    open: bool
    whole: bool
    width: float
    raw: Callable[[int, int], Any]

    def holds(self, path: str, offset: int) -> bool:
        """Return whether the block contains the record that begins at `offset` of `path`."""
        return path == self.path and len(self.ends) > 0 and self.start <= offset < self.ends[-1]

    def take(self, offset: int, rows: int, room: float, *, at_least: int) -> Piece:
        """Return records from `offset` on: at most `rows` and `room` bytes of them, but no fewer than `at_least`."""
        first = int(np.searchsorted(self.ends, offset, side="right"))
        limit = max(offset, self.start) + room / self.width
        fitting = int(np.searchsorted(self.ends, limit, side="right"))
        last = max(min(first + rows, fitting), first + at_least)
        return Piece(self, first, min(last, len(self.ends)))


@dataclass(frozen=True)
class Piece:
    """Records `first` (inclusive) to `last` (exclusive) of a block."""

    block: Block
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Number of records."""
        return self.last - self.first

    @property
    def start(self) -> int:
        """The offset in the file at which the records begin."""
        return int(self.block.ends[self.first - 1]) if self.first else self.block.start

    @property
    def stop(self) -> int:
        """The offset in the file at which the records end."""
        return int(self.block.ends[self.last - 1])

    @property
    def size(self) -> float:
        """Size in bytes."""
        return (self.stop - self.start) * self.block.width

    @property
    def open(self) -> bool:
        """Whether the last record has no line end."""
        return self.block.open and self.last == len(self.block.ends)

    @property
    def whole(self) -> bool:
        """Whether it reaches the end of the file."""
        return self.block.whole and self.last == len(self.block.ends)


def segments(pieces: Sequence[Piece], parallelism: int) -> list[Segment]:
    """Divide a batch into `parallelism` shares of equally many records; a share has one segment per file it spans."""
    found: list[tuple[int, list[Piece]]] = []
    for share, part in _parts(pieces, parallelism):
        if found and found[-1][0] == share and found[-1][1][-1].block.path == part.block.path:
            found[-1][1].append(part)
        else:
            found.append((share, [part]))
    return [_segment(parts) for _, parts in found]


def share_of(planned: Sequence[Segment], task: int, parallelism: int) -> list[Segment]:
    """Return the segments of a batch that task `task` of `parallelism` emits: about as many records as any other."""
    bounds = _bounds(sum(one.rows for one in planned), parallelism)
    ends = accumulate(one.rows for one in planned)
    return [one for one, end in zip(planned, ends, strict=True) if bisect_right(bounds, end - 1) == task]


def _bounds(rows: int, parallelism: int) -> list[int]:
    """Return the ends of the shares of `rows` records."""
    return [share * rows // parallelism for share in range(1, parallelism + 1)]


def _parts(pieces: Sequence[Piece], parallelism: int) -> Iterator[tuple[int, Piece]]:
    bounds = _bounds(sum(piece.rows for piece in pieces), parallelism)
    row = 0
    for piece in pieces:
        first = piece.first
        while first < piece.last:
            share = bisect_right(bounds, row)
            last = min(piece.last, first + bounds[share] - row)
            yield share, Piece(piece.block, first, last)
            row, first = row + last - first, last


def _segment(parts: Sequence[Piece]) -> Segment:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part.block.raw(part.start, part.stop))
    rows = sum(part.rows for part in parts)
    return Segment(parts[0].block.path, parts[0].start, parts[-1].stop, rows, digest.hexdigest())
