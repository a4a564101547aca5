"""Companion of a run: what a front end adds to the runs of its topologies, from commands to beginnings."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.requests import Request
from txstorm.clocks import Clock
from txstorm.coordinator.machine import State
from txstorm.engine.port import Processed
from txstorm.errors import InputError
from txstorm.monitor.progress import Monitor
from txstorm.recovery.clone import fill_state
from txstorm.runtime.batches.planning import Planning
from txstorm.runtime.session import Session
from txstorm.runtime.snapshots import Snapshots
from txstorm.state.store import StateStore
from txstorm.storage.tables.intent import STATE
from txstorm.storage.tables.table import DeltaTableState
from txstorm.topology.graph import Topology

log = logging.getLogger(__name__)
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
    """View of a run, for its companion.

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


@dataclass(frozen=True)
class Beginning:
    """Beginning of a new data directory: a clock of the source, behind which it is read, and states.

    Attributes:
        clock: the clock of the source.
        states: name of a keyed state → its rows, with the columns of the key and the values.
        origin: where they come from, for the log.
    """

    clock: Clock
    states: Mapping[str, pa.Table]
    origin: str


class Companion:
    """Base class of what a front end adds to a run of its topologies; made by `Topology.companion`, once per run.

    All methods are called on the driver thread and must return at once; what takes long belongs on a lane of its own.

    Attributes:
        name: the key of `status` in the status of the run.
        every: seconds after which `look` is called again at the latest, and requests of other processes are looked for.
    """

    name = ""
    every = math.inf

    def check(self, books: Books, data_dir: Path) -> None:
        """Raise `InputError` if the topology cannot go on with what is in the data directory.

        Called on the thread that opens the run, with the lease, before anything is written.
        """

    def begin(self) -> Beginning | None:
        """Return what the run's new data directory begins with; None: nothing, and the beginning of the source.

        Called before `open`, on the thread that opens the run, and again if that start ends before it is recorded. May
        take long, and raise any error of a start.
        """
        return None

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


def begin(companion: Companion, store: StateStore, books: Books, planning: Planning, timeline: int) -> None:
    """Let a directory in which nothing was planned yet begin with what `companion` returns, if anything.

    The rows are put into the state tables first, as of txid 0; the metadata of txid 0 in the ledger, from which txid 1
    is planned, are what decides. A start that is cut short before has decided nothing: the next one chooses again.

    Raises:
        InputError: the source cannot begin at that clock, or the states are not those of the topology.
        FencedError: another coordinator has taken over.
    """
    beginning = companion.begin()
    rows = {} if beginning is None else beginning.states
    tables = [one for one in store.tables.values() if isinstance(one, DeltaTableState)]  # those of a simulation are not
    states = {one.ref.name: one for one in tables if one.ref.kind == STATE}
    for name, table in states.items():
        if name in rows or table.log.files():  # even without a companion: a start of before may have filled it
            books.check_lease()
            fill_state(table, rows.get(name), books.epoch, planning.now() // 1000)
    if beginning is None:
        return
    if unknown := sorted(rows.keys() - states.keys()):
        raise InputError(f"{beginning.origin}: has states of {unknown[0]!r}, which is no state of the topology")
    faults.point("begin.filled")
    planning.begin_at(beginning.clock, timeline)
    faults.point("begin.after")
    log.warning("begins with the snapshot at %s of %s; the source is read behind it", beginning.clock, beginning.origin)
