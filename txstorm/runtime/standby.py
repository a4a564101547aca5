"""Standing by: a second run of a topology waits for the lease of the first one, and takes over when that ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txstorm.books.books import Books
from txstorm.engine.port import Engine
from txstorm.errors import FencedError, HeldError, InputError, KilledError, TxstormError

log = logging.getLogger("txstorm.standby")
Tell = Callable[[str], None]
LOOK = 2.0
"""Seconds after which a run that stands by looks who has the lease now."""
PAUSE = 0.1
"""Seconds before the next try of one who lost the race for a free lease, or could not reach the ledger."""


def teller(standby: bool | Tell) -> Tell | None:
    """Who is told what is waited for: the function that is given, else the log; None where nothing is waited for."""
    if not standby:
        return None
    return standby if callable(standby) else log.warning


@contextmanager
def closed_on_error(engine: Engine, standby: bool | Tell) -> Iterator[None]:
    """Close the engine of a run that stands by when it is not to lead: it may have been started meanwhile."""
    try:
        yield
    except BaseException:
        if standby:
            engine.close()
        raise


def take_lease(
    books: Books,
    owner: str,
    tell: Tell | None,
    make_ready: Callable[[], None],
    sleep: Callable[[float], object] = time.sleep,
) -> bool:
    """Take the lease of the ledger for `owner`; returns whether it had to be waited for.

    Args:
        books: of the topology; nothing in them is written here.
        owner: the topology's id.
        tell: told in words who is waited for, whenever that changes; None: nobody is waited for.
        make_ready: called once before the waiting begins, for all that does not need the lease.
        sleep: seconds.

    Raises:
        HeldError: another run has it, and `tell` is None.
        KilledError: the run that was waited for was ended with ``txstorm kill``; so is this one.
        InputError: of the ledger. One that is away for a while is waited for.
    """
    try:
        books.ledger.acquire(owner)
    except HeldError:
        if tell is None:
            raise
    else:
        return False
    make_ready()
    _Watch(books, owner, tell, sleep).wait()
    return True


class _Watch:
    """One wait for the lease."""

    def __init__(self, books: Books, owner: str, tell: Tell, sleep: Callable[[float], object]) -> None:
        self._books = books
        self._owner = owner
        self._tell = tell
        self._sleep = sleep
        self._holders: list[str] = []
        self._said = ""

    def wait(self) -> None:
        """Return when the lease is ours."""
        while not self._taken():
            pass
        self._check_killed()
        self._say(f"{self._owner}: taking over from {self._last}")

    def _taken(self) -> bool:
        ledger = self._books.ledger
        try:
            self._note(ledger.holder())
            if not ledger.wait_free(LOOK):
                return False
            ledger.acquire(self._owner)
        except HeldError:  # another one that stood by was quicker
            self._sleep(PAUSE)
        except (InputError, FencedError):
            raise
        except TxstormError as error:
            self._say(f"{self._owner}: standing by, but the ledger cannot be asked; tried again: {error}")
            self._sleep(PAUSE)
        else:
            return True
        return False

    def _note(self, holder: str | None) -> None:
        if holder is not None:
            if holder not in self._holders:
                self._holders.append(holder)
            self._say(f"{self._owner}: standing by for {holder}")

    @property
    def _last(self) -> str:
        return self._holders[-1] if self._holders else "a run that has just ended"

    def _say(self, message: str) -> None:
        if message != self._said:
            self._said = message
            self._tell(message)

    def _check_killed(self) -> None:
        """Whoever kills a topology means it, not the one process that happens to lead."""
        told = self._books.status() or {}
        if told.get("mode") != "killed":
            return
        if any(f"pid {told['pid']} on {told['host']}" in holder for holder in self._holders):
            msg = (
                f"topology {self._owner!r} was killed by {told.get('killed_by')} while this run stood by for it; "
                "start it again to continue"
            )
            raise KilledError(msg)


def real_end(error: BaseException, books: Books) -> BaseException:
    """What ended a run with `error`: the loss of its lease, where that is behind it.

    A run that was frozen while another one took over wakes up to anything: files that were swept, jobs that timed out.
    """
    if isinstance(error, FencedError | KeyboardInterrupt):
        return error
    try:
        books.check_lease()
    except FencedError as fenced:
        fenced.__cause__ = error
        return fenced
    except TxstormError as failure:
        log.debug("the lease cannot be checked: %s", failure)
    return error
