"""SVG picture of a topology: the spout on the left, one band per phase, committers with a double border.

Its colours follow the theme of the page, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise

from txstorm.api.names import counted
from txstorm.topology.pictures.layout import Layout, Point, lay_out
from txstorm.topology.pictures.model import Link, Node, Picture, Table

PALETTE: dict[str, tuple[str, str]] = {
    "card": ("#ffffff", "#0f141a"),
    "line": ("#d5dbe1", "#333b45"),
    "ink": ("#1c2228", "#e8edf2"),
    "muted": ("#5b6570", "#9aa5b1"),
    "pill": ("#eef1f4", "#262d36"),
    "node": ("#ffffff", "#181e26"),
    "glyph": ("#ffffff", "#10151b"),
    "link": ("#76818d", "#8d98a5"),
    "processing": ("#f4f7fb", "#141b26"),
    "processing-line": ("#d6e1f0", "#25344a"),
    "commit": ("#fdf7ec", "#221b10"),
    "commit-line": ("#efdcb8", "#4d3d1e"),
    "spout": ("#1463c4", "#58a6ff"),
    "frame": ("#1b6f8f", "#56b8dc"),
    "basic": ("#0e7569", "#3cc7b4"),
    "batch": ("#6546d2", "#a792ff"),
    "committer": ("#b05a08", "#f0a546"),
}
"""Role → colour on a light page, colour on a dark page."""

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

GLYPHS = {
    "spout": '<path d="M-5 -6 L6 0 L-5 6 Z" {fill}/>',
    "frame": '<path d="M-6 -5 h12 v10 h-12 z M-6 -1.5 h12 M-2 -5 v10" fill="none" stroke-width="1.6" {stroke}/>',
    "basic": '<circle r="4.5" {fill}/>',
    "batch": '<path d="M-6 -6 h12 v3 h-12 z M-6 -1.5 h12 v3 h-12 z M-6 3 h12 v3 h-12 z" {fill}/>',
    "committer": '<path d="M-6 0.5 L-2 4.5 L6 -4.5" fill="none" stroke-width="2.6" stroke-linecap="round" '
    'stroke-linejoin="round" {stroke}/>',
    "state": '<path d="M-5 -4 v8 c0 2.6 10 2.6 10 0 v-8 m-10 0 c0 2.6 10 2.6 10 0 c0 -2.6 -10 -2.6 -10 0 z" '
    'fill="none" stroke-width="1.2" {stroke}/>',
    "map": '<path d="M-5 -5 h4 M-5 0 h4 M-5 5 h4 M1 -5 h5 M1 0 h5 M1 5 h5" fill="none" stroke-width="1.6" {stroke}/>',
    "store": '<path d="M-6 -5 h12 v4 h-12 z M-6 1 h12 v4 h-12 z" fill="none" stroke-width="1.4" {stroke}/>',
    "outlet": '<path d="M1 -5 h-6 v10 h6 M-2 0 h8 M3 -3 l3 3 l-3 3" fill="none" stroke-width="1.4" {stroke}/>',
    "sink": '<path d="M-5 -5 h10 v10 h-10 z M-5 -1.5 h10 M-5 2 h10" fill="none" stroke-width="1.2" {stroke}/>',
}
"""Icons centred on (0, 0), with placeholders for their paint."""


def paint(fill: str | None = None, stroke: str | None = None) -> str:
    """Return the attributes that colour an element by role: the light colour, and a class for the dark theme."""
    roles = [("fill", "f", fill), ("stroke", "s", stroke)]
    names = " ".join(f"txs-{short}-{role}" for _, short, role in roles if role)
    colours = " ".join(f'{name}="{PALETTE[role][0]}"' for name, _, role in roles if role)
    return f'class="{names}" {colours}'


def style() -> str:
    """Return the style sheet: dark colours if the theme of Jupyter or VS Code, or else of the system, is dark."""
    dark = _rules(1, "")
    themed = _rules(1, '[data-jp-theme-light="false"] ') + _rules(1, ".vscode-dark ")
    light = _rules(0, '[data-jp-theme-light="true"] ') + _rules(0, ".vscode-light ")
    return f"<style>@media (prefers-color-scheme:dark){{{dark}}}{themed}{light}</style>"


def _rules(theme: int, within: str) -> str:
    return "".join(
        f"{within}.txs-f-{role}{{fill:{colours[theme]}}}{within}.txs-s-{role}{{stroke:{colours[theme]}}}"
        for role, colours in PALETTE.items()
    )


@dataclass(frozen=True)
class Words:
    """A run of text in one style."""

    text: str
    role: str
    size: float
    mono: bool = False
    bold: bool = False

    def drawn(self, space: int) -> str:
        """Return the run as SVG, `space` pixels after the previous one."""
        look = f'font-family="{MONO if self.mono else SANS}" font-size="{self.size:g}"'
        weight = ' font-weight="700"' if self.bold else ""
        spacing = ' letter-spacing="0.8"' if self.bold and not self.mono else ""
        ahead = f' dx="{space}"' if space else ""
        return f"<tspan {look}{weight}{spacing}{ahead} {paint(fill=self.role)}>{escape(self.text)}</tspan>"


def line(x: float, y: float, *runs: Words) -> str:
    """Draw a line of text with its baseline at (x, y); the renderer places each run after the previous one."""
    drawn = "".join(run.drawn(10 if i else 0) for i, run in enumerate(runs))
    return f'<text x="{x:.1f}" y="{y:.1f}">{drawn}</text>'


def glyph(name: str, x: float, y: float, role: str) -> str:
    """Draw one of `GLYPHS`, centred on (x, y)."""
    drawn = GLYPHS[name].format(fill=paint(fill=role), stroke=paint(stroke=role))
    return f'<g transform="translate({x:.1f} {y:.1f})">{drawn}</g>'


def box(x: float, y: float, width: float, height: float, radius: float, painted: str, stroke: float = 1) -> str:
    """Draw a rectangle with rounded corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" '
        f'stroke-width="{stroke:g}" {painted}/>'
    )


