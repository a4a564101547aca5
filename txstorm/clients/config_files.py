"""Configuration files in TOML, which people write by hand: values in plain texts, and all faults at once, with lines.

A file is read with the model of its content; nothing is started, or asked over the network, before it has no fault.
It is one module, as a value, what is wrong with it, and the line where it stands are parts of one answer.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from txstorm.api.names import counted, near
from txstorm.errors import InputError, MissingDependency
from txstorm.masks import masked_text, masked_url

Place = tuple[str | int, ...]
"""Where a value is: names of tables and keys, indices of lists."""
Checked = TypeVar("Checked")

_UNITS = {"us": 1, "ms": 1000, "s": 10**6, "min": 60 * 10**6, "h": 3600 * 10**6, "d": 86400 * 10**6}
_DURATION = re.compile(rf"(-?\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})")
_LONGEST = 9999 * 366 * _UNITS["d"]
_DEEPEST = 20
"""Levels of sections and lists in a file; a setting of librdkafka with unquoted dots has a handful."""
_SERVER = re.compile(r"([A-Za-z_]+://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_LAST_PORT = 65535
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_CODE = re.compile(r"plugin\.library\.paths|sasl\.kerberos\.kinit\.cmd|ssl[._]engine[._].*|ssl\.providers|.*_cb")
_CLASSES = ("state_provider", "topology.state.provider")


class FromEnvironment(str):
    """A text that was given as ``"$NAME"``, taken from the environment.

    Attributes:
        variable: the name of the variable.
    """

    variable: str


def duration(value: object) -> timedelta:
    """Parse a duration such as ``"10 min"``; raise ValueError for anything else."""
    if isinstance(value, timedelta):
        return value
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'expected a duration such as "10 min" (units: {", ".join(_UNITS)}), got {value!r:.100}')
    microseconds = float(found[1]) * _UNITS[found[2]]
    if abs(microseconds) > _LONGEST:
        raise ValueError(f"expected a duration shorter than 9999 years, got {value!r:.100}")
    return timedelta(microseconds=round(microseconds))


def _not_negative(value: object) -> timedelta:
    made = duration(value)
    if made < timedelta(0):
        raise ValueError(f"expected a duration of 0 or more, got {value!r}")
    return made


def _positive(value: object) -> timedelta:
    made = duration(value)
    if made <= timedelta(0):
        raise ValueError(f"expected a duration longer than 0, got {value!r}")
    return made


def checked_topic(value: str) -> str:
    """Return the name of a Kafka topic; raise ValueError if it cannot be one."""
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise ValueError(f"expected a topic, at most 249 letters, digits, '.', '_' and '-', got {value!r:.100}")
    return value


def _start(value: object) -> object:
    if value in ("earliest", "latest") or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    msg = f"expected 'earliest', 'latest', or a time with a zone, such as 2026-01-31T12:00:00Z, got {value!s:.100}"
    raise ValueError(msg)


def _servers(value: str) -> str:
    found = {one: _SERVER.fullmatch(one.strip()) for one in value.split(",")}
    wrong = [one for one, server in found.items() if server is None or not 0 < int(server[3]) <= _LAST_PORT]
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


def _from_environment(value: str) -> str:
    if not value.startswith("$"):
        return value
    name = value[1:]
    if name not in os.environ:
        raise ValueError(f"the environment variable {name} is not set")
    made = FromEnvironment(os.environ[name])
    made.variable = name
    return made


def code_faults(settings: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each of `settings`, of a client or of a topology, that loads code or runs a program.

    Another user may have written the file. Every way from a file to a client passes this before the client is made:
    librdkafka loads libraries when it is given their names, before it connects to anything.
    """
    faults = [
        f"{name}: it loads code or runs a program, so it is not taken from a file; set it in a program of yours"
        for name in settings
        if _CODE.fullmatch(str(name).strip().lower())
    ]
    return faults + [
        f"{name}: a class is code, so it is not taken from a file; set it in a program of yours"
        for name in _CLASSES
        if ":" in str(settings.get(name, ""))
    ]


def kafka_faults(settings: Mapping[str, str], servers: str) -> list[str]:
    """Return the faults of client settings of librdkafka, which begin with the setting, if one alone is at fault.

    `servers` says where the brokers are given.
    """
    faults = code_faults(settings)
    if "bootstrap.servers" in settings:
        faults.append(f"bootstrap.servers: give the brokers as {servers}")
    try:
        from txstorm.clients.kafka.cluster import setting_faults
    except MissingDependency:
        return faults  # raised when the topology is built
    others = {name: one for name, one in settings.items() if name != "bootstrap.servers"}
    for name, fault in setting_faults(others, asked=not faults):
        for value in filter(None, settings.values()):
            fault = fault.replace(f'"{value}"', '"…"')  # it may be a password
        faults.append(f"{name}: {fault.removeprefix('kafka: ')}".removeprefix(": "))
    return faults


