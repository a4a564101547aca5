"""Configuration of an operator network: what a file says, parsed, checked and ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, Literal

from txstorm.errors import ConfigurationError, InputError

Semantics = Literal["at-most-once", "at-least-once", "exactly-once"]
AT_MOST_ONCE: Semantics = "at-most-once"
AT_LEAST_ONCE: Semantics = "at-least-once"
EXACTLY_ONCE: Semantics = "exactly-once"
MAX_BYTES = 1 << 20
"""How long a file may be."""


@dataclass(frozen=True)
class Source:
    """Input of an operator: another operator, a file, or a topic of Kafka.

    Attributes:
        kind: ``operator``, ``file`` or ``kafka``.
        text: as the file has it: an id, a path, or ``kafka://HOST:PORT/TOPIC``.
    """

    kind: Literal["operator", "file", "kafka"]
    text: str


@dataclass(frozen=True)
class Operator:
    """One operator of the network.

    Attributes:
        id: its name.
        sources: its inputs, as listed.
        replicas: the number of its replicas (``rep_fact``).
        routing: ``primary``, ``random`` or ``hashing``.
        routing_field: the field of ``hashing``, from 1; None otherwise.
        addresses: the URL of each replica.
        type: ``UNIQ``, ``COUNT``, ``DUP``, ``FILTER`` or ``CUSTOM``.
        params: the parameters, without their quotes.
        line: the line of the file on which it begins.
    """

    id: str
    sources: tuple[Source, ...]
    replicas: int
    routing: Literal["primary", "random", "hashing"]
    routing_field: int | None
    addresses: tuple[str, ...]
    type: Literal["UNIQ", "COUNT", "DUP", "FILTER", "CUSTOM"]
    params: tuple[str, ...]
    line: int = field(default=0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the operator as ``txstorm dadstorm parse --json`` prints it."""
        return {
            "id": self.id,
            "inputs": [one.text for one in self.sources],
            "rep_fact": self.replicas,
            "routing": self.routing,
            **({} if self.routing_field is None else {"routing_field": self.routing_field}),
            "addresses": list(self.addresses),
            "type": self.type,
            "params": list(self.params),
        }


@dataclass(frozen=True)
class Command:
    """One command of the script, or from another terminal.

    Attributes:
        name: ``Start``, ``Interval``, ``Status``, ``Crash``, ``Freeze``, ``Unfreeze`` or ``Wait``.
        operator: the operator that it is about; None: none.
        number: the replica (Crash, Freeze, Unfreeze) or the milliseconds (Interval, Wait); None: none.
    """

    name: str
    operator: str | None = None
    number: int | None = None

    def __str__(self) -> str:
        return " ".join(map(str, self.to_json()))

    def to_json(self) -> list[Any]:
        """Return the command as a list, such as ``["Interval", "OP1", 500]``."""
        return [one for one in (self.name, self.operator, self.number) if one is not None]


@dataclass(frozen=True)
class Configuration:
    """An operator network, as a file describes it; complete and free of faults.

    Attributes:
        semantics: what becomes of tuples whose replica dies or is silent.
        logging: ``full`` or ``light``.
        operators: as the file has them.
        commands: the script.
        warnings: ``{"line", "column", "message"}`` of what was understood with a warning.
        text: the text that was parsed.
        name: what faults call it: the path, or ``<text>``.
        directory: where relative paths, libraries and followers are looked for.
    """

    semantics: Semantics
    logging: Literal["full", "light"]
    operators: tuple[Operator, ...]
    commands: tuple[Command, ...]
    warnings: tuple[dict[str, Any], ...] = ()
    text: str = field(default="", compare=False)
    name: str = field(default="<text>", compare=False)
    directory: Path = field(default=Path(), compare=False)

    def operator(self, id: str) -> Operator:
        """Return the operator called `id`, which must exist."""
        found: Operator = self._operators[id]
        return found

    def order(self) -> tuple[str, ...]:
        """Return the ids in topological order, which is that of the file where the edges leave a choice."""
        index = {id: at for at, id in enumerate(self._operators)}
        waits = {one.id: sum(source.kind == "operator" for source in one.sources) for one in self.operators}
        ready = [index[id] for id, number in waits.items() if not number]
        heapify(ready)
        order: list[str] = []
        while ready:
            order.append(self.operators[heappop(ready)].id)
            for id in self.consumers(order[-1]):
                waits[id] -= 1
                if not waits[id]:
                    heappush(ready, index[id])
        return tuple(order)

    def consumers(self, id: str) -> tuple[str, ...]:
        """Return the ids of the operators that read operator `id`, in the order of the file."""
        return tuple(self._consumers[id])

    def describe(self, format: str = "text") -> str:  # noqa: A002 - the public word
        """Describe the network as ``text``, ``json``, ``mermaid``, ``dot`` or ``svg``."""
        from txstorm.dadstorm.picture import describe

        return describe(self, format)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Show the picture of the network in notebooks."""
        from txstorm.dadstorm.picture import mimebundle

        return mimebundle(self)

    @cached_property
    def _operators(self) -> dict[str, Operator]:
        return {one.id: one for one in self.operators}

    @cached_property
    def _consumers(self) -> dict[str, list[str]]:
        consumers: dict[str, list[str]] = {one.id: [] for one in self.operators}
        for one in self.operators:
            for source in one.sources:
                if source.kind == "operator":
                    consumers[source.text].append(one.id)
        return consumers

    def first(self) -> tuple[Operator, ...]:
        """Return the operators that read a file or a topic, in the order of the file."""
        return tuple(one for one in self.operators if any(source.kind != "operator" for source in one.sources))

    def path(self, text: str) -> Path:
        """Return the path of a file that the configuration names: relative to its directory."""
        return self.directory / text

    def files(self) -> tuple[Path, ...]:
        """Return the data files, each once, in the order of the file."""
        sources = (source for one in self.operators for source in one.sources if source.kind == "file")
        return tuple(dict.fromkeys(self.path(one.text) for one in sources))

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as ``txstorm dadstorm parse --json`` prints it."""
        edges = [
            {"from": source.text, "to": one.id, "routing": one.routing}
            for one in self.operators
            for source in one.sources
        ]
        return {
            "semantics": self.semantics,
            "logging": self.logging,
            "operators": [one.to_json() for one in self.operators],
            "commands": [one.to_json() for one in self.commands],
            "edges": edges,
            "warnings": [dict(one) for one in self.warnings],
        }


