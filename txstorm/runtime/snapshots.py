"""Snapshots at clocks of the source: savepoints of the transactions that have these clocks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from txstorm import faults
from txstorm.api.state import MERGE
from txstorm.books.records import clock_of
from txstorm.books.savepoint import ChosenClock, ClockSnapshot, Savepoint
from txstorm.clocks import Clock
from txstorm.coordinator.machine import State
from txstorm.errors import FencedError, InputError
from txstorm.ledger.paths import WANTED, savepoint_path
from txstorm.ledger.port import Delete, Op
from txstorm.operations.kept_history import check_in_history, txid_at_clock
from txstorm.operations.savepoints import (
    check_chosen,
    check_name,
    make_savepoint,
    open_tables,
    outside_tables,
    record_savepoint,
)
from txstorm.runtime.batches.txn import Txn
from txstorm.runtime.session import Session

__all__ = ["ClockSnapshot", "Snapshots"]
log = logging.getLogger(__name__)


class Snapshots:
    """Takes the snapshots of a run; belongs to the driver thread.

    A clock that is wanted stands in the ledger from before the first transaction that it binds until its snapshot is
    complete: the savepoint is recorded, and the clock deleted, in one commit.

    Args:
        session: the opened topology.
        state: returns the coordinator's state.
        in_turn: queues a call for the publishing thread, where it runs between two groups.
        back: queues a call for the driver thread.
        fail: ends the run with an error.

    Attributes:
        complete: called with each snapshot once its savepoint exists.
        failed: called with the clock of a snapshot that was given up or could not be made, and why.
    """

    def __init__(
        self,
        session: Session,
        state: Callable[[], State],
        in_turn: Callable[[Callable[[], Any]], Future[Any]],
        back: Callable[[Callable[[], None]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.complete: list[Callable[[ClockSnapshot], None]] = []
        self.failed: list[Callable[[Clock, str], None]] = []
        self._session, self._state, self._in_turn, self._back, self._fail = session, state, in_turn, back, fail
        self._books, self._planning = session.books, session.planning
        self._committed = session.currtx - 1
        self._number = 0
        self._wanted: ChosenClock | None = None
        self._until = math.inf
        self._taken: list[ChosenClock] = []
        self._writing: list[ChosenClock] = []

    def open(self) -> None:
        """Take up the clock that an earlier run has left, and the one that this run was started with. Call once."""
        self._planning.missed = self.cancel
        # A state of that layout can be read as of the end of a group only, which the transaction must then be.
        states = [one for some in self._session.topology.states.values() for one in some]
        self._planning.holds = any(one.layout == MERGE for one in states)
        self._number, left = self._books.snapshots()
        if left is not None:
            self._take_up(left)
        clock = self._session.want
        if clock is not None and all(one.snapshot is None or one.snapshot.clock != clock for one in self._known()):
            self.want(clock)

    def _known(self) -> list[Savepoint]:
        return list(self._books.savepoints().values())

    def _take_up(self, left: ChosenClock) -> None:
        committed = clock_of(self._planning.document(self._committed))
        if committed is not None and committed != left.clock and committed.reaches(left.clock):
            self._wanted = left
            self._write(left, partial(self._write_late, left))
        elif not self._planning.planner.aligns:
            self._wanted = left
            self.cancel(self._cannot_align())
        else:
            self.adopt(left)

    @property
    def planned(self) -> Clock | None:
        """The clock of the last planned transaction; None if the source has no clocks, or nothing is planned yet."""
        return clock_of(self._planning.document(self.last_planned()))

    def last_planned(self) -> int:
        """Return the last planned txid; not one that an opaque spout is to plan again, whose batch may change."""
        last, state = max(self._planning.metas, default=0), self._state()
        standing = max(self._committed, state.currtx - 1 + len(state.entries))
        return min(last, standing) if self._planning.planner.opaque else last

    @property
    def wanted(self) -> Clock | None:
        """The clock that is wanted, until its snapshot is complete or given up; None if there is none."""
        return None if self._wanted is None else self._wanted.clock

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being written."""
        return bool(self._writing)

    def take(self, name: str | None = None) -> Clock:
        """Ask for a snapshot at the clock of the last planned transaction, and return it; nothing waits for it.

        One without a name is deleted when there are ``keep_snapshots`` newer ones without a name. The snapshot has a
        later clock if the transaction is planned again with another batch, or is in the middle of a group and a state
        has the layout ``merge``, which keeps it at the ends of groups only.
        """
        chosen = self.choose(None, name, automatic=name is None)
        self.adopt(chosen)
        return chosen.clock

    def want(self, clock: Clock, name: str | None = None, wait: float | None = None) -> None:
        """Ask for a snapshot at `clock`, which no transaction passes before it is complete.

        If it is wanted already, nothing changes.

        Args:
            clock: the clock of the last planned transaction, or one that it has not reached.
            name: name of the savepoint; None: ``snapshot-NUMBER``.
            wait: seconds after which it is given up; None: the setting ``snapshot_wait``.

        Raises:
            InputError: the clock names other partitions, is behind the last planned transaction or beyond the end of
                the source, another one is wanted, the name is taken, or the source cannot stop at a clock.
        """
        chosen = self.choose(clock, name, wait)
        self._books.put_if([], self.values(chosen))
        self.adopt(chosen)

    def choose(
        self, clock: Clock | None, name: str | None, wait: float | None = None, *, automatic: bool = False
    ) -> ChosenClock:
        """Check a request, and return what it chooses, for `values` and `adopt`; the errors are those of `want`.

        Args:
            clock: as for `want`; None: that of the last planned transaction, as with `take`.
            name: name of the savepoint.
            wait: as for `want`.
            automatic: whether it may be deleted when there are newer ones.
        """
        planned, wanted = self.planned, self._wanted
        asked = check_chosen(clock, wanted, planned)
        if clock is not None and wanted is not None:
            return wanted
        if clock is not None:
            self._check_source(clock, planned)
        number = self._number + 1
        if name is not None:
            check_name(self._session.data_dir, self._books, name)
            if any(name == one.name for one in (*self._taken, *self._writing)):
                raise InputError(f"snapshot {name!r}: it is being made already; choose another name")
        txid = self.last_planned() if clock is None else None
        faults.point("snapshot.chosen")
        since = self._session.lanes.now()
        return ChosenClock(number, asked, name or f"snapshot-{number}", since, wait, txid, automatic)

    def _check_source(self, clock: Clock, planned: Clock | None) -> None:
        """Raise `InputError` unless the source can stop at `clock`."""
        planner = self._planning.planner
        if not planner.aligns:
            raise InputError(self._cannot_align())
        ends = {name: end for name, end in planner.end_clock().items() if clock.get(name, -1) > end}
        if ends:
            msg = f"clock {clock}: the source ends before it, at {Clock(ends)}; ask for that or an earlier one"
            raise InputError(msg)
        if planned is not None:
            return
        known = Clock(planner.clock(planner.skip(None)) or {})  # what the source tells before it is asked for data
        sources = {name.rpartition("/")[0] for name in known}
        strange = [name for name in clock if name not in known and name.rpartition("/")[0] in sources]
        if strange or known.keys() - clock.keys():
            wrong = ", ".join(strange or sorted(known.keys() - clock.keys()))
            raise InputError(f"clock {clock}: {wrong}: the source has the partitions {', '.join(known)}; give each one")
        if not clock.reaches(known) or clock == known:
            raise InputError(f"clock {clock}: the source begins at {known}; ask for a later one")

    def _cannot_align(self) -> str:
        return (
            f"spout {self._session.topology.spout.id!r} cannot stop at a clock: that takes a coordinator with clocks "
            "whose initialize_transaction has the argument upto; take a snapshot of the last transaction instead"
        )

    def values(self, chosen: ChosenClock) -> dict[str, Any]:
        """Return ledger path → value for what was chosen, to be stored before it is adopted."""
        return {} if chosen.txid is not None else {WANTED: chosen.to_json()}

    def adopt(self, chosen: ChosenClock) -> None:
        """Begin to wait for what was chosen; nothing changes if that is so already."""
        if chosen is self._wanted:
            return
        self._number = max(self._number, chosen.number)
        if chosen.txid is not None:
            self._taken.append(chosen)
        else:
            wait = self._session.settings.snapshot_wait if chosen.wait is None else chosen.wait
            self._wanted, self._planning.upto = chosen, chosen.clock
            self._until = self._session.lanes.monotonic() + wait
            log.info("snapshot %s is wanted at the clock %s", chosen.name, chosen.clock)
        last = self._planning.metas.get(self._committed)
        if last is not None:
            self._due([(self._committed, last.document, last.stamp)])

    def cancel(self, why: str) -> None:
        """Give up the wanted clock, if there is one; not if its transaction is committed."""
        wanted = self._wanted
        if wanted is None or wanted in self._writing:
            return
        self._wanted, self._planning.upto = None, None
        self._books.put_if([Delete(WANTED)], {})
        self._gave_up(wanted, why)

    def _gave_up(self, chosen: ChosenClock, why: str) -> None:
        log.warning("snapshot %s at the clock %s is not made: %s", chosen.name, chosen.clock, why)
        for call in self.failed:
            call(chosen.clock, why)

    def look(self) -> None:
        """Give up a wanted clock that is late; called in each turn of the driver's loop."""
        if self._wanted is None or self._wanted in self._writing:
            return
        late = self._session.lanes.monotonic() >= self._until
        if late or self._planning.kind(self.last_planned()) == "end":
            wanted, planned = self._wanted.clock, self.planned
            if planned is not None and planned.reaches(wanted):
                return
            lacking = [name for name, offset in wanted.items() if (planned or Clock()).get(name, -1) < offset]
            why = "the wait is over" if late else "the input has ended"
            self.cancel(f"{why}, and these partitions lack data: {', '.join(lacking or wanted)}")

    def committed(self, txns: Sequence[Txn]) -> None:
        """Take the snapshots that are due now that `txns` are committed."""
        self._committed = txns[-1].input.attempt.txid
        if self._taken or self._wanted is not None:
            self._due([(txn.input.attempt.txid, txn.extents, txn.input.stamp) for txn in txns])

    def _due(self, done: Sequence[tuple[int, Any, int]]) -> None:
        """Write what is due of the transactions `done`: txid, document and stamp of each."""
        last = done[-1]
        for chosen in [one for one in self._taken if (one.txid or 0) <= last[0]]:
            self._taken.remove(chosen)
            found = last if self._planning.holds else next((one for one in done if one[0] == chosen.txid), last)
            self._write(chosen, partial(self._write_now, chosen, *found))
        wanted = self._wanted
        if wanted is None or wanted in self._writing:
            return
        reached = [one for one in done if clock_of(one[1]) == wanted.clock]
        if reached:
            self._planning.upto = None
            self._write(wanted, partial(self._write_now, wanted, *reached[-1 if self._planning.holds else 0]))

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self, chosen: ChosenClock, call: Callable[[], Savepoint]) -> None:
        faults.point("snapshot.complete")
        self._writing.append(chosen)
        done = self._in_turn(call)
        done.add_done_callback(lambda done: self._back(lambda: self._written(chosen, done)))

    def _write_now(self, chosen: ChosenClock, txid: int, document: Any, stamp: int) -> Savepoint:
        """Record the savepoint of a transaction that is the last one published, or was not long ago."""
        session, books, identity = self._session, self._books, self._session.identity
        session.store.load()
        check_in_history(session.data_dir, books, txid)
        made = Savepoint(
            chosen.name,
            identity.topology,
            identity.incarnation,
            identity.timeline,
            txid,
            document,
            stamp,
            session.lanes.now(),
            open_tables(session.store.tables, txid),
            outside_tables(books),
            chosen.number,
            chosen.automatic,
        )
        record_savepoint(session.data_dir, books, made, self._beside(chosen))
        faults.point("snapshot.written")
        return made

    def _beside(self, chosen: ChosenClock) -> list[Op]:
        """Return what is deleted with the commit of the savepoint: the wanted clock, or an older snapshot."""
        if not chosen.automatic:
            return [Delete(WANTED)] if chosen.txid is None else []
        old = sorted((one for one in self._known() if one.automatic), key=lambda one: one.number or 0)
        more = max(0, len(old) + 1 - self._session.settings.keep_snapshots)
        return [Delete(savepoint_path(one.name)) for one in old[:more]]

    def _write_late(self, chosen: ChosenClock) -> Savepoint:
        """Record the savepoint of a transaction that an earlier run has committed, with others after it."""
        directory, books = self._session.data_dir, self._books
        txid = txid_at_clock(directory, chosen.clock)
        seconds = self._session.lanes.seconds
        made = make_savepoint(directory, books, chosen.name, txid, seconds, chosen.number, self._beside(chosen))
        faults.point("snapshot.written")
        return made

    def _written(self, chosen: ChosenClock, done: Future[Savepoint]) -> None:
        self._writing.remove(chosen)
        if chosen is self._wanted:
            self._wanted, self._planning.upto = None, None
        error = done.exception()
        if isinstance(error, FencedError):
            self._fail(error)
        elif error is not None:
            if chosen.txid is None:
                self._books.put_if([Delete(WANTED)], {})
            self._gave_up(chosen, f"{type(error).__name__}: {error}")
        elif (made := done.result().snapshot) is not None:
            log.info("snapshot %s at the clock %s is complete: txid %s", made.name, made.clock, made.txid)
            for call in self.complete:
                call(made)
