"""Lone side: the only side of a join that a component reads; what its store can have, and the base of committers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.assembly import AssembledCommitter
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import EVERYWHERE
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import StateHandle
from txstorm.api.tuples import Tuple
from txstorm.errors import LEAVE_OUT, StateError
from txstorm.joins.rules.positions import Arrivals
from txstorm.joins.side_plan import SidePlan
from txstorm.joins.stores.row_text import MAX_KEY_BYTES, key_bytes
from txstorm.keys import KEY_TYPES, is_key
from txstorm.misfits import shown
from txstorm.windows.intake import Chunk, Intake
from txstorm.windows.newest import Reports
from txstorm.windows.records import COMPONENT, ComponentRecord, progress_state
from txstorm.windows.rules.event_time import Progress

TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
SURE_TYPES = (
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_decimal,
)
"""Types of columns all of whose values can be keys."""
SURE_BYTES = MAX_KEY_BYTES // 2
"""Size up to which a key is not too large in any encoding."""


def check_storable(plan: SidePlan, stored: Sequence[str], chunk: Chunk) -> None:
    """Raise `ValueError` for a tuple with a value that a store cannot have.

    Args:
        plan: the plan of the side.
        stored: the fields by whose values a store knows rows.
        chunk: the tuples.
    """
    if isinstance(chunk.values, list):
        at = [plan.fields.index(name) for name in stored]
        for row in chunk.values:
            _check(plan, dict(zip(stored, [row[one] for one in at], strict=True)))
        return
    columns, key = [chunk.values.column(name) for name in stored], plan.side.key
    names = zip(stored, columns, strict=True)
    if not all(_storable(one, optional=name in key, most=SURE_BYTES // len(key)) for name, one in names):
        for values in zip(*(one.to_pylist() for one in columns), strict=True):
            _check(plan, dict(zip(stored, values, strict=True)))


def _check(plan: SidePlan, found: Mapping[str, Any]) -> None:
    """Raise `ValueError` for values, by field, that cannot be stored; None is possible in keys only."""
    side, id = plan.side, plan.windows.id
    for name, value in found.items():
        role = "key" if name in side.key else "id"
        if not is_key(value) or (value is None and role == "id"):
            what = "None" if value is None else f"{type(value).__name__} {shown(value)}"
            raise ValueError(
                f"{id}: field {name!r} of {side!r}: a row of a store cannot have the {role} "
                f"{what}; use {KEY_TYPES}, for ids without None{LEAVE_OUT}"
            )
    key = tuple(found[name] for name in side.key if name in found)
    try:
        if key and None not in key:
            key_bytes(key[0] if len(key) == 1 else key)
        for name, value in found.items():
            if name not in side.key:
                key_bytes(value, "id")
    except StateError as error:
        raise ValueError(f"{id}: {side!r}: {error}{LEAVE_OUT}") from None


def _storable(column: Any, *, optional: bool, most: int) -> bool:
    """Whether all values of a column can certainly be keys or ids: by type, and of at most `most` bytes."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if column.null_count and not optional:
        return False
    if any(check(kind) for check in TEXTS):
        return bool((pc.max(pc.binary_length(column.cast(kind))).as_py() or 0) <= most)
    return any(check(kind) for check in SURE_TYPES) or (pa.types.is_timestamp(kind) and kind.tz is not None)


class SideCommitter(AssembledCommitter):
    """Committer of a component with one side; until `finish_batch` it collects the tuples of a transaction.

    Args:
        side: the plan of the side.

    Attributes:
        chunks: the tuples of the side, in order of delivery.
        reports: newest times, over all tasks.
        frontiers: (component, stream) → the frontier that it has sent.
        others: the last value of each other stream, by (component, stream).
    """

    def __init__(self, side: SidePlan) -> None:
        self.side = side
        self.by_clock = side.rule.by_clock

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector = context, collector
        self._intake = Intake(self.side.windows, attempt)
        self.chunks: list[Chunk] = []
        self.reports = Reports()
        self.frontiers: dict[tuple[str, str], int] = {}
        self.others: dict[tuple[str, str], Any] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple, of the side or of another stream; called only if a value has no Arrow type."""
        number = self._intake.number(tuple.source_component, tuple.source_stream)
        if number is None:
            self.others[tuple.source_component, tuple.source_stream] = tuple.values[0]
        else:
            self.chunks.append(self._intake.tuples(number, tuple.source_task, [tuple]))

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch: tuples of the side, newest times, a frontier, or tuples of another stream."""
        assert self._context.source is not None
        component, stream, task = self._context.source
        number = self._intake.number(component, stream)
        if number is not None:
            self.chunks.append(self._intake.batch(number, task, batch))
        elif (component, stream) in self.side.windows.also_reads:
            self.frontiers[component, stream] = batch.column(0)[-1].as_py()
        elif stream == EVERYWHERE:
            self.reports.add(batch)
        else:
            self.others[component, stream] = batch.column(0)[-1].as_py()


class ProgressCommitter(SideCommitter):
    """Committer of a side that keeps its progress; time alone may be a reason for a transaction.

    Args:
        side: the plan of the side.
        fixed: what must be the same at every start, in words.
    """

    timers: ClassVar[bool] = True

    def __init__(self, side: SidePlan, fixed: Mapping[str, str]) -> None:
        super().__init__(side)
        self.progress = progress_state(side.windows, fixed)
        self.internal_states = {self.progress.name}
        self.also_reads = side.windows.also_reads

    def _arrivals(self) -> Arrivals:
        return self.side.arrivals(self._context, self.reports.newest, self.frontiers)

    def _show(self, reached: int | None, number: int, kind: str) -> None:
        """Report the time reached, and the number of tuples that have passed."""
        ahead = self.reports.number_ahead(self._context)
        self.side.windows.report(self._context, reached, number, 0, kind=kind, ahead=ahead)

    def _save(self, records: StateHandle, before: ComponentRecord, progress: Progress, **about: Any) -> None:
        """Keep the progress; `about`: what else helps to understand it."""
        context, windows = self._context, self.side.windows
        ahead = self.reports.count_ahead(windows, before.ahead, context)
        about = {**windows.about(), **about}
        after = replace(before, tasks=context.parallelism, progress=progress, about=about, ahead=ahead)
        records.put(COMPONENT, after.text())


def keyed(chunk: Chunk, plan: SidePlan) -> npt.NDArray[np.bool_]:
    """Return which tuples have a key: none of its fields is None."""
    if isinstance(chunk.values, list):
        at = [plan.fields.index(name) for name in plan.side.key]
        return np.array([all(row[one] is not None for one in at) for row in chunk.values], bool)
    found = np.ones(len(chunk), bool)
    for name in plan.side.key:
        column = chunk.values.column(name)
        if column.null_count:
            found &= column.is_valid().to_numpy(zero_copy_only=False)
    return found
