"""Fleet: the replica processes of a run, on this machine or behind process creation services, and what they report.

It is one module, as the states of a replica and what each message does to them belong together.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from txstorm.dadstorm.delivery import Items
from txstorm.dadstorm.processes.channel import Channel, WrongKeyError, packed, reason
from txstorm.dadstorm.processes.replica import DROPPED, PASSED, address
from txstorm.dadstorm.processes.services import RemoteService, Service, Spawner, read_key
from txstorm.dadstorm.rep_info import SERVICE_PORT, RepInfo, plan
from txstorm.errors import AwayError, InputError
from txstorm.lanes import THREADS, Lane, Lanes

if TYPE_CHECKING:
    from txstorm.dadstorm.configuration import Configuration

Fields = tuple[str, ...]


@dataclass(frozen=True)
class FleetSettings:
    """Settings of a fleet.

    Attributes:
        ping: seconds without an answer to a ping after which a replica is given up.
        buffer: deliveries that a replica holds at most; further ones wait in the fleet.
        allow: modules that CUSTOM operators may name, besides those beside the configuration.
        local: whether all replicas run on this machine, and their addresses are names only.
        key: file with the key of the process creation services; None: `services.KEY_FILE`.
    """

    ping: float = 12.0
    buffer: int = 10
    allow: tuple[str, ...] = ()
    local: bool = False
    key: Path | None = None


class Started(NamedTuple):
    """A replica has loaded its code, and takes deliveries."""

    operator: str
    replica: int
    pid: int


class Refused(NamedTuple):
    """A replica could not be started; the text names operator and address. No `Dead` follows."""

    operator: str
    replica: int
    text: str


class Answered(NamedTuple):
    """A piece of a delivery: (id, emitted tuples) of some of its tuples, in their order."""

    operator: str
    replica: int
    number: int
    results: list[tuple[str, Sequence[Fields]]]
    misfits: int
    """How many of them lacked the field of FILTER or UNIQ."""


class Failed(NamedTuple):
    """The operator's code raised for the tuple `id`; the replica goes on with the next tuple."""

    operator: str
    replica: int
    number: int
    id: str
    text: str


class Dead(NamedTuple):
    """A replica has ended, killed or not; `code` is that of its process, negative a signal, None: not known."""

    operator: str
    replica: int
    code: int | None


class Silent(NamedTuple):
    """A replica has not answered a ping in time and is given up: nothing of it counts any more."""

    operator: str
    replica: int


class Woke(NamedTuple):
    """A replica that was given up has ended; `code` is 3 if it woke up by itself."""

    operator: str
    replica: int
    code: int | None


Event = Started | Refused | Answered | Failed | Dead | Silent | Woke
State = Literal["absent", "starting", "live", "silent", "dead"]
"""``silent``: does not answer, but is not given up yet; given up is ``dead``."""


_TICKS = 4
"""Pings in the time after which a replica that has not answered the first of them is given up."""
_PATIENCE = 5
"""Times of `FleetSettings.ping` that a replica has to connect."""
_GRACE = 1.0
"""Seconds for replicas to end by themselves, and for the exit code of one whose connection has ended."""


@dataclass(eq=False)
class _Link:
    """One start of one replica."""

    info: RepInfo
    number: int
    interval: int
    lane: Lane
    gone: Any
    """Flag: the process has ended, with `code`."""
    state: Literal["starting", "live", "given up", "dead"] = "starting"
    service: Service | None = None
    channel: Channel | None = None
    pid: int | None = None
    code: int | None = None
    missed: int = 0
    """Pings since the last message of the replica."""
    sent: dict[int, list[Any]] = field(default_factory=dict)
    """Number of a delivery at the replica → its tuples, and how many are not answered."""
    waiting: deque[tuple[int, Items]] = field(default_factory=deque)

    def ends(self, state: Literal["given up", "dead"]) -> None:
        self.state = state
        self.sent.clear()
        self.waiting.clear()
        self.lane.leave()


