"""Life-cycle commands (activate, deactivate, rebalance, kill), sent from outside the process that runs the topology."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txstorm.books.books import Books, opened_books
from txstorm.books.data_directory import topology_in
from txstorm.books.requests import (
    ACCEPT_CLOCK,
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
from txstorm.lanes import THREADS, Lanes, utc_time
from txstorm.ledger import paths as names
from txstorm.ledger.port import Delete

LOOK = 0.05


@dataclass(frozen=True)
class Waiting:
    """Time limit and clocks of a command that waits for the run's response.

    Attributes:
        patience: seconds after which the command gives up in any case.
        lanes: give the clocks, and let time pass.
    """

    patience: float = PATIENCE
    lanes: Lanes = THREADS

    @property
    def busy(self) -> float:
        """Seconds for which one ledger commit of this command may block, since the run may hang in a commit."""
        return self.patience / 4

    def until(self) -> float:
        """Return the deadline (monotonic seconds) for a response, which leaves time to withdraw the request."""
        return self.lanes.monotonic() + self.patience - 2 * self.busy


def deactivate(data_dir: str | Path, waiting: Waiting = Waiting()) -> dict[str, Any]:
    """Stop the topology from starting transactions; those in flight finish. Persists across restarts, until `activate`.

    Returns:
        ``topology``, ``active`` (False), ``running``, ``committed_txid`` and ``in_flight``.

    Raises:
        InputError: there is no topology in `data_dir`.
        BusyError: another command, which the message names, is in progress.
        HeldError: the run, whose process the message names, did not respond.
    """
    return _activation(data_dir, DEACTIVATE, waiting)


def activate(data_dir: str | Path, waiting: Waiting = Waiting()) -> dict[str, Any]:
    """Allow the topology to start transactions again after `deactivate`; results and errors are the same."""
    return _activation(data_dir, ACTIVATE, waiting)


def rebalance(
    data_dir: str | Path,
    parallelism: Mapping[str, int],
    waiting: Waiting = Waiting(),
) -> dict[str, Any]:
    """Change the number of tasks of components, starting with the next new transaction; those in flight finish first.

    Persists across restarts, until the parallelism of such a component is changed in the code.

    Returns:
        ``topology``, ``parallelism`` (all components), ``from_txid``, ``committed_txid``, ``in_flight``, ``running``.

    Raises:
        InputError: there is no topology in `data_dir`, a component is unknown, or its number of tasks is invalid or
            fixed.
        NotRunningError: the topology is not running.
        BusyError, HeldError: as for `deactivate`.
    """
    return ask(data_dir, REBALANCE, {"parallelism": dict(parallelism)}, waiting)


def accept_clock(data_dir: str | Path, waiting: Waiting = Waiting()) -> dict[str, Any]:
    """Have the run believe its machine's clock as it is now, after a jump or a long stop.

    Returns:
        ``topology``, ``clock`` (the time that the run goes on with), ``doubt`` (what was wrong with it; None: nothing),
        ``running``, ``active``, ``committed_txid`` and ``in_flight``.

    Raises:
        InputError: there is no topology in `data_dir`.
        NotRunningError: the topology is not running; a start has an option for it.
        BusyError, HeldError: as for `deactivate`.
    """
    return ask(data_dir, ACCEPT_CLOCK, {}, waiting)


def kill(
    data_dir: str | Path,
    wait_seconds: float = 30.0,
    waiting: Waiting = Waiting(),
) -> dict[str, Any]:
    """End the run: it starts no transactions, commits those in flight as far as it can, and exits with code 0.

    Transactions not committed within `wait_seconds` are replayed when the topology is started again.

    Returns:
        ``topology``, ``committed_txid``, ``in_flight`` (when the run received the command), ``wait_seconds``, and
        ``ended`` (whether the run has ended within `waiting.patience`).

    Raises:
        InputError: there is no topology in `data_dir`.
        NotRunningError: the topology is not running.
        BusyError, HeldError: as for `deactivate`.
    """
    until = waiting.lanes.monotonic() + waiting.patience
    with opened_books(topology_in(data_dir), busy=waiting.busy) as books:
        killed = books.ledger.holder()
        result = ask(data_dir, KILL, {"wait_seconds": wait_seconds}, waiting)
        # Another holder is a standby coordinator, which detects that the topology was killed, and ends as well.
        while (held := books.ledger.holder()) == killed and held is not None and waiting.lanes.monotonic() < until:
            waiting.lanes.sleep(LOOK)
        return {**result, "committed_txid": books.currtx() - 1, "ended": held is None or held != killed}


def _activation(data_dir: str | Path, command: str, waiting: Waiting) -> dict[str, Any]:
    try:
        return ask(data_dir, command, {}, waiting)
    except NotRunningError:
        pass
    active = command == ACTIVATE
    # The lease excludes a run that starts at this moment.
    with opened_books(topology_in(data_dir), lease=f"txstorm {command}", busy=waiting.busy) as books:
        books.put_if([], {names.MODE: {"active": active}})
        identity = books.identity()
        return {
            "topology": identity.topology if identity else "",
            "running": False,
            "active": active,
            "committed_txid": books.currtx() - 1,
            "in_flight": 0,
        }


def ask(
    data_dir: str | Path, command: str, arguments: Mapping[str, Any], waiting: Waiting = Waiting()
) -> dict[str, Any]:
    """Send a command to the run in `data_dir`, and wait for its response; also for commands defined by front ends.

    `command` is the name for which the run has registered a handler, which validates the `arguments`, JSON values.

    Returns:
        The handler's result.

    Raises:
        InputError: there is no topology in `data_dir`, or the run refuses the command and continues unchanged.
        NotRunningError: the topology is not running.
        BusyError, HeldError: as for `deactivate`.
    """
    with opened_books(topology_in(data_dir), busy=waiting.busy) as books:
        return ask_run(books, data_dir, command, arguments, waiting)


def ask_run(
    books: Books, data_dir: str | Path, command: str, arguments: Mapping[str, Any], waiting: Waiting
) -> dict[str, Any]:
    """Send a command to the run of an open ledger; see `ask`. `data_dir` is for messages."""
    if books.ledger.holder() is None:
        raise _not_running(books, data_dir, command)
    asker = f"pid {os.getpid()} on {socket.gethostname()}"
    request = Request(uuid.uuid4().hex, command, arguments, asker, utc_time(waiting.lanes.now()).isoformat())
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
    """Write the request and wait for its response; None if there was none, after withdrawing the request."""
    until = waiting.until()
    version = _open_request(books, request, waiting)
    try:
        while True:  # until the response is there, the run has ended, or the deadline has passed
            live = books.ledger.holder() is not None
            answer = read_answer(books.ledger, request.id)
            if answer is not None or not live or waiting.lanes.monotonic() >= until:
                break
            waiting.lanes.sleep(LOOK)
    finally:
        withdrawn = books.put_if([no_request(version)], {})
    if not withdrawn:  # the run has taken it, and has answered in the same commit
        answer = read_answer(books.ledger, request.id)
    if answer is not None:
        books.put_if([Delete(names.answer_path(request.id))], {})
    return answer


def _open_request(books: Books, request: Request, waiting: Waiting) -> int:
    """Write the request; return the version of its ledger entry."""
    first, version = read_request(books.ledger)
    if first is None or first.stale(utc_time(waiting.lanes.now())):
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
        end = (
            f"it is in the middle of a commit, and carries the command out if it continues within {STALE:g} s ({cause})"
        )
    return HeldError(
        f"{request.command}: no answer within {waiting.patience:g} s; the lease is held by {books.ledger.holder()}, "
        f"whose last status is {status.get('mode', 'none')!r}, of {status.get('told_at', 'no time')}; it is starting, "
        f"stopping or hanging: look at that process, and give the command again; {end}"
    )
