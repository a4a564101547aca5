"""Runs comparisons: the sides in turn, round by round, all of them alive for the whole run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import Spread, drift, percentile, spin
from benchmarks.sides import SideFailed
from benchmarks.suite.comparisons import Comparison, Entry
from benchmarks.suite.job import Outcome
from benchmarks.suite.peers import PEERS, NotInstalled, Peer, Say
from benchmarks.suite.server import Server

Measure = Callable[[Outcome], float]


@dataclass
class Results:
    """What was measured so far.

    Attributes:
        rounds: comparison → entry → one outcome a round.
        chosen: (comparison, entry) → the `max_spout_pending` that was found to be best.
        missing: peer, or comparison and peer → why it was not measured.
        values: what was measured without peers: figure → value.
        drifts: how far a fixed piece of work drifted over each round.
    """

    rounds: dict[str, dict[str, list[Outcome]]] = field(default_factory=dict)
    chosen: dict[tuple[str, str], Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    values: dict[str, Spread] = field(default_factory=dict)
    drifts: list[float] = field(default_factory=list)

    def of(self, comparison: str, entry: str) -> Sequence[Outcome]:
        """The outcomes of an entry; none if it was not measured."""
        return self.rounds.get(comparison, {}).get(entry, [])

    def spread(self, comparison: str, entry: str, measure: Measure) -> Spread | None:
        """Median, lowest and highest of one measure."""
        found = self.of(comparison, entry)
        return Spread.of([measure(one) for one in found]) if found else None

    def ratio(self, comparison: str, ours: str, peer: str, measure: Measure) -> Spread | None:
        """Ours by the peer's, round by round."""
        pairs = list(zip(self.of(comparison, ours), self.of(comparison, peer), strict=False))
        return Spread.of([measure(mine) / measure(theirs) for mine, theirs in pairs]) if pairs else None


class Sides:
    """The processes of the peers."""

    def __init__(
        self, peers: Mapping[str, Peer], stack: ExitStack, logs: Path, say: Say, missing: dict[str, str]
    ) -> None:
        self._peers, self._stack, self._logs, self._say, self._missing = peers, stack, logs, say, missing
        self._sides: dict[str, Server] = {}

    def get(self, name: str) -> Server | None:
        """The side of a peer; None if it cannot be installed."""
        if name not in self._sides and name not in self._missing:
            self._open(self._peers[name])
        return self._sides.get(name)

    def _open(self, peer: Peer) -> None:
        try:
            peer.install(self._say)
        except NotInstalled as error:
            self._missing[peer.name] = f"not installed: {error}"
            self._say(f"{peer.name} {self._missing[peer.name]}")
            return
        side = self._sides[peer.name] = Server(peer, self._logs)
        self._stack.callback(side.close)


def run_comparisons(
    comparisons: Sequence[Comparison],
    rounds: int,
    logs: Path,
    say: Say,
    *,
    quick: bool,
    results: Results,
    peers: Mapping[str, Peer] = PEERS,
) -> None:
    """Measure all of them, into `results`."""
    with ExitStack() as stack:
        sides = Sides(peers, stack, logs, say, results.missing)
        for one in comparisons:  # installing is over before anything is measured
            for entry in one.chosen(quick=quick):
                sides.get(entry.peer)
        for one in comparisons:
            _compare(one, rounds, sides, say, quick=quick, results=results)


def _compare(comparison: Comparison, rounds: int, sides: Sides, say: Say, *, quick: bool, results: Results) -> None:
    entries = [(entry, side) for entry in comparison.chosen(quick=quick) if (side := sides.get(entry.peer))]
    if not quick:
        for entry, side in entries:
            _choose(comparison, entry, side, say, results)
    for number in range(1, rounds + 1):
        before = spin()
        for entry, side in entries:
            _measure(comparison, entry, side, say, f"round {number} of {rounds}", quick=quick, results=results)
        results.drifts.append(drift(before, spin()))


def _choose(comparison: Comparison, entry: Entry, side: Server, say: Say, results: Results) -> None:
    """Find the best `max_spout_pending`."""
    rates: dict[Any, float] = {}
    for pending in entry.pending:
        say(f"{comparison.name}: {entry.name}, pending {pending}")
        try:
            rates[pending] = side.run(entry.job(comparison.job, quick=False, pending=pending)).txids_s
        except SideFailed as error:
            _note(comparison, entry, error, say, results)
            return
    if rates:
        results.chosen[comparison.name, entry.name] = max(rates, key=lambda one: rates[one])


def _measure(
    comparison: Comparison, entry: Entry, side: Server, say: Say, when: str, *, quick: bool, results: Results
) -> None:
    key = f"{comparison.name}: {entry.name}"
    if key in results.missing:
        return
    pending = results.chosen.get((comparison.name, entry.name))
    try:
        outcome = side.run(entry.job(comparison.job, quick=quick, pending=pending))
    except SideFailed as error:
        _note(comparison, entry, error, say, results)
        return
    results.rounds.setdefault(comparison.name, {}).setdefault(entry.name, []).append(outcome)
    say(f"{key}, {when}: {summary(comparison, outcome)}")


def _note(comparison: Comparison, entry: Entry, error: SideFailed, say: Say, results: Results) -> None:
    results.missing[f"{comparison.name}: {entry.name}"] = str(error)
    say(f"{comparison.name}: {entry.name} FAILED: {error}")


def commit_ms(share: float) -> Measure:
    """The commit that `share` of the commits are quicker than."""
    return lambda one: percentile(one.commits_ms, share)


MEASURES: Mapping[str, tuple[Measure, str]] = {
    "tuples": (lambda one: one.tuples_s, "tuples/s"),
    "txids": (lambda one: one.txids_s, "txids/s"),
    "commit": (commit_ms(0.5), "ms a commit"),
}


def summary(comparison: Comparison, outcome: Outcome) -> str:
    """One outcome in a few words."""
    measure, unit = MEASURES[comparison.sort]
    cpu = f"{outcome.cpu:.1f} s CPU, {outcome.peak_mib:,.0f} MiB"
    return f"{measure(outcome):,.1f} {unit}, {cpu}"


def median(outcomes: Sequence[Outcome], measure: Measure) -> float:
    """The median of one measure."""
    return statistics.median(map(measure, outcomes))
