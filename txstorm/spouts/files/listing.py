"""File listings of a file spout, and the order of names, in which files that were read must not change."""

from __future__ import annotations

import glob
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from txstorm.errors import SpoutError
from txstorm.spouts.files.ranges import BY_NAME, Piece, Position, Segment, extend_trail

_MAGIC = re.compile(r"[*?[]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def absolute(paths: Paths, spout: str = "file spout") -> tuple[str, ...]:
    """Return the paths and globs as absolute local ones.

    Raises:
        SpoutError: no path is given, or one is not local.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise SpoutError(f"{spout}: no path given; name a file, a glob such as 'books/*.txt', or a list of them")
    return tuple(_local(os.fspath(path), spout) for path in given)


def _local(path: str, spout: str) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        raise SpoutError(f"{spout}: {path!r} is not a path; name a file or a glob")
    parts = urlsplit(path)
    if not _SCHEME.match(path):
        return os.path.abspath(path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise SpoutError(
            f"{spout}: {path!r} is not local; local paths, those of mounted storage (on Databricks /Volumes/… or "
            "/dbfs/…) and file:///… can be read: mount it, or copy it here first"
        )
    return os.path.abspath(unquote(re.sub("^file:(//(localhost)?)?", "", path, flags=re.IGNORECASE)))


def expand(paths: Iterable[str], *, waiting: bool = False) -> dict[str, int]:
    """List the files that `paths` match now: name → size in bytes, in the order of their names.

    Args:
        paths: the paths and globs.
        waiting: whether a glob may match nothing yet, if its directory is there.

    Raises:
        SpoutError: a path is missing or a directory, or a glob matches nothing.
    """
    try:
        found = {name for path in paths for name in _matches(path, waiting=waiting)}
        return {name: status_of(name)[0] for name in sorted(found)}
    except FileNotFoundError as error:
        raise unreadable(error.filename, error) from None


def _matches(path: str, *, waiting: bool) -> list[str]:
    # If a file with exactly this name exists, its glob characters are literal.
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    found = glob.glob(path, recursive=True)
    if not found and not (waiting and os.path.isdir(os.path.dirname(_MAGIC.split(path, maxsplit=1)[0]))):
        msg = f"file spout: no file matches {path!r}; check the path: it is relative to the working directory"
        raise SpoutError(msg)
    return found


FileStatus = tuple[int, int]
"""Size of a file in bytes, and its time in nanoseconds since 1970; a plain tuple, as there may be many."""


def listed(paths: Iterable[str]) -> dict[str, FileStatus]:
    """List the visible files that `paths` match now, in any order; there may be none.

    A name that begins with ``.`` or ``_``, or a directory of such a name, is matched only by a path that names it.

    Raises:
        SpoutError: a path is a directory.
    """
    found: dict[str, FileStatus] = {}
    for path in paths:
        magic = _MAGIC.search(path)
        literal = magic is None or os.path.lexists(path)
        base = 0 if magic is None else len(os.path.dirname(path[: magic.start()]))
        parts = tuple(path.split(os.sep))
        for name in [path] if literal else glob.glob(path, recursive=True):
            hidden = not literal and name.find("/_", base) >= 0
            if not hidden or _fits(parts, tuple(name.split(os.sep)), "._"):
                try:
                    found[name] = status_of(name)
                except FileNotFoundError:
                    found.pop(name, None)
    return found


def check_named(paths: tuple[str, ...], name: str) -> None:
    """Raise `SpoutError` unless `paths` match the recorded file `name`: the ledger must not choose files to read."""
    if not _is_named(paths, name):
        raise SpoutError(
            f"file spout: expected a recorded file that its paths name ({', '.join(paths)}), got {name!r}; use the "
            "paths that the transaction was planned with (they are relative to the working directory)"
        )


@lru_cache(maxsize=4096)
def _is_named(paths: tuple[str, ...], name: str) -> bool:
    """Return whether `name` is one of `paths`, or matches a glob among them; the file need not exist."""
    if name in paths:
        return True
    parts = tuple(name.split(os.sep))
    return name == os.path.normpath(name) and any(_fits(tuple(path.split(os.sep)), parts) for path in paths)


def _fits(pattern: tuple[str, ...], parts: tuple[str, ...], hidden: str = ".") -> bool:
    """Return whether the glob with the segments `pattern` would match a path with the segments `parts`.

    Segments that begin with one of the characters `hidden` match only a segment that begins with it, too.
    """
    if not pattern or not parts:
        return pattern in ((), ("**",)) and not parts
    head, rest, first = pattern[0], pattern[1:], parts[0][:1] or "/"
    if head == "**":
        return _fits(rest, parts, hidden) or (first not in hidden and _fits(pattern, parts[1:], hidden))
    named = first not in hidden or head.startswith(first)
    return named and fnmatchcase(parts[0], head) and _fits(rest, parts[1:], hidden)


def status_of(name: str) -> FileStatus:
    """Return size and time of the file `name`; raise `SpoutError` if it is a directory or cannot be read.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        status = os.stat(name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(name, error) from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise SpoutError(f"file spout: {name} is {kind}, expected a file; name the files, for example {name}/*")
    return status.st_size, status.st_mtime_ns


def unreadable(name: str, error: OSError) -> SpoutError:
    """Return the error for a file that cannot be opened."""
    why = error.strerror or error
    return SpoutError(f"file spout: {name} cannot be read: {why}; check that it exists, and its permissions")


class Listing:
    """The files to read, in the order of their names; listed again when all known files have been read.

    Files before the position must not change: one that appears there would never be read, and one that disappears or
    grows there could not be read again.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._known: list[str] | None = None
        self._read: dict[str, int] = {}

    def after(self, metadata: Any) -> Position:
        """Return the position after the batch of `metadata`."""
        return Position.after(metadata)

    def opens(self, position: Position) -> bool:
        """List the files if that has not been done yet, and check those before `position`; return True."""
        if self._known is None:
            self.refresh(position)
        return True

    def dry(self, position: Position) -> bool:
        """Return False: `following` has already listed the files again."""
        return False

    def moved(self, position: Position, piece: Piece, status: FileStatus) -> Position:
        """Return the position after reading `piece` of its file."""
        return replace(position, offset=piece.stop, open=piece.open)

    def metadata(self, cut: Sequence[Segment], position: Position) -> dict[str, Any]:
        """Return the metadata of a batch with these segments, after which reading goes on at `position`."""
        return {"v": BY_NAME, "segments": [one.to_json() for one in cut], "position": position.to_json()}

    def following(self, position: Position, size: int, status: FileStatus) -> Position | None:
        """Return the beginning of the next file; None if the file of `position`, `size` bytes long, is the last one.

        Raises:
            SpoutError: files before the position have changed.
        """
        name = self._after(position)
        if name is None:
            self.refresh(position)
            name = self._after(position)
        if name is None:
            return None
        if position.file is not None:
            self._read[position.file] = size
        return position.moved(name, size)

    def refresh(self, position: Position) -> None:
        """List the files again, and check that those before `position` are unchanged."""
        now = expand(self._paths)
        if position.file is not None:
            self._check(position, now)
        self._known = list(now)

    def _after(self, position: Position) -> str | None:
        names = self._known or []
        index = 0 if position.file is None else bisect_right(names, position.file)
        return names[index] if index < len(names) else None

    def _check(self, position: Position, now: dict[str, int]) -> None:
        current = position.file or ""
        if current not in now:
            raise SpoutError(f"file spout: {current} disappeared after it was read up to {position.offset}; restore it")
        before = {name: size for name, size in now.items() if name < current}
        trail = ""
        for name, size in before.items():
            trail = extend_trail(trail, name, size)
        if len(before) != position.behind or trail != position.trail:
            raise self._misplaced(position, before)
        self._read = before

    def _misplaced(self, position: Position, before: dict[str, int]) -> SpoutError:
        read = {name: size for name, size in self._read.items() if name < (position.file or "")}
        if len(read) == position.behind:
            what = _difference(read, before)
        else:
            newest = sorted(before, key=os.path.getmtime, reverse=True)[:3]
            files = "1 file that was" if position.behind == 1 else f"{position.behind} files that were"
            what = f"expected the {files} read, got {len(before)}, with other names or sizes"
            what += f"; changed last: {', '.join(newest)}" if newest else ""
        return SpoutError(
            f"file spout: files before {position.file}, which is being read, have changed since they were read: "
            f"{what}; in the order of names, new files must sort after the files already read, and those must not "
            "change: give order='arrival' to read files as they come"
        )


def _difference(read: dict[str, int], now: dict[str, int]) -> str:
    changes = [f"{name} appeared" for name in sorted(now.keys() - read.keys())]
    changes += [f"{name} disappeared" for name in sorted(read.keys() - now.keys())]
    resized = sorted(name for name in read.keys() & now.keys() if read[name] != now[name])
    changes += [f"{name} had {read[name]} bytes when it was read and has {now[name]} now" for name in resized]
    return ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
