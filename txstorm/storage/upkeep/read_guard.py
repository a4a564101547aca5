"""Read guard: while this process reads a data directory, it does not delete files there that are no longer kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from threading import Condition
from typing import Concatenate, ParamSpec, TypeVar

from txstorm.errors import DataDirectoryError

P = ParamSpec("P")
Answer = TypeVar("Answer")

_free = Condition()
_reading: Counter[str] = Counter()


@contextmanager
def reading(data_dir: Path) -> Iterator[None]:
    """Context in which this process deletes nothing from `data_dir`; blocks while a deletion runs (some ms)."""
    name = str(data_dir.absolute())
    with _free:
        _reading[name] += 1
    try:
        yield
    finally:
        with _free:
            _reading[name] -= 1


@contextmanager
def removing(data_dir: Path) -> Iterator[bool]:
    """Context that yields whether files of `data_dir` may be deleted now; new readers block until it ends. Be quick."""
    with _free:
        yield not _reading[str(data_dir.absolute())]


def reads(function: Callable[Concatenate[Path, P], Answer]) -> Callable[Concatenate[Path, P], Answer]:
    """Decorator: guard the data directory, first argument of `function`, with `reading` during the call.

    An `OSError` becomes a `DataDirectoryError`.
    """

    @wraps(function)
    def counted(data_dir: Path, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            with reading(data_dir):
                return function(data_dir, *args, **kwargs)
        except OSError as error:
            msg = (
                f"data directory {data_dir}: expected tables that this user can read, got {error}; check permissions "
                "and the disk, or restore the directory from a copy"
            )
            raise DataDirectoryError(msg) from error

    return counted
