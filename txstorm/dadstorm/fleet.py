"""Fleet: the replica processes of a run, on this machine or behind process creation services, and what they report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from txstorm.lanes import THREADS, Lanes

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
    results: list[tuple[str, list[Fields]]]


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


class Fleet:
    """Replica processes of one run. Thread-safe; its calls return at once, except `open` and `close`.

    Of one replica, events come in order: nothing before `Started`, nothing but `Woke` after `Silent`, nothing after
    `Dead` until it is started again.

    Args:
        configuration: the network.
        tell: called with each event, on a lane of the fleet; it must return soon and not raise.
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
        self._configuration, self._tell, self._lanes = configuration, tell, lanes
        self._settings = settings or FleetSettings()

    def open(self) -> None:
        """Connect to the process creation services that addresses name; starts no replica.

        Raises:
            InputError: an address, with its operator, is of no machine, or the key is wrong.
            AwayError: no service answers where an address needs one.
        """
        raise NotImplementedError

    def start(self, operator: str, replica: int, interval: int = 0) -> None:
        """Start a replica, which sleeps `interval` milliseconds after each tuple; one that is starting or live stays.

        One that was given up is killed first. `Started`, `Refused` or `Dead` follows.
        """
        raise NotImplementedError

    def interval(self, operator: str, milliseconds: int) -> None:
        """Let the replicas of `operator` that are there sleep so long after each tuple."""
        raise NotImplementedError

    def kill(self, operator: str, replica: int) -> None:
        """Kill a replica by SIGKILL; `Dead` follows. Without effect on one that is not there."""
        raise NotImplementedError

    def deliver(self, operator: str, replica: int, number: int, items: Sequence[tuple[str, Fields]]) -> None:
        """Send tuples to a replica, as delivery `number`, which no other one has; answers come as `Answered`.

        To a replica that is not live nothing is sent, as `Dead` or `Silent` has told.
        """
        raise NotImplementedError

    def withdraw(self, operator: str, replica: int, number: int) -> None:
        """Withdraw a delivery: no event is told of it any more, and the replica skips what is left of it."""
        raise NotImplementedError

    def state(self, operator: str, replica: int) -> State:
        """Return the state of a replica."""
        raise NotImplementedError

    def pid(self, operator: str, replica: int) -> int | None:
        """Return the process id of a replica that is starting or live; None: there is none."""
        raise NotImplementedError

    def close(self) -> None:
        """End all replicas, also those given up, and wait until none is left; tells nothing more."""
        raise NotImplementedError