def wide(text: str, size: float, *, mono: bool = False) -> float:
    """Return a generous estimate of the width of `text`; East Asian characters count double."""
    cells = sum(2 if ord(c) >= 0x1100 else 1 for c in text)
    return cells * size * (0.61 if mono else 0.56)


def clipped(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters with an ellipsis if it is longer."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def wrapped(text: str, limit: int) -> list[str]:
    """Break `text` after commas and arrows into lines of at most `limit` characters, or of one name that is longer.

    Of more than `MOST_LINES` lines, the last one says how many parts are left.
    """
    lines = [""]
    parts = re.split(r"(?<=, )|(?<=→ )", text)
    for number, part in enumerate(parts):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > limit:
            if len(lines) == MOST_LINES - 1:
                return [*(one.rstrip() for one in lines), f"and {len(parts) - number} more"]
            lines.append("")
        lines[-1] += part
    return [one.rstrip() for one in lines]


MOST_LINES = 8
LEADING = 13.0
"""Distance between two lines of a text that is broken into several."""
MARGIN = 16.0
TITLE = 46.0
BAND_HEAD = 40.0
BAND_PAD = 16.0
BETWEEN_BANDS = 20.0
CURVE = 40.0
LABEL = 10.5
SMALLEST = 0.7
"""On a narrow page the picture shrinks to this fraction of its size; beyond that it scrolls."""
HEAD = 48.0
ROW = 20.0
PORT = 22.0
BAND_TITLES = {False: ("PROCESSING PHASE", "many txids at once"), True: ("COMMIT PHASE", "in txid order")}


def svg(topology: Picture) -> str:
    """Draw `topology` as a self-contained SVG, whose colours follow the page's theme."""
    return _Drawing(topology).svg()


@dataclass(frozen=True)
class _Size:
    """Width and height of a drawn node."""

    width: float
    height: float


class _Drawing:
    """Drawing of one picture: computes sizes, then columns, then the SVG elements."""

    def __init__(self, topology: Picture) -> None:
        self._topology = topology
        self._nodes: Mapping[str, Node] = {node.id: node for node in topology.nodes}
        self._sizes = {node.id: _size(node, self._inputs(node.id)) for node in topology.nodes}
        self._layout: Layout = lay_out(topology, lambda node: self._sizes[node].height)
        self._top = MARGIN + TITLE + BAND_HEAD

    def svg(self) -> str:
        width, height = self._extent
        about = f"topology {self._topology.id}"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(about)}" '
            f'style="max-width:100%;min-width:{width * SMALLEST:.0f}px">'
        )
        body = [*self._frame(), *self._bands(), *self._links(), *(self._node(one) for one in self._topology.nodes)]
        return "".join([head, f"<title>{escape(about)}</title>", style(), *body, "</svg>"])

    # -- columns -------------------------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> list[tuple[float, float]]:
        """The left edge and width of every layer."""
        x = MARGIN + BAND_PAD
        columns: list[tuple[float, float]] = []
        for i, layer in enumerate(self._layout.layers):
            if i == self._first_commit:
                x = self._commit_left(x) + self._label_room(i) + BAND_PAD
            elif i:
                x += CURVE + self._label_room(i)
            width = max(self._sizes[point[0]].width for point in layer if len(point) == 1)
            columns.append((x, width))
            x += width
        return columns

    @cached_property
    def _first_commit(self) -> int:
        commits = [self._layout.layer(node.id) for node in self._topology.committing]
        return min(commits, default=len(self._layout.layers))

    def _commit_left(self, processing_right: float) -> float:
        """Return the left edge of the commit band; the last processing layer ends at `processing_right`."""
        return max(processing_right + BAND_PAD, MARGIN + _band_title_width(False)) + BETWEEN_BANDS

    def _label_room(self, layer: int) -> float:
        arriving = (one for one in self._topology.links if self._layout.layer(one.target) == layer)
        return max((wide(text, LABEL) for one in arriving for text in _label(one)), default=0) + 20

    @cached_property
    def _extent(self) -> tuple[float, float]:
        title = wide(self._topology.id, 16, mono=True) + wide(self._counts, 12) + 40
        right = max(x + width for x, width, _ in self._band_boxes)
        return max(right, title) + MARGIN, self._top + self._layout.height + BAND_PAD + MARGIN

    @cached_property
    def _band_boxes(self) -> list[tuple[float, float, bool]]:
        """The left edge and width of each band, and whether it is that of the commit phase."""
        split, columns = self._first_commit, self._columns
        lefts = {False: MARGIN, True: self._commit_left(sum(columns[split - 1]))}
        boxes = []
        for commits, part in ((False, columns[:split]), (True, columns[split:])):
            if part:
                width = max(sum(part[-1]) + BAND_PAD - lefts[commits], _band_title_width(commits))
                boxes.append((lefts[commits], width, commits))
        return boxes

    @property
    def _counts(self) -> str:
        return f"{counted(len(self._nodes), 'component')}, {counted(self._topology.tasks, 'task')}"

    # -- elements ------------------------------------------------------------------------------------------------

    def _frame(self) -> Iterator[str]:
        width, height = self._extent
        yield box(0.5, 0.5, width - 1, height - 1, 14, paint("card", "line"))
        name = Words(self._topology.id, "ink", 16, mono=True, bold=True)
        yield line(MARGIN + 4, MARGIN + 18, name, Words(self._counts, "muted", 12))

    def _bands(self) -> Iterator[str]:
        height = BAND_HEAD + self._layout.height + BAND_PAD
        for x, width, commits in self._band_boxes:
            role = "commit" if commits else "processing"
            title, motto = BAND_TITLES[commits]
            yield box(x, MARGIN + TITLE - 8, width, height + 8, 12, paint(role, f"{role}-line"))
            ink = "committer" if commits else "spout"
            yield line(x + 14, MARGIN + TITLE + 13, Words(title, ink, 10.5, bold=True), Words(motto, "muted", 11))

    def _node(self, node: Node) -> str:
        size, x = self._sizes[node.id], self._left(node.id)
        y = self._middle((node.id,)) - size.height / 2
        radius = 24.0 if node.kind == "spout" and not node.tables else 10.0
        parts = [f"<g><title>{escape(_tooltip(node))}</title>"]
        parts.append(box(x, y, size.width, size.height, radius, paint("node", node.kind), 1.6))
        if node.kind == "committer":
            inset = 3.5
            inner = paint("node", node.kind)
            parts.append(box(x + inset, y + inset, size.width - 2 * inset, size.height - 2 * inset, 7, inner, 1))
        parts.extend(_head(node, x, y + (size.height - _content(node)) / 2, size.width))
        return "".join([*parts, "</g>"])

    def _links(self) -> Iterator[str]:
        for link, route in zip(self._topology.links, self._layout.routes, strict=True):
            role = "committer" if link.commits else "link"
            end = self._middle(route[-1]) + self._port(link)
            x = self._left(link.target)
            yield f'<path d="{self._path(route, end)}" fill="none" stroke-width="1.6" {paint(stroke=role)}/>'
            yield f'<path d="M{x - 1:.1f} {end:.1f} l-8 -4.2 v8.4 z" {paint(fill=role)}/>'
            for i, text in enumerate(reversed(_label(link))):
                yield line(x - 13 - wide(text, LABEL), end - 5 - i * LEADING, Words(text, "muted", LABEL))

    def _path(self, route: tuple[Point, ...], end: float) -> str:
        """Return the SVG path of a link: curves between layers, straight lines through layers and along labels."""
        y = self._middle(route[0])
        x = self._left(route[0][0]) + self._sizes[route[0][0]].width
        parts = [f"M{x:.1f} {y:.1f}"]
        first = self._layout.layer(route[0][0])
        for i, (_, point) in enumerate(pairwise(route), first + 1):
            last = point == route[-1]
            following = end if last else self._middle(point)
            left = self._columns[i][0]
            straight = left - self._label_room(i) - (BAND_PAD if i == self._first_commit else 0)
            turn = self._columns[i - 1][0] + self._columns[i - 1][1]
            bend = (straight - turn) / 2
            parts.append(f"H{turn:.1f} C{turn + bend:.1f} {y:.1f} {straight - bend:.1f} {following:.1f} ")
            parts.append(f"{straight:.1f} {following:.1f} H{self._left(point[0]) - 6 if last else left:.1f}")
            y = following
        return "".join(parts)

    # -- places --------------------------------------------------------------------------------------------------

    def _left(self, node: str) -> float:
        return self._columns[self._layout.layer(node)][0]

    def _middle(self, point: Point) -> float:
        return self._top + self._layout.centers[point]

    def _inputs(self, node: str) -> list[float]:
        """Return the room of each link that arrives at a node, with its label above it."""
        arriving = (link for link in self._topology.links if link.target == node)
        return [PORT + (len(_label(one)) - 1) * LEADING for one in arriving]

    def _port(self, link: Link) -> float:
        """Return the offset below the centre of its target at which a link arrives; links from above arrive higher."""
        routes = zip(self._topology.links, self._layout.routes, strict=True)
        rivals = [(self._layout.centers[route[-2]], i, one) for i, (one, route) in enumerate(routes)]
        ordered = [one for _, _, one in sorted(rivals, key=lambda rival: rival[:2]) if one.target == link.target]
        room = max(self._inputs(link.target))
        return (next(i for i, one in enumerate(ordered) if one is link) - (len(ordered) - 1) / 2) * room