AnyDuration = Annotated[timedelta, BeforeValidator(duration)]
NotNegative = Annotated[timedelta, BeforeValidator(_not_negative)]
Positive = Annotated[timedelta, BeforeValidator(_positive)]
Topic = Annotated[str, AfterValidator(checked_topic)]
Start = Annotated[Any, BeforeValidator(_start)]
Servers = Annotated[str, AfterValidator(_servers)]
Names = Annotated[list[str], BeforeValidator(lambda one: [one] if isinstance(one, str) else one), Field(min_length=1)]
Secret = Annotated[str, AfterValidator(_from_environment)]
ClientSettings = Annotated[dict[str, Secret], BeforeValidator(_flat)]


class Part(BaseModel):
    """Base of the models of files and of their sections."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def unless(faults: Sequence[str], value: Checked) -> Checked:
    """Return `value`, or raise ValueError with all `faults`."""
    if faults:
        raise ValueError("\n".join(faults))
    return value


def twins(what: str, names: Iterable[str]) -> list[str]:
    """Return a fault for each of `names` that differs from an earlier one only in case, as no table can have them."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(name.lower(), name), name) for name in names]
    return [f"{what} {one!r} and {other!r} differ only in case; rename one" for one, other in pairs if one != other]


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass
class ConfigFile:
    """A file, its content, and the faults found in it so far.

    Attributes:
        example: how to see an example, for the error that it is no TOML.
        values: the content.
        faults: places and sentences.
        text: the text.
    """

    path: Path
    example: str
    values: dict[str, Any] = field(default_factory=dict)
    faults: list[tuple[Place, str]] = field(default_factory=list)
    text: str = ""

    @classmethod
    def read(cls, path: str | Path, example: str) -> ConfigFile:
        """Read the file at `path`.

        Raises:
            InputError: it cannot be read, is no TOML, or is nested too deeply.
        """
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
            values: Any = tomllib.loads(text)
        except (OSError, ValueError) as error:  # also of an int of more digits than Python reads
            reason = error.strerror if isinstance(error, OSError) else f"not TOML: {error}"
            raise InputError(f"{path}: {reason}; {example} shows a configuration") from None
        except RecursionError:
            values = None
        if values is None or _deeper(values, _DEEPEST):
            msg = f"{path}: sections or lists are nested more than {_DEEPEST} deep; {example} shows a configuration"
            raise InputError(msg)
        return cls(Path(path), example, values, text=text)

    def model(self, kind: type[Checked], values: Any, place: Place = (), secret: Sequence[str] = ()) -> Checked | None:
        """Return `values`, the table at `place`, as the model `kind`; note its faults.

        Options with faults are left out, so that others can be checked too; None if it is no model without them.
        `secret`: sections whose values must not be shown.
        """
        model, wrong = cast("type[BaseModel]", kind), set[str | int]()
        try:
            return cast("Checked", model.model_validate(values, context=values))
        except ValidationError as error:
            for one in error.errors(include_url=False):
                self.faults += [((*place, *at), text) for at, text in _sentences(one, model, secret)]
                wrong.update(one["loc"][:1])
        rest = {name: one for name, one in values.items() if name not in wrong} if isinstance(values, dict) else {}
        try:
            return cast("Checked", model.model_validate(rest, context=rest))
        except ValidationError:
            return None

    def fault(self, place: Place, sentence: str) -> None:
        """Note a fault of the value at `place`."""
        self.faults.append((place, sentence))

    def at(self, place: Place) -> Any:
        """Return the value at `place`; an empty table if there is none."""
        found: Any = self.values
        for one in place:
            found = found.get(one, {}) if isinstance(found, dict) else {}
        return found

    def check(self) -> None:
        """Raise an `InputError` that lists all faults by line, if there are any."""
        if not self.faults:
            return
        lines = {".".join(map(str, place)): line for place, line in reversed(line_numbers(self.text).items())}
        found = sorted(((_line_of(lines, place), place, text) for place, text in self.faults), key=lambda one: one[0])
        shown = [
            f"line {line}: {'.'.join(map(_shown, place))}: {text}" if place else text for line, place, text in found
        ]
        shown = [masked_text(one) for one in dict.fromkeys(shown)]
        raise InputError("\n  ".join([f"{self.path}: {counted(len(shown), 'error')}", *shown]))


def _shown(key: str | int) -> str:
    text = str(key)
    return text if len(text) <= 100 and text.isprintable() else f"{text!r:.100}"


def _line_of(lines: Mapping[str, int], place: Place) -> int:
    """Return the line of `place`, or of the nearest table around it; a name may be quoted, or tables with dots."""
    while place and ".".join(map(str, place)) not in lines:
        place = place[:-1]
    return lines.get(".".join(map(str, place)), 1)


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


