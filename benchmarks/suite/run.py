"""The suite: what was asked for, measured, judged and reported."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from benchmarks.suite.comparisons import COMPARISONS, Comparison
from benchmarks.suite.figures import FIGURES, Figure, Line, judge
from benchmarks.suite.measurements import MEASUREMENTS, Measurement, Setting
from benchmarks.suite.peers import Say
from benchmarks.suite.report import Report
from benchmarks.suite.rounds import Results, run_comparisons

ROUNDS, QUICK_ROUNDS = 5, 3


def names() -> list[str]:
    """Everything that can be asked for: workloads, comparisons, measurements and figures."""
    found = [name for one in (*COMPARISONS, *MEASUREMENTS) for name in (one.workload, one.name)]
    return list(dict.fromkeys([*found, *(one.name for one in FIGURES)]))


def run_suite(asked: Collection[str], rounds: int | None, say: Say, *, quick: bool) -> Report:
    """Measure what was asked for; everything if nothing was named."""
    figures = [one for one in FIGURES if not asked or one.name in asked or _belongs(one, asked)]
    wanted = {need for one in figures if one.quick or not quick for need in one.needs}
    comparisons = [one for one in chosen(COMPARISONS, asked, wanted) if one.chosen(quick=quick)]
    measurements = [] if quick else chosen(MEASUREMENTS, asked, wanted)
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    results = Results()
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-logs-") as logs:
        run_comparisons(comparisons, rounds, Path(logs), say, quick=quick, results=results)
        for one in measurements:
            one.measure(Setting(rounds, say, results, Path(logs)))
    lines = [judge(one, results, quick=quick) for one in figures]
    return Report(about(rounds), quick, comparisons, results, lines)


def _belongs(figure: Figure, asked: Collection[str]) -> bool:
    """Whether all a figure needs was asked for by its own name or its workload's."""
    sources = {one.name: one.workload for one in (*COMPARISONS, *MEASUREMENTS)}
    return all(need in asked or sources[need] in asked for need in figure.needs)


T = TypeVar("T", Comparison, Measurement)


def chosen(offered: Iterable[T], asked: Collection[str], wanted: Collection[str]) -> list[T]:
    """What is run: all, or what was named, or what a figure needs."""
    return [one for one in offered if not asked or {one.name, one.workload} & set(asked) or one.name in wanted]


def about(rounds: int) -> str:
    """What it was measured on."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "delta-spark", "deltalake", "pyarrow"))
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return f"{rounds} rounds; {machine}; {versions}"


def failed(lines: Sequence[Line]) -> bool:
    """Whether a figure is missed."""
    return any(one.verdict == "missed" for one in lines)
