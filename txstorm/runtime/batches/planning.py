"""P1 and P4: what every txid reads. Plans are made one by one and stored many at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.spout import NOT_READY
from txstorm.books.books import Books
from txstorm.books.records import Meta, with_digests
from txstorm.engine.port import Pack, Processed, TxidInput
from txstorm.engine.program import Program
from txstorm.errors import SpoutError
from txstorm.ledger import paths as names
from txstorm.ledger.port import Delete, Op
from txstorm.spouts.executors import planner
from txstorm.spouts.port import SpoutPlanner
from txstorm.topology.graph import Component

# What the framework digests itself is divided by tasks; with another number of tasks there is nothing to compare.
_TASK = re.compile(r"(.*/)?task \d+ of \d+", re.DOTALL)


class Planning:
    """The documents of undecided txids and of the last committed one, in memory and in the ledger.

    Args:
        clock: now, in UTC microseconds.
        external: whether the commit phase has effects outside the tables.

    Attributes:
        pinned: asked with (txid, the document before it) for a document that is settled, whatever the spout says.
    """

    def __init__(self, books: Books, source: SpoutPlanner, clock: Callable[[], int], *, external: bool = False) -> None:
        self._books = books
        self._external = external
        self.planner = source
        self._clock = clock
        self.metas: dict[int, Meta] = books.metas()
        self._unsaved: dict[int, Meta] = {}
        self.pinned: Callable[[int, Any], Any] = lambda txid, previous: None

    def reopen(self, spout: Component, program: Program) -> None:
        """Make the spout's coordinator anew, for another number of its tasks; called while nothing is in flight."""
        self.planner.close()
        self.planner = planner(spout.object, program.driver_context(spout.id))

    def open(self, currtx: int) -> tuple[int, ...]:
        """Txids from `currtx` on to emit again with stored metadata. An opaque spout's are dropped (R3)."""
        stored = tuple(sorted(txid for txid in self.metas if txid >= currtx))
        if not self.planner.opaque:
            return stored
        self._books.write_metas({}, remove=stored)
        for txid in stored:
            del self.metas[txid]
        return ()

    def document(self, txid: int) -> Any:
        """The spout document of `txid`, or None before the first."""
        meta = self.metas.get(txid)
        return None if meta is None else meta.document

    def plan(self, txid: int, *, replay: bool) -> bool:
        """Plan `txid`; False when the source has nothing. Not durable before `save`."""
        if replay and not self.planner.opaque and txid in self.metas:
            return True
        previous = self.metas.get(txid - 1)
        before = None if previous is None else previous.document
        document = self.pinned(txid, before)
        if document is None:
            document = self.planner.plan(txid, before, replay=replay)
        if document is NOT_READY:
            return False
        stamp = max(self._clock(), 0 if previous is None else previous.stamp)
        self.metas[txid] = self._unsaved[txid] = Meta(document, stamp)
        return True

    def save(self) -> None:
        """Store the new plans in one write; must happen before any of them is processed."""
        if self._unsaved:
            faults.point("p1.before")
            self._books.write_metas(self._unsaved)
            self._unsaved = {}
            faults.point("p1.after")

    def txid_input(self, attempt: TransactionAttempt) -> TxidInput:
        """What the engine gets of a planned txid."""
        meta = self.metas[attempt.txid]
        return TxidInput(attempt, meta.document, meta.stamp, self.planner.payload(meta.document))

    def pack(
        self, attempts: Sequence[TransactionAttempt], committed: int, divert: Callable[[int], tuple[str, ...]]
    ) -> Pack:
        """What the engine gets of `attempts`, which follow each other; `divert` tells what one leaves out."""
        inputs = tuple(replace(self.txid_input(one), divert=divert(one.txid)) for one in attempts)
        return Pack(inputs, self.carried(attempts[0].txid), committed)

    def carried(self, txid: int) -> Mapping[str, Any]:
        """Partition metadata of task-planned spouts before `txid`."""
        document = self.document(txid - 1)
        return {} if document is None else self.planner.carried(document)

    def processed(self, outcomes: Iterable[Processed]) -> None:
        """Store the real extents and digests of processed txids, in one write (P4).

        What only adds digests to a plan goes with the next write: it is stored when the txid is decided, and until
        then nobody has seen anything of the batch that a replay would have to be held to.

        Raises `SpoutError` when a transactional spout emitted something else than the first time.
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
        """A txid failed after its spout had emitted: what it emitted is stored, so that a replay is held to it.

        Raises `SpoutError` when a transactional spout emitted something else than the first time.
        """
        txid = outcome.attempt.txid
        meta = self.metas[txid]
        if self.planner.opaque or not (outcome.parts or outcome.digests):
            return
        self._check(txid, meta, outcome)
        known = outcome.parts and self.planner.task_planned
        document = self.planner.finish(meta.document, outcome.parts) if known else meta.document
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
                msg = (
                    f"txid {txid}: the spout emitted another batch for {partition} than the first time "
                    f"(digest {digest}, expected {before}); a transactional spout must replay exactly: "
                    "use an opaque one if the source cannot"
                )
                raise SpoutError(msg)

    def pin(self, txid: int) -> tuple[Any, Any] | None:
        """The document of `txid` and the one before it, if a replay could have another one."""
        if not self.planner.opaque or self.planner.task_planned:
            return None
        return self.document(txid), self.document(txid - 1)

    def committed(self, last: int) -> None:
        """Everything up to `last` is committed: the spout is told, and documents before it are dropped."""
        self.planner.committed(self.document(last))
        self.forget(last)

    def outlived(self, last: int) -> list[Op]:
        """What goes with P8 of a group up to `last`: metadata before it; its own is what the next is planned from."""
        return [Delete(names.meta_path(txid)) for txid in list(self.metas) if txid < last]

    def forget(self, before: int) -> list[int]:
        """Drop documents of txids below `before`; returns them, to be removed from the ledger with P8."""
        old = [txid for txid in self.metas if txid < before]
        for txid in old:
            del self.metas[txid]
        return old
