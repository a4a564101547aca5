"""Measurements without peers: a long run, the bytes it writes, recovery, planning."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import window_tuples
from benchmarks.joins import buffer as join_buffer
from benchmarks.machine import Spread
from benchmarks.suite import kafka, recovery
from benchmarks.suite.results import Setting
from benchmarks.suite.sides import call


@dataclass(frozen=True)
class Measurement:
    """One measurement; `measure` adds values to the results."""

    name: str
    workload: str
    measure: Callable[[Setting], None]

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which the measurement can be chosen."""
        return self.workload, self.name


def _long(setting: Setting) -> None:
    """Measure the driver's memory, in one round, as a hundred thousand transactions take long."""
    txids = 200 if setting.quick else 100_000
    setting.say(f"memory over {txids:,} transactions")
    result = _call(setting, "benchmarks.suite.long:memory", {"txids": txids})
    samples = result["samples"]
    growth = (statistics.median(samples[-5:]) / samples[0] - 1) * 100
    setting.results.values["memory-growth"] = Spread.of([growth])
    setting.results.values["long run: driver MiB"] = Spread.of(samples)
    setting.results.values["long run: commit p99 ms of each tenth"] = Spread.of(result["commit p99 ms"])
    setting.results.values["long run: files at the end"] = Spread.of([result["files"]])


def _bytes(setting: Setting) -> None:
    txids = 100 if setting.quick else 10_000
    setting.say(f"bytes written over {txids:,} transactions")
    result = _call(setting, "benchmarks.suite.long:written", {"txids": txids})
    kinds, changed = result["bytes"], result["changed"]
    tables = sum(kinds.get(kind, 0) for kind in ("data", "log", "checkpoints"))
    setting.results.values["bytes-written"] = Spread.of([tables / changed])
    for kind, size in kinds.items():
        setting.results.values[f"bytes: {kind} per changed byte"] = Spread.of([size / changed])
    setting.results.values["bytes: all the driver wrote per changed byte"] = Spread.of([result["process"] / changed])


def _recovery(setting: Setting) -> None:
    lost, killed, again = [], [], []
    txids = 300 if setting.quick else 900
    for number in range(1, setting.rounds + 1):
        setting.say(f"recovery, round {number} of {setting.rounds}")
        options = {"txids": txids, "fault": recovery.LOST.format(2 if setting.quick else 12)}
        lost.append(_call(setting, "benchmarks.suite.recovery:coordinator", options))
        with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
            seconds, tuples = recovery.killed_driver(Path(place), txids, setting.engine)
        killed.append(seconds)
        again.append(tuples)
    setting.results.values["recovery-session"] = Spread.of(lost)
    setting.results.values["recovery-driver"] = Spread.of(killed)
    setting.results.values["recovery: tuples processed again"] = Spread.of(again)


def _heartbeat(setting: Setting) -> None:
    setting.say("heartbeats")
    found = _call(setting, "benchmarks.nexmark.heartbeats:measure", {"heartbeats": 50 if setting.quick else 200})
    setting.results.values["heartbeat"] = Spread.of([found["p50 ms"]])
    setting.results.values["heartbeat: p99 ms"] = Spread.of([found["p99 ms"]])


def _window_tuples(setting: Setting) -> None:
    """Run the benchmark of windows of tuples, which judges its own figures."""
    setting.say("windows of tuples")
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-", ignore_cleanup_errors=True) as place:
        bench = window_tuples.Bench(Path(place), setting.engine, window_tuples.SIDES, quick=setting.quick)
        for part in window_tuples.PARTS:
            if part != "heartbeat":  # the measurement of this name
                setting.results.judged.setdefault("window-tuples", []).extend(getattr(bench, part)())


def _join_buffer(setting: Setting) -> None:
    """Run joins of short and long windows, which are judged together."""
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-", ignore_cleanup_errors=True) as place:
        rows = join_buffer.measure(Path(place), setting.engine, setting.say, quick=setting.quick)
        setting.results.judged["join-buffer"] = list(rows)


def _join_catch_up(setting: Setting) -> None:
    setting.say("a right side that is behind")
    found = _call(setting, "benchmarks.joins.catch_up:measure", {"rounds": 2 if setting.quick else 5})
    setting.results.values["join-catch-up"] = Spread.of(found["ratios"])
    setting.results.values["join-catch-up: s of the join"] = Spread.of(found["joined"])


def _join_stores(setting: Setting) -> None:
    """Run the benchmark of join stores, which judges its own figures."""
    from benchmarks import join_stores  # it needs the extras redis and http

    setting.say("join stores")
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-", ignore_cleanup_errors=True) as place:
        setting.results.judged["join-stores"] = list(join_stores.measured(Path(place), quick=setting.quick))


def _bad_records(setting: Setting) -> None:
    setting.say("bad records")
    options = {"rounds": 2 if setting.quick else 5, "rows": 50_000 if setting.quick else 200_000}
    for kind, ratios in _call(setting, "benchmarks.bad_records:measure", options).items():
        setting.results.values[f"bad records: {kind}"] = Spread.of(ratios)


def _call(setting: Setting, function: str, options: Mapping[str, Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
        return call(function, {"engine": setting.engine, "directory": place, **options}, setting.logs)


MEASUREMENTS: Sequence[Measurement] = (
    Measurement("long", "W9", _long),
    Measurement("bytes", "W9", _bytes),
    Measurement("recovery", "W10", _recovery),
    Measurement("planning", "kafka", kafka.planning),
    Measurement("heartbeat", "windows", _heartbeat),
    Measurement("window-tuples", "windows", _window_tuples),
    Measurement("join-buffer", "joins", _join_buffer),
    Measurement("join-catch-up", "joins", _join_catch_up),
    Measurement("join-stores", "joins", _join_stores),
    Measurement("bad-records", "files", _bad_records),
)
