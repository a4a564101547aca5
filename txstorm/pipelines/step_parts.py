"""Steps of a pipeline, from filters to joins.

It is one module, as a reader compares the steps, and all follow one scheme: options, then what they add.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from inspect import signature
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field

from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.bolts.aggregate import CountByKey, SumByKey
from txstorm.bolts.basic import Filter, Select
from txstorm.bolts.expressions import parsed, quoted
from txstorm.clients.config_files import AnyDuration, Names, NotNegative, Part, Positive
from txstorm.errors import InputError
from txstorm.joins.deduplicator import Deduplicator
from txstorm.joins.interval.interval_join import IntervalJoin
from txstorm.joins.interval.interval_plan import UNMATCHED
from txstorm.joins.lookup.lookup_join import LookupJoin
from txstorm.joins.selection import LEFT, RIGHT, SPELLINGS, selection
from txstorm.joins.side import Side
from txstorm.pipelines.parts import (
    PipelinePart,
    Site,
    StepPart,
    Stream,
    Table,
    grouped,
    local,
    named_type,
    single,
    texts_of,
    time_fault,
)
from txstorm.topology.program import Call
from txstorm.typed import python_type
from txstorm.windows.aggregates.aggregate import WindowAggregate
from txstorm.windows.aggregates.aggregate_committer import RETRACTIONS
from txstorm.windows.aggregates.top import RANK, TopPerWindow

LATE = "late"


_CAST = re.compile(r"\w+\s*(\(\s*\d+\s*(,\s*\d+\s*)?\))?")


_AGGREGATE = re.compile(r"(\w+)(?:\(\s*([^(),\s]+)\s*(?:,\s*([^(),\s]+)\s*)?\))?")


Unit = Literal["s", "ms", "us"]


def _how(value: object) -> object:
    return SPELLINGS.get(value.lower(), value) if isinstance(value, str) else value


def _cast(value: object) -> object:
    if isinstance(value, str) and not _CAST.fullmatch(value.strip()):
        raise ValueError(f'expected a type, such as "int" or "decimal(12, 2)", got {value!r:.100}')
    return value


class FilterStep(StepPart):
    """The tuples for which a condition is true."""

    type: Literal["filter"]
    where: str

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `Filter`."""
        kind = None
        with site.naming("where"):
            kind = parsed(self.where).type_in(types)
        if kind == pa.bool_():
            site.bolt(Call(Filter, self.where, *types), local(stream))
        elif kind is not None:
            site.fault("where", f"expected a condition, got an expression of the type {named_type(kind)}")
        site.emits(types)


def _selected(value: object) -> object:
    names = texts_of(value)
    return value if names is None else {name: quoted(name) for name in names}


class SelectStep(StepPart):
    """Some of the fields, renamed or computed."""

    type: Literal["select"]
    fields: Annotated[dict[str, str], BeforeValidator(_selected), Field(min_length=1)]

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `Select`."""
        _select(self.fields, stream, types, site)


class CastStep(StepPart):
    """All fields, some of them converted to other types."""

    type: Literal["cast"]
    types: dict[str, Annotated[str, BeforeValidator(_cast)]] = Field(min_length=1)

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `Select` with casts."""
        site.has(stream, list(self.types), "types")
        casts = {name: f"cast({quoted(name)} as {kind})" for name, kind in self.types.items() if name in types}
        _select({name: quoted(name) for name in types} | casts, stream, types, site, "types")


def _select(
    fields: Mapping[str, str], stream: Stream, types: Mapping[str, pa.DataType], site: Site, option: str = "fields"
) -> None:
    made: dict[str, pa.DataType] | None = {}
    for name, text in fields.items():
        kind = None
        with site.naming(option, name):
            kind = parsed(text).type_in(types)
            if kind == pa.null():
                raise InputError("expected an expression with a type, got null; write cast(null as TYPE)")
        made = None if made is None or kind is None else {**made, name: kind}
    if made is not None:
        site.bolt(Call(Select, fields), local(stream))
    site.emits(made)


