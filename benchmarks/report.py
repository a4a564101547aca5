"""The report: tables for people, JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.cases import Figure
from benchmarks.machine import NOISY, Spread

VERDICTS = {True: "met", False: "MISSED", None: ""}
# Shown column by column; what else a figure holds is listed below the table.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "throughput": {
        "tuples/s": ",.0f",
        "txids/s": ",.1f",
        "peer tuples/s": ",.0f",
        "ratio": ".2f",
        "to jobs alone": ".2f",
        "cpu ratio": ".2f",
        "commit p50 ms": ".1f",
        "commit p99 ms": ".1f",
    },
    "pipelining": {"pending 1 txids/s": ".1f", "pending 4 txids/s": ".1f", "speedup": ".2f", "commit p50 ms": ".1f"},
    "commit": {"commit p50 ms": ".1f", "commit p99 ms": ".1f"},
    "kafka": {"tuples/s": ",.0f", "txids/s": ",.1f", "p50 ms": ".2f", "p99 ms": ".2f"},
    "memory": {"RSS MiB": "", "growth since the first fifth": "+.1%"},
}


def machine_line(engine: Mapping[str, Any]) -> str:
    """What it was measured on."""
    about = ", ".join(f"{key} {value}" for key, value in engine.items())
    return f"{about}; {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def tables(figures: Sequence[Figure], drifts: Sequence[float]) -> str:
    """All figures, case by case, and how noisy the machine was."""
    cases = dict.fromkeys(one.case for one in figures)
    parts = [_table(case, [one for one in figures if one.case == case]) for case in cases]
    return "\n\n".join([*parts, noise_line(drifts)])


def noise_line(drifts: Sequence[float]) -> str:
    """How far a fixed piece of work drifted from before to after each round."""
    noisy = sum(one > NOISY for one in drifts)
    if not drifts:
        return "noise: not measured"
    often = f"by more than {NOISY:.0%} in {noisy} of {len(drifts)} runs"
    return f"noise: a fixed spin drifted by {max(drifts):.0%} at most, {often}"


def _table(case: str, figures: Sequence[Figure]) -> str:
    columns = COLUMNS[case]
    head = [case, *columns, "target", ""]
    rows = [
        [
            one.name,
            *(_text(one.values.get(name), spec) for name, spec in columns.items()),
            one.target,
            VERDICTS[one.met],
        ]
        for one in figures
    ]
    more = [f"  {one.name}: {_rest(one, columns)}" for one in figures if set(one.values) - set(columns)]
    return "\n".join([*_aligned([head, *rows]), *more])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _rest(figure: Figure, columns: Mapping[str, str]) -> str:
    rest = ((name, value) for name, value in figure.values.items() if name not in columns)
    return ", ".join(f"{name} {_text(value, ',.3g' if _small(value) else ',.0f')}" for name, value in rest)


def _small(value: Any) -> bool:
    return isinstance(value, float) and abs(value) < 1000


def _text(value: Any, spec: str) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} {one:.1f}" for key, one in value.items()) + "}"
    if isinstance(value, Spread) or (isinstance(value, int | float) and spec):
        return format(value, spec)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
