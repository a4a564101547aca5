"""Transaction plans (P1, plan) and the extents actually read (P4, processed), in memory and in the ledger.

Transactions are planned one at a time; their plans are stored in bulk.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import replace
from typing import Any

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import MAX_ENDS, Kind, PlanFacts
from txstorm.api.spout import NOT_READY
from txstorm.books.books import Books
from txstorm.books.records import Meta, clock_of, with_digests
from txstorm.clocks import Clock
from txstorm.engine.port import BATCH, Processed, TxidInput
from txstorm.engine.program import Program
from txstorm.errors import SpoutError
from txstorm.lanes import THREADS, Lanes
from txstorm.spouts.executors import planner
from txstorm.spouts.facts import facts_of, kind_of, pinned_of, waiting_of, with_facts, with_waiting, without_waiting
from txstorm.spouts.port import ReadKept, SpoutPlanner
from txstorm.spouts.user_calls import storable
from txstorm.topology.graph import Component

log = logging.getLogger(__name__)
# Names of the digests that txstorm computes per task; they are not comparable after the number of tasks has changed.
_TASK = re.compile(rf"(.*/)?task \d+ of \d+|{BATCH}", re.DOTALL)


class Planning:
    """Metadata (spout document, timestamp, digests) of the undecided txids and of the last committed one.

    Args:
        source: the spout's planner.
        clock: returns the current time in UTC microseconds.
        external: whether the commit phase has effects outside the tables.
        pins: asks the components for the values to pin, given the txid, its stamp, the values of the txid before,
            and the epoch.
        kept: reads the committed rows that the spout keeps.
        wrap: called with the spout's own planner; returns the planner to use instead. Called again after a rebalance.

    Attributes:
        planner: the spout's planner.
        metas: txid → its metadata.
        pinned: called with a txid and the document of the txid before it; returns the document that this txid must get,
            or None if the spout is to plan it. See `RetryPolicy.pinned`.
        max_ends: number of window ends that a component fires in a transaction planned from now on at most.
        upto: the clock that no transaction may pass, see `bound`; None: there is no bound.
        holds: whether the bound stays until `upto` is committed, and not only until it is planned.
        missed: called with the reason if `upto` can no longer become the clock of a transaction.
    """

    def __init__(
        self,
        books: Books,
        source: SpoutPlanner,
        clock: Callable[[], int],
        *,
        external: bool = False,
        pins: Callable[[int, int, Mapping[str, Any], int], Mapping[str, Any]] = lambda *plan: {},
        kept: ReadKept = lambda source: None,
        wrap: Callable[[SpoutPlanner], SpoutPlanner] = lambda source: source,
    ) -> None:
        self._books = books
        self._external = external
        self._pins = pins
        self._wrap = wrap
        self.planner = wrap(source)
        self._clock = clock
        self.metas: dict[int, Meta] = books.metas()
        self._unsaved: dict[int, Meta] = {}
        self.pinned: Callable[[int, Any], Any] = lambda txid, previous: None
        self.max_ends: int | None = MAX_ENDS
        self.upto: Clock | None = None
        self.holds = False
        self.missed: Callable[[str], None] = lambda why: None
        self._kept = kept
        self.planner.load_kept(kept, self._kept_plans)

    def _kept_plans(self) -> dict[int, Any]:
        """Return txid → the documents of the plans that stay as they are; an opaque spout makes undecided ones anew."""
        end = self._books.currtx() if self.planner.opaque else math.inf
        return {txid: one.document for txid, one in self.metas.items() if txid < end}

    def reopen(self, spout: Component, program: Program) -> None:
        """Recreate the spout's coordinator after a rebalance. No transaction may be in flight."""
        self.planner.close()
        self.planner = self._wrap(planner(spout.object, program.driver_context(spout.id)))
        self.planner.load_kept(self._kept, self._kept_plans)

    def open(self, currtx: int) -> tuple[int, ...]:
        """Load the stored metadata; return the txids, starting at `currtx`, that are to be replayed with it.

        For an opaque spout, which plans those txids afresh, the stored metadata is deleted instead (R3, replay).
        """
        stored = tuple(sorted(txid for txid in self.metas if txid >= currtx))
        if not self.planner.opaque:
            return stored
        self._books.write_metas({}, remove=stored)
        for txid in stored:
            del self.metas[txid]
        return ()

    def document(self, txid: int) -> Any:
        """Return the spout document of `txid`; None if `txid` precedes the first transaction."""
        meta = self.metas.get(txid)
        return None if meta is None else meta.document

    def kind(self, txid: int) -> Kind:
        """Return the kind of the planned transaction `txid`; one without a plan counts as data."""
        return kind_of(self.document(txid))

    def waiting(self, txid: int) -> tuple[str, ...]:
        """Return the components that have more window ends to fire after the committed transaction `txid`."""
        return waiting_of(self.document(txid))

    def ended(self, txid: int) -> bool:
        """Return whether the input has ended with the planned transaction `txid`."""
        return self.kind(txid) == "end" and not self.waiting(txid)

    def now(self) -> int:
        """Return the current time in UTC microseconds, from which stamps are taken."""
        return self._clock()

    def is_fixed(self, txid: int) -> bool:
        """Return whether a replay of `txid` has the plan, and the stamp, of before."""
        return not self.planner.opaque and txid in self.metas

    def plan(self, txid: int, *, replay: bool) -> bool:
        """Plan the transaction `txid`; return False if the source has no data. The plan becomes durable in `save`.

        A system transaction of an opaque spout is planned as data if the source has some by the time of the replay.
        """
        if replay and self.is_fixed(txid):
            return True
        previous, system = self.metas.get(txid - 1), self.kind(txid) != "data"
        before = None if previous is None else previous.document
        kept = self.pinned(txid, without_waiting(before))
        if kept is not None:
            self._plan(txid, kept, None)
            return True
        upto = self.bound(txid)
        document = self.planner.plan(txid, before, replay=replay and not system, upto=upto)
        if document is NOT_READY:
            return False
        if upto is not None:
            self._check_bound(txid, document, upto)
        self._plan(txid, document)
        return True

    def bound(self, txid: int) -> Clock | None:
        """Return the clock that `txid` must not pass; None if there is none.

        Behind a transaction that has the clock there is none: if that one is planned again, so are all later ones.
        """
        before = None if self.upto is None or self.holds else clock_of(self.document(txid - 1))
        return None if before is not None and self.upto is not None and before.reaches(self.upto) else self.upto

    def _check_bound(self, txid: int, document: Any, upto: Clock) -> None:
        """Raise `SpoutError` if the coordinator ignores the bound; report a clock that has become impossible.

        The first transaction tells what partitions there are, and where they begin; an opaque spout may lose records.
        """
        clock, before = Clock(self.planner.clock(document) or {}), clock_of(self.document(txid - 1))
        beyond = {name: offset for name, offset in clock.items() if offset > upto.get(name, -1)}
        if before is not None and not self.planner.opaque and beyond.keys() & before.keys():
            raise SpoutError(
                f"txid {txid}: the spout was planned up to {Clock(beyond)}, but the wanted clock {upto} must not be "
                "passed: its coordinator must heed upto in initialize_transaction, or not have that argument"
            )
        if clock.keys() - upto.keys():
            self.missed(f"the source has the partitions {', '.join(clock)}; ask for a clock of these")
        elif beyond:
            self.missed(f"the source is at {Clock(beyond)} already")

    def plan_system(self, txid: int, kind: Kind) -> None:
        """Plan `txid` as a system transaction, to which no source contributes."""
        self._plan(txid, self.planner.skip(self.document(txid - 1)), kind)

    def begin_at(self, clock: Mapping[str, int], timeline: int) -> None:
        """Let a new directory begin behind `clock`: store the document of a txid 0 that has this clock (durably)."""
        document = with_facts(self.planner.at_clock(clock), PlanFacts(clock=clock))
        meta = Meta(document, self._clock(), epoch=self._books.epoch)
        first = {"timeline": timeline, "txid": 0, "first": 0, "last": 0, "attempt": 0, "stamp": meta.stamp}
        self._books.begin(meta, {**first, "digest": "", "extents": document, "tuples": None, "versions": {}})
        self.metas[0] = meta

    def _plan(self, txid: int, document: Any, kind: Kind | None = "data") -> None:
        """Fix facts and stamp of `txid`; a `kind` of None leaves the facts in `document` as they are."""
        previous, recorded = self.metas.get(txid - 1), self.planner.recorded(txid)
        if recorded is not None:
            self.metas[txid] = self._unsaved[txid] = Meta(document, recorded.stamp)
            return
        stamp = max(self._clock(), 0 if previous is None else previous.stamp)
        if kind is not None:
            pinned = self._pins(txid, stamp, pinned_of(self.document(txid - 1)), self._books.epoch)
            resumes = self.waiting(txid - 1) if kind == self.kind(txid - 1) == "end" else ()
            known, clock = self.planner.facts(document), self.planner.clock(document)
            facts = PlanFacts(kind, known, pinned, max_ends=self.max_ends, resumes=resumes, clock=clock)
            document = with_facts(document, facts)
        self.metas[txid] = self._unsaved[txid] = Meta(document, stamp, epoch=self._books.epoch)

    def drop(self, txid: int) -> None:
        """Delete the plan of an undecided txid, whose batch had no effect; it is planned anew."""
        self._books.write_metas({}, remove=(txid,))
        del self.metas[txid]

    def save(self) -> None:
        """Store the new plans in the ledger with one write (P1, plan). Call before any of them is processed."""
        if self._unsaved:
            faults.point("p1.before")
            self._books.write_metas(self._unsaved)
            self._unsaved = {}
            faults.point("p1.after")

    def txid_input(self, attempt: TransactionAttempt, divert: tuple[str, ...] = ()) -> TxidInput:
        """Build the engine's input for a planned txid; `divert`: the kinds of errors to dead-letter."""
        meta = self.metas[attempt.txid]
        facts = facts_of(meta.document, self.planner.sources, attempt.attempt_id, meta.epoch)
        payload = None if facts.system else self.planner.payload(meta.document)
        return TxidInput(attempt, meta.document, meta.stamp, payload, divert=divert, facts=facts)

    def carried(self, txid: int) -> Mapping[str, Any]:
        """Return the partition metadata of a task-planned spout as of the txid before `txid`."""
        document = self.document(txid - 1)
        return {} if document is None else self.planner.carried(document)

    def misread(self, outcome: Processed) -> SpoutError | None:
        """Return an error if a recorded transaction has now read different extents from those recorded; else None."""
        txid = outcome.attempt.txid
        if not self.planner.task_planned or self.planner.recorded(txid) is None:
            return None
        document = self.metas[txid].document
        if self.planner.finish(document, outcome.parts) == document:
            return None
        return SpoutError(
            f"txid {txid}: the spout read other extents than were recorded; its source has changed, and later txids "
            "would not follow: run the topology in a new data directory instead of a backfill"
        )

    def processed(self, outcomes: Iterable[Processed]) -> None:
        """Store the extents that were actually read and their digests, in one write (P4, processed).

        If only digests are new, they are stored with the next write instead, at the latest when the txid is decided.
        Until then the batch has no visible effect that a replay would have to reproduce.

        Raises:
            SpoutError: a transactional spout emitted a different batch in a replay.
        """
        changed = {}
        for outcome in outcomes:
            txid = outcome.attempt.txid
            meta = self.metas[txid]
            self._check(txid, meta, outcome)
            document = self.planner.finish(meta.document, outcome.parts) if self.planner.task_planned else meta.document
            changed[txid] = self.metas[txid] = with_digests(meta, document, outcome.digests)
        if changed:
            faults.point("p4.before")
            if self.planner.task_planned or self._external:
                self._books.write_metas(changed)
            else:
                self._books.note_metas(changed)
            faults.point("p4.after")

    def emitted(self, outcome: Processed) -> None:
        """Store the extents and digests of an emitted batch whose txid then failed, so that its replay can be verified.

        Raises:
            SpoutError: a transactional spout emitted a different batch in a replay.
        """
        txid = outcome.attempt.txid
        meta = self.metas[txid]
        if self.planner.opaque or not (outcome.parts or outcome.digests):
            return
        self._check(txid, meta, outcome)
        planned = outcome.parts and self.planner.task_planned
        document = self.planner.finish(meta.document, outcome.parts) if planned else meta.document
        changed = with_digests(meta, document, {**meta.digests, **outcome.digests})
        if changed != meta:
            self._books.write_metas({txid: changed})
            self.metas[txid] = changed

    def _check(self, txid: int, meta: Meta, outcome: Processed) -> None:
        if self.planner.opaque:
            return
        for partition, before in meta.digests.items():
            digest = outcome.digests.get(partition, before if outcome.error or _TASK.fullmatch(partition) else "none")
            if before != digest:
                raise SpoutError(
                    f"txid {txid}: the spout emitted another batch for {partition} than the first time "
                    f"(digest {digest}, expected {before}); a transactional spout must replay exactly: "
                    "use an opaque one if the source cannot"
                )

    def pin(self, txid: int) -> tuple[Any, Any] | None:
        """Return the documents of `txid` and of the txid before it; None if a replay always uses the same document."""
        if not self.planner.opaque or self.planner.task_planned:
            return None
        return self.document(txid), without_waiting(self.document(txid - 1))

    def committed(self, last: int, waiting: Sequence[str] = ()) -> None:
        """Notify the spout that all txids up to `last` are committed, and discard the earlier documents.

        `waiting`: the components that have more window ends to fire after `last`.
        """
        if waiting:
            meta = self.metas[last]
            self.metas[last] = meta._replace(document=with_waiting(meta.document, waiting))
        self.planner.committed(self.metas[last].document)
        for txid in [txid for txid in self.metas if txid < last]:
            del self.metas[txid]


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
