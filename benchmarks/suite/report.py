"""Report of a benchmark run: text for the terminal, JSON lines for programs, and a page with plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import Spread, noise_line
from benchmarks.suite.comparisons import Comparison, Entry
from benchmarks.suite.figures import BY_NAME, Line, totals
from benchmarks.suite.job import Outcome
from benchmarks.suite.peers import PEERS
from benchmarks.suite.plots import bars
from benchmarks.suite.results import Results, commit_ms
from benchmarks.suite.rounds import MEASURES

PAGE, RECORDS, NOTES = "results.md", "results.jsonl", "notes.md"
"""Files of a directory of results. The notes are written by hand, with a heading for each missed figure."""


@dataclass(frozen=True)
class Report:
    """Report of a finished benchmark run.

    Attributes:
        about: the machine, the versions, the number of rounds.
        comparisons: the comparisons that were run.
    """

    about: str
    quick: bool
    comparisons: Sequence[Comparison]
    results: Results
    lines: Sequence[Line]

    def text(self) -> str:
        """Return the report for the terminal: tables, then a line per figure, then the totals."""
        parts = [*self._tables(_aligned), *self._values(_aligned), *self._missing(), *self._seconds()]
        parts += [noise_line(self.results.drifts), self.about, "", *self._told()]
        if measured := [one for one in self.lines if one.value is not None]:
            parts += [_aligned(_figure_rows(measured, {})), ""]
        return "\n".join([*parts, *map(str, self.lines), totals(self.lines)])

    def _tables(self, form: Callable[[Sequence[Sequence[str]]], str]) -> Iterator[str]:
        for one in self.comparisons:
            if self.results.rounds.get(one.name):
                yield f"{one.workload}: {one.title}\n{form(rows_of(one, self.results, quick=self.quick))}\n"

    def _values(self, form: Callable[[Sequence[Sequence[str]]], str]) -> Iterator[str]:
        if self.results.values:
            yield f"{form(_value_rows(self.results))}\n"

    def _missing(self) -> list[str]:
        return [f"{name}: {reason}" for name, reason in self.results.missing.items()]

    def _seconds(self) -> Iterator[str]:
        """Yield the duration of each comparison and of its entries."""
        total = sum(each.total() for each in self.results.seconds.values())
        yield f"seconds of the run: {total:.0f}"
        for name, each in self.results.seconds.items():
            parts = ", ".join(f"{what} {seconds:.1f}" for what, seconds in each.items() if what)
            yield f"  {name}: {each.total():.1f}{f' ({parts})' if parts else ''}"

    def _told(self) -> list[str]:
        return [told for line in self.lines if line.value is not None and (told := beside(line, self.results))]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the run, for JSON."""
        yield {"record": "about", "about": self.about, "quick": self.quick}
        for comparison in self.comparisons:
            for entry in comparison.chosen(quick=self.quick):
                for number, outcome in enumerate(self.results.of(comparison.name, entry.name), 1):
                    pending = self.results.chosen.get((comparison.name, entry.name))
                    yield {**_described(comparison, entry, number, outcome), "max_spout_pending": pending}
        for name, reason in self.results.missing.items():
            yield {"record": "missing", "name": name, "reason": reason}
        for name, spread in self.results.values.items():
            yield {"record": "value", "name": name, **asdict(spread)}
        for line in self.lines:
            value = None if line.value is None else asdict(line.value)
            yield {
                "record": "figure",
                "name": line.figure.name,
                "value": value,
                "target": line.figure.target,
                "verdict": line.verdict,
            }
        for name, each in self.results.seconds.items():
            yield {"record": "seconds", "name": name, "seconds": each}
        yield {"record": "noise", "drifts": self.results.drifts}

    def write_json(self, file: Path) -> None:
        """Write one record per line."""
        file.write_text("".join(json.dumps(one) + "\n" for one in self.records()))

    def write_page(self, directory: Path) -> Path:
        """Write the page, its plots and the records; return the page."""
        directory.mkdir(parents=True, exist_ok=True)
        self.write_json(directory / RECORDS)
        size = "A quick run: small sizes. " if self.quick else ""
        noise = noise_line(self.results.drifts).capitalize()
        parts = ["# Results of the benchmarks", f"{size}{self.about}.", f"{noise}. Records: [{RECORDS}]({RECORDS})."]
        parts += ["## Figures", _markdown(_figure_rows(self.lines, _notes(directory))), totals(self.lines) + "."]
        told = [f"- {one}" for one in self._told()]
        parts += ["\n".join(told)] if told else []
        for one in self.comparisons:
            if self.results.rounds.get(one.name):
                parts += self._section(one, directory)
        if self.results.missing:
            parts += ["## Not measured", "\n".join(f"- {text}" for text in self._missing())]
        if self.results.values:
            parts += ["## Without peers", *self._values(_markdown)]
        page = directory / PAGE
        page.write_text("\n\n".join(map(str.strip, parts)) + "\n")
        return page

    def _section(self, comparison: Comparison, directory: Path) -> list[str]:
        measure, unit = MEASURES[comparison.sort]
        shown = {
            entry.name: spread
            for entry in comparison.chosen(quick=self.quick)
            if (spread := self.results.spread(comparison.name, entry.name, measure)) is not None and spread.median > 0
        }
        plot = directory / f"{comparison.name}.svg"
        plot.write_text(bars(f"{comparison.title}: {unit}", shown))
        table = _markdown(rows_of(comparison, self.results, quick=self.quick))
        return [f"## {comparison.workload}: {comparison.title}", f"![{comparison.title}]({plot.name})", table]


