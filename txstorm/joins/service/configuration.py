"""Configuration of a ready-made join: the model of its TOML file.

It reports all faults at once; nothing is started, or asked over the network, before it has none.
It is one module, as the model is a tree of parts, and the checks of a part need those beside it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from txstorm.api.names import counted, field_fault, name_fault, near
from txstorm.clients.file_settings import code_faults
from txstorm.errors import InputError, MissingDependency
from txstorm.joins.interval.interval_plan import SPELLINGS
from txstorm.joins.selection import LEFT, RIGHT, Selected, selection
from txstorm.joins.side import Side
from txstorm.masks import masked_url
from txstorm.topology.checks.validate import MAX_PARALLELISM
from txstorm.topology.settings import Settings
from txstorm.windows.rules.forms import LONGEST

if TYPE_CHECKING:
    from txstorm.api.join_store import JoinStore
    from txstorm.topology.graph import Topology

TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "datetime": datetime}
PARTITION = "partition"
_UNITS = {"us": 1, "ms": 1000, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}
_DURATION = re.compile(rf"(-?\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})")


_DEEPEST = 20
"""Levels of sections and lists in a file; a setting of librdkafka with unquoted dots has a handful."""
_SERVER = re.compile(r"([A-Za-z_]+://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


def _duration(value: object) -> timedelta:
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        msg = f'expected a duration such as "10 min" (units: {", ".join(_UNITS)}), got {value!r:.100}'
        raise ValueError(msg)
    microseconds = float(found[1]) * _UNITS[found[2]]
    if abs(microseconds) > LONGEST:
        msg = f"expected a duration shorter than 9999 years, got {value!r:.100}"
        raise ValueError(msg)
    return timedelta(microseconds=round(microseconds))


def _not_negative(value: object) -> timedelta:
    made = _duration(value)
    if made < timedelta(0):
        msg = f"expected a duration of 0 or more, got {value!r}"
        raise ValueError(msg)
    return made


def _positive(value: object) -> timedelta:
    made = _duration(value)
    if made <= timedelta(0):
        msg = f"expected a duration longer than 0, got {value!r}"
        raise ValueError(msg)
    return made


def _topic(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        msg = f"expected a topic, at most 249 letters, digits, '.', '_' and '-', got {value!r:.100}"
        raise ValueError(msg)
    return value


def _start(value: object) -> object:
    if value in ("earliest", "latest") or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    msg = f"expected 'earliest', 'latest', or a time with a zone, such as 2026-01-31T12:00:00Z, got {value!s:.100}"
    raise ValueError(msg)


def _how(value: object) -> object:
    return SPELLINGS.get(value, value) if isinstance(value, str) else value


def _url(value: str) -> str:
    if not value.startswith(("redis://", "rediss://", "http://", "https://")):
        raise ValueError("expected one that begins with redis://, rediss://, http:// or https://")
    return value


def _servers(value: str) -> str:
    wrong = [one for one in value.split(",") if not _SERVER.fullmatch(one.strip())]
    if wrong:
        msg = f"expected HOST:PORT, or several separated by commas, got {masked_url(wrong[0].strip())!r:.100}"
        raise ValueError(msg)
    return value


def _flat(value: object) -> object:
    """Return client settings as librdkafka takes them: TOML makes tables of unquoted names with dots, and numbers."""
    if not isinstance(value, dict):
        return value
    flat: dict[str, object] = {}
    for name, one in value.items():
        if isinstance(one, dict):
            flat |= {f"{name}.{inner}": given for inner, given in cast("dict[str, object]", _flat(one)).items()}
        else:
            flat[name] = str(one).lower() if isinstance(one, int | float) else one
    return flat


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _from_environment(value: object) -> object:
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    if value[1:] not in os.environ:
        msg = f"the environment variable {value[1:]} is not set"
        raise ValueError(msg)
    return os.environ[value[1:]]


AnyDuration = Annotated[timedelta, BeforeValidator(_duration)]
NotNegative = Annotated[timedelta, BeforeValidator(_not_negative)]
Positive = Annotated[timedelta, BeforeValidator(_positive)]
Topic = Annotated[str, AfterValidator(_topic)]
Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
Secret = Annotated[str, BeforeValidator(_from_environment)]


Checked = TypeVar("Checked")


def _unless(faults: Sequence[str], value: Checked) -> Checked:
    if faults:
        raise ValueError("\n".join(faults))
    return value


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SideConfig(_Part):
    """One topic: its records, and what `Side` says of them."""

    topic: Topic
    fields: dict[str, Literal["str", "int", "float", "bool", "datetime"]] = Field(min_length=1)
    key: Names
    time: str
    unit: Literal["s", "ms", "us"] | None = None
    id: str | None = None
    lag: NotNegative = timedelta(0)
    idle: Positive | None = None
    grace: NotNegative | None = None
    start: Annotated[Any, BeforeValidator(_start)] = "earliest"
    max_batch_rows: int = Field(10_000, ge=1)
    max_batch_bytes: int = Field(64 << 20, ge=1)

    @field_validator("fields")
    @classmethod
    def _valid_names(cls, fields: dict[str, Any]) -> dict[str, Any]:
        faults = [fault for name in fields if (fault := field_fault("fields", name))]
        if PARTITION in fields:
            faults.append(f"the field {PARTITION!r} is that of the topic; leave it out")
        return _unless(faults, fields)

    @field_validator("key", "time", "id")
    @classmethod
    def _known(cls, value: Any, info: ValidationInfo) -> Any:
        fields = info.data.get("fields")
        if fields is None or value is None:
            return value
        names = [value] if isinstance(value, str) else value
        faults = [f"{name!r} is there twice" for name in dict.fromkeys(names) if names.count(name) > 1]
        for name in dict.fromkeys(names):
            if name not in fields:
                faults.append(f"{name!r} is none of the fields {', '.join(fields)}{near(name, list(fields))}")
            elif info.field_name == "time" and fields[name] not in ("int", "datetime"):
                faults.append(f"field {name!r} is a {fields[name]}; expected an int or a datetime")
        return _unless(faults, value)

    @field_validator("unit")
    @classmethod
    def _of_a_number(cls, unit: str | None, info: ValidationInfo) -> str | None:
        time = info.data.get("time")
        if unit is not None and info.data.get("fields", {}).get(time) == "datetime":
            msg = f"field {time!r} is a datetime, which needs no unit; leave it out"
            raise ValueError(msg)
        return unit

    @property
    def types(self) -> dict[str, type]:
        """Types of the fields."""
        return {name: TYPES[one] for name, one in self.fields.items()}

    def side(self, component: str) -> Side:
        """Return the side of a join that reads these records from `component`."""
        stored = {name: one for name, one in self.types.items() if name not in (self.time, self.id)}
        return Side(
            component,
            key=self.key,
            time=self.time,
            unit=self.unit or "ms",
            id=self.id,
            lag=self.lag,
            idle=self.idle,
            grace=self.grace,
            partition=PARTITION,
            columns=stored,
        )


class JoinPart(_Part):
    """Type, bounds and output fields of the join."""

    how: Annotated[Literal["inner", "left", "right", "full", "semi", "anti"], BeforeValidator(_how)] = "left"
    before: AnyDuration
    after: AnyDuration = timedelta(0)
    select: list[str] | None = Field(None, min_length=1)

    @field_validator("select")
    @classmethod
    def _known(cls, select: list[str] | None, info: ValidationInfo) -> list[str] | None:
        # With the whole file as the context, the names are checked even if other options have faults.
        sides = info.context if isinstance(info.context, dict) else {}
        given = {side: one.get("fields") for side, one in sides.items() if isinstance(one, dict)}
        fields = {side: list(names) for side, names in given.items() if isinstance(names, dict)}
        faults = _selected(select, info.data.get("how", "inner"), fields)[1] if select is not None else []
        return _unless([fault.removeprefix("join: select: ") for fault in faults], select)

    @field_validator("after")
    @classmethod
    def _not_inverted(cls, after: timedelta, info: ValidationInfo) -> timedelta:
        if "before" in info.data and info.data["before"] + after < timedelta(0):
            msg = "the bounds are inverted: before + after is negative"
            raise ValueError(msg)
        return after


class StorePart(_Part):
    """The store that keeps right rows outside the topology."""

    url: Annotated[Secret, AfterValidator(_url)] = Field(repr=False)
    prefix: str | None = None
    token: Secret | None = Field(None, repr=False)
    retain: NotNegative
    batch_size: int = Field(1000, ge=1)

    def opened(self, variant: str, name: str) -> JoinStore:
        """Return the store, which connects when it is first used; `name` is that of the topology.

        Raises:
            InputError: an option is wrong, or not one of this variant.
            MissingDependency: the client of the store is not installed.
        """
        if not self.url.startswith(_SCHEMES[variant]):
            msg = f"url: variant = {variant!r} expects one that begins with {' or '.join(_SCHEMES[variant])}"
            raise InputError(msg)
        if variant == "redis":
            from txstorm.joins.stores.redis_store import RedisStore

            if self.token is not None:
                raise InputError("token: it is for variant = 'rest'; Redis has its password in the url")
            return RedisStore(self.url, prefix=name if self.prefix is None else self.prefix)
        from txstorm.joins.stores.rest_store import RestStore

        if self.prefix is not None:
            raise InputError("prefix: it is for variant = 'redis'; txstorm store-server has a --prefix of its own")
        return RestStore(self.url, token=self.token)


_SCHEMES = {"redis": ("redis://", "rediss://"), "rest": ("http://", "https://")}


class SinkPart(_Part):
    """Tables or topics that get the results."""

    type: Literal["delta", "kafka"] = "delta"
    name: str
    key: str | None = None
    unmatched_left: str | None = None
    unmatched_right: str | None = None

    @field_validator("name", "unmatched_left", "unmatched_right")
    @classmethod
    def _valid_place(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None:
            return None
        if info.data.get("type") == "kafka":
            _topic(name)
        if info.data.get("type") == "delta" and (fault := name_fault("sink", name)):
            raise ValueError(fault)
        if name in [info.data.get(one) for one in ("name", "unmatched_left")]:
            msg = f"{name!r} has other results already; give each its own"
            raise ValueError(msg)
        return name


class JoinService(_Part):
    """Configuration of a ready-made join of two Kafka topics; `topology` builds it.

    Example::

        run(JoinService.read("clicks.toml").topology())

    A record is a JSON object. One that cannot be parsed, or has another type in one of the fields, is an error of that
    record: the topology ends, or with the setting ``on_error = "dead_letter"`` leaves it out and keeps it.
    """

    name: str
    servers: Annotated[str, AfterValidator(_servers)]
    variant: Literal["state", "redis", "rest"] = "state"
    parallelism: int = Field(2, ge=1, le=MAX_PARALLELISM)
    left: SideConfig
    right: SideConfig
    join: JoinPart
    store: StorePart | None = Field(None, validate_default=True)
    sink: SinkPart = Field(SinkPart(name="joined"), validate_default=True)
    settings: dict[str, Any] = Field({}, repr=False)  # the configuration of a state provider may have a password
    kafka: Annotated[dict[str, Secret], BeforeValidator(_flat)] = Field({}, repr=False)

    @classmethod
    def read(cls, path: str | Path) -> JoinService:
        """Read and check the TOML file at `path`.

        Raises:
            InputError: the file cannot be read; or it has faults, all of which are listed.
        """
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"not TOML: {error}"
            msg = f"{path}: {reason}; --print-example shows a configuration"
            raise InputError(msg) from None
        except RecursionError:
            values = None
        if values is None or _deeper(values, _DEEPEST):
            msg = (
                f"{path}: sections or lists are nested more than {_DEEPEST} deep; --print-example shows a configuration"
            )
            raise InputError(msg)
        try:
            return cls.model_validate(values, context=values)
        except ValidationError as error:
            faults = [sentence for one in error.errors(include_url=False) for sentence in _sentences(one)]
        raise InputError("\n  ".join([f"{path}: {counted(len(faults), 'error')}", *faults]))

    @field_validator("name")
    @classmethod
    def _valid_name(cls, name: str) -> str:
        if fault := name_fault("name", name):
            raise ValueError(fault)
        return name

    @field_validator("left")
    @classmethod
    def _without_grace(cls, left: SideConfig) -> SideConfig:
        faults = (
            [] if left.grace is None else ["grace is for the right side: how long left rows wait for one that pauses"]
        )
        return _unless(faults + _twins("fields", left.fields), left)

    @field_validator("right")
    @classmethod
    def _fits(cls, right: SideConfig, info: ValidationInfo) -> SideConfig:
        faults = []
        left = info.data.get("left")
        if left is not None:
            ours, theirs = ([side.fields[name] for name in side.key] for side in (left, right))
            if ours != theirs:
                faults.append(
                    f"key {right.key} has the types {theirs}, that of left {left.key} has {ours}; make them equal"
                )
        if info.data.get("variant", "state") == "state":
            return _unless(faults + _twins("fields", right.fields), right)
        if right.id is None:
            faults.append("id is missing: a store tells repeated rows from new ones by it")
        return _unless(faults, right)

    @field_validator("join")
    @classmethod
    def _possible(cls, join: JoinPart, info: ValidationInfo) -> JoinPart:
        selected = _selected(join.select, join.how, _fields(info.data))
        faults = [fault.removeprefix("join: ") for fault in selected[1]]
        if join.how in ("right", "full") and info.data.get("variant", "state") != "state":
            faults.append(f"how = {join.how!r} needs variant = 'state': a store does not know unmatched right rows")
        return _unless(faults, join)

    @field_validator("store")
    @classmethod
    def _of_the_variant(cls, store: StorePart | None, info: ValidationInfo) -> StorePart | None:
        variant, join = info.data.get("variant"), info.data.get("join")
        faults = []
        if variant == "state" and store is not None:
            faults.append("variant = 'state' needs no store; remove the section, or choose 'redis' or 'rest'")
        if variant in _SCHEMES and store is None:
            faults.append(f"missing: variant = {variant!r} needs a section [store] with url and retain")
        if variant in _SCHEMES and store is not None:
            try:
                store.opened(variant, info.data.get("name", "join"))
            except InputError as error:
                faults.append(str(error))
            except MissingDependency:
                pass  # raised when the topology is built
        if store is not None and join is not None and store.retain < join.before:
            faults.append("retain: right rows would expire before the left rows that they match; give at least before")
        return _unless(faults, store)

    @field_validator("sink")
    @classmethod
    def _producible(cls, sink: SinkPart, info: ValidationInfo) -> SinkPart:
        faults, join, names = [], info.data.get("join"), list[str]()
        if join is not None and {LEFT, RIGHT} <= info.data.keys():
            names = [one.name for one in _selected(join.select, join.how, _fields(info.data))[0]]
        if sink.type == "delta":
            tables = [one for one in (sink.name, sink.unmatched_left, sink.unmatched_right) if one is not None]
            faults += [*_twins("tables", tables), *_twins(f"{sink.name}: fields", names)]
        if sink.unmatched_right is not None and info.data.get("variant", "state") != "state":
            faults.append("unmatched_right needs variant = 'state'")
        if sink.type == "kafka":
            read = [side.topic for side in map(info.data.get, (LEFT, RIGHT)) if side is not None]
            written = [sink.name, sink.unmatched_left, sink.unmatched_right]
            faults += [f"the join reads topic {one!r}, so it cannot write to it" for one in written if one in read]
        if sink.key is not None and sink.type == "delta":
            faults.append("key: rows of a table have none; it is for type = 'kafka'")
        elif sink.key is not None and names and sink.key not in names:
            hint = near(sink.key, names)
            faults.append(f"key: the results have no field {sink.key!r}{hint}; they have {', '.join(names)}")
        return _unless(faults, sink)

    @field_validator("settings")
    @classmethod
    def _known_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return _unless(code_faults(settings) + Settings.read(settings)[1], settings)

    @field_validator("kafka")
    @classmethod
    def _accepted(cls, kafka: dict[str, str]) -> dict[str, str]:
        faults = code_faults(kafka)
        if "bootstrap.servers" in kafka:
            faults.append("bootstrap.servers: give the brokers as servers, above the sections")
        try:
            from txstorm.clients.kafka.cluster import setting_faults
        except MissingDependency:
            return _unless(faults, kafka)  # raised when the topology is built
        others = {name: one for name, one in kafka.items() if name != "bootstrap.servers"}
        for fault in setting_faults(others, asked=not faults):
            for value in filter(None, kafka.values()):
                fault = fault.replace(f'"{value}"', '"…"')  # it may be a password
            faults.append(fault.removeprefix("kafka: "))
        return _unless(faults, kafka)

    def selected(self) -> list[Selected]:
        """Return the fields of the results."""
        return _selected(self.join.select, self.join.how, _fields({LEFT: self.left, RIGHT: self.right}))[0]

    def columns(self) -> dict[str, type]:
        """Return the fields of the results by their names in the output, with their types."""
        types = {LEFT: self.left.types, RIGHT: self.right.types}
        return {one.name: types[one.side][one.field] for one in self.selected()}

    def topology(self) -> Topology:
        """Build the topology.

        Raises:
            MissingDependency: confluent-kafka, or the client of the store, is not installed.
        """
        from txstorm.joins.service.ready_made import ReadyMadeJoin

        return ReadyMadeJoin(self).topology()


def _twins(what: str, names: Iterable[str]) -> list[str]:
    """Return a fault for each of `names` that differs from an earlier one only in case, as no table can have them."""
    first: dict[str, str] = {}
    twins = [(first.setdefault(name.lower(), name), name) for name in names]
    return [f"{what} {one!r} and {other!r} differ only in case; rename one" for one, other in twins if one != other]


def _deeper(values: Any, levels: int) -> bool:
    """Return whether tables and lists are nested more than `levels` deep, whatever their depth."""
    layer = [values]
    while layer and levels >= 0:
        layer = [
            inner
            for one in layer
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        levels -= 1
    return bool(layer)


def _fields(parts: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return the names of the fields of the sides in `parts`; a side that is missing has faults."""
    return {side: list(parts[side].fields) for side in (LEFT, RIGHT) if side in parts}


