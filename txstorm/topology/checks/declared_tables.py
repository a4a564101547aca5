"""Checks of declared streams, states, sinks and outlets: names, column types, and the groupings that feed a state."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from txstorm.api.assembly import AssembledCommitter
from txstorm.api.composite import has_given_names, kept_states
from txstorm.api.external import OUTLET_METHODS, Outlet
from txstorm.api.names import field_fault, name_fault, stream_fault
from txstorm.api.state import (
    ARROW_TYPES,
    LAYOUTS,
    MERGE,
    SPARK,
    WRITERS,
    CollectionState,
    KeyedState,
    SinkTable,
    arrow_type,
)
from txstorm.topology.components import ComponentInfo
from txstorm.topology.graph import Input

_TYPES = pa.types
_SCALARS = (
    _TYPES.is_string,
    _TYPES.is_binary,
    _TYPES.is_signed_integer,
    _TYPES.is_boolean,
    _TYPES.is_date32,
    _TYPES.is_decimal128,
)


def column_fault(declared: Any, *, key: bool) -> str | None:
    """Return the reason why a column cannot have the type `declared`, with a suggestion; None if it can.

    Only types that Delta tables store without loss are allowed and, for keys, only those with a unique
    representation of each value.
    """
    found = arrow_type(declared) if isinstance(declared, Hashable) else None
    if found is None:
        name = declared.__name__ if isinstance(declared, type) else repr(declared)
        return f"{name} is no column type; use {', '.join(one.__name__ for one in ARROW_TYPES)} or an Arrow type"
    return _key_fault(found) if key else _value_fault(found)


def has_order(declared: Any) -> bool:
    """Return whether a collection's order column may have the type `declared`: a signed integer or UTC timestamp."""
    found = arrow_type(declared) if isinstance(declared, Hashable) else None
    return found is not None and (_TYPES.is_signed_integer(found) or found == pa.timestamp("us", tz="UTC"))


def _key_fault(found: pa.DataType) -> str | None:
    if _TYPES.is_floating(found):
        return f"{found} cannot be a key, since equal numbers may have different bits; use int, str or Decimal"
    if _TYPES.is_nested(found):
        return f"{found} cannot be a key; use one key column per part, or a str"
    return _value_fault(found)


def _value_fault(found: pa.DataType) -> str | None:
    if any(check(found) for check in _SCALARS) or _TYPES.is_float32(found) or _TYPES.is_float64(found):
        return None
    if _TYPES.is_timestamp(found):
        utc = found == pa.timestamp("us", tz="UTC")
        return None if utc else f"{found} is not in UTC microseconds; use datetime or pa.timestamp('us', tz='UTC')"
    if _TYPES.is_nested(found) and not _TYPES.is_union(found):
        inner = (_value_fault(found.field(i).type) for i in range(found.num_fields))
        return next((fault for fault in inner if fault), None)
    return f"a Delta table cannot hold {found} as it is; use {_nearest(found)}"


def _nearest(found: pa.DataType) -> str:
    if _TYPES.is_unsigned_integer(found):
        return "int (pa.int64())"
    if _TYPES.is_large_string(found) or _TYPES.is_dictionary(found):
        return "str (pa.string())"
    if _TYPES.is_large_binary(found) or _TYPES.is_fixed_size_binary(found):
        return "bytes (pa.binary())"
    return "one of " + ", ".join(one.__name__ for one in ARROW_TYPES)


def stream_faults(one: ComponentInfo) -> Iterator[str]:
    """Yield the faults of the streams that one component declares."""
    for name, stream in (one.streams or {}).items():
        where = f"component {one.id!r}"
        if fault := stream_fault(f"{where}: stream", name):
            yield fault
        for field in stream.fields:
            fault = field_fault(f"{where}, stream {name!r}", field)
            if fault and not (str(field).startswith("_") and has_given_names(one.object)):
                yield fault
        for field in sorted({str(field) for field in stream.fields if stream.fields.count(field) > 1}):
            yield f"{where}, stream {name!r}: field {field!r} is declared twice; fields have different names"


