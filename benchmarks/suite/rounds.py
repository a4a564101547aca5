"""Runs comparisons: the sides in turn, round by round, all of them alive for the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

from benchmarks.nexmark.queries import WrongResult
from benchmarks.suite.comparisons import Comparison, Entry
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.peers import NotInstalled, Peer
from benchmarks.suite.results import Measure, Setting, commit_ms
from benchmarks.suite.sides import Side, SideFailed

STEADY, WITHIN, PATIENT = 3, 0.15, 10
"""A side is warm when this number of consecutive commits differ by less than this share, or after this many jobs."""


def run_comparisons(comparisons: Sequence[Comparison], setting: Setting) -> None:
    """Run all comparisons; add their outcomes to the results of `setting`."""
    needed = [one.peers(quick=setting.quick) for one in comparisons]
    with ExitStack() as stack:
        sides = _installed([setting.peers[name] for name in dict.fromkeys(chain(*needed))], stack, setting)
        for number, one in enumerate(comparisons):
            taking_part = {name: sides[name] for name in needed[number] if name in sides}
            _start(taking_part, setting)
            _Comparing(one, taking_part, setting).run()
            for name in taking_part.keys() - {*chain(*needed[number + 1 :])}:
                sides[name].close()


def _installed(peers: Sequence[Peer], stack: ExitStack, setting: Setting) -> Mapping[str, Side]:
    """Install the peers; return a side for each one that could be installed."""
    sides: dict[str, Side] = {}
    for peer in peers:
        try:
            peer.install(setting.say)
        except NotInstalled as error:
            setting.results.missing[peer.name] = f"not installed: {error}"
            setting.say(f"{peer.name} {setting.results.missing[peer.name]}")
        else:
            sides[peer.name] = stack.enter_context(Side(peer.name, peer.command, setting.logs))
    return sides


def _start(sides: Mapping[str, Side], setting: Setting) -> None:
    """Start the sides that are not running yet, all at once, since starts mostly wait; then warm them up."""
    new = [name for name, side in sides.items() if not side.runs]
    for name in new:
        sides[name].start()
    for name in new:
        job = setting.peers[name].warm_up
        if job is not None:
            with setting.results.timed("warm-up", name):
                _warm_up(sides[name], job, setting)


def _warm_up(side: Side, job: Job, setting: Setting) -> None:
    try:
        for number in range(1, 2 if setting.quick else PATIENT + 1):
            setting.say(f"{side.name}: warm-up {number}")
            if steady(side.run(job).commits_ms):
                return
    except (SideFailed, WrongResult) as error:  # a measured job will fail and report the same
        setting.say(f"{side.name}: warm-up FAILED: {error}")


def steady(commits_ms: Sequence[float]) -> bool:
    """Whether the last commits took about equally long."""
    last = commits_ms[-STEADY:]
    return len(last) == STEADY and max(last) <= (1 + WITHIN) * min(last)


class _Comparing:
    """Runner of one comparison on the available sides."""

    def __init__(self, comparison: Comparison, sides: Mapping[str, Side], setting: Setting) -> None:
        self._comparison, self._sides, self._setting = comparison, sides, setting
        self._say, self._results = setting.say, setting.results

    def run(self) -> None:
        """Run all rounds."""
        one, setting = self._comparison, self._setting
        entries = [entry for entry in one.chosen(quick=setting.quick) if entry.peer in self._sides]
        with ExitStack() as stack:
            source: Mapping[str, Any] = {}
            if one.source is not None:
                self._say(f"{one.name}: filling its source")
                with self._results.timed(one.name, "source"):
                    source = stack.enter_context(one.source(one.messages(quick=setting.quick)))
            if not setting.quick:
                for entry in entries:
                    self._choose(entry, source)
            rounds = setting.rounds if one.rounds is None else min(setting.rounds, one.rounds[setting.quick])
            for number in range(1, rounds + 1):
                with self._results.round():
                    for entry in entries:
                        self._measure(entry, source, f"round {number} of {rounds}")

    def _job(self, entry: Entry, source: Mapping[str, Any], pending: Any) -> Job:
        job = entry.job(self._comparison.job, quick=self._setting.quick, pending=pending)
        return replace(job, source=source)

    def _choose(self, entry: Entry, source: Mapping[str, Any]) -> None:
        """Find the best `max_spout_pending`: for the commit time if that is compared, else for the rate."""
        name, rates = self._comparison.name, dict[Any, float]()
        measure = commit_ms(0.5) if self._comparison.sort == "commit" else None
        for pending in entry.pending:
            self._say(f"{name}: {entry.name}, pending {pending}")
            outcome = self._outcome(entry, self._job(entry, source, pending))
            if outcome is None:
                return
            rates[pending] = outcome.txids_s if measure is None else -measure(outcome)
        if rates:
            self._results.chosen[name, entry.name] = max(rates, key=lambda one: rates[one])

    def _measure(self, entry: Entry, source: Mapping[str, Any], when: str) -> None:
        comparison, results = self._comparison, self._results
        key = f"{comparison.name}: {entry.name}"
        if key in results.missing:
            return
        outcome = self._outcome(entry, self._job(entry, source, results.chosen.get((comparison.name, entry.name))))
        if outcome is not None:
            results.rounds.setdefault(comparison.name, {}).setdefault(entry.name, []).append(outcome)
            self._say(f"{key}, {when}: {summary(comparison, outcome)}")

    def _outcome(self, entry: Entry, job: Job) -> Outcome | None:
        name = self._comparison.name
        try:
            with self._results.timed(name, entry.name):
                return self._sides[entry.peer].run(job)
        except (SideFailed, WrongResult) as error:
            if isinstance(error, WrongResult):
                self._results.rounds.get(name, {}).pop(entry.name, None)
            self._results.missing[f"{name}: {entry.name}"] = str(error)
            self._say(f"{name}: {entry.name} FAILED: {error}")
            return None


MEASURES: Mapping[str, tuple[Measure, str]] = {
    "tuples": (lambda one: one.tuples_s, "tuples/s"),
    "txids": (lambda one: one.txids_s, "txids/s"),
    "commit": (commit_ms(0.5), "ms a commit"),
}


def summary(comparison: Comparison, outcome: Outcome) -> str:
    """Return a one-line summary of an outcome."""
    measure, unit = MEASURES[comparison.sort]
    cpu = f"{outcome.cpu:.1f} s CPU ({outcome.cpu_million:.2f} per 10^6 tuples), {outcome.peak_mib:,.0f} MiB"
    return f"{measure(outcome):,.1f} {unit}, {cpu}"
