"""Who reads a data directory in this process right now: what is no longer kept is removed when nobody does."""

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
    """While this lasts nothing of `data_dir` is removed by this process; waits for a removal under way, some ms."""
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
    """Whether something may be removed from `data_dir` now; while this lasts nobody begins to read. Be quick."""
    with _free:
        yield not _reading[str(data_dir.absolute())]


def reads(function: Callable[Concatenate[Path, P], Answer]) -> Callable[Concatenate[Path, P], Answer]:
    """Has `function`, whose first argument is a data directory, counted among its readers.

    What the disk refuses is a `DataDirectoryError`.
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
