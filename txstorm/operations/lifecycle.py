"""Life-cycle commands, given from another process than the one that runs the topology."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from txstorm.books.books import Books
from txstorm.books.data_directory import topology_in
from txstorm.books.requests import (
    ACTIVATE,
    DEACTIVATE,
    KILL,
    PATIENCE,
    REBALANCE,
    STALE,
    Answer,
    Request,
    no_request,
    put_request,
    read_answer,
    read_request,
)
from txstorm.errors import BusyError, ConflictError, HeldError, InputError, NotRunningError
from txstorm.ledger import paths as names
from txstorm.ledger.lease import utc_now
from txstorm.ledger.open import open_ledger
from txstorm.ledger.port import Delete

LOOK = 0.05


@dataclass(frozen=True)
class Waiting:
    """How an asker waits.

    Attributes:
        patience: seconds until it has an answer or gives up, whatever the other side does.
    """

    patience: float = PATIENCE
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], datetime] = utc_now

    @property
    def busy(self) -> float:
        """Seconds for a commit of ours: the run may hang in the middle of one of its own."""
        return self.patience / 4

    def until(self) -> float:
        """When an answer that begins to be waited for now must be there, so that there is time to withdraw."""
        return self.monotonic() + self.patience - 2 * self.busy


def deactivate(data_dir: str | Path, waiting: Waiting = Waiting()) -> dict[str, Any]:
    """Let the topology start no new transaction; those in flight finish. Holds over restarts, until `activate`.

    Returns:
        ``topology``, ``active`` (False), ``running``, and of a live run ``committed_txid`` and ``in_flight``.

    Raises:
        InputError: there is no topology in `data_dir`.
        BusyError: another command is under way; it is named.
        HeldError: the run did not answer; its process is named.
    """
    return _activation(data_dir, DEACTIVATE, waiting)


def activate(data_dir: str | Path, waiting: Waiting = Waiting()) -> dict[str, Any]:
    """Let the topology start transactions again; the end of `deactivate`, which returns and raises the same."""
    return _activation(data_dir, ACTIVATE, waiting)


def rebalance(
    data_dir: str | Path,
    parallelism: Mapping[str, int],
    waiting: Waiting = Waiting(),
) -> dict[str, Any]:
    """Give components other numbers of tasks, from the next new transaction on; those in flight finish first.

    Holds over restarts, until the code itself gives such a component another number.

    Returns:
        ``topology``, ``parallelism`` (all components), ``from_txid``, ``committed_txid``, ``in_flight``, ``running``.

    Raises:
        InputError: there is no topology in `data_dir`, or a component is unknown, its number impossible or fixed.
        NotRunningError: nobody runs it.
        BusyError, HeldError: as `deactivate`.
    """
    return _asked(data_dir, REBALANCE, {"parallelism": dict(parallelism)}, waiting)


def kill(
    data_dir: str | Path,
    wait_seconds: float = 30.0,
    waiting: Waiting = Waiting(),
) -> dict[str, Any]:
    """End the run: it starts nothing new, commits what is in flight within `wait_seconds`, and stops; code 0.

    What is not committed by then is processed again when the topology is started again, which continues.

    Returns:
        ``topology``, ``committed_txid``, ``in_flight`` when it was told, ``wait_seconds``, and whether it has
        ``ended``: its end is waited for no longer than for an answer.

    Raises:
        InputError: there is no topology in `data_dir`.
        NotRunningError: nobody runs it.
        BusyError, HeldError: as `deactivate`.
    """
    until = waiting.monotonic() + waiting.patience
    with _opened(data_dir, waiting) as books:
        killed = books.ledger.holder()
        result = _asked(data_dir, KILL, {"wait_seconds": wait_seconds}, waiting)
        # Another holder is one that stood by; it looks how the one before it ended, and ends as well.
        while (held := books.ledger.holder()) == killed and held is not None and waiting.monotonic() < until:
            waiting.sleep(LOOK)
        return {**result, "committed_txid": books.currtx() - 1, "ended": held is None or held != killed}


def _activation(data_dir: str | Path, command: str, waiting: Waiting) -> dict[str, Any]:
    try:
        return _asked(data_dir, command, {}, waiting)
    except NotRunningError:
        pass
    active = command == ACTIVATE
    with _opened(data_dir, waiting) as books:
        books.ledger.acquire(f"txstorm {command}")  # a run that has begun meanwhile has not read the old value alone
        books.put_if([], {names.MODE: {"active": active}})
        identity = books.identity()
        return {
            "topology": identity.topology if identity else "",
            "running": False,
            "active": active,
            "committed_txid": books.currtx() - 1,
            "in_flight": 0,
        }


def _asked(data_dir: str | Path, command: str, arguments: Mapping[str, Any], waiting: Waiting) -> dict[str, Any]:
    with _opened(data_dir, waiting) as books:
        if books.ledger.holder() is None:
            raise _not_running(books, data_dir, command)
        asker = f"pid {os.getpid()} on {socket.gethostname()}"
        request = Request(uuid.uuid4().hex, command, arguments, asker, waiting.clock().isoformat())
        try:
            answer = _answered(books, request, waiting)
        except BusyError:
            raise
        except HeldError as error:
            raise _unanswered(books, request, waiting, error) from error
        if answer is None:
            live = books.ledger.holder() is not None
            raise _unanswered(books, request, waiting) if live else _not_running(books, data_dir, command)
        if answer.error is not None:
            raise InputError(f"{command}: {answer.error}")
        return dict(answer.result)


def _answered(books: Books, request: Request, waiting: Waiting) -> Answer | None:
    """Ask and wait; None when nobody answered, and the request is withdrawn."""
    until = waiting.until()
    version = _open_request(books, request, waiting)
    try:
        answer = _waited(books, request, waiting, until)
    finally:
        withdrawn = books.put_if([no_request(version)], {})
    if not withdrawn:  # then it was taken, and answered with that
        answer = read_answer(books.ledger, request.id)
    if answer is not None:
        books.put_if([Delete(names.answer_path(request.id))], {})
    return answer


def _open_request(books: Books, request: Request, waiting: Waiting) -> int:
    """Write the request; returns the version of its entry."""
    first, version = read_request(books.ledger)
    if first is None or first.stale(waiting.clock()):
        try:
            books.ledger.commit([put_request(request, version)])
        except ConflictError:
            first, _ = read_request(books.ledger)
        else:
            return version + 1
    raise BusyError(
        f"{request.command}: {first or 'another command'} is under way and not answered yet; commands are carried out "
        f"one at a time: give it again when that one has ended, at the latest after {PATIENCE:g} s"
    )


def _waited(books: Books, request: Request, waiting: Waiting, until: float) -> Answer | None:
    """The answer; None when nobody is there any more who could give it, or patience is over."""
    while True:
        live = books.ledger.holder() is not None
        answer = read_answer(books.ledger, request.id)
        if answer is not None or not live or waiting.monotonic() >= until:
            return answer
        waiting.sleep(LOOK)


def _not_running(books: Books, data_dir: str | Path, command: str) -> NotRunningError:
    identity = books.identity()
    status = books.status()
    how = f"; its last run, pid {status['pid']} on {status['host']}, has ended ({status['mode']})" if status else ""
    return NotRunningError(
        f"{command}: topology {identity.topology if identity else ''!r} in {data_dir} is not running{how}; "
        "start it first, or see what is running with: txstorm list"
    )


def _unanswered(books: Books, request: Request, waiting: Waiting, cause: HeldError | None = None) -> HeldError:
    status = books.status() or {}
    end = "this one is withdrawn"
    if cause is not None:
        end = f"it is in the middle of a commit, and carries this one out if it goes on within {STALE:g} s ({cause})"
    return HeldError(
        f"{request.command}: no answer within {waiting.patience:g} s; the lease is held by {books.ledger.holder()}, "
        f"whose last status is {status.get('mode', 'none')!r}, of {status.get('told_at', 'no time')}; it is starting, "
        f"stopping or hanging: look at that process, and give the command again; {end}"
    )


@contextmanager
def _opened(data_dir: str | Path, waiting: Waiting) -> Iterator[Books]:
    directory = topology_in(data_dir)
    ledger = open_ledger(directory, create=False, busy=waiting.busy)
    try:
        yield Books(ledger, directory / "intents")
    finally:
        ledger.close()