def _selected(
    select: Sequence[str] | None, how: str, fields: Mapping[str, Collection[str]]
) -> tuple[list[Selected], list[str]]:
    """Return the fields of the results, and the faults of `select`; the fields of a side may be unknown."""
    left, right = (tuple(fields.get(side, ())) for side in (LEFT, RIGHT))
    sides = (LEFT,) if how in ("semi", "anti") else (LEFT, RIGHT)
    return selection("join", select, (LEFT, RIGHT), (left, right), sides)


_SECTIONS: Mapping[Any, type[BaseModel]] = {
    LEFT: SideConfig,
    RIGHT: SideConfig,
    "join": JoinPart,
    "store": StorePart,
    "sink": SinkPart,
}
_EXPECTED = {
    "model_type": "expected a section",
    "dict_type": "expected a table of NAME = VALUE",
    "list_type": "expected a list",
    "string_type": "expected a text in quotes",
    "int_type": "expected a whole number",
    "too_short": "expected at least one",
    "string_too_short": "expected a text that is not empty",
    "greater_than_equal": "expected at least {ge}",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
}
"""Kind of a fault, as pydantic names it → what the file should have."""


def _sentences(error: Mapping[str, Any]) -> list[str]:
    """Return one sentence per fault of an error of pydantic's, each with its place in the file."""
    place, kind, given = error["loc"], error["type"], error["input"]
    where = ".".join(map(str, place))
    if kind == "value_error":
        return [f"{where}: {one}" for one in error["msg"].removeprefix("Value error, ").split("\n")]
    if kind == "missing":
        return [f"{where}: missing"]
    if kind == "extra_forbidden":
        return [f"{where}: {_unknown(str(place[-1]), _SECTIONS[place[0]] if place[1:] else JoinService)}"]
    context = error.get("ctx", {})
    text = _EXPECTED.get(kind, error["msg"]).format(**context)
    if place[0] not in ("store", "kafka"):  # these may have a password
        text += f", got {given!r:.100}" if isinstance(given, str | int | float) else ""
    hint = near(given, context["expected"].split("'")[1::2]) if kind == "literal_error" and type(given) is str else ""
    return [f"{where}: {text}{hint}"]


def _unknown(name: str, section: type[BaseModel]) -> str:
    """Return what to do about an option that `section` does not have."""
    known = list(section.model_fields)
    others = [f"[{one}]" for one, part in _SECTIONS.items() if name in part.model_fields]
    if name in JoinService.model_fields:
        others.insert(0, f"[{name}]" if name in _SECTIONS else "the options above the first section")
    if others:
        return f"unknown here; it belongs to {' or '.join(others)}"
    listed = ", ".join(known)
    return f"unknown{near(name, known) or f'; known are {listed}'}"
