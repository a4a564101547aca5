"""Options of a benchmark run, and its measurements so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import Spread, drift, percentile, spin
from benchmarks.suite.job import Outcome
from benchmarks.suite.peers import PEERS, Peer, Say

Measure = Callable[[Outcome], float]


@dataclass
class Results:
    """Measurements so far.

    Attributes:
        rounds: comparison → entry → one outcome per round.
        chosen: (comparison, entry) → the best `max_spout_pending` found.
        missing: peer, or comparison and peer → why it was not measured.
        values: measurements without peers: figure → value.
        judged: measurement → rows that it has judged itself, see `benchmarks.suite.figures.Judged`.
        drifts: how far a fixed piece of work drifted over each round.
        seconds: comparison or measurement → part → seconds of the run, all rounds and loads included.
    """

    rounds: dict[str, dict[str, list[Outcome]]] = field(default_factory=dict)
    chosen: dict[tuple[str, str], Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    values: dict[str, Spread] = field(default_factory=dict)
    judged: dict[str, list[Any]] = field(default_factory=dict)
    drifts: list[float] = field(default_factory=list)
    seconds: dict[str, Counter[str]] = field(default_factory=dict)

    def of(self, comparison: str, entry: str) -> Sequence[Outcome]:
        """Return the outcomes of an entry; none if it was not measured."""
        return self.rounds.get(comparison, {}).get(entry, [])

    def spread(self, comparison: str, entry: str, measure: Measure) -> Spread | None:
        """Return median, minimum and maximum of one measure."""
        found = self.of(comparison, entry)
        return Spread.of([measure(one) for one in found]) if found else None

    def ratio(self, comparison: str, ours: str, peer: str, measure: Measure) -> Spread | None:
        """Return the ratio of our measure to the peer's, round by round."""
        pairs = list(zip(self.of(comparison, ours), self.of(comparison, peer), strict=False))
        return Spread.of([measure(mine) / measure(theirs) for mine, theirs in pairs]) if pairs else None

    @contextmanager
    def timed(self, name: str, what: str) -> Iterator[None]:
        """Add the duration of the block to the seconds of `what` in `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds.setdefault(name, Counter())[what] += time.monotonic() - began  # type: ignore[assignment]

    @contextmanager
    def round(self) -> Iterator[None]:
        """Bracket one round with two timings of a fixed piece of work, whose difference shows the machine's noise."""
        before = spin()
        yield
        self.drifts.append(drift(before, spin()))


@dataclass(frozen=True)
class Setting:
    """Options of a run, and the destinations of results and logs.

    Attributes:
        quick: whether to use small sizes.
        engine: txstorm's engine: ``spark``, or ``local`` for trials.
    """

    rounds: int
    quick: bool
    say: Say
    results: Results
    logs: Path
    engine: str = "spark"
    peers: Mapping[str, Peer] = field(default_factory=lambda: PEERS)


def commit_ms(share: float) -> Measure:
    """Return the measure: the commit time below which `share` of the commits lie."""
    return lambda one: percentile(one.commits_ms, share)
