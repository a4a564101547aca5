"""Pictures of an operator network: a text table, and the drawings that topologies have."""

from __future__ import annotations

import json
from collections.abc import Callable

from txstorm.api.names import counted
from txstorm.dadstorm.configuration import Configuration, Operator
from txstorm.errors import InputError
from txstorm.topology.graph import Kind
from txstorm.topology.pictures.describe import aligned, bundle
from txstorm.topology.pictures.model import Link, Node, Picture, Table, printable
from txstorm.topology.pictures.svg import svg
from txstorm.topology.pictures.text import dot, mermaid

_KINDS: dict[str, Kind] = {"UNIQ": "committer", "COUNT": "committer", "CUSTOM": "batch"}
_STATES = {"UNIQ": ("seen", "value"), "COUNT": ("count", "operator → n")}


def describe(configuration: Configuration, format: str = "text") -> str:  # noqa: A002 - the public word
    """Describe a network as ``text``, ``json``, ``mermaid``, ``dot`` or ``svg``; raise `InputError` otherwise."""
    if format not in FORMATS:
        raise InputError(f"describe: format {format!r} is unknown; use one of {', '.join(FORMATS)}")
    return FORMATS[format](configuration)


def mimebundle(configuration: Configuration) -> dict[str, str]:
    """Return the representations of a network for a notebook, keyed by media type."""
    return bundle(picture(configuration), text(configuration))


def picture(configuration: Configuration) -> Picture:
    """Return a network as a picture: sources, then operators; those with a state, and what reads them, commit."""
    commits: set[str] = set()
    nodes = []
    for operator in map(configuration.operator, configuration.order()):
        if operator.type in _STATES or any(one.text in commits for one in operator.sources):
            commits.add(operator.id)
        nodes.append(_node(operator, commits=operator.id in commits))
    sources = dict.fromkeys(one for operator in configuration.first() for one in operator.sources)
    outside = [
        Node(printable(one.text), "spout", one.kind, 1, False, (), ()) for one in sources if one.kind != "operator"
    ]
    links = [
        Link(printable(source.text), one.id, "", route(one), one.id in commits)
        for one in configuration.operators
        for source in one.sources
    ]
    return Picture(printable(configuration.name), (*outside, *nodes), tuple(links))


def route(operator: Operator) -> str:
    """Return the routing of an operator as a file says it: ``hashing(1)``."""
    return operator.routing if operator.routing_field is None else f"hashing({operator.routing_field})"


def spec(operator: Operator) -> str:
    """Return type and parameters of an operator as a file says them: ``FILTER 3,=,www.example.org``."""
    return f"{operator.type} {','.join(operator.params)}".strip()


def text(configuration: Configuration) -> str:
    """Format as a text table, a row per operator, with the script below."""
    replicas = sum(one.replicas for one in configuration.operators)
    rows = [("operator", "does", "replicas", "reads", "by", "read by", "addresses")]
    for one in configuration.operators:
        reads = ", ".join(source.text for source in one.sources)
        readers = ", ".join(configuration.consumers(one.id)) or "-"
        rows.append((one.id, spec(one), str(one.replicas), reads, route(one), readers, ", ".join(one.addresses)))
    operators = counted(len(configuration.operators), "operator")
    head = f"{configuration.name}: {configuration.semantics}, {configuration.logging} log, {operators}, {replicas} "
    script = "; ".join(map(str, configuration.commands)) or "none"
    return printable_lines(
        [f"{head}replica{'' if replicas == 1 else 's'}", "", *aligned(rows), "", f"script: {script}"]
    )


def printable_lines(lines: list[str]) -> str:
    """Join lines, with their control characters escaped."""
    return "\n".join(map(printable, lines))


def _node(operator: Operator, *, commits: bool) -> Node:
    name, columns = _STATES.get(operator.type, ("", ""))
    tables = (Table("state", f"{operator.id}_{name}", columns),) if name else ()
    kind = _KINDS.get(operator.type, "basic")
    return Node(operator.id, kind, printable(spec(operator)), operator.replicas, commits, (), tables)


FORMATS: dict[str, Callable[[Configuration], str]] = {
    "text": text,
    "mermaid": lambda configuration: mermaid(picture(configuration)),
    "dot": lambda configuration: dot(picture(configuration)),
    "json": lambda configuration: json.dumps(configuration.to_json(), indent=2),
    "svg": lambda configuration: svg(picture(configuration)),
}
