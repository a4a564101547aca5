"""System transactions that are due, and the values that components pin when a transaction is planned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import replace
from typing import Any

from txstorm.api.context import Kind, PlanFacts
from txstorm.engine.program import Program
from txstorm.lanes import THREADS, Lanes
from txstorm.runtime.batches.admission import Admission
from txstorm.runtime.batches.planning import Planning
from txstorm.spouts.user_calls import storable

log = logging.getLogger(__name__)


class SystemTransactions:
    """Plans a heartbeat when a timer is due and nothing else happens, and the end of input. Driver thread only.

    Args:
        planning: plans the transactions.
        gate: admission of new transactions; closed once everything that the run is to read has been planned.
        interval: minimum number of seconds between two heartbeats.
        monotonic: a clock in seconds.
        timers: whether timers count in this run: committers have some, and the run does not end by itself.
        end: whether an end-of-input transaction follows the last data.
        follows: whether transactions follow one that leaves window ends waiting.

    Attributes:
        automatic: False: timers are ignored; a test plans system transactions itself, with `ask`.
        waiting: whether the last committed transaction has left window ends that its watermark has reached.
    """

    def __init__(
        self,
        planning: Planning,
        gate: Admission,
        interval: float,
        monotonic: Callable[[], float],
        *,
        timers: bool = False,
        end: bool = False,
        follows: bool = True,
    ) -> None:
        self._planning = planning
        self._follows = follows
        self.waiting = False
        self._gate = gate
        self._interval = interval
        self._monotonic = monotonic
        self._timers = timers
        self._end = end
        self._at: int | None = None
        self._not_before = 0.0
        self._asked: Kind | None = None
        self.automatic = True

    def open(self, currtx: int) -> None:
        """Begin a run at `currtx`; timers are not stored, so one heartbeat is due at once if any txid is committed."""
        self._at = 0 if currtx > 1 else None
        self.waiting = self._follows and bool(self._planning.waiting(currtx - 1))

    @property
    def asked(self) -> bool:
        """Whether the next transaction must be a system transaction."""
        return self._asked is not None

    def ask(self, kind: Kind | None) -> None:
        """Plan a system transaction of this kind when the next txid is planned; None: withdraw the request."""
        self._asked = kind

    def plan(self, txid: int, *, idle: bool, replay: bool) -> bool:
        """Plan `txid` as the system transaction that is due; return False if none is.

        Args:
            txid: the transaction, for which the source has no data.
            idle: whether no transaction is in flight.
            replay: whether `txid` was started before; if it was a system transaction, it is one again.
        """
        kind = self._due(txid, idle=idle, replay=replay)
        if kind is None:
            return False
        self._asked = None
        self._not_before = self._monotonic() + self._interval
        self._planning.plan_system(txid, kind)
        return True

    def _due(self, txid: int, *, idle: bool, replay: bool) -> Kind | None:
        if self._asked is not None:
            return self._asked
        if replay:
            kind = self._planning.kind(txid)
            return None if kind == "data" or not self.automatic else kind
        due = idle and self.waiting and self.automatic  # what a transaction leaves is not known before its commit
        if self._planning.kind(txid - 1) == "end":
            return "end" if due else None
        if self._end and self._gate.closed:
            return "end"
        return "heartbeat" if due or (idle and self.wait() == 0) else None

    def wait(self) -> float | None:
        """Return the seconds until a heartbeat may be due, 0 if one is; None if no timer is set."""
        if self._at is None or not self._timers or not self.automatic:
            return None
        until_timer = (self._at - self._planning.now()) / 1_000_000
        return max(0.0, until_timer, self._not_before - self._monotonic())

    def committed(self, timers: Iterable[int], *, waiting: bool = False) -> None:
        """Replace the timers by those of the last committed txid, in UTC microseconds.

        `waiting`: whether it has left window ends that its watermark has reached.
        """
        self._at = min(timers, default=None)
        self.waiting = self._follows and waiting


class Pins:
    """Values that components pin for each transaction: asked for at P1, stored with the metadata.

    A value that is not returned in time, or not at all, stays as it was; the first failure in a row is logged.

    Args:
        program: the topology; an object of each component that pins is created for the driver.
        names: the components that define ``pin``.
        timeout: seconds that a component has to answer.
        lanes: run the calls of `pin`.
    """

    def __init__(self, program: Program, names: Iterable[str], timeout: float, lanes: Lanes = THREADS) -> None:
        self._program = program
        self._objects = {name: program.components[name].fresh() for name in names}
        self._timeout = timeout
        self._lanes = lanes
        self._asked: dict[str, Future[Any]] = {}
        self._failed: set[str] = set()

    def __call__(self, txid: int, stamp: int, previous: Mapping[str, Any], epoch: int = 0) -> dict[str, Any]:
        """Return component → its value for `txid`, planned in `epoch`; `previous`: the values of the txid before."""
        facts = PlanFacts(epoch=epoch)
        return {name: self._value(name, txid, stamp, facts, previous.get(name)) for name in self._objects}

    def _value(self, name: str, txid: int, stamp: int, facts: PlanFacts, previous: Any) -> Any:
        context = replace(self._program.driver_context(name), stamp=stamp, facts=facts)
        hanging = self._asked.get(name)
        try:
            if hanging is not None and not hanging.done():
                raise LateError
            answer = self._asked[name] = self._lanes.call(
                lambda: self._objects[name].pin(context, previous), f"txstorm-pin-{name}"
            )
            value = storable(self._lanes.result(answer, self._timeout), f"component {name!r}, pin() for txid {txid}")
        except LateError:
            self._warn(name, f"pin() did not return within pin_timeout={self._timeout} s", previous)
            return previous
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code
            self._warn(name, f"pin() failed: {error!r}", previous)
            return previous
        self._failed.discard(name)
        return value

    def _warn(self, name: str, what: str, previous: Any) -> None:
        if name not in self._failed:
            self._failed.add(name)
            log.warning("component %s: %s; the previous value stays: %r", name, what, previous)
