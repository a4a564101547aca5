"""Sinks of a pipeline: tables and topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa

from txstorm.clients.config_files import Names, Servers, Topic
from txstorm.pipelines.parts import (
    PipelinePart,
    StepPart,
    Table,
    servers_of,
    time_fault,
)
from txstorm.pipelines.site import Site, Stream, single
from txstorm.sinks.delta import DeltaSink
from txstorm.topology.program import Call


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
