"""The parts of a pipeline: what sources, steps and sinks have in common, each the model of its section."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field

from txstorm.api.names import name_fault, near
from txstorm.api.state import arrow_type
from txstorm.clients.config_files import Part, unless
from txstorm.pipelines.site import Site, Stream
from txstorm.topology.checks.validate import MAX_PARALLELISM
from txstorm.topology.program import Call
from txstorm.typed import python_type

TYPES: Mapping[str, type] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "decimal": Decimal,
    "date": date,
    "datetime": datetime,
}
_DECIMAL = re.compile(r"decimal\((\d{1,3}), ?(\d{1,3})\)")


def _type(value: object) -> pa.DataType:
    """Return the type that a text such as ``"int"`` or ``"decimal(12, 2)"`` names."""
    if isinstance(value, pa.DataType):
        return value
    text = value if isinstance(value, str) else ""
    if scaled := _DECIMAL.fullmatch(text.strip()):
        try:
            return pa.decimal128(int(scaled[1]), int(scaled[2]))
        except ValueError as error:
            raise ValueError(f"expected a decimal of at most 38 digits, got {text!r}: {error}") from None
    if text.strip() not in TYPES:
        hint = near(text, list(TYPES)) or f"; known are {', '.join(TYPES)}, decimal(DIGITS, DECIMALS)"
        raise ValueError(f"expected a type, got {value!r:.100}{hint}")
    return arrow_type(TYPES[text.strip()])


def texts_of(value: object) -> list[str] | None:
    """Return the names in a list; None if it is none of texts; raise ValueError if one is there twice."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return None
    return unless([f"{one!r} is there twice" for one in dict.fromkeys(value) if value.count(one) > 1], value)


def _table(name: str) -> str:
    fault = name_fault("table", name)
    return unless([fault] if fault else [], name)


Types = dict[str, Annotated[Any, BeforeValidator(_type)]]
Table = Annotated[str, AfterValidator(_table)]


class PipelinePart(Part):
    """Base of the parts: a section ``[source.NAME]``, ``[step.NAME]`` or ``[sink.NAME]``.

    Attributes:
        parallelism: the number of its tasks; None: that of the pipeline.
    """

    type: str
    parallelism: int | None = Field(None, ge=1, le=MAX_PARALLELISM)

    def build(self, site: Site) -> None:
        """Add the components of the part to `site`, and what it emits; note its faults there."""
        raise NotImplementedError


class SourcePart(PipelinePart):
    """Base of sources: `spout` makes one, and the pipeline puts it in its place."""

    def spout(self, site: Site) -> tuple[Call, Mapping[str, pa.DataType] | None]:
        """Return the call that makes the spout, and the fields it emits; None if these have faults."""
        raise NotImplementedError


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


def time_fault(name: str | None, types: Mapping[str, pa.DataType]) -> str:
    """Return why the field `name` cannot be a time; "" if it can, or is none of the fields."""
    if name is None or name not in types or python_type(types[name]) in (int, datetime):
        return ""
    return f"expected an int or a datetime, got {name!r}, of the type {named_type(types[name])}"


def named_type(kind: pa.DataType) -> str:
    """Return the name of a type, as a file has it."""
    found = next((name for name, one in TYPES.items() if arrow_type(one) == kind), None)
    return found or str(kind)


def servers_of(own: str | None, site: Site) -> str:
    """Return the brokers of a part, which are its `own` or those of the pipeline; note a fault if there are none."""
    servers = own or site.servers
    if servers is None:
        site.fault("servers", "missing: give the brokers here, or for all parts above the sections")
    return servers or "127.0.0.1:9092"
