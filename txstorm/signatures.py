"""Signatures of what a user implements, compared with the calls that txstorm makes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def misfits(given: object, base: type) -> Iterator[str]:
    """What is wrong with the methods of `given` that `base` calls by position: one sentence each.

    Whatever takes the call passes: default values, ``*args``, decorators, partials, and what cannot be inspected.
    """
    for name, method in inspect.getmembers(base, inspect.isfunction):
        if name.startswith("_") or name in getattr(base, "storm_names", {}):
            continue
        found = _attribute(given, name)
        if found is not None and getattr(found, "__func__", None) is not method:
            why = _misfit(found, method)
            if why:
                yield f"{name} of {type(given).__name__}{_place(found)} {why}"


def _attribute(given: object, name: str) -> Any:
    try:
        return getattr(given, name, None)
    except Exception:  # noqa: BLE001 - a property of the user's; it raises again where it is used
        return None


def _misfit(found: Any, method: Any) -> str:
    names = list(inspect.signature(method).parameters)[1:]
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
    except (ValueError, TypeError):  # not made in Python
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
