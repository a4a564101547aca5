"""User code: its frames in tracebacks and on the stack, copies of values passed to or from it, its signatures.

Values that pass between user code and the framework are copied, so that neither side can change the other's objects.
"""

from __future__ import annotations

import inspect
import os
import site
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar
from weakref import WeakValueDictionary

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep
_PATHS = sysconfig.get_paths()
_STANDARD = tuple(
    {os.path.join(_PATHS[name], "") for name in ("stdlib", "platstdlib")} | {os.path.dirname(os.__file__) + os.sep}
)
_INSTALLED = tuple(
    os.path.join(path, "")
    for path in {_PATHS["purelib"], _PATHS["platlib"], *site.getsitepackages(), site.getusersitepackages()}
)
_BELOW = ("pyarrow", "numpy", "pandas", "pydantic", "deltalake", "pyspark", "cloudpickle", "typer", "click", "rich")
"""Packages that txstorm calls itself: their frames directly below one of txstorm are not the user's."""
Caught = Callable[[BaseException], None]
"""Function that is called with an exception of user code, while its stack frames still exist."""


def ignore(error: BaseException) -> None:
    """Do nothing with an exception of user code."""


class InDriver:
    """Holder of a user's object that stays in the driver: copies that are unpickled in the same process share it.

    Copies in workers are empty. Thus a function given by the user sees the variables of the user's program, and a
    connection or a password is not shipped.

    Attributes:
        value: the object; None in other processes.
    """

    _held: ClassVar[WeakValueDictionary[str, InDriver]] = WeakValueDictionary()

    def __init__(self, value: Any, token: str | None = None) -> None:
        self.value = value
        self._token = token or uuid.uuid4().hex
        if token is None:
            self._held[self._token] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_driver, (self._token,)


def _in_driver(token: str) -> InDriver:
    """Return the holder with this token; an empty one in another process."""
    return InDriver._held.get(token) or InDriver(None, token)  # noqa: SLF001


def described(given: object) -> str:
    """Return the type of an object given in place of one of txstorm; of frames and queries, also what to do instead."""
    kind, package = type(given).__name__, type(given).__module__.partition(".")[0]
    if package == "pyspark" and kind in _QUERIES:
        advice = "a topology is no query: read its source with a spout, such as FileSpout or TransactionalKafkaSpout"
    elif package == "pyspark" and kind == "DataFrame":
        advice = "write it to Parquet files and read them with FileSpout, or for a stream use a spout in its place"
    elif (package, kind) in _FRAMES:
        advice = "give its rows to a MemoryTransactionalSpout, or write a file for a FileSpout"
    else:
        return kind
    return f"{package}'s {kind} ({advice}; what is computed with frames belongs in bolts: {_PAGE})"


_PAGE = "see docs/from-structured-streaming.md"
_QUERIES = ("StreamingQuery", "DataStreamReader", "DataStreamWriter", "RDD")
_FRAMES = {
    *((package, kind) for package in ("pandas", "polars") for kind in ("DataFrame", "LazyFrame", "Series")),
    *(("pyarrow", kind) for kind in ("Table", "RecordBatch", "RecordBatchReader")),
}


def is_txstorm(filename: str) -> bool:
    """Return whether `filename` is a file of txstorm."""
    return filename.startswith(_PACKAGE)


@lru_cache(maxsize=1024)
def is_own(filename: str) -> bool:
    """Return whether `filename` belongs to the user, and not to txstorm, an installed package or Python."""
    return not (is_txstorm(filename) or _is_installed(filename) or _is_standard(filename))


def line_of(trace: TracebackType | None) -> str:
    """Return the innermost user frame as ``file:line in function``; empty if there is none.

    If the user's code is itself an installed package, the line of the frame that txstorm called is returned.
    """
    return "" if trace is None else _line((one.tb_frame, one.tb_lineno) for one in _links(trace))