def table_faults(components: Sequence[ComponentInfo]) -> Iterator[str]:
    """Yield the faults of all states, sinks and outlets, including name clashes among them and with maps."""
    for one in components:
        yield from _owner_faults(one)
        for state in one.states:
            yield from _state_faults(one.id, state)
        for sink in one.sinks:
            yield from _sink_faults(one.id, sink)
        writers = [(state.name, state.writer) for state in one.states]
        writers += [(sink.name, sink.writer) for sink in one.sinks]
        for name, writer in writers:
            if writer not in WRITERS:
                expected = " or ".join(map(repr, WRITERS))
                yield f"component {one.id!r}, table {name!r}: expected writer {expected}, got {writer!r}"
        for outlet in one.outlets:
            yield from _sink_faults(one.id, outlet)
            yield from _writer_faults(one.id, outlet)
        for target in one.own:
            where = f"component {one.id!r}, target {target.name!r}"
            if fault := name_fault(where, target.name) or name_fault(where, target.committed_as):
                yield fault
            elif not target.committed_as.startswith("x-"):
                yield f"{where}: kind {target.committed_as!r}: the name of a kind of your own begins with 'x-'"
    states = [(one.id, state.name) for one in components for state in one.states]
    maps = [(one.id, state.name) for one in components for state in one.maps]
    spouts = (one for one in components if one.kind == "spout" and isinstance(one.id, str))
    kept = [(one.id, state.name) for one in spouts for state, _ in kept_states(one.object).values()]
    own = [(one.id, target.name) for one in components for target in one.own]
    yield from _clashes("state", [*states, *maps, *kept, *own])
    outlets = [(one.id, outlet.name) for one in components for outlet in one.outlets]
    yield from _shared_writers(components)
    yield from _clashes("sink", [*((one.id, sink.name) for one in components for sink in one.sinks), *outlets])


def key_warnings(one: ComponentInfo, known: Mapping[str, ComponentInfo]) -> Iterator[str]:
    """Yield a warning if two tasks of a committer may change the same key in one txid, which makes the batch fail."""
    if one.kind != "committer" or not isinstance(one.parallelism, int) or one.parallelism < 2:
        return
    internal = one.object.internal_states if isinstance(one.object, AssembledCommitter) else ()
    for state in (state for state in one.states if state.name not in internal):
        key = [str(name) for name in state.key] if isinstance(state.key, Mapping) else []
        for given in one.inputs:
            if not one_task_per_key(given, key):
                yield _warning(one, state, f"its input {given.component!r} is grouped by {given.grouping}") + _advice(
                    given, key, known
                )
        grouped = {given.grouping.fields for given in one.inputs if given.grouping.kind == "fields"}
        if len(grouped) > 1:
            different = " and ".join(sorted(", ".join(fields) for fields in grouped))
            yield _warning(one, state, f"its inputs are grouped by different fields ({different})") + "the same ones"


def one_task_per_key(given: Input, key: Sequence[str]) -> bool:
    """Return whether tuples with equal `key` go to one task; custom and direct groupings are assumed to ensure that."""
    if given.grouping.kind == "fields":
        return set(given.grouping.fields) <= set(key)
    return given.grouping.kind in ("global", "custom", "direct")


def _warning(one: ComponentInfo, state: KeyedState, how: str) -> str:
    return (
        f"committer {one.id!r} has {one.parallelism} tasks and {how}: two of them may change the same row of "
        f"state {state.name!r} in one txid, which fails the batch; use parallelism 1 or "
    )


def _advice(given: Input, key: Sequence[str], known: Mapping[str, ComponentInfo]) -> str:
    source = known.get(given.component)
    stream = (source.streams or {}).get(given.stream) if source else None
    if not key:
        return f"global_grouping({given.component!r})"
    if stream and set(key) <= set(stream.fields):
        return f"fields_grouping({given.component!r}, {list(key)})"
    return f"fields_grouping({given.component!r}, ...) on the fields that make up its key ({', '.join(key)})"


def _owner_faults(one: ComponentInfo) -> Iterator[str]:
    if one.kind == "committer" or one.kind is None:
        return
    declared = [("state", state.name) for state in one.states] + [("sink", sink.name) for sink in one.sinks]
    declared += [("map", state.name) for state in one.maps] + [("outlet", outlet.name) for outlet in one.outlets]
    declared += [(target.committed_as, target.name) for target in one.own]
    for kind, name in declared:
        cure = (
            "move it to a committer downstream of it"
            if one.kind in ("spout", "basic")
            else "mark the bolt with Committer or add it with set_committer_bolt"
        )
        yield f"component {one.id!r} declares {kind} {name!r} but is not a committer; {cure}"


def _state_faults(owner: Any, state: KeyedState) -> Iterator[str]:
    where = f"component {owner!r}, state {state.name!r}"
    if fault := name_fault(f"component {owner!r}: state", state.name):
        yield fault
    if not isinstance(state.key, Mapping) or not isinstance(state.value, Mapping):
        yield f"{where}: key and value are mappings of column to type; write key={{'word': str}}, value={{'n': int}}"
        return
    if not state.value:
        yield f"{where}: has no value columns; name at least one, such as value={{'n': int}}"
    yield from _layout_faults(where, state)
    yield from _column_faults(f"{where}, key", state.key, key=True)
    yield from _column_faults(f"{where}, value", state.value, key=False)
    if state.ttl is not None and not (isinstance(state.ttl, timedelta) and state.ttl > timedelta(0)):
        yield f"{where}: ttl is a timedelta above 0 or None, got {state.ttl!r}; write ttl=timedelta(days=1)"
    order: Mapping[str, Any] = {}
    if isinstance(state, CollectionState):
        yield from _order_faults(where, state.order)
        order = state.order if isinstance(state.order, Mapping) else {}
    yield from _twins(where, [*state.key, *order, *state.value])


