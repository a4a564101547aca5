"""The colours and small drawings of the SVG: legible on light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

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
    "basic": ("#0e7569", "#3cc7b4"),
    "batch": ("#6546d2", "#a792ff"),
    "committer": ("#b05a08", "#f0a546"),
}
"""Role → colour on a light page, colour on a dark page."""

MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

GLYPHS = {
    "spout": '<path d="M-5 -6 L6 0 L-5 6 Z" {fill}/>',
    "basic": '<circle r="4.5" {fill}/>',
    "batch": '<path d="M-6 -6 h12 v3 h-12 z M-6 -1.5 h12 v3 h-12 z M-6 3 h12 v3 h-12 z" {fill}/>',
    "committer": '<path d="M-6 0.5 L-2 4.5 L6 -4.5" fill="none" stroke-width="2.6" stroke-linecap="round" '
    'stroke-linejoin="round" {stroke}/>',
    "state": '<path d="M-5 -4 v8 c0 2.6 10 2.6 10 0 v-8 m-10 0 c0 2.6 10 2.6 10 0 c0 -2.6 -10 -2.6 -10 0 z" '
    'fill="none" stroke-width="1.2" {stroke}/>',
    "map": '<path d="M-5 -5 h4 M-5 0 h4 M-5 5 h4 M1 -5 h5 M1 0 h5 M1 5 h5" fill="none" stroke-width="1.6" {stroke}/>',
    "outlet": '<path d="M1 -5 h-6 v10 h6 M-2 0 h8 M3 -3 l3 3 l-3 3" fill="none" stroke-width="1.4" {stroke}/>',
    "sink": '<path d="M-5 -5 h10 v10 h-10 z M-5 -1.5 h10 M-5 2 h10" fill="none" stroke-width="1.2" {stroke}/>',
}
"""Drawings around (0, 0); their paint is filled in."""


def paint(fill: str | None = None, stroke: str | None = None) -> str:
    """The attributes that colour an element by role: a class for dark pages, and the light colour itself."""
    roles = [("fill", "f", fill), ("stroke", "s", stroke)]
    names = " ".join(f"txs-{short}-{role}" for _, short, role in roles if role)
    colours = " ".join(f'{name}="{PALETTE[role][0]}"' for name, _, role in roles if role)
    return f'class="{names}" {colours}'


def style() -> str:
    """The style sheet: dark colours where the page, Jupyter or VS Code is dark, whatever the system prefers."""
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
    """A run of text in one look."""

    text: str
    role: str
    size: float
    mono: bool = False
    bold: bool = False

    def drawn(self, space: int) -> str:
        """The run, `space` after the one before it."""
        look = f'font-family="{MONO if self.mono else SANS}" font-size="{self.size:g}"'
        weight = ' font-weight="700"' if self.bold else ""
        spacing = ' letter-spacing="0.8"' if self.bold and not self.mono else ""
        ahead = f' dx="{space}"' if space else ""
        return f"<tspan {look}{weight}{spacing}{ahead} {paint(fill=self.role)}>{escape(self.text)}</tspan>"


def line(x: float, y: float, *runs: Words) -> str:
    """A line of text with its baseline at (x, y); the renderer places each run behind the last."""
    drawn = "".join(run.drawn(10 if i else 0) for i, run in enumerate(runs))
    return f'<text x="{x:.1f}" y="{y:.1f}">{drawn}</text>'


def glyph(name: str, x: float, y: float, role: str) -> str:
    """One of `GLYPHS` around (x, y)."""
    drawn = GLYPHS[name].format(fill=paint(fill=role), stroke=paint(stroke=role))
    return f'<g transform="translate({x:.1f} {y:.1f})">{drawn}</g>'


def box(x: float, y: float, width: float, height: float, radius: float, painted: str, stroke: float = 1) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" '
        f'stroke-width="{stroke:g}" {painted}/>'
    )


def wide(text: str, size: float, *, mono: bool = False) -> float:
    """About the width of `text`, on the generous side; East Asian characters count double."""
    cells = sum(2 if ord(c) >= 0x1100 else 1 for c in text)
    return cells * size * (0.61 if mono else 0.56)


def clipped(text: str, limit: int) -> str:
    """`text` with an ellipsis where it is longer than `limit`."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
