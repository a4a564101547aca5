"""Run of a network by replicas: what spout, carrier and companion share, and how a transaction is carried."""

from __future__ import annotations

import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any
from weakref import WeakValueDictionary

from txstorm.dadstorm.conditions import Conditions, Replica, going
from txstorm.dadstorm.configuration import Command, Configuration
from txstorm.dadstorm.delivery import Deliver, Effect
from txstorm.dadstorm.master.carrier import NUMBERS, TOTAL, Carried, Trip
from txstorm.dadstorm.network import Network, Outcome
from txstorm.dadstorm.processes.fleet import (
    Answered,
    Dead,
    Event,
    Failed,
    Fleet,
    FleetSettings,
    Refused,
    Silent,
    Started,
)
from txstorm.errors import FailedException
from txstorm.lanes import THREADS, Lanes


@dataclass(frozen=True)
class NetworkOptions:
    """Options of a run by replicas.

    Attributes:
        ack_timeout: seconds without an answer after which a delivery is overdue, besides the operator's Interval.
        max_batch_rows: lines of a transaction, and held tuples of a replica in it, at most.
        fleet: options of the replica processes.
        log: file of the log; None: `LOG` in the data directory.
        step: whether each command of the script waits for `NetworkRun.step`.
        stay: whether the run goes on when the script is over and nothing moves.
        make_fleet: makes the fleet.
    """

    ack_timeout: float = 10.0
    max_batch_rows: int = 10_000
    fleet: FleetSettings = field(default_factory=FleetSettings)
    log: Path | None = None
    step: bool = False
    stay: bool = False
    make_fleet: Callable[..., Any] = Fleet


@dataclass
class Resent:
    """A delivery that was sent again: to a replica, how many tuples."""

    operator: str
    replica: int
    tuples: int


News = Event | Resent
_RUNS: WeakValueDictionary[str, NetworkRun] = WeakValueDictionary()


def _shared(token: str) -> NetworkRun | None:
    """Return the run of this process that was pickled; None in another process."""
    return _RUNS.get(token)


