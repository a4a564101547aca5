"""Life-cycle control of a run: carries out requests that other processes write to the ledger, and writes the status.

Each command has a `CommandHandler`; a front end adds its own when it starts a run (`with_commands`).
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from txstorm.api.context import WorkProgress
from txstorm.books.requests import (
    ACCEPT_CLOCK,
    ACTIVATE,
    CANCEL,
    DEACTIVATE,
    KILL,
    REBALANCE,
    WANT,
    Answer,
    Request,
    answer_ops,
    no_request,
    read_request,
)
from txstorm.clocks import Clock
from txstorm.coordinator import events as ev
from txstorm.coordinator.machine import State
from txstorm.errors import FencedError, InputError, TxstormError
from txstorm.lanes import utc_time
from txstorm.ledger import paths as names
from txstorm.ledger.port import Op
from txstorm.monitor.progress import Monitor
from txstorm.operations.savepoints import checked_wait
from txstorm.runtime.companion import CommandHandler, Companion, Decision
from txstorm.runtime.session import Session
from txstorm.runtime.snapshots import Snapshots
from txstorm.topology.graph import Topology
from txstorm.topology.rebalance import rebalanced

log = logging.getLogger(__name__)
POLL = 0.2
TELL = 0.5
WORK = 5.0
"""Intervals in seconds: requests are looked for, the status is written, and in it how far work is that takes long."""


class Control:
    """Answers life-cycle requests and writes the status; the driver thread calls `poll` in every iteration of its loop.

    It checks the ledger for a request every `POLL` seconds, and writes the status at most every `TELL` seconds, and
    only if it has changed.

    Args:
        session: the opened topology.
        monitor: provides the numbers for the status.
        state: returns the coordinator's state.
        feed: passes an event to the coordinator.
        stop: ends the run; if called with True, only after the transactions in flight have been committed.
        commands: name → handler; see `with_commands`.

    Attributes:
        session, state, feed, stop: the arguments of the same names, for command handlers.
        killer: description of the process that ended the run with `kill`; None if the run was not killed.
        companion: adds to the status what the front end of the topology shows.
        snapshots: takes snapshots at clocks of the source.
    """

    def __init__(
        self,
        session: Session,
        monitor: Monitor,
        state: Callable[[], State],
        feed: Callable[[ev.Event], None],
        stop: Callable[[bool], None],
        commands: Mapping[str, CommandHandler[Any]],
    ) -> None:
        self.session, self.state, self.feed, self.stop = session, state, feed, stop
        self._books, self._monitor = session.books, monitor
        self._handlers = commands
        self._started_at = self._clock().isoformat()
        self._place = {"pid": os.getpid(), "host": socket.gethostname()}
        self._active = True
        self._next: Topology | None = None
        self._deadline: float | None = None
        self._look_at = self._tell_at = 0.0
        self._reported: Mapping[str, Any] = {}
        self._work: list[dict[str, Any]] = []
        self._work_at = 0.0
        self.killer: str | None = None
        self.companion = Companion()
        self.snapshots: Snapshots

    @property
    def mode(self) -> str:
        """Mode of the run: ``active``, ``inactive``, ``rebalancing`` or ``killing``."""
        if self.killer is not None:
            return "killing"
        if self._next is not None:
            return "rebalancing"
        return "active" if self._active else "inactive"

    def open(self) -> None:
        """Restore the mode of the last run, active or inactive. Call once, after the coordinator has been opened."""
        self._active = self._books.active()
        if not self._active:
            self.feed(ev.Deactivated())
            log.warning(
                "topology %s is inactive and starts no new transaction; txstorm activate %s",
                self.session.identity.topology,
                self.session.data_dir,
            )

    def poll(self) -> None:
        """Perform the actions that are due: rebalance, end a killed run, answer a request, update the status."""
        now = self.session.lanes.monotonic()
        if self._next is not None and self.state().drained:
            self._rebalance(self._next)
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self.stop(False)
        if now >= self._look_at:
            self._look_at = now + POLL
            self._look()
        if now >= self._tell_at:
            self._tell_at = now + TELL
            self.tell(self.mode)

    def _clock(self) -> datetime:
        return utc_time(self.session.lanes.now())

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
        if request.stale(self._clock()) and request.stale(utc_time(self.session.clock.now())):
            log.info("%s was abandoned by the process that made it, and is removed", request)
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
                log.warning("topology %s: %s", self.session.identity.topology, request)
                decision.act()
                self.tell(self.mode)

    def _answer(
        self, request: Request, taken: Op, decision: Decision | None = None, *, error: str | None = None
    ) -> bool:
        """Store answer and decision in one write; return False, without any effect, if the request was withdrawn."""
        now = self._clock()
        answer = Answer(now.isoformat(), decision.result if decision else {}, error)
        ops = [taken, *answer_ops(self._books.ledger, request.id, answer, now)]
        return self._books.put_if(ops, decision.values if decision else {})

    def _decide(self, request: Request) -> Decision:
        if self.killer is not None:
            raise InputError(f"topology {self.session.identity.topology!r} is being killed: {self.killer}")
        handler = self._handlers.get(request.command)
        if handler is None:
            raise InputError(
                f"command {request.command!r} is unknown to this run, which has {', '.join(sorted(self._handlers))}; "
                "use the same version of txstorm for both, and start the run with the front end that sends the command"
            )
        return handler.decide(self, handler.parse(request.arguments), request)

    def activation(self, active: bool) -> Decision:
        """Decide whether new transactions may start; the decision survives restarts."""

        def act() -> None:
            self._active = active
            if self._next is None:
                self.feed(ev.Activated() if active else ev.Deactivated())

        return Decision(self.result(active=active), act, {names.MODE: {"active": active}})

    def rebalancing(self, parallelism: Mapping[str, int]) -> Decision:
        """Decide to change the parallelism (component → number of tasks) from the next new transaction on."""
        topology = rebalanced(self._next or self.session.topology, parallelism)
        declared = {component.id: component.parallelism for component in self.session.coded.components}
        tasks = _parallelism(topology)
        chosen = {
            name: {"declared": number, "chosen": tasks[name]}
            for name, number in declared.items()
            if tasks[name] != number
        }

        def act() -> None:
            self._next = topology
            self.feed(ev.Deactivated())

        state = self.state()
        first = max(state.started, state.currtx + len(state.entries))
        result = {**self.result(), "parallelism": tasks, "from_txid": first}
        return Decision(result, act, {names.PARALLELISM: chosen})

    def _rebalance(self, topology: Topology) -> None:
        """Switch to the new numbers of tasks in `topology`. No transaction may be in flight."""
        self.session.rebalance(topology)
        self._next = None
        if self._active:
            self.feed(ev.Activated())
        tasks = ", ".join(f"{name}={number}" for name, number in _parallelism(topology).items())
        log.warning("topology %s is rebalanced: %s", topology.id, tasks)

    def killing(self, wait: float, request: Request) -> Decision:
        """Decide to end the run, and to cancel the transactions still in flight after `wait` seconds."""

        def act() -> None:
            self.killer = f"{request.asker} at {request.asked_at}"
            if wait > 0:
                self._deadline = self.session.lanes.monotonic() + wait
            self.stop(wait > 0)

        return Decision({**self.result(), "wait_seconds": wait}, act, {})

    def accepting_clock(self) -> Decision:
        """Decide to believe the machine's clock as it is now."""
        clock = self.session.clock
        return Decision({**self.result(), "clock": self._clock().isoformat(), "doubt": clock.problem}, clock.accept, {})

    def choosing(self, asked: tuple[Clock | None, str | None, float | None]) -> Decision:
        """Decide to take a snapshot: at a clock, or if it is None at that of the last planned transaction."""
        snapshots = self.snapshots
        chosen = snapshots.choose(*asked)
        result = {"number": chosen.number, "clock": dict(chosen.clock), "name": chosen.name}
        return Decision({**self.result(), **result}, lambda: snapshots.adopt(chosen), snapshots.values(chosen))

    def giving_up(self, request: Request) -> Decision:
        """Decide to give up the wanted clock, if there is one."""
        wanted = self.snapshots.wanted
        result = {**self.result(), "clock": None if wanted is None else dict(wanted)}
        return Decision(result, lambda: self.snapshots.cancel(f"{request.asker} has cancelled it"), {})

    def result(self, *, active: bool | None = None) -> dict[str, Any]:
        """Return the fields common to the answers to all commands: the topology and its progress."""
        now = self._monitor.snapshot()
        return {
            "topology": self.session.identity.topology,
            "running": True,
            "active": self._active if active is None else active,
            "committed_txid": now.committed,
            "in_flight": len(now.in_flight),
        }

    # -- the status ---------------------------------------------------------------------------------------------

    def tell(self, mode: str, error: BaseException | None = None) -> None:
        """Write the status of the run if it has changed; a failed ledger write does not end the run here."""
        status = self._status(mode, error)
        if status == self._reported:
            return
        try:
            self._books.write_status(
                {**status, "told_at": self._clock().isoformat(), "clock_at": self.session.clock.seen}
            )
            self._reported = status
        except FencedError:
            raise
        except TxstormError as failure:
            log.debug("the status cannot be written: %s", failure)

    def starting(self) -> None:
        """Write the status of a run that has become the coordinator and is about to start its engine."""
        with suppress(FencedError):  # the run's first write raises it again
            self.tell("starting")

    def ended(self, error: BaseException | None) -> None:
        """Write the final status; `error` is the error that ended the run, if any."""
        with suppress(FencedError):  # the status then belongs to the coordinator that has taken over
            self.tell("failed" if error is not None else "stopped" if self.killer is None else "killed", error)

    def _status(self, mode: str, error: BaseException | None) -> dict[str, Any]:
        session, now = self.session, self._monitor.snapshot()
        committed = now.committed or session.currtx - 1
        return {
            "version": 1,
            "mode": mode,
            "engine": session.engine.name,
            **self._place,
            "started_at": self._started_at,
            "committed_txid": committed,
            "in_flight": [list(active) for active in now.in_flight],
            "working": self._working(now.working),
            "txids": now.txids,
            "tuples": now.tuples,
            "replays": now.replays,
            "blocked": now.blocked,
            "wall_clock": session.clock.problem,
            "low_water_marks": session.low_water_marks(committed, now.in_flight),
            "last_failure": now.last_failure,
            "source": session.planning.planner.remarks(),
            "parallelism": _parallelism(session.topology),
            "logs": session.store.upkeep.log_spans() if session.settings.log_entries else {},
            "killed_by": self.killer,
            **({self.companion.name: dict(self.companion.status())} if self.companion.name else {}),
            "error": None if error is None else f"{type(error).__name__}: {error}"[:4000],
        }

    def _working(self, working: Sequence[WorkProgress]) -> list[dict[str, Any]]:
        """Return what is at work for longer than `WORK`, as it was at most that long ago: each change is a write."""
        now = self.session.lanes.monotonic()
        if not working or now >= self._work_at:
            self._work_at = now + WORK
            self._work = [one.to_json() for one in working if one.seconds >= WORK]
        return self._work