def parse(text: str, name: str = "<text>", directory: Path | str | None = None) -> Configuration:
    """Parse the text of a configuration.

    Args:
        text: the text.
        name: what faults call it.
        directory: where relative paths, libraries and followers are; default: the working directory.

    Raises:
        ConfigurationError: all faults at once.
    """
    from txstorm.dadstorm.parser import Reader, lines

    reader = Reader()
    for line in lines(text):
        reader.read(line)
    reader.finish(name)
    return Configuration(
        semantics=reader.settings.get("semantics", EXACTLY_ONCE),
        logging=reader.settings.get("logginglevel", "light"),
        operators=tuple(reader.operators.values()),
        commands=tuple(reader.commands),
        warnings=tuple(sorted(reader.warnings, key=lambda one: (one["line"], one["column"]))),
        text=text,
        name=name,
        directory=Path("." if directory is None else directory),
    )


def load(path: Path | str) -> Configuration:
    """Parse a file; relative paths in it are relative to its directory.

    Raises:
        ConfigurationError: all faults at once, also of a file that is missing, binary or not UTF-8.
    """
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(name, f"the configuration cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise _refused(name, f"a configuration: expected at most {MAX_BYTES:,} bytes, got more")
    try:
        text = data.decode("utf-8-sig")
        end = text.find("\0")
        what = "a NUL, as of a binary file"
    except UnicodeDecodeError as error:
        text, end, what = data[: error.start].decode("utf-8-sig"), error.start, f"byte {data[error.start]:#04x}"
    if end >= 0:
        before = text[: text.find("\0")] if "\0" in text else text
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise _refused(name, f"a configuration: expected text in UTF-8, got {what}", before.count("\n") + 1, column)
    return parse(text, name, Path(path).parent)


def parse_command(line: str, configuration: Configuration) -> Command:
    """Parse one command, from a terminal; raise `ConfigurationError` also for an unknown operator or replica."""
    from txstorm.dadstorm.parser import Line, Reader

    reader = Reader({one.id: one.replicas for one in configuration.operators})
    reader.command(Line([(1, 0, line.strip())]))
    reader.finish("<command>")
    return reader.commands[0]


def check_files(configuration: Configuration, allow: Sequence[str] = (), *, lines: bool = True) -> None:
    """Check data files, with their `lines`, followers and code; raise `ConfigurationError` with all faults."""
    from txstorm.dadstorm.operators import load_code

    faults: list[dict[str, Any]] = []
    for operator in configuration.operators:
        found = [_file_fault(configuration.path(one.text), lines) for one in operator.sources if one.kind == "file"]
        try:
            load_code(operator, configuration, allow)
        except InputError as error:
            place = f"{configuration.name}:{operator.line}: operator {operator.id}: "
            found.append(str(error).removeprefix(place))
        faults += [{"line": operator.line, "column": 1, "message": f"{operator.id}: {one}"} for one in found if one]
    if not configuration.operators:
        faults.append({"line": 1, "column": 1, "message": "a configuration: expected an operator, got none"})
    if faults:
        raise ConfigurationError(configuration.name, faults)


def _file_fault(path: Path, lines: bool) -> str | None:
    """Return why a data file cannot be read: it is missing, a directory, or has a line that is not UTF-8."""
    number = 1
    try:
        with path.open("rb") as file:
            for line in file if lines else ():
                line.decode()
                number += 1
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    except UnicodeDecodeError as error:
        return f"{path}:{number}: expected a line in UTF-8, got byte {error.object[error.start]:#04x}"
    return None


def _refused(name: str, message: str, line: int = 1, column: int = 1) -> ConfigurationError:
    return ConfigurationError(name, [{"line": line, "column": column, "message": message}])


def _note(line: int, column: int, message: str) -> dict[str, Any]:
    return {"line": line, "column": column, "message": message}
