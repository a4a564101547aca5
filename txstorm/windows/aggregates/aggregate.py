"""Window aggregate: a ready-made bolt that computes aggregates per key and window, on columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

import pyarrow as pa

from txstorm.api.assembly import Assembly, Site
from txstorm.api.names import DEFAULT_STREAM, name_fault
from txstorm.errors import InputError
from txstorm.typed import declaration, fits
from txstorm.windows.aggregates.aggregate_committer import RETRACTIONS, AggregateCommitter
from txstorm.windows.aggregates.cells import Cells, aggregate_of, key_fields
from txstorm.windows.aggregates.partials import AggregatePlan
from txstorm.windows.bolt import WindowedBolt, timestamp_faults
from txstorm.windows.plan import WindowPlan
from txstorm.windows.rules.forms import BoundNames, Duration, duration, tumbling


class WindowAggregate(WindowedBolt):
    """Committer that computes aggregates per key and window, and keeps one row per key and window end in a state.

    Example::

        means = WindowAggregate("sensor", table="means", n="count", mean=("value", "mean"))
        means.with_window(Duration.seconds(10), Duration.seconds(2)).with_timestamp_field("ts")
        builder.set_bolt("means", means, 2).fields_grouping("readings", ["sensor"])

    Windows are those of `WindowedBolt` with durations for length and slide, or sessions. For each window that fires it
    emits the key, ``start``, ``end``, and the aggregates, ordered by end and key. Tuples are aggregated in the tasks of
    their source, so that one row per key and part of a window reaches the driver.

    A tuple counts in each of its windows that has not ended, even if it is behind the watermark; it is late if there is
    none. With `with_allowed_lateness`, windows take tuples for longer: results that change are emitted again, and
    replaced in the state.

    Args:
        key: the field or fields of the key: strings, or a mapping field → type.
        table: name of the state with the results; None: they are emitted, but not kept, as suits a bolt after it that
            needs few of them, such as `TopPerWindow`.
        ttl: time to live of a result after it was written; None: it is kept forever.
        retractions: whether a result that changes, or whose session becomes part of another, is emitted as it was on
            the stream ``retractions`` first.
        names: other names for the columns ``start`` and ``end``, wherever results are emitted or kept, such as
            ``{"end": "until"}``, which needs no quotes in SQL.
        **aggregates: output field → ``"count"``, ``(field, way)`` with the ways ``sum``, ``min``, ``max``, ``mean``,
            ``first`` and ``last``, or ``(field, "argmax", other)``: the field of the tuple with the greatest `other`,
            of several the first. A field is a name, or a mapping name → type. The types of ``min``, ``max``, ``first``
            and ``last`` default to those of the input where these are known; others, and unknown ones, to int, for
            ``mean`` and `other` to float. Values of None are ignored, but by ``count``, ``first`` and ``last``.

    Raises:
        InputError: an argument is wrong.
    """

    def __init__(
        self,
        key: Any,
        *,
        table: str | None = None,
        ttl: timedelta | None = None,
        retractions: bool = False,
        names: Mapping[str, str] | None = None,
        **aggregates: Any,
    ) -> None:
        fault = None if table is None else name_fault("WindowAggregate: table", table)
        if fault is None and not aggregates:
            fault = "WindowAggregate: expected at least one aggregate, such as n='count', got none"
        if fault is None and ttl is not None and (not isinstance(ttl, timedelta) or ttl <= timedelta(0)):
            fault = f"WindowAggregate: ttl: expected a positive timedelta or None, got {ttl!r}"
        if fault is None and table is None and (ttl is not None or retractions):
            fault = f"WindowAggregate: {'retractions' if ttl is None else 'ttl'} is for stored results; give a table"
        if fault is not None:
            raise InputError(fault)
        made = tuple(aggregate_of(name, given) for name, given in aggregates.items())
        self.cells = Cells(key_fields(key), made, BoundNames.of("WindowAggregate", names))
        self.table, self.ttl, self.retractions, self.lateness = table, ttl, bool(retractions), 0
        outputs = self.cells.outputs
        twice = sorted({name for name in outputs if outputs.count(name) > 1})
        if twice:
            raise InputError(
                f"WindowAggregate: the output has two fields {', '.join(map(repr, twice))}; it consists of "
                f"{', '.join(outputs)}; rename one, start and end with names"
            )

    def with_allowed_lateness(self, lateness: Duration | timedelta) -> Self:
        """Let each window take tuples until the watermark is `lateness` after its end."""
        self.lateness = duration(lateness, "with_allowed_lateness", zero=True).microseconds
        return self

    withAllowedLateness = with_allowed_lateness  # noqa: N815

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that aggregates."""
        options = self.options
        cells = self.cells.with_types(_known_types(site))
        faults = [*_faults(self, site), *_type_faults(cells, site)]
        form = options.form
        if form is None or (not form.is_session and (form.span is None or form.step is None)):
            form = _PLACEHOLDER
        grouped = {_grouped_by(one) for one in site.inputs}
        by = grouped.pop() if len(grouped) == 1 else ()
        by = by if by and set(by) <= set(self.cells.key_names) else tuple(self.cells.key_names)
        windows = WindowPlan.of(options, site, form, key=tuple(self.cells.key_names), owner_fields=by)
        to_first = any(one.grouping == "global" for one in site.inputs)
        plan = AggregatePlan(windows, cells, self.table, self.lateness, to_first, self.retractions)
        warnings = []
        if self.ttl is None and self.table is not None:
            warnings = [f"the results in {self.table!r} are kept forever; give a ttl after which they expire"]
        return Assembly(AggregateCommitter(plan, self.ttl), tuple(faults), tuple(warnings))


