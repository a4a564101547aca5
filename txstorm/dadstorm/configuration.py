"""Configuration of an operator network: what a file says, parsed, checked and ordered."""

from __future__ import annotations

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
    line: int = 0


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
        return " ".join(str(one) for one in (self.name, self.operator, self.number) if one is not None)


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
