"""P1 and P4: what every txid reads. Plans are made one by one and stored many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txstorm import faults
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.spout import NOT_READY
from txstorm.engine.port import Processed, TxidInput
from txstorm.engine.program import Program
from txstorm.errors import SpoutError
from txstorm.runtime.books import Books, Meta, with_digests
from txstorm.spouts.executors import SpoutPlanner, planner
from txstorm.topology.graph import Component


class Planning:
    """The documents of undecided txids and of the last committed one, in memory and in the ledger.

    Args:
        clock: now, in UTC microseconds.
    """

    def __init__(self, books: Books, source: SpoutPlanner, clock: Callable[[], int]) -> None:
        self._books = books
        self.planner = source
        self._clock = clock
        self.metas: dict[int, Meta] = books.metas()
        self._unsaved: dict[int, Meta] = {}

    def reopen(self, spout: Component, program: Program) -> None:
        """Make the spout's coordinator anew, for another number of its tasks; called while nothing is in flight."""
        self.planner.close()
        context = TaskContext(program.topology, spout.id, 0, spout.parallelism, program.settings)
        self.planner = planner(spout.object, context)

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
        document = self.planner.plan(txid, self.document(txid - 1), replay=replay)
        if document is NOT_READY:
            return False
        previous = self.metas.get(txid - 1)
        stamp = max(self._clock(), previous.stamp if previous is not None else 0)
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

    def carried(self, txid: int) -> Mapping[str, Any]:
        """Partition metadata of task-planned spouts before `txid`."""
        document = self.document(txid - 1)
        parts = document.get("parts") if isinstance(document, dict) and self.planner.task_planned else None
        return dict(parts or {})

    def processed(self, outcomes: Iterable[Processed]) -> None:
        """Store the real extents and digests of processed txids, in one write (P4).

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
            self._books.write_metas(changed)
            faults.point("p4.after")

    def emitted(self, outcome: Processed) -> None:
        """A txid failed after its spout had emitted: its extents are stored, so that a replay emits the same."""
        if outcome.parts and self.planner.task_planned and not self.planner.opaque:
            meta = self.metas[outcome.attempt.txid]
            changed = with_digests(meta, self.planner.finish(meta.document, outcome.parts), meta.digests)
            self._books.write_metas({outcome.attempt.txid: changed})
            self.metas[outcome.attempt.txid] = changed

    def _check(self, txid: int, meta: Meta, outcome: Processed) -> None:
        if self.planner.opaque:
            return
        for partition, digest in outcome.digests.items():
            before = meta.digests.get(partition, digest)
            if before != digest:
                msg = (
                    f"txid {txid}: the spout emitted another batch for {partition} than the first time "
                    f"(digest {digest}, expected {before}); a transactional spout must replay exactly: "
                    "use an opaque one if the source cannot"
                )
                raise SpoutError(msg)

    def forget(self, before: int) -> list[int]:
        """Drop documents of txids below `before`; returns them, to be removed from the ledger with P8."""
        old = [txid for txid in self.metas if txid < before]
        for txid in old:
            del self.metas[txid]
        return old
