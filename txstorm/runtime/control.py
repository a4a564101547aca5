"""The life cycle of a run as its own process sees it: requests of others are carried out, and its status is told."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from txstorm.books.requests import (
    ACTIVATE,
    DEACTIVATE,
    KILL,
    REBALANCE,
    Answer,
    Request,
    answer_ops,
    no_request,
    read_request,
)
from txstorm.coordinator import events as ev
from txstorm.coordinator.machine import State
from txstorm.errors import FencedError, InputError, TxstormError
from txstorm.ledger import paths as names
from txstorm.ledger.lease import utc_now
from txstorm.ledger.port import Op
from txstorm.monitor.progress import Monitor
from txstorm.runtime.session import Session
from txstorm.topology.graph import Topology
from txstorm.topology.rebalance import rebalanced

log = logging.getLogger("txstorm.control")
POLL = 0.2
TELL = 0.5


class Stop(Protocol):
    """Ends the run; see `Driver.stop`."""

    def __call__(self, *, drain: bool = False) -> None:
        """Ask the loop to end."""


@dataclass(frozen=True)
class Decision:
    """What follows from a request.

    Attributes:
        result: what the asker is told.
        values: ledger path → value, stored in one write with the answer.
        act: what is done then.
    """

    result: Mapping[str, Any]
    act: Callable[[], None]
    values: Mapping[str, Any]


class Control:
    """Used on the driver thread, which calls `poll` in every round of its loop.

    Looking for a request is one read of the ledger every `POLL` seconds; the status is written at most every `TELL`
    seconds, and only where it has changed.

    Args:
        state: the coordinator's.
        feed: gives it an event.
        stop: ends the run.
        clock: the wall clock.

    Attributes:
        killer: who ended the run with `kill`, in words; None while nobody did.
    """

    def __init__(
        self,
        session: Session,
        monitor: Monitor,
        state: Callable[[], State],
        feed: Callable[[ev.Event], None],
        stop: Stop,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._session = session
        self._books = session.books
        self._monitor = monitor
        self._state = state
        self._feed = feed
        self._stop = stop
        self._clock = clock
        self._started_at = clock().isoformat()
        self._active = True
        self._next: Topology | None = None
        self._deadline: float | None = None
        self._look_at = self._tell_at = 0.0
        self._told: Mapping[str, Any] = {}
        self.killer: str | None = None

    @property
    def mode(self) -> str:
        """``active``, ``inactive``, ``rebalancing`` or ``killing``."""
        if self.killer is not None:
            return "killing"
        if self._next is not None:
            return "rebalancing"
        return "active" if self._active else "inactive"

    def open(self) -> None:
        """Begin as the last run was left: called once, after the coordinator was opened."""
        self._active = self._books.active()
        if not self._active:
            self._feed(ev.Deactivated())
            log.warning(
                "topology %s is inactive and starts no new transaction; txstorm activate %s",
                self._session.identity.topology,
                self._session.data_dir,
            )

    def poll(self) -> None:
        """Do what is due."""
        now = self._session.monotonic()
        if self._next is not None and self._state().drained:
            self._rebalance(self._next)
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._stop()
        if now >= self._look_at:
            self._look_at = now + POLL
            self._look()
        if now >= self._tell_at:
            self._tell_at = now + TELL
            self.tell(self.mode)

    # -- requests -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            request, version = read_request(self._books.ledger)
        except InputError as error:
            log.warning("a request that cannot be read is removed: %s", error)
            self._books.put_if([no_request(None)], {})
            return
        if request is None:
            return
        if request.stale(self._clock()):
            log.info("%s was left by its asker and is removed", request)
            self._books.put_if([no_request(version)], {})
            return
        self._carry_out(request, no_request(version))

    def _carry_out(self, request: Request, taken: Op) -> None:
        try:
            decision = self._decide(request)
        except InputError as error:
            self._answer(request, taken, error=str(error))
        except (KeyError, TypeError, ValueError) as error:
            self._answer(request, taken, error=f"arguments {request.arguments!r} are not understood here: {error!r}")
        else:
            if self._answer(request, taken, decision):
                log.warning("topology %s: %s", self._session.identity.topology, request)
                decision.act()
                self.tell(self.mode)

    def _answer(
        self, request: Request, taken: Op, decision: Decision | None = None, *, error: str | None = None
    ) -> bool:
        """Answer in one write with what was decided; False when the asker has withdrawn: then nothing happens."""
        now = self._clock()
        answer = Answer(now.isoformat(), decision.result if decision else {}, error)
        ops = [taken, *answer_ops(self._books.ledger, request.id, answer, now)]
        return self._books.put_if(ops, decision.values if decision else {})

    def _decide(self, request: Request) -> Decision:
        if self.killer is not None:
            msg = f"topology {self._session.identity.topology!r} is being killed: {self.killer}"
            raise InputError(msg)
        match request.command:
            case command if command == ACTIVATE:
                return self._activation(True)
            case command if command == DEACTIVATE:
                return self._activation(False)
            case command if command == REBALANCE:
                return self._rebalancing(request.arguments)
            case command if command == KILL:
                return self._killing(request)
        msg = f"command {request.command!r} is unknown to the txstorm of this run; use the same version for both"
        raise InputError(msg)

    def _activation(self, active: bool) -> Decision:
        def act() -> None:
            self._active = active
            if self._next is None:
                self._feed(ev.Activated() if active else ev.Deactivated())

        return Decision(self._result(active=active), act, {names.MODE: {"active": active}})

    def _rebalancing(self, arguments: Mapping[str, Any]) -> Decision:
        wanted = rebalanced(self._next or self._session.topology, arguments["parallelism"])
        declared = {one.id: one.parallelism for one in self._session.coded.components}
        tasks = {one.id: one.parallelism for one in wanted.components}
        chosen = {
            name: {"declared": number, "chosen": tasks[name]}
            for name, number in declared.items()
            if tasks[name] != number
        }

        def act() -> None:
            self._next = wanted
            self._feed(ev.Deactivated())

        state = self._state()
        first = max(state.started, state.currtx + len(state.entries))
        result = {**self._result(), "parallelism": tasks, "from_txid": first}
        return Decision(result, act, {names.PARALLELISM: chosen})

    def _rebalance(self, topology: Topology) -> None:
        """Nothing is in flight: from here on every task has its new number of siblings."""
        self._session.rebalance(topology)
        self._next = None
        if self._active:
            self._feed(ev.Activated())
        tasks = ", ".join(f"{one.id}={one.parallelism}" for one in topology.components)
        log.warning("topology %s is rebalanced: %s", topology.id, tasks)

    def _killing(self, request: Request) -> Decision:
        wait = float(request.arguments["wait_seconds"])

        def act() -> None:
            self.killer = f"{request.asker} at {request.asked_at}"
            if wait > 0:
                self._deadline = self._session.monotonic() + wait
            self._stop(drain=wait > 0)

        return Decision({**self._result(), "wait_seconds": wait}, act, {})

    def _result(self, *, active: bool | None = None) -> dict[str, Any]:
        now = self._monitor.snapshot()
        return {
            "topology": self._session.identity.topology,
            "running": True,
            "active": self._active if active is None else active,
            "committed_txid": now.committed,
            "in_flight": len(now.in_flight),
        }

    # -- the status ---------------------------------------------------------------------------------------------

    def tell(self, mode: str, error: BaseException | None = None) -> None:
        """Write how the run is, if that has changed. A ledger that cannot be written now does not end the run here."""
        status = self._status(mode, error)
        if status == self._told:
            return
        try:
            self._books.write_status({**status, "told_at": self._clock().isoformat()})
            self._told = status
        except FencedError:
            raise
        except TxstormError as failure:
            log.debug("the status cannot be written: %s", failure)

    def starting(self) -> None:
        """The run leads, and its engine is about to start."""
        with suppress(FencedError):  # the run's own first write says so
            self.tell("starting")

    def ended(self, error: BaseException | None) -> None:
        """The run is over: say how. The ledger can still be written, unless it is what ended the run."""
        with suppress(FencedError):  # then the status is that of the coordinator that has taken over
            self.tell("failed" if error is not None else "stopped" if self.killer is None else "killed", error)

    def _status(self, mode: str, error: BaseException | None) -> dict[str, Any]:
        session, now = self._session, self._monitor.snapshot()
        return {
            "version": 1,
            "mode": mode,
            "engine": session.engine.name,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": self._started_at,
            "committed_txid": now.committed or session.currtx - 1,
            "in_flight": [list(one) for one in now.in_flight],
            "txids": now.txids,
            "tuples": now.tuples,
            "replays": now.replays,
            "blocked": now.blocked,
            "last_failure": now.last_failure,
            "parallelism": {one.id: one.parallelism for one in session.topology.components},
            "killed_by": self.killer,
            "error": None if error is None else f"{type(error).__name__}: {error}"[:4000],
        }