_EXPECTED = {
    "model_type": "expected a section",
    "dict_type": "expected a table of NAME = VALUE",
    "list_type": "expected a list",
    "string_type": "expected a text in quotes",
    "int_type": "expected a whole number",
    "bool_type": "expected true or false",
    "too_short": "expected at least one",
    "string_too_short": "expected a text that is not empty",
    "greater_than_equal": "expected at least {ge}",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
}
"""Kind of a fault, as pydantic names it → what the file should have."""


def _sentences(error: Mapping[str, Any], model: type[BaseModel], secret: Sequence[str]) -> Iterator[tuple[Place, str]]:
    """Yield place and sentence of each fault of an error of pydantic's."""
    kind, given = error["type"], error["input"]
    place = tuple(one for one in error["loc"] if one != "[key]")
    if kind == "value_error":
        names = cast("dict[str, object]", _flat(given)) if isinstance(given, dict) else {}
        for one in error["msg"].removeprefix("Value error, ").split("\n"):
            name, _, rest = one.partition(": ")
            yield ((*place, name), rest) if name in names else (place, one)
        return
    if kind == "missing":
        yield place, "missing"
        return
    if kind == "extra_forbidden":
        yield place, _unknown(place, model)
        return
    context = error.get("ctx", {})
    text = _EXPECTED.get(kind, error["msg"]).format(**context)
    if place[0] not in secret:  # these may have a password
        text += f", got {given!r:.100}" if isinstance(given, str | int | float) else ""
    hint = near(given, context["expected"].split("'")[1::2]) if kind == "literal_error" and type(given) is str else ""
    yield place, f"{text}{hint}"


def sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return name → model of the sections that `model` has."""
    found: dict[str, type[BaseModel]] = {}
    for name, field_ in model.model_fields.items():
        kinds = [field_.annotation, *getattr(field_.annotation, "__args__", ())]
        models = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
        found.update((name, one) for one in models[:1])
    return found


def options(model: type[BaseModel]) -> list[str]:
    """Return the names of the options of `model`, as a file has them."""
    return [one.alias or name for name, one in model.model_fields.items()]


def _unknown(place: Place, model: type[BaseModel]) -> str:
    """Return what to do about an option, the last of `place`, that its section does not have."""
    parts, name = sections(model), str(place[-1])
    known = options(parts[str(place[0])] if place[1:] and place[0] in parts else model)
    others = [f"[{one}]" for one, part in parts.items() if name in options(part)]
    if name in options(model) and place[1:]:
        others.insert(0, f"[{name}]" if name in parts else "the options above the first section")
    if others:
        return f"unknown here; it belongs to {' or '.join(others)}"
    listed = ", ".join(known)
    return f"unknown{near(name, known) or f'; known are {listed}'}"


# -- positions ---------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[][{}=,.\n]|[^\s"'\#\[\]{}=,.]+''',
    re.DOTALL,
)


def line_numbers(text: str) -> dict[Place, int]:
    """Return place → line of the tables, keys and list items of `text`, which is valid TOML.

    `tomllib` gives no positions. Tables of a list, ``[[name]]``, have the line of the first.
    """
    return _Positions(text).found


class _Positions:
    """One pass over the tokens of a TOML text."""

    def __init__(self, text: str) -> None:
        self.found: dict[Place, int] = {}
        self._tokens: list[tuple[str, int]] = []
        self._at, line, end = 0, 1, 0
        for one in _TOKEN.finditer(text):
            line += text.count("\n", end, one.start())
            end = one.start()
            if not one[0].startswith("#"):
                self._tokens.append((one[0], line))
        table: Place = ()
        while self._next:
            if self._next == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip("\n")

    @property
    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _skip(self, *tokens: str) -> None:
        while self._next and self._next in tokens:
            self._at += 1

    def _header(self) -> Place:
        line = self._tokens[self._at][1]
        self._skip("[")
        table = self._key((), line)
        self._skip("]")
        return table

    def _key(self, place: Place, line: int) -> Place:
        """Read a key, which may have dots, of the table at `place`; note the line, and return its place."""
        while True:
            name = self._next
            place = (*place, next(iter(tomllib.loads(f"{name} = 0"))) if name[0] in "\"'" else name)
            self.found.setdefault(place, line)
            self._at += 1
            if self._next != ".":
                return place
            self._at += 1

    def _pair(self, table: Place) -> None:
        self._skip("\n")
        place = self._key(table, self._tokens[self._at][1])
        self._skip("=")
        self._value(place)

    def _value(self, place: Place) -> None:
        opening = self._next
        if opening not in ("[", "{"):
            while self._next not in ("\n", ",", "]", "}", ""):  # a number or a time may be several tokens
                self._at += 1
            return
        closing, number = "]" if opening == "[" else "}", 0
        self._at += 1
        self._skip("\n")
        while self._next != closing:
            if opening == "{":
                self._pair(place)
            else:
                self.found.setdefault((*place, number), self._tokens[self._at][1])
                self._value((*place, number))
                number += 1
            self._skip("\n", ",")
        self._at += 1
