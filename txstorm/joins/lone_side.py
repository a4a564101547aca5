"""Lone side: the only side of a join that a component reads, at the component's place in its topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.assembly import Site, SiteInput
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.errors import LEAVE_OUT, InputError, StateError
from txstorm.joins.interval.interval_committer import SideTimes
from txstorm.joins.interval.interval_plan import SidePlan
from txstorm.joins.rules.positions import Arrivals, PositionRule
from txstorm.joins.side import Side
from txstorm.joins.side_rows import SideForm
from txstorm.joins.stores.row_text import MAX_KEY_BYTES, key_bytes
from txstorm.keys import KEY_TYPES, is_key
from txstorm.misfits import shown
from txstorm.windows.intake import Chunk
from txstorm.windows.plan import InputPlan, TimeSource, WindowPlan
from txstorm.windows.rules.event_time import WatermarkRule
from txstorm.windows.rules.forms import Count, duration, sliding

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


@dataclass(frozen=True)
class LoneSide:
    """A side in its topology.

    Attributes:
        plan: its form, its input and the rule of its position.
        by_fields: whether its tuples are distributed to the tasks by fields.
    """

    plan: SidePlan
    by_fields: bool

    @classmethod
    def of(cls, side: Side, site: Site, *, grace: int | None = None) -> LoneSide:
        """Return a side at its place; `grace` is for one that declares none."""
        found = input_of(side, site)
        if found is None or found.fields is None:
            needed = (*side.key, side.time, *(one for one in (side.id, side.partition) if one is not None))
            found = SiteInput(
                side.component, side.stream, tuple(dict.fromkeys(needed)), frozenset(), "fields", side.key
            )
        time = TimeSource(side.time, side.unit, None, side.partition)
        rule = WatermarkRule(1, side.lag, side.idle)
        one = InputPlan.of(found, time)
        by_fields = found.grouping == "fields" or site.parallelism == 1
        windows = WindowPlan(
            id=site.id,
            parallelism=site.parallelism,
            form=sliding(Count(1)),
            rule=rule,
            time=time,
            inputs=(one,),
            owner_fields=side.key if by_fields else None,
            clock=side.clock,
        )
        grouped = found.grouped_by if found.grouping == "fields" else side.key
        form = SideForm(side, one.fields, grouped, shift=one.shift)
        position = PositionRule(rule, side.grace if side.grace is not None else grace)
        return cls(SidePlan(form, windows, position), by_fields)

    @property
    def side(self) -> Side:
        """The declaration."""
        return self.plan.form.side

    @property
    def windows(self) -> WindowPlan:
        """The plan of its intake."""
        return self.plan.windows

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of its tuples."""
        return self.plan.form.fields

    def fixed(self) -> dict[str, str]:
        """Return what must be the same at every start, in words."""
        facts = self.plan.described()
        return facts if self.by_fields else {**facts, "tasks": str(self.windows.parallelism)}

    def stage(self, stored: Sequence[str] = ()) -> CheckedSideTimes:
        """Return the stage in the tasks of the source; `stored`: fields by whose values a store knows rows."""
        return CheckedSideTimes(self, stored)

    def arrivals(
        self, context: TaskContext, newest: Mapping[tuple[int, str], int], frontiers: dict[tuple[str, str], int]
    ) -> Arrivals:
        """Return what a transaction brings: newest times by partition, and facts of the sources."""
        return Arrivals(newest, self.plan.facts(context, frontiers), self.plan.caught_up(context))


