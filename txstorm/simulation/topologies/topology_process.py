"""One process of a world of a whole topology: the shipped run, from P0 on, on simulated lanes and a shared ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING

from txstorm.books.books import Books
from txstorm.engine.local import LocalEngine
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.port import Entry, Op
from txstorm.monitor.progress import Monitor
from txstorm.operations.lifecycle import Waiting, ask_run
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.opening import RunOptions, open_session
from txstorm.runtime.session import Session
from txstorm.simulation import schedule as kinds
from txstorm.simulation.process.scheduler import Owner, SimLanes
from txstorm.storage.tables import history

if TYPE_CHECKING:
    from txstorm.simulation.topologies.topology_world import TopologyWorld


class TopologyProcess(Owner):
    """A simulated process that runs the topology of a world, or an operator's command.

    Attributes:
        struck: whether a fault was injected with which the process may end.
        led: whether it led when it closed its ledger.
        stops: whether its user has asked it to stop.
        handle: the handle of its run, once it has opened.
        holds: the handles of the ledger that it has opened.
    """

    def __init__(self, world: TopologyWorld, name: str) -> None:
        self.name, self.world, self.scheduler = name, world, world.scheduler
        self.lanes = SimLanes(world.scheduler, self, world.micros, world.kind.tick)
        if not world.setting.polls:
            self.lanes.longest = inf
            world.count(kinds.UNPOLLED, f"{self} does not poll")
        self.struck = self.led = self.stops = False
        self.handle: RunHandle | None = None
        self.session: Session | None = None
        self.holds: list[WorldLedger] = []

    def run(self, *, standby: bool = False) -> None:
        """Open the topology, and start its driver; the process ends with the run."""
        history._durable.clear()  # noqa: SLF001 - a new process knows of nothing that an earlier one has synced
        world, stopping, monitor = self.world, self.lanes.event(), Monitor()
        topology = world.topology()
        tell = (lambda message: None) if standby else None
        options = RunOptions(lanes=self.lanes, ledger="memory", standby=tell)
        engine = LocalEngine(lanes=self.lanes)
        try:
            self.session = open_session(topology, engine, world.data_dir, options, monitor, stopping.wait)
        except Exception as error:  # noqa: BLE001 - judged by the world
            world.finished(self, error)
            return
        self.handle = handle = RunHandle(topology, self.session, monitor, stopping)
        monitor.at_work = tuple  # the status, a write of the ledger, is the same however long work takes
        handle.on_end(lambda: self.world.finished(self, handle.exception()))
        handle.start()

    def does(self, what: str, call: Callable[[], object]) -> None:
        """Make a call of a user on a lane of its own; the world judges its errors."""

        def body() -> None:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - judged by the world
                self.world.told(self, what, error)

        self.lanes.start(body, what)

    def asks(self, command: str) -> None:
        """Ask the run, through its ledger, for a life-cycle command, as another process would."""

        def ask() -> None:
            ledger = self.world.ledger.beside()
            books = Books(ledger, self.world.data_dir / "intents", self.lanes)
            ask_run(books, "world", command, {}, Waiting(lanes=self.lanes))

        self.does(command, ask)

    def has_committed(self, extents: Sequence[int]) -> bool:
        """Return whether it has nothing in flight and has committed the source up to `extents`."""
        if self.handle is None or self.session is None or self.session.currtx < 1:
            return False
        state = self.handle._driver.state  # noqa: SLF001 - the judge of the driver
        return state.idle and self.world.ends(self.session, state.currtx - 1) == list(extents)


class WorldLedger(MemoryLedger):
    """The ledger of a world: entries in memory, and a lease that others may take; each call is a step of a process."""

    def __init__(self, world: TopologyWorld, beside: WorldLedger | None = None) -> None:
        super().__init__(beside, lambda: datetime.fromtimestamp(world.micros() / 1e6, UTC))
        self._world = world
        self._process = world.current()
        if self._process is not None:
            self._process.holds.append(self)

    @property
    def entries(self) -> dict[str, Entry]:
        """The entries, which no commit changes in place."""
        return self._store.entries

    @entries.setter
    def entries(self, entries: dict[str, Entry]) -> None:
        self._store.entries = entries

    @property
    def leads(self) -> bool:
        """Whether this handle has the lease."""
        return self._store.held_by is self

    def beside(self) -> WorldLedger:
        """Return a further handle, of the process whose lane runs."""
        return WorldLedger(self._world, self)

    def get(self, path: str) -> Entry | None:
        """Return the entry at `path`; None if there is none."""
        self._world.passes("ledger get")
        return super().get(path)

    def scan(self, path: str) -> dict[str, Entry]:
        """Return the entries directly below `path`."""
        self._world.passes("ledger scan")
        return super().scan(path)

    def commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        """Carry out `ops` atomically; the process may die before or after that, or get no answer."""
        self._world.passes("ledger commit")
        super().commit(ops, durable=durable)
        self._world.passes("ledger written")

    def acquire(self, owner: str) -> None:
        """Acquire the lease."""
        self._world.passes("ledger acquire")
        super().acquire(owner)

    def close(self) -> None:
        """Release the lease, when the process has ended its work."""
        if self._process is not None:
            self._process.led = self.leads
        super().close()

    def wait_free(self, seconds: float) -> bool:
        """Let simulated time pass unless the lease is free; return whether it is."""
        if self.holder() is not None and self._process is not None:
            self._process.lanes.sleep(seconds)
        return self.holder() is None