class DeduplicateStep(StepPart):
    """The first tuple of each id."""

    type: Literal["deduplicate"]
    id: Names
    keep: Positive | None = None
    quiet: Positive | None = None

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `Deduplicator`."""
        if (self.keep is None) == (self.quiet is None):
            if site.flawed.isdisjoint({"keep", "quiet"}):
                site.fault("", "expected one of keep and quiet, which say how long it is known")
        elif site.has(stream, self.id, "id"):
            site.bolt(Call(Deduplicator, self.id, keep=self.keep, quiet=self.quiet), grouped(stream, self.id))
        site.emits(types)


class CountStep(StepPart):
    """The number of tuples per key, in a state."""

    type: Literal["count"]
    by: Names
    count: str = "n"
    table: Table | None = None
    ttl: Positive | None = None

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `CountByKey`."""
        if site.has(stream, self.by, "by"):
            key = {name: types[name] for name in self.by}
            call = Call(CountByKey, key, self.table or site.id, count=self.count, ttl=self.ttl)
            site.bolt(call, grouped(stream, self.by))


class SumStep(StepPart):
    """The sums of fields per key, in a state."""

    type: Literal["sum"]
    by: Names
    sum: Names
    table: Table | None = None
    ttl: Positive | None = None

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `SumByKey`."""
        if site.has(stream, [*self.by, *self.sum], "sum"):
            key, value = ({name: types[name] for name in names} for names in (self.by, self.sum))
            site.bolt(Call(SumByKey, key, value, self.table or site.id, ttl=self.ttl), grouped(stream, self.by))


class WindowStep(StepPart):
    """Aggregates per key and window."""

    type: Literal["window"]
    by: Names
    length: Positive | None = None
    slide: Positive | None = None
    gap: Positive | None = None
    closed: Literal["left", "right"] | None = None
    time: str | None = None
    unit: Unit | None = None
    lag: NotNegative | None = None
    partition: str | None = None
    idle: Positive | None = None
    max_ahead: Positive | None = None
    max_behind: Positive | None = None
    allowed_lateness: Positive | None = None
    late: bool = False
    retractions: bool = False
    names: dict[str, str] | None = None
    table: Table | None = None
    ttl: Positive | None = None
    values: dict[str, str] = Field(min_length=1)

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `WindowAggregate`."""
        needed = {"by": self.by, "time": [self.time or ""], "partition": [self.partition or ""]}
        known = [site.has(stream, [one for one in names if one], option) for option, names in needed.items()]
        known.append(self._form_is_right(types, site))
        values = {name: self._aggregate(name, text, types, site) for name, text in self.values.items()}
        if self.late:
            site.emits(types, LATE)
        if not all(known) or None in values.values():
            site.emits(None)
            return
        call = Call(
            WindowAggregate,
            {name: types[name] for name in self.by},
            table=self.table,
            ttl=self.ttl,
            retractions=self.retractions or None,
            names=self.names,
            **values,
        )
        made = site.bolt(self._windows(call), grouped(stream, self.by))
        if made is not None:
            keys = {one.name: one.kind for one in made.cells.keys}
            ends = dict.fromkeys(made.cells.bounds, pa.timestamp("us", tz="UTC"))
            results = keys | ends | {one.name: one.kind for one in made.cells.aggregates}
            site.emits(results)
            if self.retractions:
                site.emits(results, RETRACTIONS)
        else:
            site.emits(None)

    def _aggregate(self, name: str, text: str, types: Mapping[str, pa.DataType], site: Site) -> Any:
        """Return the aggregate that a text such as ``"sum(amount)"`` means; None, with a fault, if it means none."""
        found = _AGGREGATE.fullmatch(text.strip())
        if found is None:
            site.fault("values", f'expected "count", "sum(FIELD)" or "argmax(FIELD, OTHER)", got {text!r:.100}', name)
            return None
        way, *fields = found.groups()
        given = [one for one in fields if one is not None]
        known = ("count", "sum", "min", "max", "mean", "first", "last", "argmax")
        wanted = {"count": 0, "argmax": 2}.get(way, 1)
        if name in signature(WindowAggregate.__init__).parameters:
            site.fault("values", f"a result cannot be called {name!r}; choose another name", name)
        elif way not in known:
            hint = near(way, list(known)) or f"; known are {', '.join(known)}"
            site.fault("values", f"{way!r} is no aggregate{hint}", name)
        elif len(given) != wanted:
            site.fault("values", f"{way} takes {wanted} fields, got {len(given)}: {text!r:.100}", name)
        elif not [one for one in given if not site.has(Stream("", "", types), [one], "values")]:
            typed = [{one: types[one]} for one in given]
            if way not in ("sum", "mean") or python_type(types[given[0]]) in (int, float, Decimal):
                return "count" if not typed else (typed[0], way, *typed[1:])
            got = f"got {given[0]!r}, which is of the type {named_type(types[given[0]])}"
            site.fault("values", f"expected a number, {got}", name)
        return None

    def _form_is_right(self, types: Mapping[str, pa.DataType], site: Site) -> bool:
        known = site.flawed.isdisjoint({"length", "gap"})
        faults: dict[str, Any] = {
            "length": known
            and (self.length is None) == (self.gap is None)
            and "expected a length, or the gap of sessions",
            "slide": known and self.slide is not None and self.length is None and "belongs to windows with a length",
            "closed": known
            and self.closed is not None
            and self.length is None
            and "sessions hold their start, not their end",
            "unit": site.flawed.isdisjoint({"time"})
            and self.unit is not None
            and (self.time is None or python_type(types.get(self.time, pa.int64())) is not int)
            and "belongs to a time that is an int",
            "time": time_fault(self.time, types),
        }
        if self.time is None and site.flawed.isdisjoint({"time"}):
            timed = ("lag", "partition", "idle", "max_ahead", "max_behind", "allowed_lateness", "late")
            faults |= {one: "belongs to windows with a time" for one in timed if getattr(self, one)}
        for option, fault in faults.items():
            if fault:
                site.fault(option, fault)
        return not any(faults.values())

    def _windows(self, call: Call) -> Call:
        if self.gap is not None:
            call = call.then("with_session_window", self.gap)
        elif self.slide is not None:
            call = call.then("with_window", self.length, self.slide, closed=self.closed)
        else:
            call = call.then("with_tumbling_window", self.length, closed=self.closed)
        if self.time is not None:
            call = call.then("with_timestamp_field", self.time, unit=self.unit)
        options = {
            "with_lag": self.lag,
            "with_partition_field": self.partition,
            "with_idle_timeout": self.idle,
            "with_max_ahead": self.max_ahead,
            "with_max_behind": self.max_behind,
            "with_allowed_lateness": self.allowed_lateness,
            "with_late_tuple_stream": LATE if self.late else None,
        }
        for method, given in options.items():
            call = call if given is None else call.then(method, given)
        return call