class Fleet:
    """Replica processes of one run. Thread-safe; its calls return at once, except `open` and `close`.

    Of one replica, events come in order: nothing before `Started`, except `Refused` and `Dead`; nothing but `Woke`
    after `Silent`; nothing after `Dead` and `Refused` until it is started again.

    Args:
        configuration: the network.
        tell: called with each event, on any lane, which holds the fleet's lock: it must not wait or raise.
        settings: see `FleetSettings`.
        lanes: what the fleet's threads are.
    """

    def __init__(
        self,
        configuration: Configuration,
        tell: Callable[[Event], None],
        settings: FleetSettings | None = None,
        lanes: Lanes = THREADS,
    ) -> None:
        self._settings, self._lanes = settings or FleetSettings(), lanes
        self._told = tell
        self._infos = {(one.operator_id, one.replica): one for one in plan(configuration)["replicas"]}
        self._lock = lanes.lock()
        self._links: dict[tuple[str, int], _Link] = {}
        self._starts: dict[int, _Link] = {}
        """Every start whose process may live."""
        self._number = 0
        self._key = os.urandom(32)
        self._here = Spawner(self._ended, lanes)
        self._services: dict[str, RemoteService] = {}
        self._door: socket.socket | None = None
        """Where replicas connect; None: the fleet is not open, or has been closed."""
        self._port = 0
        self._closed = lanes.event()

    # -- opening and closing -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect to the process creation services that addresses name; starts no replica.

        Raises:
            InputError: an address, with its operator, is of no machine, or of another program; or the key is wrong.
            AwayError: no service answers where an address needs one.
        """
        try:
            for info in self._infos.values():
                if self._service(info) is self._here and not self._settings.local:
                    _check(info)
        except InputError:
            self.close()
            raise
        host = "0.0.0.0" if self._services else "127.0.0.1"  # noqa: S104 - replicas elsewhere connect to it
        self._door = door = socket.create_server((host, 0), backlog=128)
        self._port = door.getsockname()[1]
        atexit.register(self.close)  # a program may end without it, and would wait for frozen replicas
        self._lanes.start(partial(self._admit, door), "dadstorm-door")
        self._lanes.start(self._ping, "dadstorm-ping")

    def close(self) -> None:
        """End all replicas, also those given up; when it returns none is left. No event follows; repeatable."""
        with self._lock:
            self._closed.set()
            door, self._door = self._door, None
            links = [link for link in self._starts.values() if link.state == "live"]
            for link in links:
                self._send(link, "end")
        until = self._lanes.monotonic() + _GRACE
        for link in links:
            link.gone.wait(max(0.0, until - self._lanes.monotonic()))
        for service in (self._here, *self._services.values()):
            service.close()
        with self._lock:
            for link in self._links.values():
                link.ends("dead")
        if door is not None:
            try:
                socket.create_connection(("127.0.0.1", self._port), _GRACE).close()  # wakes the lane at the door
            except OSError:
                pass
        atexit.unregister(self.close)

    def _service(self, info: RepInfo) -> Service:
        """Return the service that makes a replica, connected; raises as `open` does."""
        host = None if self._settings.local else _host(info)
        if host is None:
            return self._here
        with self._lock:
            service = self._services.get(host)
        if service is not None and not service.lost:
            return service
        place = f"{_named(info)}: process creation service {host}:{SERVICE_PORT}"
        try:
            service = RemoteService((host, SERVICE_PORT), read_key(self._settings.key), self._ended, self._lanes)
        except WrongKeyError:
            msg = f"{place} has another key than this run; --key names the file that it has printed"
            raise InputError(msg) from None
        except (OSError, EOFError) as error:
            advice = "run `txstorm dadstorm pcs` there, or start this with --local"
            raise AwayError(f"{place} does not answer ({reason(error)}); {advice}") from None
        with self._lock:
            self._services[host] = service
        return service

    # -- replicas ------------------------------------------------------------------------------------------------------

    def start(self, operator: str, replica: int, interval: int = 0) -> None:
        """Start a replica, which sleeps `interval` milliseconds after each tuple; one that is starting or live stays.

        One that was given up is killed first. `Started`, `Refused` or `Dead` follows.
        """
        with self._lock:
            before = self._links.get((operator, replica))
            if self._closed.is_set() or (before is not None and before.state in ("starting", "live")):
                return
            self._number += 1
            info = self._infos[operator, replica]
            lane = self._lanes.lane(f"dadstorm-send-{operator}-{replica}")
            link = _Link(info, self._number, interval, lane, self._lanes.event())
            self._links[operator, replica] = self._starts[link.number] = link
        self._lanes.start(partial(self._begin, link, before), f"dadstorm-{operator}-{replica}")

    def _begin(self, link: _Link, before: _Link | None) -> None:
        if before is not None and before.service is not None:
            before.service.kill(before.number)
            before.gone.wait(_GRACE)  # its address is free then
        try:
            service = self._service(link.info)
        except InputError as error:
            self._ended(link.number, None, str(error))
            return
        told = {
            "info": link.info.to_json(),
            "allow": list(self._settings.allow),
            "host": "127.0.0.1",
            "port": self._port,
            "key": self._key.hex(),
            "number": link.number,
            "interval": link.interval,
            "ping": self._settings.ping,
            "bind": not self._settings.local,
        }
        with self._lock:
            if link.state == "starting" and not self._closed.is_set():
                link.service = service
                service.start(link.number, told)
            else:
                del self._starts[link.number]

    def kill(self, operator: str, replica: int) -> None:
        """Kill a replica by SIGKILL, and tell that it is dead; without effect on one that is not there."""
        with self._lock:
            link = self._links.get((operator, replica))
            if link is None or link.state not in ("starting", "live"):
                return
            if link.service is not None:
                link.service.kill(link.number)
            link.ends("dead")
            self._tell(Dead(operator, replica, -signal.SIGKILL))

    def interval(self, operator: str, milliseconds: int) -> None:
        """Let the replicas of `operator` that are there sleep so long after each tuple."""
        with self._lock:
            for link in self._links.values():
                if link.info.operator_id == operator:
                    link.interval = milliseconds
                    self._send(link, "interval", milliseconds)

    def deliver(self, operator: str, replica: int, number: int, items: Items | Sequence[tuple[str, Fields]]) -> None:
        """Send tuples to a replica, as delivery `number`, which no other one has; answers come as `Answered`.

        To a replica that is not live nothing is sent, as `Dead` or `Silent` has told.
        """
        with self._lock:
            link = self._links.get((operator, replica))
            if link is not None and link.state in ("starting", "live"):
                link.waiting.append((number, Items.of(items)))
                self._pump(link)

    def withdraw(self, operator: str, replica: int, number: int) -> None:
        """Withdraw a delivery: no event of it follows, and the replica skips what is left of it."""
        with self._lock:
            link = self._links.get((operator, replica))
            if link is None:
                return
            link.waiting = deque(one for one in link.waiting if one[0] != number)
            if link.sent.pop(number, None) is not None:
                self._send(link, "withdraw", number)
                self._pump(link)

    def state(self, operator: str, replica: int) -> State:
        """Return the state of a replica."""
        with self._lock:
            link = self._links.get((operator, replica))
            if link is None:
                return "absent"
            if link.state == "given up":
                return "dead"
            return "silent" if link.state == "live" and link.missed > 1 else link.state

    def pid(self, operator: str, replica: int) -> int | None:
        """Return the process id of a replica that is starting or live; None: there is none."""
        with self._lock:
            link = self._links.get((operator, replica))
            return link.pid if link is not None and link.state in ("starting", "live") else None

    def _pump(self, link: _Link) -> None:
        """Send deliveries as long as the replica's buffer has room."""
        while link.state == "live" and link.waiting and len(link.sent) < self._settings.buffer:
            number, items = link.waiting.popleft()
            link.sent[number] = [items, len(items)]
            self._send(link, "deliver", number, *packed(items.fields))

    def _send(self, link: _Link, *message: Any) -> None:
        if link.channel is not None:
            link.lane.queue(partial(_send, link.channel, message))

    def _tell(self, event: Event) -> None:
        if not self._closed.is_set():
            self._told(event)

    # -- what replicas say ---------------------------------------------------------------------------------------------

    def _admit(self, door: socket.socket) -> None:
        """Let replicas connect, each on a lane of its own, so that no stranger holds them up."""
        with door:
            while True:
                connected, _ = door.accept()
                if self._closed.is_set():
                    connected.close()
                    return
                self._lanes.start(partial(self._listen, connected), "dadstorm-listen")

    def _listen(self, connected: socket.socket) -> None:
        """Receive what a replica sends, until its connection ends."""
        try:
            channel = Channel(connected, self._key, accepted=True, lanes=self._lanes)
            _, number, pid = channel.receive()
        except (OSError, EOFError, WrongKeyError):
            return
        with self._lock:
            link = self._starts.get(number)
            if link is not None and link.state == "starting":
                link.channel, link.pid = channel, pid
        try:
            while link is not None and link.channel is channel:
                self._received(link, *channel.receive())
        except EOFError:
            pass
        channel.close()
        if link is not None:
            self._lost(link)

    def _received(self, link: _Link, kind: str, *rest: Any) -> None:
        name = link.info.operator_id, link.info.replica
        with self._lock:
            link.missed = 0
            if kind == "ready" and link.state == "starting":
                link.state = "live"
                self._tell(Started(*name, link.pid or 0))
                self._send(link, "interval", link.interval)
                self._pump(link)
            elif kind == "refused" and link.state == "starting":
                link.ends("dead")
                self._tell(Refused(*name, f"{_named(link.info)}: {rest[0]}"))
            sent = link.sent.get(rest[0]) if kind in ("answer", "failed") else None
        if sent is None:
            return
        event: Event
        number, first = rest[:2]
        if kind == "answer":
            made = rest[2]
            of, items = slice(first, first + len(made)), sent[0]
            results: list[tuple[str, Sequence[Fields]]] = [
                (id, [fields] if one == PASSED else [] if one == DROPPED else list(map(tuple, one)))
                for id, fields, one in zip(items.ids[of], items.fields[of], made, strict=True)
            ]
            event, answered = Answered(*name, number, results, rest[3]), len(made)
        else:
            event, answered = Failed(*name, number, sent[0].ids[first], rest[2]), 1
        with self._lock:
            if number not in link.sent:
                return  # withdrawn, or given up, meanwhile
            sent[1] -= answered
            if sent[1] == 0:
                del link.sent[number]
                self._pump(link)
            self._tell(event)

    def _lost(self, link: _Link) -> None:
        """Take note that the connection of a replica has ended; unless it was given up, it is dead, or is killed."""
        if link.service is None or link.state == "given up":
            return
        if not link.gone.wait(_GRACE):
            link.service.kill(link.number)
            link.gone.wait(_GRACE)
        with self._lock:
            if link.state in ("starting", "live"):
                link.ends("dead")
                self._tell(Dead(link.info.operator_id, link.info.replica, link.code))

    def _ended(self, number: int, code: int | None, why: str) -> None:
        """Take note that a process has ended; of one that had connected, `_lost` tells it after its last answers."""
        with self._lock:
            link = self._starts.pop(number)
            link.code = code
            link.gone.set()
            name = link.info.operator_id, link.info.replica
            if link.state == "given up":
                self._tell(Woke(*name, code))
            elif link.state == "starting" and link.channel is None:
                link.ends("dead")
                why = why or f"it ended with exit code {code} before it was connected"
                self._tell(Refused(*name, f"{_named(link.info)}: {why}"))

    def _ping(self) -> None:
        """Ping the replicas at intervals, and give up those that have not answered in time."""
        while not self._closed.wait(self._settings.ping / _TICKS):
            with self._lock:
                for link in list(self._links.values()):
                    if link.state in ("starting", "live"):
                        self._miss(link)

    def _miss(self, link: _Link) -> None:
        """Count a ping; intervals are counted, not seconds, as the master itself may have been frozen."""
        link.missed += 1
        if link.channel is None:
            if link.missed > _PATIENCE * _TICKS and link.service is not None:
                link.service.kill(link.number)
        elif link.missed == 1:
            self._send(link, "ping")
        elif link.missed > _TICKS:
            link.ends("given up")
            link.channel.cut()
            self._tell(Silent(link.info.operator_id, link.info.replica))


