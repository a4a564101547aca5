"""The parts of a pipeline: sources, steps and sinks, each the model of its section, which makes its calls.

It is one module, as a reader compares the parts, and all follow one scheme: options, then `build`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field

from txstorm.api.names import DEFAULT_STREAM, name_fault, near
from txstorm.api.state import arrow_type
from txstorm.bolts.basic import Filter, Select
from txstorm.bolts.count_and_sum import CountByKey, SumByKey
from txstorm.bolts.expressions import parsed
from txstorm.clients.config_files import AnyDuration, Names, NotNegative, Part, Positive, Servers, Start, Topic, unless
from txstorm.errors import InputError, StateError, TxstormError
from txstorm.joins.deduplicator import Deduplicator
from txstorm.joins.interval.interval_join import IntervalJoin
from txstorm.joins.interval.interval_plan import SPELLINGS, UNMATCHED
from txstorm.joins.lookup.lookup_join import LookupJoin
from txstorm.joins.selection import LEFT, RIGHT, selection
from txstorm.joins.side import Side
from txstorm.pipelines.site import Site, Stream, grouped, local, single
from txstorm.sinks.delta import DeltaSink
from txstorm.spouts.files.spout import FileSpout
from txstorm.topology.program import Call
from txstorm.typed import python_type
from txstorm.windows.aggregates.aggregate import WindowAggregate
from txstorm.windows.aggregates.aggregate_committer import RETRACTIONS
from txstorm.windows.aggregates.result_rows import END_FIELD, START
from txstorm.windows.aggregates.top import RANK, TopPerWindow

TYPES: Mapping[str, type] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "decimal": Decimal,
    "date": date,
    "datetime": datetime,
}
LATE = "late"
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_AGGREGATE = re.compile(r"(\w+)(?:\(\s*([^(),\s]+)\s*(?:,\s*([^(),\s]+)\s*)?\))?")
_RECORD = {"key": pa.string(), "topic": pa.string(), "partition": pa.int64(), "offset": pa.int64()}
_RECORD["timestamp"] = pa.timestamp("us", tz="UTC")
"""Fields of a Kafka record besides its value."""


def _type(value: object) -> pa.DataType:
    """Return the type that a text such as ``"int"`` or ``"decimal(12, 2)"`` names."""
    text = value if isinstance(value, str) else ""
    if scaled := _DECIMAL.fullmatch(text.strip()):
        try:
            return pa.decimal128(int(scaled[1]), int(scaled[2]))
        except ValueError as error:
            msg = f"expected a decimal of at most 38 digits, got {text!r}: {error}"
            raise ValueError(msg) from None
    if text.strip() not in TYPES:
        hint = near(text, list(TYPES)) or f"; known are {', '.join(TYPES)}, decimal(DIGITS, DECIMALS)"
        msg = f"expected a type, got {value!r:.100}{hint}"
        raise ValueError(msg)
    return arrow_type(TYPES[text.strip()])


def _how(value: object) -> object:
    return SPELLINGS.get(value, value) if isinstance(value, str) else value


def _table(name: str) -> str:
    fault = name_fault("table", name)
    return unless([fault] if fault else [], name)


Types = dict[str, Annotated[Any, BeforeValidator(_type)]]
Table = Annotated[str, AfterValidator(_table)]
Unit = Literal["s", "ms", "us"]


class PipelinePart(Part):
    """Base of the parts: a section ``[source.NAME]``, ``[step.NAME]`` or ``[sink.NAME]``.

    Attributes:
        parallelism: the number of its tasks; None: that of the pipeline.
    """

    type: str
    parallelism: int | None = Field(None, ge=1)

    def build(self, site: Site) -> None:
        """Add the components of the part to `site`, and what it emits; note its faults there."""
        raise NotImplementedError


# -- sources -----------------------------------------------------------------------------------------------------------


class SourcePart(PipelinePart):
    """Base of sources: `spout` makes one, and the pipeline puts it in its place."""

    def spout(self, site: Site) -> tuple[Call, Mapping[str, pa.DataType] | None]:
        """Return the call that makes the spout, and the fields it emits; None if these have faults."""
        raise NotImplementedError


class FilesSource(SourcePart):
    """Local files, each read once, as they arrive."""

    type: Literal["files"]
    path: Names
    format: Literal["text", "csv", "jsonl", "parquet"] | None = None
    fields: Types | None = Field(None, min_length=1)
    header: bool | None = None
    delimiter: str | None = None
    errors: Literal["strict", "replace"] | None = None
    order: Literal["arrival", "name"] | None = None
    seen_files_age: Positive | None = None
    bounded: bool | None = None
    max_batch_rows: int | None = Field(None, ge=1)
    max_batch_bytes: int | None = Field(None, ge=1)

    def spout(self, site: Site) -> tuple[Call, Mapping[str, pa.DataType] | None]:
        """Return the spout; CSV and JSON files have typed fields, a text file the field ``line``."""
        given = self.model_dump(exclude={"type", "parallelism", "path", "fields"})
        path: Any = self.path[0] if len(self.path) == 1 else self.path
        call, kind = Call(FileSpout, path, **given), ""
        with site.naming():
            kind = call.made().format
        if kind == "jsonl" and self.fields is None:
            site.fault("fields", 'missing: JSON files need the types of their fields, such as { id = "int" }')
        if self.fields is not None and kind in ("csv", "jsonl"):
            names = None if kind == "jsonl" else list(self.fields)
            typed = {name: one for name, one in self.fields.items() if kind == "jsonl" or one != pa.string()}
            call = Call(FileSpout, path, **given, fields=names, types=typed or None)
            return call, self.fields if self._known(call, site) is not None else None
        if self.fields is not None and kind == "text" and set(self.fields.values()) != {pa.string()}:
            site.fault("fields", "expected one field of the type str: the lines of text files")
        call = Call(FileSpout, path, **given, fields=None if self.fields is None else list(self.fields))
        found = None if kind == "jsonl" or not kind else self._known(call, site)
        for name, one in (self.fields or {}).items():
            if found is not None and kind == "parquet" and found.get(name, one) != one:
                site.fault(f"fields.{name}", f"the files have the type {found[name]}; leave the types out")
        return call, found

    def _known(self, call: Call, site: Site) -> Mapping[str, pa.DataType] | None:
        """Return the types of the fields that the spout knows; a file may be read for that."""
        found = None
        with site.naming():
            found = {name: arrow_type(one) for name, one in call.made().known_types().items()}
        return found


class KafkaSource(SourcePart):
    """Topics of Kafka: JSON objects with typed fields, or text."""

    type: Literal["kafka"]
    topic: Annotated[
        list[str], BeforeValidator(lambda one: [one] if isinstance(one, str) else one), Field(min_length=1)
    ]
    servers: Servers | None = None
    format: Literal["json", "text"] = "json"
    fields: Types | None = Field(None, min_length=1)
    record: list[Literal["key", "topic", "partition", "offset", "timestamp"]] = []
    start: Start | None = None
    transactional: bool = False
    consumer_group: str | None = None
    max_batch_rows: int | None = Field(None, ge=1)
    max_batch_bytes: int | None = Field(None, ge=1)

    def spout(self, site: Site) -> tuple[Call, Mapping[str, pa.DataType] | None]:
        """Return the spout, opaque unless the source is declared as transactional."""
        from txstorm.spouts.kafka.spout import OpaqueTransactionalKafkaSpout, TransactionalKafkaSpout

        if self.format == "json" and self.fields is None:
            site.fault("fields", 'missing: JSON records need the types of their fields, such as { id = "int" }')
        if self.format == "text" and self.fields is not None:
            site.fault("fields", "the value of a text record is the field 'value'; leave the fields out")
        servers = _servers_of(self.servers, site)
        values = self.fields if self.format == "json" and self.fields is not None else {"value": pa.string()}
        kind = TransactionalKafkaSpout if self.transactional else OpaqueTransactionalKafkaSpout
        call = Call(
            kind,
            self.topic[0] if len(self.topic) == 1 else self.topic,
            servers,
            value=values if self.format == "json" else None,
            fields=[*values, *self.record],
            start=self.start,
            consumer_group=self.consumer_group,
            max_batch_rows=self.max_batch_rows,
            max_batch_bytes=self.max_batch_bytes,
            settings=site.kafka or None,
        )
        with site.naming():
            call.made()
        return call, {**values, **{name: _RECORD[name] for name in self.record}}


def _servers_of(own: str | None, site: Site) -> str:
    servers = own or site.servers
    if servers is None:
        site.fault("servers", "missing: give the brokers here, or for all parts above the sections")
    return servers or "127.0.0.1:9092"


# -- steps -------------------------------------------------------------------------------------------------------------


class StepPart(PipelinePart):
    """Base of the parts that read one stream."""

    source: str = Field(alias="from")

    def build(self, site: Site) -> None:
        """Add what the part does with its stream, if that is known."""
        stream = site.reads(self.source)
        if stream is None:
            site.emits(None)
        else:
            self.over(stream, stream.types or {}, site)

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add the components, and what they emit."""
        raise NotImplementedError


