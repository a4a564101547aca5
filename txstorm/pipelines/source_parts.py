"""Ends of a pipeline: sources (files, topics, Delta tables, rows for trying things out) and sinks (tables, topics)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import BeforeValidator, Field

from txstorm.api.state import arrow_type
from txstorm.clients.config_files import Names, Positive, Servers, Start, Topic
from txstorm.pipelines.parts import (
    PipelinePart,
    Site,
    SourcePart,
    StepPart,
    Stream,
    Table,
    Types,
    servers_of,
    single,
    texts_of,
    time_fault,
)
from txstorm.sinks.delta import DeltaSink
from txstorm.spouts.files.spout import FileSpout
from txstorm.spouts.rate import RateSpout
from txstorm.topology.program import Call

_RECORD = {"key": pa.string(), "topic": pa.string(), "partition": pa.int64(), "offset": pa.int64()}
_RECORD["timestamp"] = pa.timestamp("us", tz="UTC")
"""Fields of a Kafka record besides its value."""
UNTYPED = pa.null()
"""Type of a field that is listed without one."""


def _named(value: object) -> object:
    """Return fields that are listed as a table, with `UNTYPED` for each."""
    names = texts_of(value)
    return value if names is None else dict.fromkeys(names, UNTYPED)


class FilesSource(SourcePart):
    """Local files, each read once, as they arrive."""

    type: Literal["files"]
    path: Names
    format: Literal["text", "csv", "jsonl", "parquet"] | None = None
    fields: Annotated[Types, BeforeValidator(_named), Field(min_length=1)] | None = None
    header: bool | None = None
    delimiter: str | None = None
    errors: Literal["strict", "replace"] | None = None
    order: Literal["arrival", "name"] | None = None
    seen_files_age: Positive | None = None
    bounded: bool | None = None
    max_batch_rows: int | None = Field(None, ge=1)
    max_batch_bytes: int | None = Field(None, ge=1)

    def spout(self, site: Site) -> tuple[Call, Mapping[str, pa.DataType] | None]:
        """Return the spout; listed fields of Parquet have the types of the file, others are texts."""
        given = self.model_dump(exclude={"type", "parallelism", "path", "fields"})
        path: Any = self.path[0] if len(self.path) == 1 else self.path
        call, kind = Call(FileSpout, path, **given), ""
        with site.naming():
            kind = call.made().format
        fields = self.fields and {
            name: pa.string() if one == UNTYPED and kind in ("csv", "text") else one
            for name, one in self.fields.items()
        }
        if kind == "jsonl" and (fields is None or UNTYPED in fields.values()):
            fields = None
            site.fault("fields", 'missing: JSON files need the types of their fields, such as { id = "int" }')
        if fields is not None and kind in ("csv", "jsonl"):
            names = None if kind == "jsonl" else list(fields)
            typed = {name: one for name, one in fields.items() if kind == "jsonl" or one != pa.string()}
            call = Call(FileSpout, path, **given, fields=names, types=typed or None)
            _known(call, site)
            return call, fields
        if fields is not None and kind == "text" and set(fields.values()) != {pa.string()}:
            site.fault("fields", "expected one field of the type str: the lines of text files")
        call = Call(FileSpout, path, **given, fields=None if fields is None else list(fields))
        found = None if kind == "jsonl" or not kind else _known(call, site)
        if found is None or kind != "parquet":
            return call, found
        for name in fields or found:
            if name in found and pa.types.is_timestamp(found[name]) and found[name].tz is None:
                site.fault(
                    "path", f"column {name!r} has times without a zone, which cannot be read; choose other fields"
                )
        for name, one in (fields or {}).items():
            if one not in (UNTYPED, found[name]):
                hint = f'list the names, fields = ["{name}", …], and convert them in a step'
                site.fault("fields", f"the files have the type {found[name]} for {name!r}; {hint}", name)
        return call, {name: found[name] for name in fields or found}


def _known(call: Call, site: Site) -> Mapping[str, pa.DataType] | None:
    """Return the types of the fields that the spout knows; a file may be read for that."""
    found = None
    with site.naming():
        found = {name: arrow_type(one) for name, one in call.made().known_types().items()}
    return found


class DeltaSource(SourcePart):
    """A Delta table: its rows once, and those of new versions as they come."""

    type: Literal["delta"]
    path: str
    start: Annotated[int, Field(ge=0)] | Start | None = None
    changes: bool | None = None
    ignore: list[Literal["deletes", "changes", "change_commits"]] | None = None
    max_batch_files: int | None = Field(None, ge=1)
    max_batch_bytes: int | None = Field(None, ge=1)

    def spout(self, site: Site) -> tuple[Call, Mapping[str, pa.DataType] | None]:
        """Return the spout; its fields are the columns of the table."""
        from txstorm.spouts.delta.spout import DeltaSpout

        call = Call(DeltaSpout, self.path, **self.model_dump(exclude={"type", "parallelism", "path"}))
        return call, _known(call, site)


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
        servers = servers_of(self.servers, site)
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


class RateSource(SourcePart):
    """Numbered rows, evenly spaced in time, for trying things out."""

    type: Literal["rate"]
    rows_per_second: int | None = Field(None, ge=1)
    rows: int | None = Field(None, ge=1)
    max_batch_rows: int | None = Field(None, ge=1)

    def spout(self, site: Site) -> tuple[Call, Mapping[str, pa.DataType] | None]:
        """Return a `RateSpout`, whose fields are ``timestamp`` and ``value``."""
        call = Call(RateSpout, **self.model_dump(exclude={"type", "parallelism"}))
        return call, {"timestamp": _RECORD["timestamp"], "value": pa.int64()}


SOURCES: Mapping[str, type[SourcePart]] = {
    "delta": DeltaSource,
    "files": FilesSource,
    "kafka": KafkaSource,
    "rate": RateSource,
}


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
        if fault := time_fault(self.timestamp, types):
            site.fault("timestamp", fault)
        elif all(known):
            servers, settings = servers_of(self.servers, site), site.kafka or None
            given = {"key": key, "value": self.value, "timestamp": self.timestamp, "settings": settings}
            site.bolt(Call(KafkaSink, site.id, self.topic, servers, **given), single(stream), tasks=1)


SINKS: Mapping[str, type[PipelinePart]] = {"delta": DeltaTable, "kafka": KafkaTopic}