def _send(channel: Channel, message: tuple[Any, ...]) -> None:
    try:
        channel.send(*message)
    except OSError:
        pass  # it has ended, as the lane notices that receives


def _named(info: RepInfo) -> str:
    return f"operator {info.operator_id}, replica {info.replica}, address {info.my_url}"


def _check(info: RepInfo) -> None:
    """Raise `InputError` if a replica on this machine cannot have its address."""
    try:
        bound = address(info)
    except InputError as error:
        raise InputError(f"{_named(info)}: {error}") from None
    if bound is not None:
        bound.close()


def _host(info: RepInfo) -> str | None:
    """Return the host of an address if it is another machine than this one.

    Loopback addresses other than 127.0.0.1 count as other machines, so that services can be tried out on one.

    Raises:
        InputError: no machine has this name.
    """
    try:
        host = urlsplit(info.my_url).hostname
        if not host or host in ("localhost", "127.0.0.1", "::1", socket.gethostname().lower()):
            return None
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, ValueError) as error:
        raise InputError(f"{_named(info)}: no machine is known by that name ({reason(error)})") from None
    for one in found:
        if one in ("127.0.0.1", "::1"):
            return None
        if not one.startswith("127."):
            try:
                with socket.socket(socket.AF_INET6 if ":" in one else socket.AF_INET) as bound:
                    bound.bind((one, 0))
            except OSError:
                continue
            return None
    return host
