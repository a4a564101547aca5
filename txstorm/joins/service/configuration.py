"""Configuration of a ready-made join: the model of its TOML file.

It reports all faults at once; nothing is started, or asked over the network, before it has none.
It is one module, as the model is a tree of parts, and the checks of a part need those beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from txstorm.api.names import field_fault, name_fault, near
from txstorm.clients.config_files import (
    AnyDuration,
    ClientSettings,
    ConfigFile,
    Names,
    NotNegative,
    Part,
    Positive,
    Secret,
    Servers,
    Start,
    Topic,
    checked_topic,
    code_faults,
    kafka_faults,
    twins,
    unless,
)
from txstorm.errors import InputError, MissingDependency
from txstorm.joins.selection import LEFT, RIGHT, SPELLINGS, Selected, selection
from txstorm.joins.side import Side
from txstorm.topology.checks.validate import MAX_PARALLELISM
from txstorm.topology.program import Call
from txstorm.topology.settings import Settings

if TYPE_CHECKING:
    from txstorm.topology.graph import Topology
    from txstorm.topology.program import Program

TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "datetime": datetime}
PARTITION = "partition"
EXAMPLE = "--print-example"


def _how(value: object) -> object:
    return SPELLINGS.get(value.lower(), value) if isinstance(value, str) else value


def _url(value: str) -> str:
    if not value.startswith(("redis://", "rediss://", "http://", "https://")):
        raise ValueError("expected one that begins with redis://, rediss://, http:// or https://")
    return value


class SideConfig(Part):
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
    start: Start = "earliest"
    max_batch_rows: int = Field(10_000, ge=1)
    max_batch_bytes: int = Field(64 << 20, ge=1)

    @field_validator("fields")
    @classmethod
    def _valid_names(cls, fields: dict[str, Any]) -> dict[str, Any]:
        faults = [fault for name in fields if (fault := field_fault("fields", name))]
        if PARTITION in fields:
            faults.append(f"the field {PARTITION!r} is that of the topic; leave it out")
        return unless(faults, fields)

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
        return unless(faults, value)

    @field_validator("unit")
    @classmethod
    def _of_a_number(cls, unit: str | None, info: ValidationInfo) -> str | None:
        time = info.data.get("time")
        if unit is not None and info.data.get("fields", {}).get(time) == "datetime":
            raise ValueError(f"field {time!r} is a datetime, which needs no unit; leave it out")
        return unit

    @property
    def types(self) -> dict[str, type]:
        """Types of the fields."""
        return {name: TYPES[one] for name, one in self.fields.items()}

    def side(self, component: str) -> Call:
        """Return the side of a join that reads these records from `component`."""
        stored = {name: one for name, one in self.types.items() if name not in (self.time, self.id)}
        return Call(
            Side,
            component,
            key=self.key,
            time=self.time,
            unit=self.unit,
            id=self.id,
            lag=self.lag or None,
            idle=self.idle,
            grace=self.grace,
            partition=PARTITION,
            columns=stored,
        )


class JoinPart(Part):
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
        return unless([fault.removeprefix("join: select: ") for fault in faults], select)

    @field_validator("after")
    @classmethod
    def _not_inverted(cls, after: timedelta, info: ValidationInfo) -> timedelta:
        if "before" in info.data and info.data["before"] + after < timedelta(0):
            raise ValueError("the bounds are inverted: before + after is negative")
        return after


class StorePart(Part):
    """The store that keeps right rows outside the topology."""

    url: Annotated[Secret, AfterValidator(_url)] = Field(repr=False)
    prefix: str | None = None
    token: Secret | None = Field(None, repr=False)
    retain: NotNegative
    batch_size: int = Field(1000, ge=1)

    def call(self, variant: str, name: str) -> Call:
        """Return the call that makes the store, which connects when it is first used; `name` is that of the topology.

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
            return Call(RedisStore, self.url, prefix=name if self.prefix is None else self.prefix)
        from txstorm.joins.stores.rest_store import RestStore

        if self.prefix is not None:
            raise InputError("prefix: it is for variant = 'redis'; txstorm store-server has a --prefix of its own")
        return Call(RestStore, self.url, token=self.token)


_SCHEMES = {"redis": ("redis://", "rediss://"), "rest": ("http://", "https://")}


class SinkPart(Part):
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
            checked_topic(name)
        if info.data.get("type") == "delta" and (fault := name_fault("sink", name)):
            raise ValueError(fault)
        if name in [info.data.get(one) for one in ("name", "unmatched_left")]:
            raise ValueError(f"{name!r} has other results already; give each its own")
        return name


