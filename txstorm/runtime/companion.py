"""Companion of a run: what a front end adds to the runs of its topologies, life-cycle commands among it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from txstorm.books.requests import Request
from txstorm.coordinator.machine import State
from txstorm.engine.port import Processed
from txstorm.monitor.progress import Monitor
from txstorm.runtime.session import Session
from txstorm.runtime.snapshots import Snapshots
from txstorm.topology.graph import Topology

P = TypeVar("P")


@dataclass(frozen=True)
class Decision:
    """Decision on a life-cycle request: the answer to the requesting process, and the resulting effects.

    Attributes:
        result: the answer to the requesting process.
        act: carries out the request; called after the answer has been stored.
        values: ledger path → value, stored in one write with the answer.
    """

    result: Mapping[str, Any]
    act: Callable[[], None]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class CommandHandler(Generic[P]):
    """Handler of one life-cycle command in the running process.

    Attributes:
        name: the command's name in requests; for commands of a front end it begins with that front end's name
            (``dadstorm.freeze``).
        parse: builds the payload from the arguments of a request; raises `InputError`, or `KeyError`, `TypeError` or
            `ValueError` for malformed arguments. It must ignore fields that it does not know.
        decide: returns the decision, without side effects; raises `InputError` to refuse the request. Called on the
            driver thread with the run's `Control`, the payload and the request.
    """

    name: str
    parse: Callable[[Mapping[str, Any]], P]
    decide: Callable[[Any, P, Request], Decision]


@dataclass(frozen=True)
class CompanionSite:
    """What a companion sees of its run.

    Attributes:
        session: the opened topology.
        state: returns the coordinator's state.
        snapshots: takes snapshots at clocks of the source.
        monitor: the numbers of the run.
    """

    session: Session
    state: Callable[[], State]
    snapshots: Snapshots
    monitor: Monitor


class Companion:
    """What a front end adds to a run of its topologies; made by `Topology.companion`, once per run.

    All methods are called on the driver thread and must return at once; what takes long belongs on a lane of its own.

    Attributes:
        name: the key of `status` in the status of the run.
    """

    name = ""

    def open(self, site: CompanionSite) -> None:
        """Begin; called once, after the coordinator has been opened."""

    def commands(self) -> Sequence[CommandHandler[Any]]:
        """Return the life-cycle commands that it adds."""
        return ()

    def look(self) -> None:
        """Do what is due; called in each turn of the driver's loop."""

    def processed(self, outcomes: Sequence[Processed]) -> None:
        """Take note that these transactions are processed, each in its current attempt."""

    def committed(self, last: int) -> None:
        """Take note that all transactions up to `last` are committed."""

    def lost(self, why: str, processor: str | None = None) -> None:
        """Take note that a worker died, or gave no answer in time; the undecided transactions are replayed.

        Args:
            why: the cause.
            processor: the lost instance of a component, ``COMPONENT-INDEX``; None: it is not known which.
        """

    def status(self) -> Mapping[str, Any]:
        """Return what the status of the run shows of it; equal as long as nothing has changed."""
        return {}

    def close(self, error: BaseException | None) -> None:
        """End; called once, with the error that ended the run. After this nothing else is called."""


def companion_of(topology: Topology) -> Companion:
    """Return a companion for a run of `topology`; one that does nothing if its front end has none."""
    made: Companion = Companion() if topology.companion is None else topology.companion(topology)
    return made
