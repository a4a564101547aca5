"""Several threads at once, for the rules about races."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


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