class JoinService(Part):
    """Configuration of a ready-made join of two Kafka topics; `topology` builds it.

    Example::

        run(JoinService.read("clicks.toml").topology())

    A record is a JSON object. One that cannot be parsed, or has another type in one of the fields, is an error of that
    record: the topology ends, or with the setting ``on_error = "dead_letter"`` leaves it out and keeps it.
    """

    name: str
    servers: Servers
    variant: Literal["state", "redis", "rest"] = "state"
    parallelism: int = Field(2, ge=1, le=MAX_PARALLELISM)
    left: SideConfig
    right: SideConfig
    join: JoinPart
    store: StorePart | None = Field(None, validate_default=True)
    sink: SinkPart = Field(SinkPart(name="joined"), validate_default=True)
    settings: dict[str, Any] = Field({}, repr=False)  # the configuration of a state provider may have a password
    kafka: ClientSettings = Field({}, repr=False)

    @classmethod
    def read(cls, path: str | Path) -> JoinService:
        """Read and check the TOML file at `path`.

        Raises:
            InputError: the file cannot be read; or it has faults, all of which are listed.
        """
        return cls.of(ConfigFile.read(path, EXAMPLE))

    @classmethod
    def of(cls, file: ConfigFile) -> JoinService:
        """Check the content of `file`; raise `InputError` with all faults."""
        found = file.model(cls, file.values, secret=("store", "kafka"))
        file.check()
        assert found is not None
        return found

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
        return unless(faults + twins("fields", left.fields), left)

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
            return unless(faults + twins("fields", right.fields), right)
        if right.id is None:
            faults.append("id is missing: a store tells repeated rows from new ones by it")
        return unless(faults, right)

    @field_validator("join")
    @classmethod
    def _possible(cls, join: JoinPart, info: ValidationInfo) -> JoinPart:
        selected = _selected(join.select, join.how, _fields(info.data))
        faults = [fault.removeprefix("join: ") for fault in selected[1]]
        if join.how in ("right", "full") and info.data.get("variant", "state") != "state":
            faults.append(f"how = {join.how!r} needs variant = 'state': a store does not know unmatched right rows")
        return unless(faults, join)

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
                store.call(variant, info.data.get("name", "join")).made()
            except InputError as error:
                faults.append(str(error))
            except MissingDependency:
                pass  # raised when the topology is built
        if store is not None and join is not None and store.retain < join.before:
            faults.append("retain: right rows would expire before the left rows that they match; give at least before")
        return unless(faults, store)

    @field_validator("sink")
    @classmethod
    def _producible(cls, sink: SinkPart, info: ValidationInfo) -> SinkPart:
        faults, join, names = [], info.data.get("join"), list[str]()
        if join is not None and {LEFT, RIGHT} <= info.data.keys():
            names = [one.name for one in _selected(join.select, join.how, _fields(info.data))[0]]
        if sink.type == "delta":
            tables = [one for one in (sink.name, sink.unmatched_left, sink.unmatched_right) if one is not None]
            faults += [*twins("tables", tables), *twins(f"{sink.name}: fields", names)]
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
        return unless(faults, sink)

    @field_validator("settings")
    @classmethod
    def _known_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return unless(code_faults(settings) + Settings.read(settings)[1], settings)

    @field_validator("kafka")
    @classmethod
    def _accepted(cls, kafka: dict[str, str]) -> dict[str, str]:
        return unless(kafka_faults(kafka, "servers, above the sections"), kafka)

    def selected(self) -> list[Selected]:
        """Return the fields of the results."""
        return _selected(self.join.select, self.join.how, _fields({LEFT: self.left, RIGHT: self.right}))[0]

    def columns(self) -> dict[str, type]:
        """Return the fields of the results by their names in the output, with their types."""
        types = {LEFT: self.left.types, RIGHT: self.right.types}
        return {one.name: types[one.side][one.field] for one in self.selected()}

    def program(self) -> Program:
        """Return the calls that build the topology.

        Raises:
            MissingDependency: confluent-kafka, or the client of the store, is not installed.
        """
        from txstorm.joins.service.ready_made import ReadyMadeJoin

        return ReadyMadeJoin(self).program()

    def topology(self) -> Topology:
        """Build the topology; raise as `program`."""
        return self.program().topology()


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