class FilterStep(StepPart):
    """The tuples for which a condition is true."""

    type: Literal["filter"]
    where: str

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `Filter`."""
        kind = None
        with site.naming("where"):
            kind = parsed(self.where).type_in(types)
        if kind in (pa.bool_(), pa.null()):
            site.bolt(Call(Filter, self.where, *types), local(stream))
        elif kind is not None:
            site.fault("where", f"expected a condition, got an expression of the type {_named(kind)}")
        site.emits(types)


def _selected(value: object) -> object:
    return (
        {name: f"`{name}`" if not name.isidentifier() else name for name in value} if isinstance(value, list) else value
    )


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
    types: dict[str, str] = Field(min_length=1)

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `Select` with casts."""
        if not site.has(stream, list(self.types), "types"):
            site.emits(None)
            return
        quoted = {name: name if name.isidentifier() else f"`{name}`" for name in types}
        casts = {name: f"cast({quoted[name]} as {kind})" for name, kind in self.types.items()}
        _select(quoted | casts, stream, types, site, "types")


def _select(
    fields: Mapping[str, str], stream: Stream, types: Mapping[str, pa.DataType], site: Site, option: str = "fields"
) -> None:
    made: dict[str, pa.DataType] | None = {}
    for name, text in fields.items():
        kind = None
        with site.naming(f"{option}.{name}"):
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
            site.fault("", "expected keep, how long an id is known, or quiet; give one of the two")
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
            **values,
        )
        made = site.bolt(self._windows(call), grouped(stream, self.by))
        if made is not None:
            keys = {one.name: one.kind for one in made.cells.keys}
            ends = dict.fromkeys((START, END_FIELD), pa.timestamp("us", tz="UTC"))
            results = keys | ends | {one.name: one.kind for one in made.cells.aggregates}
            site.emits(results)
            if self.retractions:
                site.emits(results, RETRACTIONS)

    def _aggregate(self, name: str, text: str, types: Mapping[str, pa.DataType], site: Site) -> Any:
        """Return the aggregate that a text such as ``"sum(amount)"`` means; None, with a fault, if it means none."""
        option, found = f"values.{name}", _AGGREGATE.fullmatch(text.strip())
        if found is None:
            site.fault(option, f'expected "count", "sum(FIELD)" or "argmax(FIELD, OTHER)", got {text!r:.100}')
            return None
        way, *fields = found.groups()
        given = [one for one in fields if one is not None]
        known = ("count", "sum", "min", "max", "mean", "first", "last", "argmax")
        wanted = {"count": 0, "argmax": 2}.get(way, 1)
        if way not in known:
            hint = near(way, list(known)) or f"; known are {', '.join(known)}"
            site.fault(option, f"{way!r} is no aggregate{hint}")
        elif len(given) != wanted:
            site.fault(option, f"{way} takes {wanted} fields, got {len(given)}: {text!r:.100}")
        elif not [one for one in given if not site.has(Stream("", "", types), [one], option)]:
            typed = [{one: types[one]} for one in given]
            if way not in ("sum", "mean") or python_type(types[given[0]]) in (int, float, Decimal):
                return "count" if not typed else (typed[0], way, *typed[1:])
            site.fault(option, f"expected a number, got {given[0]!r}, which is of the type {_named(types[given[0]])}")
        return None

    def _form_is_right(self, types: Mapping[str, pa.DataType], site: Site) -> bool:
        faults: dict[str, Any] = {
            "length": (self.length is None) == (self.gap is None) and "expected a length, or the gap of sessions",
            "slide": self.slide is not None and self.length is None and "belongs to windows with a length",
            "closed": self.closed is not None and self.length is None and "sessions hold their start, not their end",
            "unit": self.unit is not None
            and (self.time is None or python_type(types.get(self.time, pa.int64())) is not int)
            and "belongs to a time that is an int",
        }
        if self.time is not None and self.time in types and python_type(types[self.time]) not in (int, datetime):
            faults["time"] = f"expected an int or a datetime, got {self.time!r}, of the type {_named(types[self.time])}"
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

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `TopPerWindow`."""
        if site.has(stream, [self.by], "by"):
            site.bolt(Call(TopPerWindow, self.n, self.by), single(stream), tasks=1)
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


class LookupStep(StepPart):
    """A join with a Delta table that others write."""

    type: Literal["lookup"]
    table: str
    on: Annotated[
        dict[str, str],
        BeforeValidator(
            lambda one: (
                {one: one} if isinstance(one, str) else {name: name for name in one} if isinstance(one, list) else one
            )
        ),
        Field(min_length=1),
    ]
    how: Literal["inner", "left", "semi", "anti"] = "inner"
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
            try:
                results = made.results(types)
            except TxstormError as error:
                site.fault("table" if isinstance(error, StateError) else "select", str(error))
        site.emits(results)


# -- sinks -------------------------------------------------------------------------------------------------------------


class DeltaTable(StepPart):
    """A Delta table of the data directory, with a row per tuple."""

    type: Literal["delta"]
    table: Table | None = None
    columns: Names | None = None

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `DeltaSink`."""
        names = list(types) if self.columns is None else self.columns
        if site.has(stream, names, "columns"):
            columns = {name: types[name] for name in names}
            site.bolt(Call(DeltaSink, self.table or site.id, columns), single(stream), tasks=1)


