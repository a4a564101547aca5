"""Base of the parts of a pipeline: the model of a section, and its site, where it notes what it adds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field

from txstorm.api.names import DEFAULT_STREAM, name_fault, near
from txstorm.api.state import arrow_type
from txstorm.clients.config_files import ClientSettings, ConfigFile, Part, Place, unless
from txstorm.errors import TxstormError
from txstorm.topology.checks.validate import MAX_PARALLELISM
from txstorm.topology.program import Call, ComponentCall, Subscription
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


_COMMON = {"type", "from", "by", "on", "id"}
"""Options whose names are words of any sentence."""


@dataclass(frozen=True)
class Stream:
    """A stream that parts may read.

    Attributes:
        component, stream: where it comes from in the topology.
        types: its fields with their types; None: unknown, as its part has faults.
    """

    component: str
    stream: str
    types: Mapping[str, pa.DataType] | None

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments that name the stream to a declarer or a bolt."""
        return (self.component,) if self.stream == DEFAULT_STREAM else (self.component, self.stream)


@dataclass
class Site:
    """The place of one part.

    Attributes:
        id: the name of the part.
        place: where it is in the file.
        tasks: the number of its tasks.
        servers, kafka: the brokers and client settings of the pipeline.
        streams: the streams known so far, by the names that parts read them by.
        flawed: the options with faults that were found when the part was read; no more is said about them.
    """

    id: str
    place: Place
    file: ConfigFile
    tasks: int
    servers: str | None
    kafka: ClientSettings
    streams: dict[str, Stream]
    flawed: frozenset[Any] = frozenset()
    components: list[ComponentCall] = field(default_factory=list)

    def fault(self, options: str, sentence: str, name: str = "") -> None:
        """Note a fault of one option of this part, unless it has one already.

        Args:
            options: the option, and with dots what is within it; "": the one that the sentence names, or the part.
            sentence: what is wrong.
            name: the key of the table which `options` is, if that is at fault.
        """
        inner = options.split(".") if options else named_in(self.file.at(self.place), sentence)
        if self.flawed.isdisjoint(inner[:1]):
            self.file.fault((*self.place, *inner, *([name] if name else [])), sentence)

    @contextmanager
    def naming(self, option: str = "", name: str = "") -> Iterator[None]:
        """Turn errors into faults of `option`."""
        try:
            yield
        except (TxstormError, ValueError, TypeError) as error:
            self.fault(option, str(error), name)

    def reads(self, name: str, option: str = "from") -> Stream | None:
        """Return the stream that `option` names; None if it is unknown, or its part has faults."""
        found = self.streams.get(name)
        part = found or self.streams.get(name.partition(".")[0])
        if part is not None and part.types is None:
            return None
        if found is None:
            known = [one for one in self.streams if one.partition(".")[0] != self.id]
            hint = near(name, known) or f"; there are {', '.join(known) or 'none'}"
            silent = any(self.file.at((section, name)) for section in ("step", "sink"))
            none = f"part {name!r} emits nothing" if silent else f"there is no part or stream {name!r:.100}"
            self.fault(option, f"{none}{hint}")
            return None
        return found

    def has(self, stream: Stream, names: Sequence[str], option: str) -> bool:
        """Return whether `stream` has all fields `names`; note a fault of `option` for each that it lacks."""
        types = stream.types or {}
        for name in dict.fromkeys(names):
            if list(names).count(name) > 1:
                self.fault(option, f"{name!r} is there twice")
            if name not in types:
                listed = ", ".join(types)
                self.fault(option, f"{name!r:.100} is none of the fields {listed}{near(name, list(types))}")
        return set(names) <= set(types) and len(set(names)) == len(names)

    def bolt(self, call: Call, *inputs: tuple[Any, ...], tasks: int | None = None) -> Any:
        """Add a bolt, each input the method that declares it, and the arguments of that; return one made on trial."""
        made = None
        with self.naming():
            made = call.made()
        subscriptions = tuple(Subscription(method, tuple(arguments)) for method, *arguments in inputs)
        self.components.append(ComponentCall(self.id, call, tasks or self.tasks, subscriptions))
        return made

    def emits(self, types: Mapping[str, pa.DataType] | None, stream: str = DEFAULT_STREAM) -> None:
        """Note what the part emits on `stream`, which others read as ``NAME`` or ``NAME.STREAM``."""
        name = self.id if stream == DEFAULT_STREAM else f"{self.id}.{stream}"
        self.streams[name] = Stream(self.id, stream, types)


def named_in(names: Iterable[Any], sentence: str) -> list[str]:
    """Return, in a list, the one of `names` that a sentence mentions first, outside of quotes; [] if there is none."""
    words = re.findall(r"[\w.-]*\w", re.sub(r"'[^']*'", "", sentence))
    return next(([one] for one in words if one in names and one not in _COMMON), [])


def local(stream: Stream) -> tuple[Any, ...]:
    """Return the subscription of a bolt that may have any tuples."""
    return ("local_or_shuffle_grouping", *stream.names)


def grouped(stream: Stream, fields: Sequence[str]) -> tuple[Any, ...]:
    """Return the subscription of a bolt that needs all tuples with the same values of `fields` in one task."""
    return ("fields_grouping", *stream.names, list(fields))


def single(stream: Stream) -> tuple[Any, ...]:
    """Return the subscription of a bolt with one task."""
    return ("global_grouping", *stream.names)