def _layout_faults(where: str, state: KeyedState) -> Iterator[str]:
    if state.layout not in LAYOUTS:
        yield f"{where}: expected the layout {' or '.join(LAYOUTS)}, got {state.layout!r}"
    if state.layout != MERGE:
        return
    if isinstance(state, CollectionState):
        yield (
            f"{where}: a collection cannot have the layout {MERGE!r}: each append would rewrite all rows of its "
            "key; leave the layout out"
        )
    if state.writer == SPARK:
        yield f"{where}: writer {SPARK!r} and the layout {MERGE!r} exclude each other: Spark appends; leave one out"


def _order_faults(where: str, order: Any) -> Iterator[str]:
    if not isinstance(order, Mapping) or len(order) != 1:
        yield f"{where}: order is a mapping of one column to its type; write order={{'at': datetime}}"
        return
    for name, declared in order.items():
        if fault := field_fault(f"{where}, order", name):
            yield fault
        if not has_order(declared):
            yield f"{where}, order: column {name!r}: expected datetime or int, got {declared!r}; use one of these"


def _shared_writers(components: Sequence[ComponentInfo]) -> Iterator[str]:
    first: dict[int, str] = {}
    for outlet in (outlet for one in components for outlet in one.outlets):
        other = first.setdefault(id(outlet.writer), outlet.name)
        if other != outlet.name:
            yield f"outlets {other!r} and {outlet.name!r} share one writer; give each its own"


def _writer_faults(owner: Any, outlet: Outlet) -> Iterator[str]:
    missing = [name for name in OUTLET_METHODS if not callable(getattr(outlet.writer, name, None))]
    if missing or isinstance(outlet.writer, type):
        yield (
            f"component {owner!r}, outlet {outlet.name!r}: expected a writer with {', '.join(OUTLET_METHODS)}, got "
            f"an object of type {type(outlet.writer).__name__}; pass an object such as KafkaWriter(...)"
        )


def _sink_faults(owner: Any, sink: SinkTable | Outlet) -> Iterator[str]:
    kind = "sink" if isinstance(sink, SinkTable) else "outlet"
    where = f"component {owner!r}, {kind} {sink.name!r}"
    if fault := name_fault(f"component {owner!r}: {kind}", sink.name):
        yield fault
    if not isinstance(sink.columns, Mapping) or not sink.columns:
        yield f"{where}: columns is a mapping of at least one column to its type; write columns={{'word': str}}"
        return
    yield from _column_faults(where, sink.columns, key=False)
    yield from _twins(where, list(sink.columns))


def _column_faults(where: str, columns: Mapping[str, Any], *, key: bool) -> Iterator[str]:
    for name, declared in columns.items():
        if fault := field_fault(where, name):
            yield fault
        if fault := column_fault(declared, key=key):
            yield f"{where}: column {name!r}: {fault}"


def _twins(where: str, names: Sequence[Any]) -> Iterator[str]:
    """Yield a fault for each duplicate column name; names that differ only in case are the same to Delta tables."""
    first: dict[str, Any] = {}
    for name in names:
        twin = first.get(str(name).casefold())
        if twin is not None:
            how = "is declared twice" if twin == name else f"and column {twin!r} differ only in case"
            yield f"{where}: column {name!r} {how}; columns have different names"
        first.setdefault(str(name).casefold(), name)


def _clashes(kind: str, owned: Sequence[tuple[Any, Any]]) -> Iterator[str]:
    first: dict[str, tuple[Any, Any]] = {}
    for owner, name in owned:
        earlier = first.setdefault(str(name).casefold(), (owner, name))
        if earlier == (owner, name) and owned.count(earlier) == 1:
            continue
        if earlier[1] != name:
            yield f"{kind}s {earlier[1]!r} and {name!r} differ only in case and would share a directory; rename one"
        elif earlier[0] == owner:
            yield f"component {owner!r} declares {kind} {name!r} twice with different columns; declare it once"
        else:
            yield (
                f"{kind} {name!r} is declared by both {earlier[0]!r} and {owner!r}; a {kind} belongs to one component: "
                "rename one, or let one component write it"
            )
