"""Plan of an interval join: everything that its declaration and its place in the topology fix, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.state import CollectionState, KeyedState
from txstorm.joins.rules.blocks import ARRIVAL, KEY
from txstorm.joins.rules.positions import Bounds, PositionRule
from txstorm.joins.selection import FULL, RIGHT_OUTER
from txstorm.joins.side_rows import GROUP, TIME, SideForm
from txstorm.keys import KEY_GROUPS, tasks_of
from txstorm.windows.plan import WindowPlan
from txstorm.windows.rules.event_time import Facts

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")
TASK, ARRIVALS = "task", "arrivals"
"""Columns of the state of matched rows: who has matched them, and the arrivals of several rows."""
UNMATCHED = ("unmatched_left", "unmatched_right")
"""Streams of the left and right rows that have not matched, for good."""


@dataclass(frozen=True)
class OutputField:
    """One field of the default stream: its name, and the field of a side (`LEFT` or `RIGHT`) that it has."""

    name: str
    side: int
    field: str


@dataclass(frozen=True)
class SidePlan:
    """Plan of one side.

    Attributes:
        form: the form of its stored rows.
        windows: its input and time, as those of a windowed component with this input only.
        rule: how its position follows its partitions.
    """

    form: SideForm
    windows: WindowPlan
    rule: PositionRule

    def facts(self, context: TaskContext, frontiers: dict[tuple[str, str], int]) -> Facts:
        """Return the facts about the side in a transaction; `frontiers`: (component, stream) → what it has sent."""
        facts, announced = self.windows.facts(context, frontiers), self.form.side.partitions
        if announced is None:
            return facts
        return Facts({0: frozenset(announced)}, facts.ended, facts.frontiers, facts.end_of_input)

    def caught_up(self, context: TaskContext) -> bool:
        """Return whether all sources of the side have been read to their ends."""
        sources = [context.sources.get(name, SourceFacts()) for name in sorted(self.windows.inputs[0].sources)]
        return bool(sources) and all(one.caught_up for one in sources)

    def described(self) -> dict[str, str]:
        """Return what must be the same at every start, in words."""
        side = self.form.side
        columns = ", ".join(f"{one.name} {one.type}" for one in self.form.schema)
        return {
            "key": ", ".join(side.key),
            "time": f"field {side.time!r} in {side.unit}",
            "id": repr(side.id) if side.id is not None else "none (txid and position)",
            "partition field": repr(side.partition) if side.partition is not None else "none",
            "grouped by": ", ".join(self.form.grouped_by),
            "columns": columns,
            "kept as text": ", ".join(self.form.texts) or "nothing",
        }


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
    output: tuple[OutputField, ...]
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

    def own_groups(self, task: int) -> pa.Table | None:
        """Return the key groups whose rows a task gets; None for all."""
        if self.parallelism == 1 or (self.to_first and task == 0):
            return None
        every = np.arange(KEY_GROUPS)
        mine = every[:0] if self.to_first else every[tasks_of(every, self.parallelism) == task]
        return pa.table({GROUP: mine})

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
        return list(dict.fromkeys(one.field for one in self.output if one.side == side))


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