def _head(node: Node, x: float, y: float, width: float) -> Iterator[str]:
    """Draw the content of a node: icon, id, class, kind, number of tasks, and tables."""
    yield box(x + 14, y + 12, 24, 24, 7, paint(fill=node.kind), 0)
    yield glyph(node.kind, x + 26, y + 24, "glyph")
    yield line(x + 48, y + 22, Words(_name(node), "ink", 13, mono=True, bold=True))
    yield line(x + 48, y + 37, Words(_subtitle(node), "muted", 10.5))
    tasks = f"×{node.parallelism}"
    room = wide(tasks, 11, mono=True) + 12
    yield box(x + width - room - 12, y + 10, room, 17, 8.5, paint(fill="pill"), 0)
    yield line(x + width - room - 6, y + 22.5, Words(tasks, "ink", 11, mono=True))
    base = y + HEAD
    for table in node.tables:
        yield glyph(table.kind, x + 26, base + 8, node.kind)
        name = Words(clipped(table.name, 24), "ink", 11, mono=True)
        first, *rest = wrapped(table.columns, 28)
        yield line(x + 48, base + 12, name, Words(first, "muted", 10.5))
        for i, text in enumerate(rest, 1):
            yield line(x + 56, base + 12 + i * LEADING, Words(text, "muted", 10.5))
        base += _row(table)


