"""The files of a world: every change of one is a step of a process, and a power cut loses what was not synced.

Python reports changes of files to audit hooks before it makes them, so no code that changes files has to know of
worlds. A step may pass control to another lane, raise an error in place of the change, or refuse it because the process
is dead.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_current: Disk | None = None
_hooked = False


class _Change(NamedTuple):
    """Names that changed at once in directories not synced since; `before`: links to the files that they named."""

    names: list[str]
    before: list[str | None]


class Disk:
    """The directory of a world.

    Args:
        root: the directory; files outside of it do not count.
        step: called before every change of a file, and before every sync, with a description. It may raise.

    Attributes:
        is_safe: whether no power cut comes any more, so that nothing is kept for one.
    """

    def __init__(self, root: Path, step: Callable[[str], None]) -> None:
        self._root, self._step = str(root), step
        self._kept = Path(f"{root}-kept")
        self._kept.mkdir()
        self._changes: list[_Change] = []
        self._durable: set[int] = set()  # inodes of files whose content was synced since it was written last
        self._busy = False
        self._links = 0
        self.is_safe = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, changes of files are steps."""
        global _current, _hooked
        if not _hooked:
            sys.addaudithook(_audit)
            _hooked = True
        _current, sync = self, os.fsync
        os.fsync = self._sync  # type: ignore[assignment]
        try:
            yield
        finally:
            _current, os.fsync = None, sync
            shutil.rmtree(self._kept)

    def changes(self, event: str, args: tuple[Any, ...]) -> None:
        """Take note of a change that is about to be made."""
        if self._busy:
            return
        names = [os.fspath(one) for one in args[: _NAMES[event]] if not isinstance(one, int | None)]
        if not names or not str(names[-1]).startswith(self._root):
            return
        if event == "open" and not (args[2] or 0) & _WRITING:
            return
        changed = [str(name) for name in (names if event == "os.rename" else names[-1:])]
        self._step(f"{event} {changed[-1][len(self._root) :]}")
        if self.is_safe:
            return
        self._busy = True
        try:
            known = _inode(changed[0]) if event in _NEW else None
            if known is None:
                self._changes.append(_Change(changed, [self._linked(name) for name in changed]))
            elif event == "open" and not args[2] & os.O_EXCL:  # which fails if the file exists
                self._durable.discard(known)
        finally:
            self._busy = False

    def _linked(self, name: str) -> str | None:
        self._links += 1
        kept = str(self._kept / str(self._links))
        try:
            os.link(name, kept)
        except (FileNotFoundError, PermissionError):  # there is none, or it is a directory
            return None
        return kept

    def _sync(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if not path.startswith(self._root):
            return
        self._step(f"sync {path[len(self._root) :]}")
        if self.is_safe:
            return
        if os.path.isdir(path):
            self._changes = [one for one in self._changes if path not in map(os.path.dirname, one.names)]
        else:
            self._durable.add(os.fstat(handle).st_ino)

    def settle(self) -> None:
        """Make everything durable."""
        self._changes.clear()
        self._durable = {path.stat().st_ino for path in Path(self._root).rglob("*")}

    def cut(self, below: Callable[[int], int]) -> int:
        """Lose any subset of what was not synced; return how many names and contents are lost."""
        self._busy = True
        try:
            lost = [one for one in self._changes if below(2)]
            for one in reversed(lost):
                self._undo(one)
            torn = 0
            for path in Path(self._root).rglob("*"):
                if path.is_file() and path.stat().st_ino not in self._durable:
                    os.truncate(path, below(path.stat().st_size + 1))
                    torn += 1
            self.settle()
            return len(lost) + torn
        finally:
            self._busy = False

    def _undo(self, change: _Change) -> None:
        for name, before in zip(change.names, change.before, strict=True):
            path = Path(name)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            if before is not None and path.parent.is_dir():
                os.link(before, path)


def _inode(name: str) -> int | None:
    try:
        return os.lstat(name).st_ino
    except FileNotFoundError:
        return None


_NEW = ("open", "os.link", "os.mkdir")
_NAMES = {"open": 1, "os.rename": 2, "os.link": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.truncate": 1}
"""Audit events of changes → the number of their arguments that are paths."""


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _current is not None and event in _NAMES:
        _current.changes(event, args)
