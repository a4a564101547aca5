"""Read guard: keeps this process from deleting expired files of a data directory while it also reads the directory."""

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
    """Context manager: within it, this process deletes nothing from `data_dir`.

    Entering blocks while a deletion is in progress (a few milliseconds).
    """
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
    """Context manager that yields whether files of `data_dir` may be deleted now.

    New readers block until it exits, so keep it short.
    """
    with _free:
        yield not _reading[str(data_dir.absolute())]


def reads(function: Callable[Concatenate[Path, P], Answer]) -> Callable[Concatenate[str | Path, P], Answer]:
    """Decorator: hold the read guard on the data directory, the first argument of `function`, during the call.

    The directory may be given as text.

    An `OSError` is converted to a `DataDirectoryError`.
    """

    @wraps(function)
    def counted(data_dir: str | Path, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            with reading(Path(data_dir)):
                return function(Path(data_dir), *args, **kwargs)
        except OSError as error:
            raise DataDirectoryError(
                f"data directory {data_dir}: expected tables that this user can read, got {error}; check permissions "
                "and the disk, or restore the directory from a copy"
            ) from error

    return counted
