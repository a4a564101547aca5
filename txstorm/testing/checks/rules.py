"""Helpers shared by all checks: the error for a broken rule, assertions, and concurrent calls for rules about races."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from txstorm.errors import TxstormError
from txstorm.lanes import start_thread


class CheckFailed(TxstormError, AssertionError):
    """A rule is broken; the message names the rule, the expected result and the actual one."""


def expect(rule: str, expected: Any, got: Any) -> None:
    """Raise `CheckFailed` unless `got` equals `expected`."""
    if got != expected:
        raise CheckFailed(f"{rule}: expected {expected!r}, got {got!r}")


def refused(rule: str, kind: type[Exception], call: Callable[[], object], pattern: str = "") -> None:
    """Raise `CheckFailed` unless `call` raises an error of `kind` whose message matches `pattern`."""
    try:
        call()
    except kind as error:
        if not re.search(pattern, str(error), re.DOTALL):
            raise CheckFailed(f"{rule}: expected a {kind.__name__} that says {pattern!r}, got {error}") from error
        return
    except Exception as error:
        raise CheckFailed(f"{rule}: expected a {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise CheckFailed(f"{rule}: expected a {kind.__name__}, got no error")


@contextmanager
def checking(rule: str) -> Iterator[None]:
    """Convert any exception raised in the block to a `CheckFailed` that names `rule`."""
    try:
        yield
    except CheckFailed as error:
        raise CheckFailed(f"{rule}: {error}") from error.__cause__
    except Exception as error:
        raise CheckFailed(f"{rule}: expected no error, got {type(error).__name__}: {error}") from error


def in_parallel(calls: Iterable[Callable[[], None]]) -> None:
    """Run all `calls` concurrently, each on its own thread; raise the first error, if any."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, on the caller's thread
            errors.append(error)

    threads = [start_thread(guarded, call, daemon=False) for call in calls]
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
