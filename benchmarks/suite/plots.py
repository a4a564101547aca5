"""Bar plots as hand-written SVG on a logarithmic scale, with a line from minimum to maximum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from benchmarks.machine import Spread

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 200, 150, 26, 54
OWN, OTHER, GRID = "#1f6f8b", "#b0b7bf", "#d8dde2"


def bars(title: str, values: Mapping[str, Spread]) -> str:
    """Draw one bar per name; those of txstorm are highlighted."""
    low, high = _decades(values)
    height = TOP + ROW * len(values) + 10

    def x(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for decade in range(low, high + 1):
        at = x(10.0**decade)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{height - 6}" stroke="{GRID}"/>')
        label = f"{10.0**decade:,.{max(0, -decade)}f}"
        parts.append(
            f'<text x="{at:.1f}" y="{TOP - 12}" fill="#667" font-size="10" text-anchor="middle">{label}</text>'
        )
    for number, (name, value) in enumerate(values.items()):
        parts += _bar(name, value, TOP + ROW * number, x)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(values: Mapping[str, Spread]) -> tuple[int, int]:
    """Return the powers of ten that enclose all values."""
    found = [number for one in values.values() for number in (one.low, one.high) if number > 0] or [1.0]
    low = math.floor(math.log10(min(found)))
    return low, max(low + 1, math.ceil(math.log10(max(found))))


def _bar(name: str, value: Spread, y: float, x: object) -> list[str]:
    assert callable(x)
    colour = OWN if name.startswith("txstorm") else OTHER
    middle = y + 9
    return [
        f'<text x="{LEFT - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{max(1.0, x(value.median) - LEFT):.1f}" height="18" fill="{colour}"/>',
        f'<line x1="{x(value.low):.1f}" x2="{x(value.high):.1f}" y1="{middle}" y2="{middle}" stroke="#222"/>',
        f'<text x="{x(value.high) + 6:.1f}" y="{middle + 4:.1f}">{value.median:,.{_digits(value.median)}f}</text>',
    ]


def _digits(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2
