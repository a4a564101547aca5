"""A start that waits for the systems it writes to, where these are away: as patiently as a run does."""

from __future__ import annotations

import logging
from collections.abc import Callable

from txstorm.books.books import Books
from txstorm.errors import AwayError, BlockedError
from txstorm.runtime.commit.publisher import Concluder, pause_after

log = logging.getLogger("txstorm.open")


class Patience:
    """Calls a step of P0 again while the system that it needs does not answer.

    Tries and pauses are those of a decided group that cannot be published. The lease is looked at before each try.

    Args:
        books: of the topology, led.
        sleep: waits between tries; returns True when the run is to stop.
    """

    def __init__(self, books: Books, sleep: Callable[[float], bool]) -> None:
        self._books = books
        self._sleep = sleep

    def __call__(self, step: Callable[[], None]) -> None:
        """Call `step` until it does not raise that something is away; it may be called again after any failure.

        Raises:
            FencedError: another coordinator has taken over meanwhile.
            BlockedError: the system was away for all tries.
        """
        said = ""
        for attempt in range(Concluder.TRIES):
            self._books.check_lease()
            try:
                step()
            except (AwayError, BlockedError) as error:
                cause = error
            else:
                if said:
                    log.warning("what this start had to wait for answers again; it goes on")
                return
            if (why := str(cause)) != said:
                log.warning("cannot lead yet, tried again for a while: %s", why)
                said = why
            if self._sleep(pause_after(attempt)):
                break
        msg = f"{cause}. It answered in earlier runs, so it was waited for; start the topology again when it is back"
        raise BlockedError(msg) from cause