class TopStep(StepPart):
    """The results of a window with the greatest values of a field."""

    type: Literal["top"]
    n: int = Field(ge=1)
    by: str
    names: dict[str, str] | None = None

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `TopPerWindow`."""
        if site.has(stream, [self.by], "by"):
            site.bolt(Call(TopPerWindow, self.n, self.by, names=self.names), single(stream), tasks=1)
        site.emits({**types, RANK: pa.int64()})


class SideOptions(Part):
    """One side of a join."""

    source: str = Field(alias="from")
    key: Names
    time: str
    unit: Unit | None = None
    id: str | None = None
    lag: NotNegative | None = None
    partition: str | None = None
    idle: Positive | None = None
    grace: NotNegative | None = None

    def call(self, stream: Stream) -> Call:
        """Return the call that makes the side."""
        own = {self.time, self.id, self.partition, *self.key}
        stored = {name: kind for name, kind in (stream.types or {}).items() if name not in own}
        given = self.model_dump(exclude={"source"})
        return Call(Side, *stream.names, **given, columns=stored or None)

    def needed(self) -> list[str]:
        """Return the fields that the side must have."""
        others = [one for one in (self.time, self.id, self.partition) if one is not None]
        return [*self.key, *dict.fromkeys(one for one in others if one not in self.key)]


class JoinStep(PipelinePart):
    """An interval join of two streams."""

    type: Literal["join"]
    left: SideOptions
    right: SideOptions
    how: Annotated[Literal["inner", "left", "right", "full", "semi", "anti"], BeforeValidator(_how)] = "inner"
    before: AnyDuration
    after: AnyDuration = timedelta(0)
    select: list[str] | None = Field(None, min_length=1)

    def build(self, site: Site) -> None:
        """Add an `IntervalJoin`."""
        left, right = (site.reads(one.source, f"{name}.from") for name, one in ((LEFT, self.left), (RIGHT, self.right)))
        known = left is not None and right is not None
        for name, side, stream in ((LEFT, self.left, left), (RIGHT, self.right, right)):
            known = stream is not None and site.has(stream, side.needed(), f"{name}.key") and known
            if stream is not None and (fault := time_fault(side.time, stream.types or {})):
                site.fault(f"{name}.time", fault)
        if self.before + self.after < timedelta(0):
            site.fault("after", "before and after have a negative sum, so no row is within these bounds")
            known = False
        if not known or left is None or right is None:
            for unknown in (DEFAULT_STREAM, *UNMATCHED):
                site.emits(None, unknown)
            return
        fields = [one.types or {} for one in (left, right)]
        sides = (LEFT,) if self.how in ("semi", "anti") else (LEFT, RIGHT)
        names = tuple(one.names[-1] for one in (left, right))
        chosen, faults = selection("join", self.select, (names[0], names[1]), (list(fields[0]), list(fields[1])), sides)
        for fault in faults:
            site.fault("select", fault.removeprefix("join: select: "))
        call = Call(
            IntervalJoin,
            self.left.call(left),
            self.right.call(right),
            before=self.before,
            after=self.after,
            how=self.how,
            select=self.select,
        )
        site.bolt(call, grouped(left, self.left.key), grouped(right, self.right.key))
        site.emits({one.name: fields[one.side == RIGHT][one.field] for one in chosen})
        for unmatched, types in zip(UNMATCHED, fields, strict=True):
            site.emits(types, unmatched)


def _pairs(value: object) -> object:
    names = texts_of([value] if isinstance(value, str) else value)
    return {name: name for name in names} if names else value


class LookupStep(StepPart):
    """A join with a Delta table that others write."""

    type: Literal["lookup"]
    table: str
    on: Annotated[dict[str, str], BeforeValidator(_pairs), Field(min_length=1)]
    how: Annotated[Literal["inner", "left", "semi", "anti"], BeforeValidator(_how)] = "inner"
    select: list[str] | None = Field(None, min_length=1)
    refresh: NotNegative | None = None

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `LookupJoin`, whose table is opened for the types of its columns."""
        if not site.has(stream, list(self.on), "on"):
            site.emits(None)
            return
        left: Any = stream.names[0] if len(stream.names) == 1 else stream.names
        call = Call(LookupJoin, left, self.table, on=self.on, how=self.how, select=self.select, refresh=self.refresh)
        made, results = site.bolt(call, local(stream)), None
        if made is not None:
            with site.naming("table"):
                results, faults = made.results(types)
                for fault in faults:
                    option, _, sentence = fault.removeprefix("LookupJoin: ").partition(": ")
                    site.fault(option, sentence)
                results = None if faults else results
        site.emits(results)


STEPS: Mapping[str, type[PipelinePart]] = {
    "filter": FilterStep,
    "select": SelectStep,
    "cast": CastStep,
    "deduplicate": DeduplicateStep,
    "count": CountStep,
    "sum": SumStep,
    "window": WindowStep,
    "top": TopStep,
    "join": JoinStep,
    "lookup": LookupStep,
}