def _parallelism(topology: Topology) -> dict[str, int]:
    """Return the number of tasks of each component, keyed by component."""
    return {component.id: component.parallelism for component in topology.components}


def _parallelism_argument(arguments: Mapping[str, Any]) -> Mapping[str, int]:
    parallelism = arguments["parallelism"]
    if not isinstance(parallelism, Mapping):
        raise TypeError(f"parallelism: expected component → number of tasks, got {parallelism!r}")
    return parallelism


def _wait_argument(arguments: Mapping[str, Any]) -> float:
    wait = float(arguments["wait_seconds"])
    if not math.isfinite(wait):
        raise ValueError(f"wait_seconds: expected a number of seconds, got {wait}")
    return wait


def _choice_argument(arguments: Mapping[str, Any]) -> tuple[Clock | None, str | None, float | None]:
    clock, name, wait = (arguments.get(key) for key in ("clock", "name", "wait"))
    if not (name is None or isinstance(name, str)) or not (clock is None or isinstance(clock, Mapping)):
        raise TypeError(f"expected a clock and a name, got {clock!r} and {name!r}")
    return None if clock is None else Clock(clock), name, None if wait is None else checked_wait(wait)


CORE_COMMANDS: Mapping[str, CommandHandler[Any]] = {
    handler.name: handler
    for handler in (
        CommandHandler(ACTIVATE, lambda arguments: True, lambda control, active, request: control.activation(active)),
        CommandHandler(
            DEACTIVATE, lambda arguments: False, lambda control, active, request: control.activation(active)
        ),
        CommandHandler(REBALANCE, _parallelism_argument, lambda control, tasks, request: control.rebalancing(tasks)),
        CommandHandler(KILL, _wait_argument, Control.killing),
        CommandHandler(
            ACCEPT_CLOCK, lambda arguments: None, lambda control, nothing, request: control.accepting_clock()
        ),
        CommandHandler(WANT, _choice_argument, lambda control, asked, request: control.choosing(asked)),
        CommandHandler(CANCEL, lambda arguments: None, lambda control, nothing, request: control.giving_up(request)),
    )
}
"""The commands that every run has."""


def with_commands(
    added: Iterable[CommandHandler[Any]], known: Mapping[str, CommandHandler[Any]] = CORE_COMMANDS
) -> Mapping[str, CommandHandler[Any]]:
    """Return the handlers `known` and those of the commands added by a front end, keyed by name.

    Raises:
        ValueError: two commands have the same name.
    """
    found = dict(known)
    for handler in added:
        if handler.name in found:
            msg = f"command {handler.name!r}: two handlers have this name; begin it with the name of the front end"
            raise ValueError(msg)
        found[handler.name] = handler
    return found