class KafkaTopic(StepPart):
    """A topic of Kafka, with a record per tuple, exactly once for readers of committed records."""

    type: Literal["kafka"]
    topic: Topic
    servers: Servers | None = None
    key: Names | None = None
    value: Names | None = None
    timestamp: str | None = None

    def over(self, stream: Stream, types: Mapping[str, pa.DataType], site: Site) -> None:
        """Add a `KafkaSink`."""
        from txstorm.sinks.kafka import KafkaSink

        key = None if self.key is None else self.key[0] if len(self.key) == 1 else self.key
        options = {"key": self.key or [], "value": self.value or [], "timestamp": [self.timestamp or ""]}
        known = [site.has(stream, [one for one in names if one], option) for option, names in options.items()]
        if all(known):
            servers, settings = _servers_of(self.servers, site), site.kafka or None
            given = {"key": key, "value": self.value, "timestamp": self.timestamp, "settings": settings}
            site.bolt(Call(KafkaSink, site.id, self.topic, servers, **given), single(stream), tasks=1)


def _named(kind: pa.DataType) -> str:
    found = next((name for name, one in TYPES.items() if arrow_type(one) == kind), None)
    return found or str(kind)


SOURCES: Mapping[str, type[SourcePart]] = {"files": FilesSource, "kafka": KafkaSource}
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
SINKS: Mapping[str, type[PipelinePart]] = {"delta": DeltaTable, "kafka": KafkaTopic}