class NetworkRun:
    """Common state of spout, carrier and companion of one run; unpickled in its process, it is the same object.

    The companion opens it and changes the conditions, on the driver thread; `carry` and `carried` are called on the
    commit thread. Events of the fleet wait in one queue, which `carry` empties while it carries, `pump` otherwise.

    Attributes:
        conditions: the present conditions.
        traffic: the numbers of tuples as of the last committed transaction, by replica.
        pending: replica → tuples sent and not answered.
        misfits: operator → how many tuples lacked the field that it needs, in this run.
        news: what happened to replicas and deliveries, for the companion.
        killed: replicas that a command has killed, and whose end is not known yet.
        script_over: whether all commands of the script are carried out.
        is_open: whether there is a fleet.
        steps: how many commands of the script may be carried out, if each waits for that.
        committed_txid: the last committed transaction.
        log: the log, once the run is open.
        replicas: returns state and numbers of every replica.
    """

    def __init__(self, configuration: Configuration, options: NetworkOptions) -> None:
        self.configuration, self.options = configuration, options
        self.conditions = Conditions()
        self.traffic: dict[Replica, dict[str, int]] = {}
        self.pending: Counter[Replica] = Counter()
        self.misfits: Counter[str] = Counter()
        self.news: deque[News] = deque()
        self.killed: set[Replica] = set()
        self.script_over = False
        self.is_open = False
        self.steps = self.committed_txid = 0
        self.fleet: Any = None
        self.log: Path | None = options.log
        self.replicas: Callable[[], list[dict[str, Any]]] = list
        self._token = uuid.uuid4().hex
        self._held: dict[Replica, int] = {}
        self._done: dict[int, Carried] = {}
        self._carrying = threading.Lock()
        self._stopped = False
        self._sent: dict[int, Deliver] = {}
        self._trip: Trip | None = None
        self._killed: set[Replica] = set()
        _RUNS[self._token] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (self._token,)

    def open(self, conditions: Conditions, traffic: Mapping[Replica, dict[str, int]], lanes: Lanes = THREADS) -> None:
        """Start all replicas that are not dead."""
        self.conditions, self.traffic = conditions, dict(traffic)
        self._held = _held(self.traffic)
        self._lanes, self._mail = lanes, lanes.calls()
        options = self.options
        self._network = Network(self.configuration, conditions, options.ack_timeout, options.fleet.buffer)
        self.fleet = options.make_fleet(self.configuration, self._tell, options.fleet, lanes)
        self.fleet.open()
        for one in self.configuration.operators:
            for replica in conditions.live(one):
                self.fleet.start(one.id, replica, conditions.intervals.get(one.id, 0))
        self.is_open = True

    def close(self) -> None:
        """End all replicas; a transaction that is being carried fails."""
        self.stop()
        self.is_open = False
        if self.fleet is not None:
            self.fleet.close()

    def stop(self) -> None:
        """Let a transaction that is being carried fail: the run ends."""
        self._stopped = True
        if self.fleet is not None:
            self._mail.put(lambda: None)

    # -- planning: the driver thread ------------------------------------------------------------------------------

    @property
    def held(self) -> Mapping[Replica, int]:
        """Replica → the number of its held tuples as of the last transaction that was carried, where there are any."""
        return self._held

    def going(self) -> dict[Replica, int]:
        """Return how many held tuples of each replica go on in a transaction that is planned now."""
        return going(self.configuration, self.conditions, self._held)

    @property
    def is_free(self) -> bool:
        """Whether transactions may be planned while others are in flight: nothing is held, or would be."""
        conditions = self.conditions
        return not (self._held or conditions.intervals) and all(
            conditions.live(one) and all(conditions.holds(one, replica) is None for replica in range(one.replicas))
            for one in self.configuration.operators
        )

    def step(self) -> None:
        """Let the next command of the script be carried out; thread-safe."""
        self.steps += 1

    # -- carrying: the commit thread ------------------------------------------------------------------------------

    def carry(self, trip: Trip) -> Outcome:
        """Carry a transaction over the fleet; return its outcome.

        Raises:
            FailedException: the run ends.
        """
        with self._carrying:
            try:
                self._empty_mail()
                self._trip = trip
                self._do(self._network.begin(*trip[:5], now=self._now()))
                while (outcome := self._network.outcome) is None:
                    self._check()
                    due = self._network.due
                    try:
                        call = self._mail.get(timeout=None if due is None else max(0.0, due - self._now()))
                    except Empty:
                        self._do(self._network.tick(self._now()))
                    else:
                        call()
                return outcome
            except BaseException:
                self._do(self._network.abandon())
                raise
            finally:
                self._trip = None
                self._sent.clear()
                self.pending.clear()

    def carried(self, txid: int, done: Carried) -> None:
        """Take note of what a transaction did, which is not committed yet."""
        self._done[txid] = done
        self._held = _held(done.traffic)

    def committed(self, last: int) -> Iterable[tuple[int, Carried]]:
        """Yield what the transactions up to `last` did, which are committed."""
        for txid in sorted(txid for txid in self._done if txid <= last):
            done = self._done.pop(txid)
            self.traffic = done.traffic
            yield txid, done

    def _check(self) -> None:
        if self._stopped:
            raise FailedException("the run ends")

    def _take(self, event: Any) -> None:
        """Tell the machine of an event, and do what follows."""
        now, network, trip = self._now(), self._network, self._trip
        match event:
            case Answered(operator, replica, number, results, misfits):
                self.pending[operator, replica] -= len(results)
                self.misfits[operator] += misfits
                self._do(network.answered(operator, number, results, now))
            case Failed(operator, replica, number, id, text):
                self.pending[operator, replica] -= 1
                sent = self._sent.get(number)
                item = next((one for one in sent.items if one.id == id), None) if sent is not None else None
                if item is not None and trip is not None:
                    trip.left_out(operator, item, text)
                    self._do(network.answered(operator, number, [(id, ())], now))
            case Dead(operator, replica) if (operator, replica) in self._killed:
                self._killed.discard((operator, replica))  # it was counted when it was killed, and may be made anew
            case Started(operator, replica):
                self._killed.discard((operator, replica))
            case Command(name="Crash", operator=str(operator), number=int(replica)):
                self._killed.add((operator, replica))
                self._broken(operator, replica)
            case Dead(operator, replica) | Silent(operator, replica) | Refused(operator, replica):
                self._broken(operator, replica)
            case Command(name="Start", operator=str(operator)):
                for replica in range(self.configuration.operator(operator).replicas):
                    network.started(operator, replica)
            case Command(name="Freeze", operator=str(operator), number=int(replica)):
                self.pending.pop((operator, replica), None)
                self._do(network.frozen(operator, replica, now))
            case Command(name="Unfreeze", operator=str(operator), number=int(replica)):
                network.thawed(operator, replica)

    def _broken(self, operator: str, replica: int) -> None:
        self.pending.pop((operator, replica), None)
        self._do(self._network.dead(operator, replica, self._now()))

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                operator, replica, number, items = effect[:4]
                self._sent[number] = effect
                self.pending[operator, replica] += len(items)
                if effect.again:
                    self.news.append(Resent(operator, replica, len(items)))
                self.fleet.deliver(operator, replica, number, items)
            else:
                self.fleet.withdraw(*effect)

    def _empty_mail(self) -> None:
        while True:
            try:
                call = self._mail.get(block=False)
            except Empty:
                return
            call()

    def _now(self) -> float:
        return self._lanes.monotonic()

    def result(self) -> dict[str, Any]:
        """Return what was lost, repeated and held, and the numbers of each operator, since the directory is there."""
        traffic, operators = self.traffic, dict[str, dict[str, int]]()
        held: dict[str, dict[str, int]] = {}
        for one in self.configuration.operators:
            mine = {key: row for key, row in sorted(traffic.items()) if key[0] == one.id}
            operators[one.id] = {name: sum(row[name] for row in mine.values()) for name in NUMBERS[:3]}
            if waiting := {str(key[1]): row["held"] for key, row in mine.items() if row["held"]}:
                held[one.id] = waiting
        lost = sum(row["lost"] for row in traffic.values())
        repeated = traffic.get(TOTAL, {}).get("repeated", 0)
        log = None if self.log is None else str(self.log)
        return {"lost": lost, "repeated": repeated, "held": held, "operators": operators, "log": log}

    # -- events ---------------------------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Take an event of the fleet, on a lane of it."""
        self._mail.put(partial(self._take, event))
        if not isinstance(event, Answered | Failed):
            self.news.append(event)

    def tell(self, command: Command) -> None:
        """Let a command have its effect on the fleet, and on a transaction that is being carried."""
        operator, number = command.operator or "", command.number or 0
        match command.name:
            case "Start":
                for replica in range(self.configuration.operator(operator).replicas):
                    self.fleet.start(operator, replica, self.conditions.intervals.get(operator, 0))
            case "Interval":
                self.fleet.interval(operator, number)
            case "Crash":
                self.killed.add((operator, number))
                self.fleet.kill(operator, number)
        self._mail.put(partial(self._take, command))

    def pump(self) -> None:
        """Handle the events that wait, unless a transaction is being carried, which does so itself."""
        if self._carrying.acquire(blocking=False):
            try:
                self._empty_mail()
            finally:
                self._carrying.release()


def _held(traffic: Mapping[Replica, Mapping[str, int]]) -> dict[Replica, int]:
    return {key: row["held"] for key, row in traffic.items() if row["held"]}
