"""Measurements of the machine: its noise, the CPU time of a process tree, the memory of a process."""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import processes

SPINS = 400_000
NOISY = 0.10


def spin() -> float:
    """Return the milliseconds of a fixed piece of pure Python, the best of three; constant on a quiet machine."""
    return min(_spin_once() for _ in range(3))


def _spin_once() -> float:
    started = time.perf_counter()
    total = 0
    for number in range(SPINS):
        total += number & 7
    return (time.perf_counter() - started) * 1000


def drift(before: float, after: float) -> float:
    """Return how much slower or faster the spin became, as a fraction."""
    return max(before, after) / min(before, after) - 1


def noise_line(drifts: Sequence[float]) -> str:
    """Describe how much the duration of a fixed piece of work changed over each round."""
    noisy = sum(one > NOISY for one in drifts)
    if not drifts:
        return "noise: not measured"
    often = f"by more than {NOISY:.0%} in {noisy} of {len(drifts)} rounds"
    return f"noise: a fixed spin drifted by {max(drifts):.0%} at most, {often}"


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU seconds of this process, and of its descendants (0 without /proc)."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    below = (one.cpu for one in processes.tree(os.getpid()) if one.pid != os.getpid())
    return own.ru_utime + own.ru_stime, sum(below)


def rss_mib() -> float:
    """Return the resident memory of this process, in MiB; without /proc its maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}–{self.high:{spec}})"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the `share` percentile of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
