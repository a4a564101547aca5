"""Standby: a second run of a topology waits for the lease of the first run, and takes over when that run ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txstorm.books.books import Books
from txstorm.engine.port import Engine
from txstorm.errors import FencedError, HeldError, InputError, KilledError, TxstormError
from txstorm.lanes import THREADS, Lanes

log = logging.getLogger(__name__)
Tell = Callable[[str], None]
LOOK = 2.0
"""Interval, in seconds, at which a run on standby checks which run holds the lease."""
PAUSE = 0.1
"""Back-off, in seconds, after losing the race for a free lease, or if the ledger is unreachable."""


def teller(standby: bool | Tell) -> Tell | None:
    """Return the function called with standby messages: the given one, or one that logs; None if `standby` is False."""
    if not standby:
        return None
    return standby if callable(standby) else log.warning


@contextmanager
def closed_on_error(engine: Engine, *, started: bool) -> Iterator[None]:
    """Close the engine, if it may have been started before, when an error keeps a run from becoming the coordinator."""
    try:
        yield
    except BaseException:
        if started:
            engine.close()
        raise


def take_lease(
    books: Books,
    owner: str,
    tell: Tell | None,
    make_ready: Callable[[], None],
    lanes: Lanes = THREADS,
) -> bool:
    """Acquire the ledger's lease for `owner`; return whether this required waiting for another run.

    Args:
        books: the ledger's content; only read here.
        owner: the topology's id.
        tell: called with a message about the lease holder, and again whenever the holder changes; None: do not wait.
        make_ready: called once before waiting, to prepare everything that does not require the lease.
        lanes: let time pass.

    Raises:
        HeldError: another run holds the lease, and `tell` is None.
        KilledError: the other run was ended with ``txstorm kill``, which ends this one too.
        InputError: the ledger is unusable. If it is merely unavailable, the attempt is repeated.
    """
    try:
        books.ledger.acquire(owner)
    except HeldError:
        if tell is None:
            raise
    else:
        return False
    make_ready()
    _Watch(books, owner, tell, lanes).wait()
    return True


class _Watch:
    """A single wait for the lease, polling until it is acquired."""

    def __init__(self, books: Books, owner: str, tell: Tell, lanes: Lanes) -> None:
        self._books = books
        self._owner = owner
        self._tell = tell
        self._lanes = lanes
        self._holders: list[str] = []
        self._said = ""

    def wait(self) -> None:
        """Block until the lease is acquired."""
        while not self._taken():
            pass
        self._check_killed()
        last = self._holders[-1] if self._holders else "a run that has just ended"
        self._say(f"{self._owner}: taking over from {last}")

    def _taken(self) -> bool:
        ledger = self._books.ledger
        try:
            self._note(ledger.holder())
            if not ledger.wait_free(LOOK):
                return False
            ledger.acquire(self._owner)
        except HeldError:  # another run on standby acquired the lease first
            self._lanes.sleep(PAUSE)
        except (InputError, FencedError):
            raise
        except TxstormError as error:
            self._say(f"{self._owner}: standing by, but the ledger cannot be read; retrying: {error}")
            self._lanes.sleep(PAUSE)
        else:
            return True
        return False

    def _note(self, holder: str | None) -> None:
        if holder is not None:
            if holder not in self._holders:
                self._holders.append(holder)
            self._say(f"{self._owner}: standing by for {holder}")

    def _say(self, message: str) -> None:
        if message != self._said:
            self._said = message
            self._tell(message)

    def _check_killed(self) -> None:
        """Raise `KilledError` if the other run was killed, as a kill ends the topology and not just one process."""
        status = self._books.status() or {}
        if status.get("mode") != "killed":
            return
        if any(f"pid {status['pid']} on {status['host']}" in holder for holder in self._holders):
            raise KilledError(
                f"topology {self._owner!r} was killed by {status.get('killed_by')} while this run stood by for it; "
                "start it again to continue"
            )


def real_end(error: BaseException, books: Books) -> BaseException:
    """Return the root cause of `error`: `FencedError` if the run has lost its lease, else `error` itself.

    A run that was suspended while another run took over may encounter any error, such as a deleted file or a timeout.
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
