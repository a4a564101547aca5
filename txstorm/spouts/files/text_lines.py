"""Lines of text files by number and by byte: what sources that read lines have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from txstorm.errors import SpoutError
from txstorm.spouts.files.listing import unreadable
from txstorm.spouts.files.ranges import DIGEST_BYTES

EVERY = 4096
"""Number of lines between two known positions of an index."""
_ALL = 1 << 62
S = TypeVar("S")
Seen = tuple[int, int, str]
"""A range of bytes of a file that was read, and its digest; an empty digest: nothing was."""


class LineIndex:
    """Positions of every 4,096th line of a file, found as they are asked for; forgotten if the file is another one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._marks = [0]
        self._status: tuple[int, int] = (0, 0)

    def find(self, line: int, *, cyclic: bool = False) -> int | None:
        """Return the byte at which `line` begins, or would begin after the last one; None if there are fewer lines.

        `cyclic`: after the last line comes the first.
        """
        number, at, size = self._reach(line)
        if cyclic and size:
            return (self._reach(line % number)[1] if number < line else at) % size
        return at if number == line else None

    def count(self) -> int:
        """Return the number of lines."""
        return self._reach(_ALL)[0]

    def _reach(self, line: int) -> tuple[int, int, int]:
        """Return `line`, or the number of lines if there are fewer, the byte where it begins, and the file's size."""
        with opened(self._path) as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._status[0] or found.st_size < self._status[1]:
                self._marks = [0]
            self._status = found.st_ino, found.st_size
            place = min(line // EVERY, len(self._marks) - 1)
            number, at = place * EVERY, self._marks[place]
            file.seek(at)
            while number < line and (text := file.readline()):
                number, at = number + 1, at + len(text)
                if number == len(self._marks) * EVERY and text.endswith(b"\n"):
                    self._marks.append(at)
            return number, at, found.st_size


def share_out(sources: Sequence[S], budget: int, take: Callable[[S, int], int]) -> None:
    """Take up to `budget` items from sources, evenly; what one has not, others may give.

    Args:
        sources: the sources; if the budget cannot be divided evenly, the first ones give more.
        budget: the number of items.
        take: takes a number of items from a source, and returns how many there were; fewer: it has no more.
    """
    left, open_ = budget, list(sources)
    while left and open_:
        share, more = divmod(left, len(open_))
        for number, source in enumerate(tuple(open_)):
            wanted = share + (number < more)
            taken = take(source, wanted) if wanted else 0
            left -= taken
            if taken < wanted:
                open_.remove(source)


def read_lines(path: str, at: int, count: int, *, cyclic: bool = False) -> list[bytes]:
    """Return up to `count` lines from byte `at` on, with their ends; `cyclic`: after the last comes the first."""
    with opened(path) as file:
        file.seek(at)
        found = list(islice(file, count))
        while cyclic and len(found) < count:
            file.seek(0)
            more = list(islice(file, count - len(found)))
            if not more:
                break
            found += more
        return found


def without_end(line: bytes) -> bytes:
    r"""Return a line without ``\n`` or ``\r\n``."""
    return line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line


def split_lines(data: bytes) -> list[bytes]:
    r"""Return the lines of `data` without ``\n`` or ``\r\n``; the last one need not have an end."""
    *records, last = data.split(b"\n")
    if b"\r" in data:
        records = [record.removesuffix(b"\r") for record in records]
    return [*records, last] if last else records


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Open a file to read its bytes; raise `SpoutError` if it is none, or cannot be read."""
    try:
        if not Path(path).is_file() and Path(path).exists():
            raise SpoutError(f"file source: {path} is no file; name files, not directories or devices")
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from None


def read_range(path: str, start: int, stop: int) -> bytes:
    """Return the bytes of a file from `start` to `stop`."""
    with opened(path) as file:
        file.seek(start)
        data: bytes = file.read(stop - start)
        return data


def after_line(path: str, end: int) -> int:
    """Return where the next line begins: at `end`, or after the line end that the last line has been given since."""
    last, more = read_range(path, end - 1, end), read_range(path, end, end + 2)
    if last == b"\n" or not more:
        return end
    if more.startswith((b"\n", b"\r\n")):
        return end + more.index(b"\n") + 1
    raise changed(path, f"it grew inside its last line, which had no line end and was read up to byte {end}")


def size_of(path: str) -> int:
    """Return how many bytes a file has."""
    with opened(path) as file:
        return os.fstat(file.fileno()).st_size


def digest_of(data: bytes) -> str:
    """Return the digest of bytes that were read."""
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def changed(path: str, how: str) -> SpoutError:
    """Return the error for a file that is not what it was when it was read."""
    return SpoutError(f"file source: {path} has changed: {how}; restore it, or start in a new data directory")


def check_seen(path: str, seen: Seen, size: int) -> None:
    """Raise `SpoutError` unless a file, which has `size` bytes now, still has what was read of it."""
    start, stop, digest = seen
    if size < stop:
        raise changed(path, f"it was read up to byte {stop}, and has {size} now")
    if digest and digest_of(read_range(path, start, stop)) != digest:
        raise changed(path, f"bytes {start} to {stop} are other ones than were read")
