"""What the checks have in common: the error that names a broken rule, and ways to see that one is broken.

Several threads at once, for the rules about races.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from txstorm.errors import TxstormError


class CheckFailed(TxstormError, AssertionError):
    """What was checked broke a rule; the message names the rule, what was expected, and what came instead."""


def expect(rule: str, expected: Any, got: Any) -> None:
    """Raise `CheckFailed` unless `got` equals `expected`."""
    if got != expected:
        msg = f"{rule}: expected {expected!r}, got {got!r}"
        raise CheckFailed(msg)


def refused(rule: str, kind: type[Exception], call: Callable[[], object], pattern: str = "") -> None:
    """Raise `CheckFailed` unless `call` raises an error of `kind` whose message matches `pattern`."""
    try:
        call()
    except kind as error:
        if not re.search(pattern, str(error), re.DOTALL):
            msg = f"{rule}: expected a {kind.__name__} that says {pattern!r}, got {error}"
            raise CheckFailed(msg) from error
        return
    except Exception as error:
        msg = f"{rule}: expected a {kind.__name__}, got {type(error).__name__}: {error}"
        raise CheckFailed(msg) from error
    msg = f"{rule}: expected a {kind.__name__}, got no error at all"
    raise CheckFailed(msg)


@contextmanager
def checking(rule: str) -> Iterator[None]:
    """Whatever is raised inside is a `CheckFailed` that names `rule`."""
    try:
        yield
    except CheckFailed as error:
        msg = f"{rule}: {error}"
        raise CheckFailed(msg) from error.__cause__
    except Exception as error:
        msg = f"{rule}: expected no error, got {type(error).__name__}: {error}"
        raise CheckFailed(msg) from error


def at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Make all calls, each on a thread; raises the first error of one of them."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, on the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
