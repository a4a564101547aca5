"""Plan of an interval join: everything that its declaration and its place in the topology fix, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from txstorm.api.context import TaskContext
from txstorm.api.state import CollectionState, KeyedState
from txstorm.joins.rules.blocks import ARRIVAL, KEY
from txstorm.joins.rules.positions import Bounds
from txstorm.joins.selection import FULL, RIGHT_OUTER, Selected
from txstorm.joins.side_plan import SidePlan
from txstorm.joins.side_rows import TIME

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")
TASK, ARRIVALS = "task", "arrivals"
"""Columns of the state of matched rows: who has matched them, and the arrivals of several rows."""
UNMATCHED = ("unmatched_left", "unmatched_right")
"""Streams of the left and right rows that have not matched, for good."""


@dataclass(frozen=True)
class IntervalPlan:
    """Plan of an interval join.

    Attributes:
        id: the component's id.
        parallelism: number of its tasks.
        sides: left and right.
        bounds: which times join.
        how: the join type.
        output: the fields of the default stream.
        to_first: whether the first task gets everything.
    """

    id: str
    parallelism: int
    sides: tuple[SidePlan, SidePlan]
    bounds: Bounds
    how: str
    output: tuple[Selected, ...]
    to_first: bool = False

    @cached_property
    def states(self) -> tuple[CollectionState, ...]:
        """The states of pending left rows, right rows in the window, those that have matched, and passing rows.

        A row of the third one has the arrivals of right rows as 64-bit integers, and the latest of their times.
        """
        left, right = (plan.form.state(f"{self.id}-{name}") for plan, name in zip(self.sides, SIDES, strict=True))
        matched = CollectionState(f"{self.id}-matched", {TASK: int}, {ARRIVALS: bytes}, order={TIME: int})
        passing = CollectionState(f"{self.id}-passing", {"side": str, TASK: int}, {"rows": bytes}, order={"txid": int})
        return left, right, matched, passing

    @cached_property
    def progress(self) -> KeyedState:
        """The state of the records of the component and its tasks."""
        return KeyedState(f"{self.id}-progress", {"unit": str}, {"record": str}, fixed=self.fixed())

    @property
    def exact(self) -> bool:
        """Whether exactly the same keys, but None, have the same hash: it is one-to-one for numbers and times."""
        kind = self.sides[RIGHT].form.key_kind
        one_to_one = (pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp)
        return kind is not None and any(fits(kind) for fits in one_to_one)

    def fixed(self) -> dict[str, str]:
        """Return what must be the same at every start, in words."""
        bounds = vars(self.bounds)
        facts = {"join": self.how, **{name: f"{one / 1000:g} ms" for name, one in bounds.items()}}
        facts["bounds"] = ", ".join(f"{name} {one} us" for name, one in bounds.items())  # with all digits
        for name, plan in zip(SIDES, self.sides, strict=True):
            facts.update({f"{name} {what}": one for what, one in plan.described().items()})
        return facts

    def about(self) -> dict[str, Any]:
        """Return what may change between starts, but helps to understand stored rows and progress, as JSON."""
        sides = {name: _about_side(plan) for name, plan in zip(SIDES, self.sides, strict=True)}
        return {**sides, "how": self.how, **vars(self.bounds), "to_first": self.to_first}

    def shows_expired(self, context: TaskContext) -> bool:
        """Return whether right rows that have never matched are emitted to any stream."""
        return self.how in (RIGHT_OUTER, FULL) or context.is_read(UNMATCHED[RIGHT])

    def needed_columns(self, side: int, context: TaskContext) -> tuple[str, ...]:
        """Return those columns of a side's stored rows that are needed to match rows, or are ever emitted."""
        form = self.sides[side].form
        fields = form.fields if context.is_read(UNMATCHED[side]) else self.fields_of(side)
        times = [TIME] if self.shows_expired(context) else []
        return tuple(dict.fromkeys([KEY, ARRIVAL, *times, *form.columns_for(fields)]))

    def fields_of(self, side: int) -> list[str]:
        """Return the fields of a side that the default stream has."""
        return list(dict.fromkeys(one.field for one in self.output if one.side == SIDES[side]))


def _about_side(plan: SidePlan) -> dict[str, Any]:
    source, side = plan.windows.inputs[0], plan.form.side
    return {
        "input": [source.component, source.stream],
        "key": list(side.key),
        "plain": sorted(plan.form.plain),
        "lag": plan.rule.watermark.lag,
        "idle": plan.rule.watermark.idle,
        "grace": plan.rule.grace,
        "sources": sorted(source.sources),
        "partitions": None if side.partitions is None else list(side.partitions),
    }
