"""Mermaid and Graphviz (DOT) source of a topology."""

from __future__ import annotations

from collections.abc import Iterator

from txstorm.topology.pictures.model import Link, Node, Picture

PHASES = ((False, "processing", "processing phase"), (True, "commit", "commit phase, in txid order"))
_SHAPES = {
    "spout": ("([", "])"),
    "frame": ("[/", "/]"),
    **dict.fromkeys(("basic", "batch"), ("[", "]")),
    "committer": ("[[", "]]"),
}
_DOT_STYLES = {
    "spout": 'shape=box, style="rounded,filled", fillcolor="#dbeafe"',
    "frame": 'shape=parallelogram, style="filled", fillcolor="#e0f2f8"',
    "basic": 'shape=box, style="filled", fillcolor="#e6f4f1"',
    "batch": 'shape=box, style="filled", fillcolor="#ece9ff"',
    "committer": 'shape=box, peripheries=2, style="filled", fillcolor="#fdebd0"',
}


def mermaid(topology: Picture) -> str:
    """Format as a Mermaid flowchart with one subgraph per phase; thick arrows lead into the commit phase."""
    places = {node.id: f"n{i}" for i, node in enumerate(topology.nodes)}
    lines = ["flowchart LR"]
    for commits, name, title in PHASES:
        nodes = [node for node in topology.nodes if node.commits == commits]
        if nodes:
            lines.append(f'  subgraph {name}["{title}"]')
            lines.extend(f"    {places[node.id]}{_mermaid_node(node)}" for node in nodes)
            lines.append("  end")
    lines.extend(f"  {places[link.source]} {_mermaid_arrow(link)} {places[link.target]}" for link in topology.links)
    return "\n".join(lines)


def _mermaid_node(node: Node) -> str:
    opened, closed = _SHAPES[node.kind]
    text = "<br/>".join(_mermaid_text(line) for line in _lines(node))
    return f'{opened}"{text}"{closed}'


def _mermaid_arrow(link: Link) -> str:
    stem, head = ("==", "==>") if link.commits else ("--", "-->")
    return f'{stem} "{_mermaid_text(link.label)}" {head}'


def _mermaid_text(text: str) -> str:
    """Escape `text` for Mermaid: all characters but letters, digits and safe punctuation become numeric entities."""
    return "".join(c if c.isalnum() or c in " _-.,:×→()" else f"#{ord(c)};" for c in text)


def dot(topology: Picture) -> str:
    """Format as a Graphviz digraph with one cluster per phase; committers have a double border."""
    lines = [f"digraph {_quoted(topology.id)} {{", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for commits, name, title in PHASES:
        nodes = [node for node in topology.nodes if node.commits == commits]
        if nodes:
            lines.extend([f"  subgraph cluster_{name} {{", f"    label={_quoted(title)};"])
            lines.extend(f"    {_dot_node(node)}" for node in nodes)
            lines.append("  }")
    lines.extend(_dot_links(topology))
    return "\n".join([*lines, "}"])


def _dot_node(node: Node) -> str:
    label = "\n".join(_lines(node))
    return f"{_quoted(node.id)} [label={_quoted(label)}, {_DOT_STYLES[node.kind]}];"


def _dot_links(topology: Picture) -> Iterator[str]:
    for link in topology.links:
        style = ", penwidth=2" if link.commits else ""
        yield f"  {_quoted(link.source)} -> {_quoted(link.target)} [label={_quoted(link.label)}{style}];"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _lines(node: Node) -> list[str]:
    head = [f"{node.id} ×{node.parallelism}", f"{node.class_name}, {node.kind_word}"]
    return head + [f"{table.kind} {table.name}: {table.columns}" for table in node.tables]
