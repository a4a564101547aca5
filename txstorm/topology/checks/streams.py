"""Checks of the subscriptions of a bolt: sources, streams and groupings."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from txstorm.api.names import near
from txstorm.api.output import Grouping, StreamDeclaration
from txstorm.api.state import arrow_type
from txstorm.topology.components import ComponentInfo
from txstorm.topology.frames import FrameBolt, frame_faults, frame_sink_faults
from txstorm.topology.graph import Input
from txstorm.typed import fits

KEYED = ("fields", "partial_key")


def subscription_faults(one: ComponentInfo, known: Mapping[str, ComponentInfo]) -> Iterator[str]:
    """Yield the faults of the inputs of component `one`; `known` holds all components, keyed by id."""
    if isinstance(one.object, FrameBolt):
        yield from frame_faults(one.id, one.object, one.inputs, known)
        return
    if one.role != "spout" and not one.inputs:
        yield (
            f"bolt {one.id!r} subscribes to nothing; add a grouping to its declarer, "
            f"such as .shuffle_grouping({next(iter(known), 'spout')!r})"
        )
    if getattr(one.object, "reads_frames", False):
        yield from frame_sink_faults(one.id, one.inputs, known)
    seen: set[tuple[str, str]] = set()
    for given in one.inputs:
        where = f"bolt {one.id!r}, {given.grouping.kind} grouping on {given.component!r}"
        if (str(given.component), str(given.stream)) in seen:
            yield f"{where}: stream {given.stream!r} is subscribed to twice, every tuple would count twice; do it once"
        seen.add((str(given.component), str(given.stream)))
        yield from _grouping_faults(where, given.grouping)
        yield from _source_faults(where, given, known)
        yield from _missing_faults(one, given, known)


def _missing_faults(one: ComponentInfo, given: Input, known: Mapping[str, ComponentInfo]) -> Iterator[str]:
    """Yield a fault for each of the `needed_fields` of a ready-made bolt that the stream does not have.

    Another for each of its `needed_types` to which no value of the field's known type fits.
    """
    source = known.get(given.component) if isinstance(given.component, str) else None
    streams = {} if source is None else source.streams or {}
    stream = streams.get(given.stream) if isinstance(given.stream, str) else None
    if stream is None:
        return
    for name in dict.fromkeys(getattr(one.object, "needed_fields", ())):
        if name not in stream.fields:
            hint = near(str(name), [str(field) for field in stream.fields])
            yield (
                f"bolt {one.id!r}, {type(one.object).__name__}: stream {given.stream!r} of {given.component!r} has no "
                f"field {name!r}{hint}; it has {', '.join(map(repr, stream.fields))}"
            )
    is_ready_made = type(one.object).__module__.startswith("txstorm.")  # a subclass may convert what it reads
    wanted = getattr(one.object, "needed_types", {}) if is_ready_made else {}
    types = source.types(given.stream) if source is not None and wanted else {}
    for name, type_ in types.items():
        kind = arrow_type(wanted.get(name)) if isinstance(wanted.get(name), Hashable) else None
        if kind is not None and not fits(type_, kind):
            yield (
                f"bolt {one.id!r}, {type(one.object).__name__}: field {name!r} of {given.component!r} has the type "
                f"{type_}, but is taken as {kind}; convert it, or declare it so"
            )


def _grouping_faults(where: str, grouping: Grouping) -> Iterator[str]:
    if grouping.kind not in Grouping.KINDS:
        yield f"{where}: no such grouping{near(str(grouping.kind), list(Grouping.KINDS))}; use one of {Grouping.KINDS}"
    if grouping.kind in KEYED and not grouping.fields:
        yield f"{where}: names no fields; name those that decide, such as .{grouping.kind}_grouping(…, ['word'])"
    if grouping.kind == "custom":
        yield from _custom_faults(where, grouping.custom)


def _custom_faults(where: str, custom: Any) -> Iterator[str]:
    if isinstance(custom, type):
        yield f"{where}: got the class {custom.__name__} instead of an object; write {custom.__name__}(...)"
    elif not all(callable(getattr(custom, name, None)) for name in ("prepare", "choose_tasks")):
        yield f"{where}: {type(custom).__name__} has no prepare and choose_tasks; write both (see CustomStreamGrouping)"


def _source_faults(where: str, given: Input, known: Mapping[str, ComponentInfo]) -> Iterator[str]:
    source = known.get(given.component) if isinstance(given.component, str) else None
    if source is None:
        hint = near(str(given.component), list(known))
        yield f"{where}: there is no component {given.component!r}{hint}; known are {', '.join(known)}"
    elif source.streams is not None:
        yield from _stream_faults(where, given, source.streams)


def _stream_faults(where: str, given: Input, streams: Mapping[str, StreamDeclaration]) -> Iterator[str]:
    stream = streams.get(given.stream) if isinstance(given.stream, str) else None
    if stream is not None:
        yield from _field_faults(where, given, stream)
    elif not streams:
        yield (
            f"{where}: {given.component!r} declares no output fields, so nothing can be read from it; "
            "set fields = (...) in its class or override declare_output_fields"
        )
    else:
        hint = near(str(given.stream), list(streams))
        yield f"{where}: it declares no stream {given.stream!r}{hint}; it has {', '.join(map(repr, streams))}"


def _field_faults(where: str, given: Input, stream: StreamDeclaration) -> Iterator[str]:
    for name in given.grouping.fields:
        if name not in stream.fields:
            hint = near(str(name), [str(field) for field in stream.fields])
            yield (
                f"{where}: stream {given.stream!r} has no field {name!r}{hint}; "
                f"it has {', '.join(map(repr, stream.fields))}"
            )
    if not stream.fields:
        yield f"{where}: stream {given.stream!r} is declared without fields; declare at least one"
    direct = given.grouping.kind == "direct"
    if direct and not stream.direct:
        yield (
            f"{where}: stream {given.stream!r} is not direct; declare it with direct=True and use emit_direct, "
            "or choose another grouping"
        )
    if stream.direct and not direct:
        yield f"{where}: stream {given.stream!r} is direct, so its tuples name their task; use direct_grouping"
