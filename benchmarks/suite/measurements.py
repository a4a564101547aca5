"""What is measured without peers: overhead, pipelining, a long run, recovery, bytes, replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import topologies
from benchmarks.cases import SIZES, Bench, against_peer, speedup_of
from benchmarks.machine import Spread
from benchmarks.running import scratch
from benchmarks.sides import Run, Side, measure
from benchmarks.suite import recovery
from benchmarks.suite.peers import PEERS, Say
from benchmarks.suite.rounds import Results

LONG, WRITTEN = 100_000, 10_000
"""Transactions of the long run, and of the one whose bytes are counted."""


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


def _long(setting: Setting) -> None:
    """The driver's memory, once: a hundred thousand transactions take long enough."""
    setting.say(f"memory over {LONG:,} transactions")
    result = _alone(setting, "long run", "benchmarks.suite.long:memory", {"txids": LONG}).result
    samples = result["samples"]
    growth = (statistics.median(samples[-5:]) / samples[0] - 1) * 100
    setting.results.values["memory-growth"] = Spread.of([growth])
    setting.results.values["long run: driver MiB"] = Spread.of(samples)
    setting.results.values["long run: commit p99 ms of each tenth"] = Spread.of(result["commit p99 ms"])
    setting.results.values["long run: files at the end"] = Spread.of([result["files"]])


def _bytes(setting: Setting) -> None:
    setting.say(f"bytes written over {WRITTEN:,} transactions")
    result = _alone(setting, "bytes", "benchmarks.suite.long:written", {"txids": WRITTEN}).result
    kinds, changed = result["bytes"], result["changed"]
    tables = sum(kinds.get(kind, 0) for kind in ("data", "log", "checkpoints"))
    setting.results.values["bytes-written"] = Spread.of([tables / changed])
    for kind, size in kinds.items():
        setting.results.values[f"bytes: {kind} per changed byte"] = Spread.of([size / changed])
    setting.results.values["bytes: all the driver wrote per changed byte"] = Spread.of([result["process"] / changed])


def _recovery(setting: Setting) -> None:
    lost, killed = [], []
    for number in range(1, setting.rounds + 1):
        setting.say(f"recovery, round {number} of {setting.rounds}")
        options = {"txids": 900, "fault": recovery.LOST}
        lost.append(_alone(setting, "recovery", "benchmarks.suite.recovery:coordinator", options).result)
        with scratch() as place:
            killed.append(recovery.killed_driver(place, 900, "spark"))
    setting.results.values["recovery-session"] = Spread.of(lost)
    setting.results.values["recovery-driver"] = Spread.of(killed)


def _alone(setting: Setting, name: str, function: str, options: Mapping[str, Any]) -> Run:
    with scratch() as place:
        given = {"engine": "spark", "directory": str(place), **options}
        return measure(Side(name, function, PEERS["txstorm"].guarantee), given, setting.logs)


MEASUREMENTS: Sequence[Measurement] = (
    Measurement("overhead", "W2", _overhead),
    Measurement("pipelining", "W2", _pipelining),
    Measurement("long", "W9", _long),
    Measurement("bytes", "W9", _bytes),
    Measurement("recovery", "W10", _recovery),
)