_PLACEHOLDER = tumbling(Duration.seconds(1))
"""The form of an aggregate whose own one is at fault."""


def _grouped_by(one: Any) -> tuple[str, ...]:
    return tuple(one.grouped_by) if one.grouping == "fields" else ()


def _faults(bolt: WindowAggregate, site: Site) -> list[str]:
    """Return the faults of a declaration that only show in its topology."""
    options, form = bolt.options, bolt.options.form
    faults = []
    if form is None:
        faults.append("it declares no windows; call with_window, with_tumbling_window or with_session_window")
    elif not form.is_session and (form.span is None or form.step is None):
        late = ", so it cannot have an allowed lateness either" if bolt.lateness else ""
        faults.append(
            f"WindowAggregate needs a duration for length and slide, or sessions, got {form}{late}; use a WindowedBolt "
            "for windows of a number of tuples"
        )
    if bolt.lateness and bolt.table is None:
        faults.append("with_allowed_lateness: results that change are replaced where they are stored; give a table")
    unfit = {
        "with_key": options.key and "the key is the first argument of WindowAggregate",
        "with_evictor": options.evictor and "filter the tuples upstream",
        "with_early_results": options.early and "use a shorter slide",
        "with_columns": options.columns and "give types with the fields that are aggregated",
        "with_max_events_in_memory": options.in_memory and "it holds no tuples",
    }
    faults += [f"{name} is not for a WindowAggregate: {hint}" for name, hint in unfit.items() if hint]
    faults += timestamp_faults(options, site, with_allowed_lateness=bolt.lateness)
    if options.late_stream in (DEFAULT_STREAM, RETRACTIONS):
        faults.append(f"with_late_tuple_stream: the stream {options.late_stream!r} has results; choose another name")
    return [*faults, *_field_faults(bolt, site), *_grouping_faults(bolt, site)]


def _field_faults(bolt: WindowAggregate, site: Site) -> list[str]:
    time = bolt.options.time
    needed: list[tuple[str, str | None]] = [("key", one.name) for one in bolt.cells.keys]
    for made in bolt.cells.aggregates:
        needed += [(made.name, field.name) for field in (made.field, made.by) if field is not None]
    needed += [("with_timestamp_field", time.field), ("with_partition_field", time.partition)]
    return [fault for one in site.inputs for what, name in needed for fault in one.missing(what, [name])]


def _known_types(site: Site) -> dict[str, pa.DataType]:
    """Return the types of the fields that have the same known type in all inputs."""
    types = [one.types for one in site.inputs]
    return {name: kind for name, kind in (types or [{}])[0].items() if all(one.get(name) == kind for one in types)}


def _type_faults(cells: Cells, site: Site) -> list[str]:
    """Return a fault for each field whose known type in an input does not fit that of the aggregate."""
    return [
        f"field {field.name!r} of {one.component!r} has the type {one.types[field.name]}, but is taken as "
        f"{field.kind}; declare it: {declaration(field.name, one.types[field.name]) or 'with another type, upstream'}"
        for field in dict.fromkeys(cells.fields)
        for one in site.inputs
        if field.name in one.types and not fits(one.types[field.name], field.kind)
    ]


def _grouping_faults(bolt: WindowAggregate, site: Site) -> list[str]:
    """Return a fault for each input whose tuples of one key might reach two tasks."""
    keys, faults = bolt.cells.key_names, []
    if site.parallelism == 1 or all(one.grouping == "global" for one in site.inputs):
        return []
    wanted = _grouped_by(site.inputs[0])
    for one in site.inputs:
        if one.grouping != "fields" or not set(one.grouped_by) <= set(keys):
            faults.append(
                f"its input {one.component!r} is grouped by {one.how}, so two tasks may get tuples of one key; "
                f"use {one.grouping_by(keys)}"
            )
        elif _grouped_by(one) != wanted:
            faults.append(
                f"its input {one.component!r} is grouped by {one.how}, another one by {', '.join(wanted)}, so two "
                f"tasks may get tuples of one key; use fields_grouping with {list(wanted)} for all inputs"
            )
    return faults
