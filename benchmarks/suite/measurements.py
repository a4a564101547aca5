"""What is measured without peers: overhead, pipelining, a long run, recovery, bytes, replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import topologies
from benchmarks.cases import SIZES, Bench, against_peer, speedup_of
from benchmarks.suite.peers import Say
from benchmarks.suite.rounds import Results


@dataclass(frozen=True)
class Setting:
    """How often to measure, and where results and logs go."""

    rounds: int
    say: Say
    results: Results
    logs: Path


@dataclass(frozen=True)
class Measurement:
    """One of them; `measure` puts values into the results."""

    name: str
    workload: str
    measure: Callable[[Setting], None]


@contextmanager
def _bench(setting: Setting) -> Iterator[Bench]:
    from txstorm.clients.spark import make_session

    session = make_session("txstorm benchmarks")
    try:
        yield Bench("spark", session, False, setting.rounds, setting.say, setting.results.drifts)
    finally:
        session.stop()


def _overhead(setting: Setting) -> None:
    with _bench(setting) as bench:
        for tuples, (last, quick, _) in SIZES.items():
            figure = against_peer(bench, "word count", topologies.word_count, tuples, last, quick, None)
            setting.results.values[f"overhead-{tuples}"] = figure.values["ratio"]


def _pipelining(setting: Setting) -> None:
    with _bench(setting) as bench:
        figure = speedup_of(bench, "without packing", {"max_pack_txids": 1}, 0.0)
        setting.results.values["pipelining"] = figure.values["speedup"]


MEASUREMENTS: Sequence[Measurement] = (
    Measurement("overhead", "W2", _overhead),
    Measurement("pipelining", "W2", _pipelining),
)
