"""Companion of runs of Hailstorm topologies: feeds the negotiator, and shows it in the status and in the registry."""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from typing_extensions import override

from txstorm.books.records import clock_of
from txstorm.clocks import Clock, natural
from txstorm.engine.port import Processed
from txstorm.errors import TxstormError
from txstorm.hailstorm.negotiator import (
    FLOWING,
    INITIALIZE,
    SPOUTS_PAUSED,
    SPOUTS_REWIND,
    Command,
    Event,
    GraceOver,
    Loaded,
    Lost,
    MasterState,
    Pause,
    Paused,
    Registered,
    RemoveEntries,
    Rewind,
    Rewound,
    Saved,
    Snapshot,
    Started,
    step,
)
from txstorm.hailstorm.registry import RENEWAL, Registry
from txstorm.hailstorm.saving import Saver, beginning
from txstorm.hailstorm.stores import open_store
from txstorm.ledger.location import ZOOKEEPER, recorded_ledger
from txstorm.runtime.companion import Beginning, Companion, CompanionSite
from txstorm.runtime.snapshots import ClockSnapshot
from txstorm.topology.graph import Topology

log = logging.getLogger(__name__)
Watch = Callable[[MasterState], object]


def companion_for(
    store: Any = None, from_beginning: bool = False, watch: Sequence[Watch] = ()
) -> Callable[[Topology], Companion]:
    """Return what `Topology.companion` of a Hailstorm topology is.

    Args:
        store: where snapshots are saved, a `SnapshotStore` or what `open_store` takes; None: nowhere but in the data
            directory.
        from_beginning: whether a new data directory begins at the beginning, whatever the store has.
        watch: called with each state of the negotiator, in order, on the driver thread.
    """
    return partial(HailstormCompanion, store=store, from_beginning=from_beginning, watch=watch)