class CheckedSideTimes(SideTimes):
    """Map-side stage of a lone side: also refuses values that cannot be a key or an id of a store."""

    def __init__(self, side: LoneSide, stored: Sequence[str]) -> None:
        super().__init__(side.plan)
        self._stored = tuple(stored)

    def _add(self, chunk: Chunk) -> None:
        if isinstance(chunk.values, list):
            at = [self._plan.inputs[0].fields.index(name) for name in self._stored]
            for row in chunk.values:
                self._check([row[one] for one in at])
        else:
            columns = [chunk.values.column(name) for name in self._stored]
            key = self._side.key
            names = zip(self._stored, columns, strict=True)
            if not all(_storable(one, optional=name in key, most=SURE_BYTES // len(key)) for name, one in names):
                for values in zip(*(one.to_pylist() for one in columns), strict=True):
                    self._check(values)
        super()._add(chunk)

    def _check(self, values: Sequence[Any]) -> None:
        """Raise `ValueError` for a tuple with a value that cannot be stored; None is possible in keys only."""
        found = dict(zip(self._stored, values, strict=True))
        for name, value in found.items():
            role = "key" if name in self._side.key else "id"
            if not is_key(value) or (value is None and role == "id"):
                what = "None" if value is None else f"{type(value).__name__} {shown(value)}"
                raise ValueError(
                    f"{self._plan.id}: field {name!r} of {self._side!r}: a row of a store cannot have the {role} "
                    f"{what}; use {KEY_TYPES}, for ids without None{LEAVE_OUT}"
                )
        key = tuple(found[name] for name in self._side.key if name in found)
        try:
            if key and None not in key:
                key_bytes(key[0] if len(key) == 1 else key)
            for name, value in found.items():
                if name not in self._side.key:
                    key_bytes(value, "id")
        except StateError as error:
            raise ValueError(f"{self._plan.id}: {self._side!r}: {error}{LEAVE_OUT}") from None


def _storable(column: Any, *, optional: bool, most: int) -> bool:
    """Whether all values of a column can certainly be keys or ids: by type, and of at most `most` bytes."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if column.null_count and not optional:
        return False
    if any(check(kind) for check in TEXTS):
        return bool((pc.max(pc.binary_length(column.cast(kind))).as_py() or 0) <= most)
    return any(check(kind) for check in SURE_TYPES) or (pa.types.is_timestamp(kind) and kind.tz is not None)


def input_of(side: Side, site: Site) -> SiteInput | None:
    """Return the input of a component that a side describes; None if it does not subscribe to it."""
    found = (one for one in site.inputs if (one.component, one.stream) == (side.component, side.stream))
    return next(found, None)


def checked_side(kind: str, role: str, side: Any) -> Side:
    """Return `side`; raise `InputError` if it is none."""
    if not isinstance(side, Side):
        msg = f"{kind}: the {role} side: expected a Side, got {side!r}; write Side(component, stream, key=…, time=…)"
        raise InputError(msg)
    return side


def span(given: Any, what: str) -> int:
    """Return a duration of at least 0 in microseconds; raise `InputError` for anything else."""
    return duration(given, what, zero=True).microseconds


def side_faults(kind: str, role: str, side: Side, site: Site) -> list[str]:
    """Return the faults of a side that show in its topology: what it reads, and the fields that it names."""
    found = input_of(side, site)
    stream = "" if side.stream == DEFAULT_STREAM else f" stream {side.stream!r} of"
    where = f"{kind}: the {role} side"
    if found is None:
        inputs = ", ".join(f"{one.component!r} (stream {one.stream!r})" for one in site.inputs) or "nothing"
        return [f"{where} is{stream} {side.component!r}, but the component reads {inputs}; subscribe to it"]
    if found.fields is None:
        return []  # the builder reports an unknown component or stream
    named = {"key": side.key, "time": (side.time,), "id": (side.id,), "partition": (side.partition,)}
    faults = [
        f"{where}: {what}:{stream} {side.component!r} has no field {name!r}{near(name, list(found.fields))}; it has "
        f"{', '.join(found.fields)}"
        for what, names in {**named, "columns": tuple(side.columns or ())}.items()
        for name in names
        if name is not None and name not in found.fields
    ]
    faults += [f"{where}: {fault}" for fault in found.time_faults(side.time)]
    if side.partitions == () or (side.partitions and side.partition is None):
        faults.append(
            f"{where}: partitions={list(side.partitions)} with the partition field {side.partition!r}: such a side "
            "never reports a position; name the field, and at least one partition, or leave partitions out"
        )
    return faults


def other_inputs(kind: str, expected: Sequence[tuple[str, str]], site: Site) -> list[str]:
    """Return a fault for each input that is none of the `expected` ones."""
    return [
        f"{kind}: the component also reads stream {one.stream!r} of {one.component!r}, which it does not use; remove it"
        for one in site.inputs
        if (one.component, one.stream) not in expected
    ]
