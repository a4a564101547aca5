"""Session: the parts of an opened topology that the driver uses, and their shutdown."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.records import Identity, clock_of
from txstorm.clocks import Clock
from txstorm.coordinator.machine import Config
from txstorm.engine.port import Engine
from txstorm.engine.program import Program
from txstorm.lanes import Lanes
from txstorm.plan.stages import compile_plan
from txstorm.runtime.batches.flow import Flow
from txstorm.runtime.batches.planning import Planning
from txstorm.runtime.batches.wall_clock import StampClock
from txstorm.runtime.commit.line import CommitLine
from txstorm.runtime.failures import RetryPolicy
from txstorm.runtime.maintenance import Retention
from txstorm.runtime.standby import real_end
from txstorm.state.store import StateStore
from txstorm.storage.tables.directory import TableDirectory
from txstorm.topology.graph import Topology
from txstorm.topology.settings import Settings

log = logging.getLogger(__name__)
HISTORY_GROUPS = 64
COMPACT_SECONDS = 60.0


@dataclass
class Session:
    """Components of a running topology, as opened by P0 (lead).

    Attributes:
        coded: the topology as its code declares it.
        topology: the running topology; a rebalance may have changed its numbers of tasks.
        flow: plans, admits and packs transactions.
        line: commits them.
        currtx: the txid to commit next, as of the opening of the session.
        lanes: run its work, and give the clocks.
        clock: gives the stamps.
        journal: file in which events and commands are recorded; None: no journal.
        companion: what the front end of the topology adds, a `txstorm.runtime.companion.Companion`.
        retention: removes data older than the retained history; None: history is kept forever.
        want: the clock of the source at which the run shall take a snapshot; None: none.
    """

    data_dir: Path
    coded: Topology
    topology: Topology
    identity: Identity
    settings: Settings
    program: Program
    engine: Engine
    books: Books
    store: StateStore
    place: TableDirectory
    planning: Planning
    flow: Flow
    line: CommitLine
    retry: RetryPolicy
    currtx: int
    lanes: Lanes
    clock: StampClock
    companion: Any
    journal: TextIO | None = None
    retention: Retention | None = None
    want: Clock | None = None
    _groups: int = 0

    def machine_config(self) -> Config:
        """Build the configuration of the state machine."""
        pending = self.settings.max_spout_pending
        return Config(
            max_pending=Flow.LIMIT if pending == "auto" else pending,
            max_group=self.settings.max_group_txids,
            opaque=self.planning.planner.opaque,
        )

    def after_commit(self) -> None:
        """Count a committed group; every `HISTORY_GROUPS` groups, move history rows from the ledger to their table."""
        self._groups += 1
        if self._groups >= HISTORY_GROUPS:
            self._groups = 0
            self.flush_history()

    def flush_history(self) -> None:
        """Move all history rows from the ledger to the history table. Idempotent."""
        groups = self.books.history()
        if groups:
            faults.point("history.before")
            self.place.append_history([row for rows in groups.values() for row in rows])
            faults.point("history.written")
            self.books.forget_history(list(groups))
            faults.point("history.after")

    def low_water_marks(self, committed: int, in_flight: Sequence[tuple[int, int, str]]) -> dict[str, dict[str, int]]:
        """Return component → the clock of the last transaction that it has finished; empty if there are no clocks.

        Idle partitions and tasks hold nothing up: a transaction is finished by all tasks of a component, or by none.

        Args:
            committed: the last committed txid.
            in_flight: (txid, attempt id, phase) of the active transactions, in txid order.
        """
        processed = [txid for txid, _, phase in takewhile(lambda one: one[2] != "processing", in_flight)]
        marks = [clock_of(self.planning.document(txid)) for txid in (committed, max(processed, default=committed))]
        last = {one.id: marks[one.id not in self.topology.commit_phase] for one in self.topology.components}
        return {name: dict(mark) for name, mark in last.items() if mark is not None}

    def rebalance(self, topology: Topology) -> None:
        """Continue with `topology`, which differs only in its numbers of tasks. No transaction may be in flight."""
        program = self.program.with_plan(compile_plan(topology))
        if topology.spout.parallelism != self.topology.spout.parallelism:
            self.planning.reopen(topology.spout, program)
        self.engine.start(program)
        self.flow.use(program)
        self.line.use(program)
        self.program, self.topology = program, topology

    def close(
        self, *, compact: Callable[[], bool], ended: Callable[[BaseException | None], None] | None = None
    ) -> None:
        """End the run cleanly: write the history table, compact the state tables, then close everything.

        Args:
            compact: called before each compaction step; returns False to skip the rest, for example after a second
                Ctrl-C.
            ended: called with the error that this method is about to raise, or None, while the ledger can still be
                written.

        Raises:
            FencedError: another run has taken over; also raised in place of any error caused by that.
        """
        failure: BaseException | None = None
        try:
            if compact():
                self.books.check_lease()
                self.flush_history()
                clock, stays = lambda: self.lanes.monotonic() if compact() else math.inf, self.retention is not None
                self.store.upkeep.compact(COMPACT_SECONDS, clock=clock, stays=stays)
                steps = iter(()) if self.retention is None else self.retention.steps()
                while compact() and next(steps, self) is not self:
                    pass
                self.books.check_lease()
                self.store.sweep(self.books.intents())
                self.books.sweep()
        except BaseException as error:
            failure = real_end(error, self.books)
            if failure is not error:
                raise failure from error
            raise
        finally:
            if ended is not None:
                ended(failure)
            self.release()

    def release(self) -> None:
        """Close the spout, the engine, the tables and, last, the ledger, as its lease protects the others."""
        for close in (self.planning.planner.close, self.engine.close, self.store.close, self._close_journal):
            try:
                close()
            except (Exception, SystemExit):
                log.exception("closing %s failed", self.identity.topology)
        self.books.ledger.close()

    def _close_journal(self) -> None:
        if self.journal is not None:
            self.journal.close()
