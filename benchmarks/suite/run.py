"""A benchmark run: choose the parts, measure, judge the figures, and report."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from benchmarks.nexmark.queries import WrongResult
from benchmarks.suite.comparisons import COMPARISONS, Comparison
from benchmarks.suite.figures import FIGURES, Figure, Line, judge, line_of
from benchmarks.suite.measurements import MEASUREMENTS, Measurement
from benchmarks.suite.peers import Say, peers_on
from benchmarks.suite.report import Report
from benchmarks.suite.results import Results, Setting
from benchmarks.suite.rounds import run_comparisons
from benchmarks.suite.sides import SideFailed
from benchmarks.window_tuples import Wrong

ROUNDS, QUICK_ROUNDS = 5, 3
SOURCES: Sequence[Comparison | Measurement] = (*COMPARISONS, *MEASUREMENTS)


def names() -> list[str]:
    """Return all names that can be chosen: workloads, groups, comparisons, measurements and figures."""
    found = [name for one in SOURCES for name in one.names]
    return list(dict.fromkeys([*found, *(one.name for one in FIGURES)]))


def run_suite(
    asked: Collection[str],
    rounds: int | None,
    say: Say,
    *,
    quick: bool,
    engine: str = "spark",
    sides: Collection[str] = (),
) -> Report:
    """Run the parts named in `asked`, everything if it is empty, with the peers in `sides`, all if it is empty."""
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    figures = [one for one in FIGURES if not asked or one.name in asked or _belongs(one, asked)]
    needed = {need for one in figures if one.quick or not quick for need in one.needs}
    comparisons = [
        replace(one, entries=[entry for entry in one.entries if not sides or entry.peer in sides])
        for one in chosen(asked, needed, quick=quick)
    ]
    measurements = [one for one in MEASUREMENTS if _wanted(one, asked, needed, quick=quick)]
    results = Results()
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-logs-") as logs:
        setting = Setting(rounds, quick, say, results, Path(logs), engine, peers_on(engine))
        run_comparisons(comparisons, setting)
        for one in measurements:
            with results.timed(one.name, ""), _missing_when_it_fails(one, setting):
                one.measure(setting)
    lines = [judge(one, results, quick=quick) for one in figures]
    lines += [line_of(row, name) for name, rows in results.judged.items() for row in rows]
    return Report(about(rounds, engine), quick, comparisons, results, lines)


def chosen(asked: Collection[str], needed: Collection[str], *, quick: bool) -> list[Comparison]:
    """Return the comparisons of a run, in order.

    MERGE becomes faster over its first thirty batches. A quick run has no time for these, so ratios to MERGE are
    measured last, with all other comparisons as the warm-up.
    """
    found = [one for one in COMPARISONS if _wanted(one, asked, needed, quick=quick) and one.chosen(quick=quick)]
    ratios = {need for one in FIGURES if "merge" in one.beside for need in one.needs}
    return sorted(found, key=lambda one: quick and one.name in ratios)


def _wanted(one: Comparison | Measurement, asked: Collection[str], needed: Collection[str], *, quick: bool) -> bool:
    """Whether to run a part: it is named, a named figure needs it, or, without names, it belongs to the run."""
    if asked:
        return bool({*one.names} & {*asked}) or one.name in needed
    return not quick or (isinstance(one, Comparison) and one.quick)


def _belongs(figure: Figure, asked: Collection[str]) -> bool:
    """Whether everything that a figure needs is among the names asked for."""
    sources = {one.name: {*one.names} for one in SOURCES}
    return all(sources[need] & {*asked} for need in figure.needs)


@contextmanager
def _missing_when_it_fails(one: Measurement, setting: Setting) -> Iterator[None]:
    try:
        yield
    except (SideFailed, WrongResult, Wrong, ImportError) as error:
        setting.results.missing[one.name] = str(error)
        setting.say(f"{one.name} FAILED: {error}")


def about(rounds: int, engine: str) -> str:
    """Describe the machine and the versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "delta-spark", "deltalake", "pyarrow"))
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return f"{rounds} rounds on {engine}; {machine}; {versions}"


def failed(lines: Sequence[Line]) -> bool:
    """Return whether any figure misses its limit."""
    return any(one.verdict == "missed" for one in lines)
