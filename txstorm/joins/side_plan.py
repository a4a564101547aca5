"""Side plan: one side of a join at its place in a topology, its map-side stage, and the faults that show there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from txstorm.api.assembly import Site, SiteInput
from txstorm.api.context import SourceFacts, TaskContext
from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.errors import InputError
from txstorm.joins.rules.positions import Arrivals, PositionRule
from txstorm.joins.side import Side
from txstorm.joins.side_rows import SideForm
from txstorm.windows.intake import Check, Chunk
from txstorm.windows.newest import NewestTimes
from txstorm.windows.plan import TimeSource, WindowOptions, WindowPlan
from txstorm.windows.rules.event_time import WatermarkRule
from txstorm.windows.rules.forms import Count, sliding


@dataclass(frozen=True)
class SidePlan:
    """Plan of one side.

    Attributes:
        form: the form of its stored rows.
        windows: its input and time, as those of a windowed component with this input only.
        rule: how its position follows its partitions.
        by_fields: whether its tuples are distributed to the tasks by fields.
    """

    form: SideForm
    windows: WindowPlan
    rule: PositionRule
    by_fields: bool

    @classmethod
    def of(cls, side: Side, site: Site, *, kind: pa.DataType | None = None, grace: int | None = None) -> SidePlan:
        """Return a side at its place; `kind`: the type of its stored keys; `grace` is for one that declares none."""
        found = input_of(side, site)
        if found is None or found.fields is None:
            needed = [name for names in _named_fields(side).values() for name in names]
            found = SiteInput(
                side.component, side.stream, tuple(dict.fromkeys(needed)), frozenset(), "fields", side.key
            )
        by_fields = found.grouping == "fields" or site.parallelism == 1
        time, rule = TimeSource(side.time, side.unit, None, side.partition), WatermarkRule(1, side.lag, side.idle)
        options = WindowOptions(time=time, rule=rule, clock=side.clock)
        alone, owner_fields = replace(site, inputs=(found,)), side.key if by_fields else None
        windows = WindowPlan.of(options, alone, sliding(Count(1)), owner_fields=owner_fields)
        grouped = found.grouped_by if found.grouping == "fields" else side.key
        form = SideForm(side, windows.union, tuple(grouped), kind, windows.inputs[0].shift)
        return cls(form, windows, PositionRule(rule, side.grace if side.grace is not None else grace), by_fields)

    @property
    def side(self) -> Side:
        """The declaration."""
        return self.form.side

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of its tuples."""
        return self.form.fields

    def arrivals(
        self, context: TaskContext, newest: Mapping[tuple[int, str], int], frontiers: Mapping[tuple[str, str], int]
    ) -> Arrivals:
        """Return what a transaction brings: newest times by partition, and facts of the sources.

        `frontiers`: (component, stream) → what it has sent.
        """
        facts, announced = self.windows.facts(context, frontiers), self.side.partitions
        if announced is not None:
            facts = replace(facts, partitions={0: frozenset(announced)})
        sources = [context.sources.get(name, SourceFacts()) for name in self.windows.inputs[0].sources]
        return Arrivals(newest, facts, bool(sources) and all(one.caught_up for one in sources))

    def stage(self, *checks: Check) -> NewestTimes:
        """Return the map-side stage, which reports newest times, and raises errors for tuples that checks refuse."""
        return NewestTimes(self.windows, *self.side.reads, (*checks, self.check))

    def check(self, chunk: Chunk) -> None:
        """Raise an error for a tuple of an unannounced partition, or with a value that does not fit its column."""
        self.form.check(chunk)
        side, announced = self.side, self.side.partitions
        strange = sorted(set(chunk.newest) - set(announced)) if announced is not None else []
        if strange:
            raise ValueError(
                f"{self.windows.id}: field {side.partition!r} of a tuple of {side.component!r} is {strange[0]!r}, "
                f"expected one of partitions={list(announced or ())}; add it to the list, or leave the list out"
            )

    def described(self) -> dict[str, str]:
        """Return what must be the same at every start, in words."""
        side = self.side
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

    def fixed(self) -> dict[str, str]:
        """Return what must be the same at every start of a component with this side alone, in words."""
        facts = self.described()
        return facts if self.by_fields else {**facts, "tasks": str(self.windows.parallelism)}


# -- faults ------------------------------------------------------------------------------------------------------------


def checked_side(kind: str, role: str, side: Any) -> Side:
    """Return `side`; raise `InputError` if it is none."""
    if not isinstance(side, Side):
        msg = f"{kind}: the {role} side: expected a Side, got {side!r}; write Side(component, stream, key=…, time=…)"
        raise InputError(msg)
    return side


def input_of(side: Side, site: Site) -> SiteInput | None:
    """Return the input of a component that a side describes; None if it does not subscribe to it."""
    inputs = (one for one in site.inputs if (one.component, one.stream) == side.reads)
    return next(inputs, None)


def side_faults(kind: str, role: str, side: Side, site: Site, others: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Return the faults that the only side of a component has in its topology: what it reads, and its fields.

    `others`: the streams that the component reads besides.
    """
    stream = "" if side.stream == DEFAULT_STREAM else f" stream {side.stream!r} of"
    where, source = f"{kind}: the {role} side", input_of(side, site)
    faults = []
    if source is None:
        inputs = ", ".join(f"{one.component!r} (stream {one.stream!r})" for one in site.inputs) or "nothing"
        faults = [f"{where} is{stream} {side.component!r}, but the component reads {inputs}; subscribe to it"]
    elif source.fields is not None:  # otherwise the builder reports an unknown component or stream
        missing = missing_fields(side, source.fields)
        faults = [f"{where}: {what}:{stream} {side.component!r} has no field {name}" for what, name in missing]
        faults += [f"{where}: {fault}" for fault in source.time_faults(side.time)]
        faults += partition_faults(where, side)
    return faults + [
        f"{kind}: the component also reads {one.where}, which it does not use; remove it"
        for one in site.inputs
        if (one.component, one.stream) not in (side.reads, *others)
    ]


def _named_fields(side: Side) -> dict[str, list[str]]:
    """Return the fields that a side names, by what they are for."""
    roles = {"key": side.key, "time": (side.time,), "id": (side.id,), "partition": (side.partition,)}
    return {what: [name for name in names if name is not None] for what, names in roles.items()}


def missing_fields(side: Side, fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields that a side names, and that its stream lacks: what each is for, and what messages say of it."""
    for what, names in {**_named_fields(side), "columns": list(side.columns or ())}.items():
        for name in names:
            if name not in fields:
                yield what, f"{name!r}{near(name, list(fields))}; it has {', '.join(fields)}"


def partition_faults(where: str, side: Side) -> list[str]:
    """Return a fault if the partitions of a side can never have a position."""
    if side.partitions is None or (side.partitions and side.partition is not None):
        return []
    return [
        f"{where}: partitions={list(side.partitions)} with the partition field {side.partition!r}: such a side "
        "never reports a position; name the field, and at least one partition, or leave partitions out"
    ]
