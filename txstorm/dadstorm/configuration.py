"""Configuration of an operator network: what a file says, parsed, checked and ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Semantics = Literal["at-most-once", "at-least-once", "exactly-once"]
AT_MOST_ONCE: Semantics = "at-most-once"
AT_LEAST_ONCE: Semantics = "at-least-once"
EXACTLY_ONCE: Semantics = "exactly-once"


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

    def operator(self, id: str) -> Operator:  # noqa: A002 - the file's word
        """Return the operator called `id`, which must exist."""
        return next(one for one in self.operators if one.id == id)

    def order(self) -> tuple[str, ...]:
        """Return the ids in topological order, which is that of the file where the edges leave a choice."""
        waiting = {
            one.id: {source.text for source in one.sources if source.kind == "operator"} for one in self.operators
        }
        order: list[str] = []
        while waiting:
            ready = next(id for id, sources in waiting.items() if sources.issubset(order))
            order.append(ready)
            del waiting[ready]
        return tuple(order)

    def consumers(self, id: str) -> tuple[str, ...]:  # noqa: A002
        """Return the ids of the operators that read operator `id`, in the order of the file."""
        wanted = Source("operator", id)
        return tuple(one.id for one in self.operators if wanted in one.sources)

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
    raise NotImplementedError


def load(path: Path | str) -> Configuration:
    """Parse a file; relative paths in it are relative to its directory.

    Raises:
        ConfigurationError: all faults at once, also of a file that is missing, binary or not UTF-8.
    """
    raise NotImplementedError


def parse_command(line: str, configuration: Configuration) -> Command:
    """Parse one command, from a terminal; raise `ConfigurationError` also for an unknown operator or replica."""
    raise NotImplementedError


def check_files(configuration: Configuration, allow: Sequence[str] = ()) -> None:
    """Check data files, followers and code of `configuration`; raise `ConfigurationError` with all faults."""
    raise NotImplementedError
