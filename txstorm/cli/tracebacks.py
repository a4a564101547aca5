"""Tracebacks reduced to frames of user code, without those of txstorm and of Python's importer."""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Iterable
from pathlib import Path

from txstorm.user_code import is_txstorm, line_of

_IMPORTER = str(Path(importlib.__file__).parent)
_FRAME = re.compile(r'  File "(?P<file>.*)", line \d+')


def is_internal(filename: str) -> bool:
    """Return whether frames of this file are hidden from users: those of txstorm and of Python's importer."""
    return is_txstorm(filename) or filename.startswith((_IMPORTER, "<frozen "))


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of user code in the traceback of `error`, outermost first."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not is_internal(frame.filename)]


def place(error: BaseException) -> str:
    """Return ``file:line in function`` for the innermost frame of user code in `error`; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return line_of(error.__traceback__)


def trace(error: BaseException) -> str:
    """Return the traceback of `error`, with frames of user code only."""
    lines = ["Traceback (your frames):\n", *traceback.format_list(user_frames(error))]
    return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()


def without_internals(text: str) -> str:
    """Return the formatted traceback `text` without its internal frames."""
    return "\n".join(_kept(text.splitlines()))


def _kept(lines: Iterable[str]) -> Iterable[str]:
    hidden = False
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            hidden = is_internal(frame["file"])
        elif not line.startswith("    "):
            hidden = False
        if not hidden:
            yield line