def _row(table: Table) -> float:
    """Return the height of a table in its node."""
    return ROW + (len(wrapped(table.columns, 28)) - 1) * LEADING


def _size(node: Node, inputs: Sequence[float]) -> _Size:
    pill = wide(f"×{node.parallelism}", 11, mono=True) + 12
    rows = [wide(_name(node), 13, mono=True) + 10 + pill, wide(_subtitle(node), 10.5)]
    for table in node.tables:
        first, *rest = wrapped(table.columns, 28)
        rows.append(wide(clipped(table.name, 24), 11, mono=True) + 8 + wide(first, 10.5))
        rows += [8 + wide(text, 10.5) for text in rest]
    return _Size(48 + max(rows) + 14, max(_content(node), len(inputs) * max(inputs, default=0) + 12))


def _content(node: Node) -> float:
    return HEAD + (sum(map(_row, node.tables)) + 6 if node.tables else 0)


def _name(node: Node) -> str:
    return clipped(node.id, 26)


def _subtitle(node: Node) -> str:
    return f"{clipped(node.class_name, 28)} · {node.kind_word}"


def _label(link: Link) -> list[str]:
    return wrapped(link.label, 40)


def _band_title_width(commits: bool) -> float:
    title, motto = BAND_TITLES[commits]
    return wide(title, 10.5) * 1.3 + wide(motto, 11) + 40


def _tooltip(node: Node) -> str:
    emits = "; ".join(node.emits) or "nothing"
    tables = "".join(f"\n{table.kind} {table.name}: {table.columns}" for table in node.tables)
    return f"{node.id}: {node.class_name}, {node.kind_word}, {counted(node.parallelism, 'task')}\nemits {emits}{tables}"
