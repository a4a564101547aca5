"""How a run of the suite is made, and what it has measured so far."""

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
    """What was measured so far.

    Attributes:
        rounds: comparison → entry → one outcome a round.
        chosen: (comparison, entry) → the `max_spout_pending` that was found to be best.
        missing: peer, or comparison and peer → why it was not measured.
        values: what was measured without peers: figure → value.
        drifts: how far a fixed piece of work drifted over each round.
        seconds: comparison or measurement → what took so many seconds of the run, all rounds and loads included.
    """

    rounds: dict[str, dict[str, list[Outcome]]] = field(default_factory=dict)
    chosen: dict[tuple[str, str], Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    values: dict[str, Spread] = field(default_factory=dict)
    drifts: list[float] = field(default_factory=list)
    seconds: dict[str, Counter[str]] = field(default_factory=dict)

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

    @contextmanager
    def timed(self, name: str, what: str) -> Iterator[None]:
        """Add the seconds of what is done within to those of `what` in `name`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds.setdefault(name, Counter())[what] += time.monotonic() - began  # type: ignore[assignment]

    @contextmanager
    def round(self) -> Iterator[None]:
        """One round between two spins; how far they differ says how far to trust it."""
        before = spin()
        yield
        self.drifts.append(drift(before, spin()))


@dataclass(frozen=True)
class Setting:
    """How to measure, and where results and logs go.

    Attributes:
        quick: small sizes.
        engine: txstorm's: ``spark``, or ``local`` for trying out.
    """

    rounds: int
    quick: bool
    say: Say
    results: Results
    logs: Path
    engine: str = "spark"
    peers: Mapping[str, Peer] = field(default_factory=lambda: PEERS)


def commit_ms(share: float) -> Measure:
    """The commit that `share` of the commits are quicker than."""
    return lambda one: percentile(one.commits_ms, share)