HEAD = (
    "",
    "tuples/s",
    "per CPU s",
    "CPU s per 10^6",
    "txids/s",
    "commit p50 / p99 ms",
    "latency ms",
    "pending",
    "peak MiB",
    "guarantee",
)


def rows_of(comparison: Comparison, results: Results, *, quick: bool) -> list[Sequence[str]]:
    """Return the rows of a table: one per entry, with medians, minima and maxima."""
    rows: list[Sequence[str]] = [HEAD]
    for entry in comparison.chosen(quick=quick):
        outcomes = results.of(comparison.name, entry.name)
        if outcomes:
            rows.append(_row(entry, outcomes, results.chosen.get((comparison.name, entry.name))))
    return rows


def _row(entry: Entry, outcomes: Sequence[Outcome], pending: Any) -> Sequence[str]:
    def of(measure: Callable[[Outcome], float], spec: str) -> str:
        return format(Spread.of([measure(one) for one in outcomes]), spec)

    commits = any(one > 0 for one in outcomes[0].commits_ms)
    return (
        entry.name,
        of(lambda one: one.tuples_s, ",.0f"),
        of(lambda one: one.tuples_cpu_s, ",.0f"),
        of(lambda one: one.cpu_million, ".2f"),
        of(lambda one: one.txids_s, ",.1f"),
        f"{of(commit_ms(0.5), '.1f')} / {of(commit_ms(0.99), '.1f')}" if commits else "",
        of(lambda one: one.latency_ms, ",.0f"),
        "" if pending is None else str(pending),
        f"{max(one.peak_mib for one in outcomes):,.0f}",
        PEERS[entry.peer].guarantee,
    )


def beside(line: Line, results: Results) -> str:
    """Return the pending setting and latency of a figure's entries, in transactions per second, as text."""
    figure = line.figure
    texts = []
    for entry in figure.beside:
        outcomes = results.of(figure.needs[0], entry)
        if outcomes:
            pending = results.chosen.get((figure.needs[0], entry))
            latency = Spread.of([one.latency_ms for one in outcomes]).median
            how = "" if pending is None else f"pending {pending}, "
            texts.append(f"{entry}: {how}median latency {latency:,.0f} ms")
    return f"{figure.name}: {'; '.join(texts)}" if texts else ""


def _described(comparison: Comparison, entry: Entry, number: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "record": "run",
        "workload": comparison.workload,
        "comparison": comparison.name,
        "entry": entry.name,
        "peer": entry.peer,
        "guarantee": PEERS[entry.peer].guarantee,
        "round": number,
        "exact": True,  # an inexact run ends the suite
        "tuples_s": outcome.tuples_s,
        "tuples_cpu_s": outcome.tuples_cpu_s,
        "txids_s": outcome.txids_s,
        "commit_p50_ms": commit_ms(0.5)(outcome),
        "commit_p99_ms": commit_ms(0.99)(outcome),
        **{key: value for key, value in asdict(outcome).items() if key != "commits_ms"},
    }


def _notes(directory: Path) -> Mapping[str, str]:
    """Return figure → link to the handwritten note about it."""
    file = directory / NOTES
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    titles = [line.removeprefix("## ").strip() for line in lines if line.startswith("## ")]
    return {name: f"[why]({NOTES}#{name})" for name in titles if name in BY_NAME}


def _figure_rows(lines: Sequence[Line], notes: Mapping[str, str]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("figure", "", "value", "at least / most", "goal", "", "")]
    for one in lines:
        goal = "" if one.figure.goal is None else f"{one.figure.goal:g}"
        value = "" if one.value is None else f"{one.value:.3g}"
        name = one.figure.name
        rows.append((name, one.figure.text, value, one.figure.target, goal, one.verdict, notes.get(name, "")))
    return rows


def _value_rows(results: Results) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("", "value", "")]
    for name, value in results.values.items():
        rows.append((name, f"{value:.4g}", BY_NAME[name].text if name in BY_NAME else ""))
    return rows


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "| " + " | ".join("---" for _ in rows[0]) + " |", *rest])
