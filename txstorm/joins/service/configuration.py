"""Configuration of a ready-made join: the model of its TOML file.

It reports all faults at once; nothing is started, or asked over the network, before it has none.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from txstorm.api.names import counted, field_fault, name_fault, near
from txstorm.errors import InputError
from txstorm.joins.side import Side
from txstorm.topology.settings import Settings

if TYPE_CHECKING:
    from txstorm.topology.graph import Topology

TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "datetime": datetime}
PARTITION = "partition"
_UNITS = {"us": 1, "ms": 1000, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}
_DURATION = re.compile(rf"(-?\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})")


def _duration(value: object) -> timedelta:
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        msg = f'expected a duration such as "10 min" (units: {", ".join(_UNITS)}), got {value!r:.100}'
        raise ValueError(msg)
    return timedelta(microseconds=round(float(found[1]) * _UNITS[found[2]]))


def _positive(value: object) -> timedelta:
    made = _duration(value)
    if made < timedelta(0):
        msg = f"expected a duration of 0 or more, got {value!r}"
        raise ValueError(msg)
    return made


def _start(value: object) -> object:
    if value in ("earliest", "latest") or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    msg = f"expected 'earliest', 'latest', or a time with a zone, such as 2026-01-31T12:00:00Z, got {value!s:.100}"
    raise ValueError(msg)


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
NotNegative = Annotated[timedelta, BeforeValidator(_positive)]
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

    topic: str = Field(min_length=1)
    fields: dict[str, Literal["str", "int", "float", "bool", "datetime"]] = Field(min_length=1)
    key: Names
    time: str
    unit: Literal["s", "ms", "us"] = "ms"
    id: str | None = None
    lag: NotNegative = timedelta(0)
    idle: NotNegative | None = None
    grace: NotNegative | None = None
    start: Annotated[Any, BeforeValidator(_start)] = "earliest"
    max_batch_rows: int = Field(10_000, ge=1)
    max_batch_bytes: int = Field(64 << 20, ge=1)

    @field_validator("fields")
    @classmethod
    def _valid_names(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name in fields:
            if fault := field_fault("fields", name):
                raise ValueError(fault)
            if name == PARTITION:
                msg = f"the field {PARTITION!r} is that of the topic; leave it out"
                raise ValueError(msg)
        return fields

    @field_validator("key", "time", "id")
    @classmethod
    def _known(cls, value: Any, info: ValidationInfo) -> Any:
        fields = info.data.get("fields")
        if fields is None or value is None:
            return value
        for name in [value] if isinstance(value, str) else value:
            if name not in fields:
                msg = f"{name!r} is none of the fields {', '.join(fields)}{near(name, list(fields))}"
                raise ValueError(msg)
        if info.field_name == "time" and fields[value] not in ("int", "datetime"):
            msg = f"field {value!r} is a {fields[value]}; expected an int or a datetime"
            raise ValueError(msg)
        return value

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
            unit=self.unit,
            id=self.id,
            lag=self.lag,
            idle=self.idle,
            grace=self.grace,
            partition=PARTITION,
            columns=stored,
        )


class JoinPart(_Part):
    """Type, bounds and output fields of the join."""

    how: Literal["inner", "left", "right", "full", "semi", "anti"] = "left"
    before: AnyDuration
    after: AnyDuration = timedelta(0)
    select: list[str] | None = Field(None, min_length=1)

    @field_validator("after")
    @classmethod
    def _not_inverted(cls, after: timedelta, info: ValidationInfo) -> timedelta:
        if "before" in info.data and info.data["before"] + after < timedelta(0):
            msg = "the bounds are inverted: before + after is negative"
            raise ValueError(msg)
        return after


class StorePart(_Part):
    """The store that keeps right rows outside the topology."""

    url: Secret = Field(pattern=r"^(rediss?|unix|https?)://")
    prefix: str | None = Field(None, min_length=1)
    token: Secret | None = None
    retain: NotNegative
    batch_size: int = Field(1000, ge=1)


class SinkPart(_Part):
    """Tables or topics that get the results."""

    type: Literal["delta", "kafka"] = "delta"
    name: str = Field("joined", min_length=1)
    key: str | None = None
    unmatched_left: str | None = Field(None, min_length=1)
    unmatched_right: str | None = Field(None, min_length=1)

    @field_validator("name", "unmatched_left", "unmatched_right")
    @classmethod
    def _table(cls, name: str | None, info: ValidationInfo) -> str | None:
        fault = name_fault("sink", name) if name is not None and info.data.get("type") == "delta" else None
        if fault:
            raise ValueError(fault)
        if name is not None and name in [info.data.get(one) for one in ("name", "unmatched_left")]:
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
    servers: str = Field(min_length=1)
    variant: Literal["state", "redis", "rest"] = "state"
    parallelism: int = Field(2, ge=1)
    left: SideConfig
    right: SideConfig
    join: JoinPart
    store: StorePart | None = Field(None, validate_default=True)
    sink: SinkPart = SinkPart()
    settings: dict[str, Any] = {}
    kafka: dict[str, Secret] = {}

    @classmethod
    def read(cls, path: str | Path) -> JoinService:
        """Read and check the TOML file at `path`.

        Raises:
            InputError: the file cannot be read; or it has faults, all of which are listed.
        """
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"not TOML: {error}"
            msg = f"{path}: {reason}; --print-example shows a configuration"
            raise InputError(msg) from None
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            faults = [sentence for one in error.errors(include_url=False) for sentence in _sentences(one)]
        raise InputError("\n  ".join([f"{path}: {counted(len(faults), 'error')}", *faults]))

    @field_validator("name")
    @classmethod
    def _valid_name(cls, name: str) -> str:
        if fault := name_fault("name", name):
            raise ValueError(fault)
        return name

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
        if info.data.get("variant", "state") != "state" and right.id is None:
            faults.append("id is missing: a store tells repeated rows from new ones by it")
        return _unless(faults, right)

    @field_validator("join")
    @classmethod
    def _possible(cls, join: JoinPart, info: ValidationInfo) -> JoinPart:
        faults = []
        if join.how in ("right", "full") and info.data.get("variant", "state") != "state":
            faults.append(f"how = {join.how!r} needs variant = 'state': a store does not know unmatched right rows")
        for one in join.select or ():
            side, _, name = one.partition(":")
            if side not in ("left", "right"):
                faults.append(f"select: expected left:FIELD or right:FIELD, got {one!r}")
            elif side in info.data and name not in info.data[side].fields:
                known = info.data[side].fields
                faults.append(
                    f"select: {side} has no field {name!r}{near(name, list(known))}; it has {', '.join(known)}"
                )
        return _unless(faults, join)

    @field_validator("store")
    @classmethod
    def _of_the_variant(cls, store: StorePart | None, info: ValidationInfo) -> StorePart | None:
        variant = info.data.get("variant")
        schemes = {"redis": ("redis", "rediss", "unix"), "rest": ("http", "https")}.get(variant or "")
        faults = []
        if variant == "state" and store is not None:
            faults.append("variant = 'state' needs no store; remove the section, or choose 'redis' or 'rest'")
        if schemes is not None and store is None:
            faults.append(f"missing: variant = {variant!r} needs a section [store] with url and retain")
        if schemes is not None and store is not None and store.url.partition(":")[0] not in schemes:
            faults.append(f"url: variant = {variant!r} expects one that begins with {' or '.join(schemes)}")
        join = info.data.get("join")
        if store is not None and join is not None and store.retain < join.before:
            faults.append("retain: right rows would expire before the left rows that they match; give at least before")
        return _unless(faults, store)

    @field_validator("sink")
    @classmethod
    def _producible(cls, sink: SinkPart, info: ValidationInfo) -> SinkPart:
        known = info.data.get("variant", "state") == "state" or sink.unmatched_right is None
        return _unless([] if known else ["unmatched_right needs variant = 'state'"], sink)

    @field_validator("settings")
    @classmethod
    def _known_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return _unless(Settings.read(settings)[1], settings)

    def selected(self) -> list[str]:
        """Return the fields of the results, as ``left:FIELD`` and ``right:FIELD``."""
        if self.join.select is not None:
            return self.join.select
        sides = {"left": self.left} if self.join.how in ("semi", "anti") else {"left": self.left, "right": self.right}
        return [f"{name}:{field}" for name, side in sides.items() for field in side.fields]

    def columns(self) -> dict[str, type]:
        """Return the fields of the results by their names in the output, with their types."""
        chosen = [one.split(":", 1) for one in self.selected()]
        names = [name for _, name in chosen]
        types = {"left": self.left.types, "right": self.right.types}
        return {(name if names.count(name) == 1 else f"{side}_{name}"): types[side][name] for side, name in chosen}

    def topology(self) -> Topology:
        """Build the topology.

        Raises:
            MissingDependency: confluent-kafka, or the client of the store, is not installed.
        """
        from txstorm.joins.service.ready_made import ReadyMadeJoin

        return ReadyMadeJoin(self).topology()


def _sentences(error: Mapping[str, Any]) -> list[str]:
    """Return one sentence per fault of an error of pydantic's, each with its place in the file."""
    place = error["loc"]
    where, kind = ".".join(map(str, place)), error["type"]
    if kind == "value_error":
        return [f"{where}: {one}" for one in error["msg"].removeprefix("Value error, ").split("\n")]
    if kind == "missing":
        return [f"{where}: missing"]
    if kind == "extra_forbidden":
        parts: dict[Any, type[BaseModel]] = {
            "left": SideConfig,
            "right": SideConfig,
            "join": JoinPart,
            "store": StorePart,
            "sink": SinkPart,
        }
        known = list((parts[place[0]] if place[1:] else JoinService).model_fields)
        names = ", ".join(known)
        return [f"{where}: unknown{near(str(place[-1]), known) or f'; known are {names}'}"]
    secret = {"url", "token", "kafka"} & set(place)
    got = "" if secret else f", got {error['input']!r:.100}"
    return [f"{where}: {error['msg'][0].lower()}{error['msg'][1:]}{got}"]
