"""Turn of a windowed component: its record and its progress before and after one transaction, as a task sees them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from txstorm.api.context import HeldBack, TaskContext
from txstorm.api.state import StateHandle
from txstorm.windows.newest import Reports
from txstorm.windows.plan import WindowPlan
from txstorm.windows.records import COMPONENT, ComponentRecord, StoredInputs
from txstorm.windows.rules.backlog import MANY
from txstorm.windows.rules.event_time import END, MICROSECOND, WHOLE, Newest, Progress, instant

log = logging.getLogger(__name__)


class ComponentTurn:
    """The component in one transaction: how far event time gets, and which ends fire.

    Args:
        plan: the plan of the component.
        declared: what must be the same at every start; `StateError` is raised unless it is.
        records: the records of the component and its units.
        context: the task.
        reports: what the map-side stages report.
        frontiers: (component, stream) → the frontier that it has sent.

    Attributes:
        before: the record after the previous transaction.
        inputs: the inputs by the numbers that they have in stored tuples.
        progress: the progress after this transaction; in processing time, the watermark is its stamp.
        ends: which ends have fired after it, and which wait.
    """

    def __init__(
        self,
        plan: WindowPlan,
        declared: Any,
        records: StateHandle,
        context: TaskContext,
        reports: Reports,
        frontiers: Mapping[tuple[str, str], int],
    ) -> None:
        self._plan, self._declared, self._records = plan, declared, records
        self._context, self._reports = context, reports
        stored = ComponentRecord.read(records.get(COMPONENT))
        stored.check(plan.id, declared)
        self.inputs = StoredInputs(plan, stored.about)
        self.before = self.inputs.read(stored)
        self._facts = plan.facts(context, frontiers)
        self.progress = self._advanced(self.before.progress)
        runs = reports.runs
        if not plan.event_time and not context.heartbeat:  # all tuples have the same time
            runs = [(plan.stamped(self.before.progress.watermark, context.stamp),) * 2]
        self.ends = self.before.ends.after(plan.form, runs, self.progress.watermark, context.facts.max_ends)

    def _advanced(self, progress: Progress) -> Progress:
        plan, facts, stamp, before = self._plan, self._facts, self._context.stamp, progress.watermark
        if plan.event_time:
            return plan.rule.after(progress, self._reports.newest, stamp, facts)
        ended = before == END or facts.end_of_input or len(facts.ended) == len(plan.inputs)
        reached = stamp if before is None else max(before, stamp)
        first = stamp if progress.first_stamp is None else progress.first_stamp
        return Progress(END if ended else reached, stamp, first)

    def end(self, fired: int, late: int, next_end: Callable[[], int | None], **changes: Any) -> None:
        """Keep the record, report the progress, and ask for a transaction when windows may fire without tuples.

        Args:
            fired: number of results.
            late: number of late tuples.
            next_end: returns, in processing time, when windows may fire next.
            **changes: other changes of the record.
        """
        plan, context, progress = self._plan, self._context, self.progress
        if context.task == 0:
            ahead = self._reports.count_ahead(plan, self.before.ahead, context)
            backlog = None if plan.form.step is None else self.ends
            changes |= {"tasks": plan.parallelism, "declared": self._declared, "backlog": backlog, "ahead": ahead}
            self._records.put(COMPONENT, self.inputs.text(replace(self.before, progress=progress, **changes)))
        more = {"ahead": self._reports.number_ahead(context), **self._waiting()}
        more["held_back_by"] = self._held_back_by() if context.task == 0 else None
        plan.report(context, progress.watermark, fired, late, **more)
        if progress.watermark == END:
            return
        due = None
        if not plan.event_time:
            due = next_end()
        elif context.task == 0:
            due = plan.rule.next_idle(progress, context.stamp, self._facts)
        if due is not None:
            context.wake_at(due)

    def _waiting(self) -> dict[str, Any]:
        """Return what `WindowProgress` says of the ends that wait; log a warning when they become many."""
        plan, ends, context = self._plan, self.ends, self._context
        if not ends.waiting or ends.since is None:
            return {}
        rate, since = context.facts.max_ends or 0, instant(ends.since - plan.form.shift)
        if ends.waiting > MANY and self.before.ends.waiting <= MANY and context.task == 0:
            log.warning(
                "%s: %s window ends are due since a tuple of %s, and a transaction fires %s of them; if that time is "
                "wrong, rewind to before that tuple, and let with_max_behind or with_max_ahead refuse such tuples; "
                "else wait, or raise max_ends_per_txid",
                *(plan.id, f"{ends.waiting:,}", since.isoformat(), f"{rate:,}"),
            )
        return {"waiting": ends.waiting, "waiting_since": since, "waiting_rate": rate}

    def _held_back_by(self) -> HeldBack | None:
        """Return the input that holds the watermark back, and its slowest partition; None if none does."""
        plan, progress, stamp, facts = self._plan, self.progress, self._context.stamp, self._facts
        if not plan.event_time or progress.watermark == END:
            return None
        positions = plan.rule.held_back_by(progress, stamp, facts)
        if not positions:
            return None
        choose = max if plan.rule.policy == "max" else min
        number = choose(positions, key=lambda one: -END if positions[one] is None else positions[one] or 0)
        parts = plan.rule.active_partitions(number, progress, stamp, facts)
        first = progress.first_stamp or stamp
        known = {part: progress.newest.get((number, part), Newest(-END, first)) for part in parts}
        slowest = min(known, key=lambda part: (known[part].time, part), default=WHOLE)
        since = known[slowest].stamp if slowest in known else first
        source = plan.inputs[number]
        return HeldBack(source.component, source.stream, slowest, (stamp - since) * MICROSECOND)