def calling_line() -> str:
    """Return the line of user code that is currently calling txstorm; empty if there is none."""
    calls = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as `inspect` does, without reading source files
    while frame is not None:
        calls.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _line(reversed(calls))


def _line(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the location of the innermost user frame among `frames`, which are ordered outermost first."""
    own = called = ""
    before = True
    for frame, number in frames:
        filename = frame.f_code.co_filename
        if is_own(filename):
            own = f"{filename}:{number} in {frame.f_code.co_name}"
        elif before and _is_installed(filename) and not _is_below(filename):
            called = f"{filename}:{number} in {frame.f_code.co_name}"
        before = is_txstorm(filename)
    return own or called


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_installed(filename: str) -> bool:
    return filename.startswith(_INSTALLED) or "/site-packages/" in filename or "/dist-packages/" in filename


def _is_standard(filename: str) -> bool:
    # Compiled modules report their source file as a path within their package.
    return filename.startswith((*_STANDARD, "<frozen ", "<__array_function__")) or filename.endswith((".pyx", ".pxi"))


def _is_below(filename: str) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in filename for name in _BELOW)


_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def copied(value: Any) -> Any:
    """Copy `value`, with its dicts, lists and sets at any depth; other objects are shared."""
    kind = type(value)
    if kind is dict:
        return {key: inner if type(inner) in _PLAIN else copied(inner) for key, inner in value.items()}
    if kind is list:
        return [inner if type(inner) in _PLAIN else copied(inner) for inner in value]
    if kind is tuple:
        return tuple(map(copied, value))
    return set(value) if kind is set else value


def misfits(given: object, base: type) -> Iterator[str]:
    """Yield one sentence for each method of `given` that does not accept the positional arguments of the one in `base`.

    A method that can accept the call passes: default values, ``*args``, decorators and partials are allowed, and so
    are methods that cannot be inspected.
    """
    for name, method, names in _methods(base):
        found = _attribute(given, name)
        if found is not None and getattr(found, "__func__", None) is not method:
            why = _misfit(found, method, names)
            if why:
                yield f"{name} of {type(given).__name__}{_place(found)} {why}"


@cache
def _methods(base: type) -> list[tuple[str, Any, list[str]]]:
    """Return the methods that subclasses of `base` define, with the names of their arguments."""
    known = getattr(base, "storm_names", {})
    found = [one for one in inspect.getmembers(base, inspect.isfunction) if not one[0].startswith("_")]
    return [(name, made, list(inspect.signature(made).parameters)[1:]) for name, made in found if name not in known]


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Return whether `function` can be called with an argument named `name`."""
    try:
        arguments = inspect.signature(function).parameters
    except (ValueError, TypeError):  # not implemented in Python
        return False
    return name in arguments or any(one.kind is one.VAR_KEYWORD for one in arguments.values())


def _attribute(given: object, name: str) -> Any:
    try:
        return getattr(given, name, None)
    except Exception:  # noqa: BLE001 - a property of the user's; it raises again where it is used
        return None


def _misfit(found: Any, method: Any, names: Sequence[str]) -> str:
    right = f"def {method.__name__}({', '.join(['self', *names])})"
    if not callable(found):
        return f"is {found!r}, expected a method: {right}"
    if inspect.iscoroutinefunction(found):
        return f"is async, so that calling it does nothing; write {right}, without async"
    if inspect.isgeneratorfunction(found) and method.__name__ in (
        "execute",
        "execute_batch",
        "finish_batch",
        "prepare",
    ):
        return "contains yield, so that calling it does nothing; emit with collector.emit(…) instead"
    try:
        signature = inspect.signature(found, follow_wrapped=False)
    except (ValueError, TypeError):  # not implemented in Python
        return ""
    try:
        signature.bind(*names)
    except TypeError as error:
        called = f"it is called with {', '.join(names)}" if names else "it is called without arguments"
        return f"takes {signature}, but {called} ({error}); write {right}"
    return ""


def _place(found: Any) -> str:
    code = getattr(getattr(found, "__func__", found), "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