class HailstormCompanion(Companion):
    """Shows a run as Hailstorm's negotiator sees it, and has snapshots taken when the negotiator decides so.

    A lost processor registers again one renewal of the registry later, so that watchers see it go and come.
    """

    name = "hailstorm"

    def __init__(
        self,
        topology: Topology,
        store: Any = None,
        from_beginning: bool = False,
        watch: Sequence[Watch] = (),
    ) -> None:
        self._from_beginning, self._watch = from_beginning, tuple(watch)
        self._topology = topology
        self._store = None if store is None else open_store(store, topology.settings.keep_snapshots)
        self._owned = self._store is not store
        self._saver: Saver | None = None
        self._saving = False
        """Whether the snapshot that is being taken is complete, and being saved to the store."""
        self._state = _expecting(topology)
        self._site: CompanionSite | None = None
        self._registry: Registry | None = None
        self._registered = False
        self._register_at = self._grace_at = 0.0
        self._loaded: Clock | None = None
        self._seen: Clock | None = None
        """The clock of the last snapshot, or the one that the run began with: a snapshot at it would be of no use."""
        self._saved_at = -1
        """The last committed txid when the bolts had saved, which they show until it changes."""
        self._processes: dict[str, tuple[str, int]] = {}
        """Processor → host and process that ran it last, if that may have been another one than this."""
        self._taken_at = 0
        """The transaction with whose commit the snapshot is complete; its clock is another if it is planned again."""
        self._newest: ClockSnapshot | None = None
        self._problem: str | None = None

    @property
    def _run(self) -> CompanionSite:
        assert self._site is not None
        return self._site

    # -- what the driver calls ------------------------------------------------------------------------------------

    @override
    def begin(self) -> Beginning | None:
        if self._store is None:
            return None
        return beginning(self._store, self._topology, from_beginning=self._from_beginning)

    @override
    def open(self, site: CompanionSite) -> None:
        self._site, session = site, site.session
        if self._store is not None:
            self._saver = Saver(self._store, session.topology, session.data_dir, session.lanes)
        self._topology, self._state = session.topology, _expecting(session.topology)
        site.snapshots.complete.append(self._complete)
        site.snapshots.failed.append(self._given_up)
        ledger = recorded_ledger(session.data_dir)
        if ledger is not None and ledger.kind == ZOOKEEPER:
            guard = session.books.guard
            self._registry = Registry.of(ledger, session.topology.id, guard, session.settings, session.lanes)
        self._feed(Started())
        self._register()
        self._seen = self._loaded

    @override
    def look(self) -> None:
        now = self._now()
        if self._run.session.topology is not self._topology:  # a rebalance: other processors
            self._topology = self._run.session.topology
            self._state = step(_expecting(self._topology), Started())[0]
            self._show()
            self._register()
        elif not self._registered and now >= self._register_at:
            self._register()
        if self._saving and self._saver is not None and not self._saver.busy:
            self._have_saved()
        if self._is_flowing and self._state.clock is None and now >= self._grace_at:
            self._begin_grace()
            if self._run.snapshots.planned not in (None, self._seen):
                self._feed(GraceOver())
        if self._registry is not None:
            self._registry.renew(self._entries)

    @override
    def processed(self, outcomes: Sequence[Processed]) -> None:
        for outcome in outcomes[-1:]:
            for (level, task), process in outcome.processes.items():
                for component in self._run.session.program.stages[level].components:
                    self._processes[f"{component}-{task}"] = process

    @override
    def lost(self, why: str, processor: str | None = None) -> None:
        # Of a worker it is not known which processors it ran: all of them register again, whichever is named.
        log.info("%s is lost: %s; all processors register again", processor or "a worker", why)
        self._feed(Lost(processor or min(self._state.expected)))

    @override
    def status(self) -> Mapping[str, Any]:
        wanted = None if self._site is None else self._site.snapshots.wanted
        return {
            "master_state": self._state.to_json(),
            "living_processors": self._entries(),
            "snapshot": None if self._newest is None else self._newest.to_json(),
            "wanted": None if wanted is None else dict(wanted),
            "problem": self._problem,
            "store": self._store_status(),
        }

    def _store_status(self) -> dict[str, Any] | None:
        if self._store is None:
            return None
        saved = None if self._saver is None else self._saver.saved
        problem = saved if isinstance(saved, str) else None
        return {
            "name": self._store.name,
            "saved": dict(saved) if isinstance(saved, Clock) else None,
            "problem": problem,
        }

    @override
    def close(self, error: BaseException | None) -> None:
        self._state, self._registered = _expecting(self._topology), False
        if self._registry is not None:
            self._registry.close()
        if self._saver is not None:
            self._saver.close()
        if self._store is not None and self._owned:
            self._store.close()

    # -- snapshots ------------------------------------------------------------------------------------------------

    def _complete(self, snapshot: ClockSnapshot) -> None:
        self._newest, self._seen, self._problem = snapshot, snapshot.clock, None
        if self._saver is not None:
            self._saver.save(snapshot)
        if snapshot.txid >= self._taken_at:
            self._saving = True
            if self._saver is None or not self._saver.busy:
                self._have_saved()

    def _given_up(self, clock: Clock, why: str) -> None:
        self._problem = f"no snapshot at {clock}: {why}"
        if clock == self._state.clock:
            self._have_saved()

    def _have_saved(self) -> None:
        """Go on after the snapshot that is being taken, if there is one."""
        self._saving = False
        if self._is_flowing and self._state.clock is not None:
            self._saved_at = self._committed
            self._feed(*(Saved(bolt, self._state.clock) for bolt in sorted(self._state.bolts)))

    # -- the negotiator -------------------------------------------------------------------------------------------

    def _feed(self, *events: Event) -> None:
        pending = deque(events)
        while pending:
            before = self._state
            self._state, commands = step(before, pending.popleft())
            if (before.name, before.clock) != (self._state.name, self._state.clock):
                self._show()
            for command in commands:
                pending += self._carry_out(command)

    def _show(self) -> None:
        if self._is_flowing:
            self._begin_grace()
        if self._registry is not None:
            self._registry.show(self._state.to_json())
        for watch in self._watch:
            watch(self._state)

    def _carry_out(self, command: Command) -> Iterable[Event]:
        match command:
            case Rewind(clock):
                return [Rewound(spout, clock) for spout in sorted(self._state.spouts)]
            case Pause():
                return [Paused(spout, offset) for spout, offset in self._positions().items()]
            case Snapshot(clock):
                self._saving = False
                self._seen, self._taken_at = clock, self._run.snapshots.last_planned()
                try:
                    self._run.snapshots.take()
                except TxstormError as error:
                    self._problem = f"no snapshot at {clock}: {error}"
                    return [Saved(bolt, clock) for bolt in sorted(self._state.bolts)]
            case RemoveEntries():
                self._registered, self._register_at = False, self._now() + RENEWAL
                if self._registry is not None:
                    self._registry.register({})
        return ()

    def _register(self) -> None:
        """Have all processors register, and all bolts load the clock of the last committed transaction."""
        self._loaded = clock_of(self._run.session.planning.document(self._committed))
        self._registered = True
        if self._registry is not None:
            self._registry.register(self._entries())
        clocks = () if self._loaded is None else (self._loaded,)
        self._feed(*map(Registered, sorted(self._state.expected)))
        self._feed(*(Loaded(bolt, clocks) for bolt in sorted(self._state.bolts)))

    # -- what is shown --------------------------------------------------------------------------------------------

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Return the entries of all processors that are registered, by name."""
        if not self._registered:
            return {}
        loading = self._state.name in (INITIALIZE, SPOUTS_REWIND)
        paused = loading or self._state.name == SPOUTS_PAUSED
        saved = self._saved_at == self._committed
        in_flight = [(txid, attempt, status.value) for txid, (attempt, status) in self._run.state().active.items()]
        marks = self._run.session.low_water_marks(self._committed, in_flight)
        found = {}
        for name, offset in self._positions().items():
            at = dict(zip(("partition", "offset"), *offset.items(), strict=True)) if len(offset) == 1 else None
            state = "SpoutPaused" if paused else "SpoutRunning"
            found[name] = self._entry(name, "spout", state, at or {"clock": dict(offset)})
        for component in self._topology.components[1:]:
            kind = _kind(component)
            state = "BoltLoaded" if loading else "BoltSaved" if saved else "BoltRunning"
            clock = self._loaded if loading else marks.get(component.id)
            shown = {"clock": None if clock is None else dict(clock)}
            for name in _processors(component):
                found[name] = self._entry(name, kind, state if kind == "bolt" else "SinkRunning", shown)
        return found

    def _entry(self, name: str, kind: str, state: str, place: Mapping[str, Any]) -> dict[str, Any]:
        host, pid = self._processes.get(name) or (socket.gethostname(), os.getpid())
        return {"kind": kind, "state": state, "host": host, "pid": pid, **place}

    def _positions(self) -> dict[str, Clock]:
        """Return where each instance of the spout stands: i of n reads partitions i, i + n, … of each source."""
        spouts = _processors(self._topology.spout)
        clock = self._run.snapshots.planned or Clock()
        counted: dict[str, int] = {}
        parts: list[dict[str, int]] = [{} for _ in spouts]
        for name in sorted(clock, key=natural):
            source = name.partition("/")[0] if "/" in name else ""
            number = counted[source] = counted.get(source, -1) + 1
            parts[number % len(spouts)][name] = clock[name]
        return dict(zip(spouts, map(Clock, parts), strict=True))

    @property
    def _committed(self) -> int:
        return self._run.state().currtx - 1

    @property
    def _is_flowing(self) -> bool:
        return self._state.name == FLOWING

    def _now(self) -> float:
        return self._run.session.lanes.monotonic()

    def _begin_grace(self) -> None:
        self._grace_at = self._now() + self._run.session.settings.snapshot_every


def _expecting(topology: Topology) -> MasterState:
    """Return the negotiator's first state for the processors of `topology`; without bolts, sinks stand for them."""
    bolts = [name for one in topology.components[1:] if _kind(one) == "bolt" for name in _processors(one)]
    sinks = [name for one in topology.components[1:] if _kind(one) == "sink" for name in _processors(one)]
    return MasterState.of(_processors(topology.spout), bolts or sinks, sinks if bolts else ())


def _processors(component: Any) -> list[str]:
    return [f"{component.id}-{index}" for index in range(component.parallelism)]


def _kind(component: Any) -> str:
    """Return ``sink`` for a component whose assembled bolt says so in its attribute `processor`, else ``bolt``."""
    return getattr(component.assembled[0], "processor", "bolt") if component.assembled is not None else "bolt"
