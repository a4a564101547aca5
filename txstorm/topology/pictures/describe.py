"""Descriptions of a topology as text, JSON or a picture, selected by the name of the format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from txstorm.api.external import MapState, Outlet, OwnTarget
from txstorm.api.join_store import StoreUse
from txstorm.api.names import counted
from txstorm.api.state import CollectionState, KeyedState
from txstorm.errors import InputError
from txstorm.topology.graph import Component, Topology
from txstorm.topology.pictures.model import Node, Picture, class_name, view
from txstorm.topology.pictures.svg import svg
from txstorm.topology.pictures.text import dot, mermaid

JSON_VERSION = 1


def describe(topology: Topology, format: str = "text") -> str:  # noqa: A002 - the public word
    """Describe `topology` in `format`; raise `InputError`, which lists the formats, if the format is unknown."""
    render = FORMATS.get(format)
    if render is None:
        raise InputError(f"describe: format {format!r} is unknown; use one of {', '.join(FORMATS)}")
    return render(topology)


def mimebundle(topology: Topology) -> dict[str, str]:
    """Return the representations of `topology` for a notebook, keyed by media type.

    HTML with the SVG inline is included because JupyterLab prefers Mermaid to an SVG image, but HTML to both, and
    because only an inline SVG can follow the notebook's theme.
    """
    rendered = view(topology)
    return bundle(rendered, text(rendered))


def bundle(rendered: Picture, plain: str) -> dict[str, str]:
    """Return the representations of a picture for a notebook, with the text to go with it."""
    picture = svg(rendered)
    return {
        "text/html": f'<div style="overflow-x:auto">{picture}</div>',
        "image/svg+xml": picture,
        "text/vnd.mermaid": mermaid(rendered),
        "text/plain": plain,
    }


def text(topology: Picture) -> str:
    """Format as a text table: a row per component, and more rows for several inputs, streams or tables."""
    rows: list[Sequence[str]] = [("component", "kind", "tasks", "reads", "emits", "tables")]
    split = len(topology.nodes) - len(topology.committing)
    for node in (one for one in topology.nodes if not one.commits):
        rows.extend(_rows(topology, node))
    commit_rows = [row for node in topology.committing for row in _rows(topology, node)]
    lines = aligned([*rows, *commit_rows])
    head = f"{topology.id}: {counted(len(topology.nodes), 'component')}, {counted(topology.tasks, 'task')}"
    width = max(len(line) for line in lines)
    processing = [_ruled("processing phase, many txids at once", width), *lines[1 : len(rows)]] if split else []
    commit = [_ruled("commit phase, in txid order", width), *lines[len(rows) :]] if commit_rows else []
    return "\n".join([head, "", lines[0], *processing, *commit])


def _rows(topology: Picture, node: Node) -> list[Sequence[str]]:
    reads = [f"{link.source}{_of(link.stream)}, {link.grouping}" for link in topology.links if link.target == node.id]
    tables = [f"{one.kind} {one.name} ({one.columns})" for one in node.tables]
    height = max(1, len(reads), len(node.emits), len(tables))
    columns = [[node.id], [node.kind_word], [str(node.parallelism)], reads, list(node.emits), tables]
    return list(zip(*(column + [""] * (height - len(column)) for column in columns), strict=True))


def _of(stream: str) -> str:
    return f"/{stream}" if stream else ""


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per row, with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _ruled(title: str, width: int) -> str:
    return f"── {title} ".ljust(width, "─")


def as_json(topology: Topology) -> str:
    """Format the topology as a JSON object for other programs; `version` increases when a key's meaning changes."""
    described = {
        "version": JSON_VERSION,
        "topology": topology.id,
        "fingerprint": topology.fingerprint() if topology.pending is None else None,
        "components": [_component(topology, one) for one in topology.components],
        "checkpoints": _checkpoints(topology),
        "settings": topology.settings.model_dump(),
    }
    return json.dumps(described, indent=2)


def _checkpoints(topology: Topology) -> dict[str, Any] | None:
    """Return the source of checkpoints, and the bolts that they reach: all, if one of them is stateful; else None."""
    if not any(one.is_stateful for one in topology.components):
        return None
    return {"source": "coordinator", "bolts": [one.id for one in topology.components if one.kind != "spout"]}


def _component(topology: Topology, component: Component) -> dict[str, Any]:
    return {
        "id": component.id,
        "kind": component.kind,
        "class": class_name(component.object),
        "external": component.external,
        "parallelism": component.parallelism,
        "phase": "commit" if component.id in topology.commit_phase else "processing",
        "inputs": [
            {
                "component": one.component,
                "stream": one.stream,
                "grouping": one.grouping.kind,
                "fields": list(one.grouping.fields),
            }
            for one in component.inputs
        ],
        "streams": {
            name: {"fields": list(one.fields), "direct": one.direct} for name, one in component.streams.items()
        },
        "states": [
            {"name": one.name, "key": list(one.key), **_more(one), "value": list(one.value)}
            for one in topology.states.get(component.id, ())
        ],
        "maps": [
            {"name": one.name, "kind": one.kind, "backend": type(one.backend).__name__, "exactly_once": one.marked}
            for one in topology.declared(component.id, MapState)
        ],
        "outlets": [
            {"name": one.name, "columns": list(one.columns), "writer": type(one.writer).__name__}
            for one in topology.declared(component.id, Outlet)
        ],
        "sinks": [{"name": one.name, "columns": list(one.columns)} for one in topology.sinks.get(component.id, ())],
        **_others(topology, component.id),
    }


def _more(state: KeyedState) -> dict[str, Any]:
    """Return the optional properties of a state: its order column, and its time to live in seconds."""
    order = {"order": list(state.order)} if isinstance(state, CollectionState) else {}
    return order if state.ttl is None else {**order, "ttl": state.ttl.total_seconds()}


FORMATS: dict[str, Callable[[Topology], str]] = {
    "text": lambda topology: text(view(topology)),
    "mermaid": lambda topology: mermaid(view(topology)),
    "dot": lambda topology: dot(view(topology)),
    "json": as_json,
    "svg": lambda topology: svg(view(topology)),
}


def _others(topology: Topology, component: str) -> dict[str, Any]:
    """Return the join store of a component, and its targets of kinds of the topology's code, as JSON, if any."""
    uses = topology.declared(component, StoreUse)
    own = [{"name": one.name, "kind": one.committed_as} for one in topology.declared(component, OwnTarget)]
    store = {"store": {"store": type(uses[0].store).__name__, "fills": uses[0].fills}} if uses else {}
    return {**store, **({"targets": own} if own else {})}
