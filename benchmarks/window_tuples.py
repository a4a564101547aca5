"""Cost of per-tuple windowed bolts and stateful bolts, with their peers in the same run.

    python -m benchmarks.window_tuples [--quick] [--engine spark|local] [--only PART ...] [--sides SIDE ...]

Parts: `sum`, the sliding sum over new and expired tuples against Storm and bytewax, on the same events, with the sums
checked; `buffer`, windows over many buffered tuples: evaluation, bytes written, memory, and the next commit after a
SIGKILL; `state`, the stateful word count against a committer on a keyed state; `heartbeat`, transactions that fire
windows without data. Each run is a process of its own. Peers are installed as `scripts/bench --install` does it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.sensor_events import sums
from benchmarks.suite.peers import HOME, PEERS, NotInstalled
from benchmarks.suite.sides import Side, SideFailed

OURS = "benchmarks.peers.window_bolts"
PARTS, SIDES = ("sum", "buffer", "state", "heartbeat"), ("storm", "bytewax")
FEW, MANY = 100_000, 10_000_000


@dataclass(frozen=True)
class Row:
    """One figure: its value, or the ratio to a peer, with the limit and the goal.

    Attributes:
        ours, peer: what was measured; `peer` is None for a figure of its own.
        ratio: the figure that is judged.
        at_most: whether smaller is better.
    """

    name: str
    ours: float
    peer: float | None
    ratio: float
    limit: float
    goal: float
    at_most: bool = False

    @property
    def verdict(self) -> str:
        """``goal``, ``reached`` (the limit, but not the goal) or ``missed``."""
        sign = -1 if self.at_most else 1
        return "goal" if sign * self.ratio >= sign * self.goal else (
            "reached" if sign * self.ratio >= sign * self.limit else "missed")  # fmt: skip

    def __str__(self) -> str:
        peer = "" if self.peer is None else f"{self.peer:,.4g}"
        bound = "≤" if self.at_most else "≥"
        values = f"{self.ours:>12,.4g}{peer:>12}{self.ratio:>9.3g}  {bound} {self.limit:<5g} {bound} {self.goal:<5g}"
        return f"{self.name:<58}{values} {self.verdict}"


class Bench:
    """One run of the benchmark: what is measured, and where."""

    def __init__(self, place: Path, engine: str, sides: Sequence[str], *, quick: bool) -> None:
        self.place, self.engine, self.sides, self.quick = place, engine, sides, quick

    def side(self, function: str) -> Side:
        """Return a process that serves one function of `peers.window_bolts`."""
        command = [sys.executable, "-m", "benchmarks.suite.serve", f"{OURS}:{function}"]
        return Side(function, command, self.place)

    def ask(self, side: Side, data: Path, **options: Any) -> Mapping[str, Any]:
        """Run the function of a side in the data directory `data`."""
        answer, _ = side.ask(json.dumps({"engine": self.engine, "place": str(data), **options}))
        result: Mapping[str, Any] = answer["result"]
        return result

    def run(self, function: str, **options: Any) -> Mapping[str, Any]:
        """Run a function in a process of its own, in a new data directory."""
        say(f"{function} {options}")
        with tempfile.TemporaryDirectory(dir=self.place) as data, self.side(function) as side:
            return self.ask(side, Path(data) / "data", **options)

    # -- the parts -----------------------------------------------------------------------------------------------------

    def sum(self) -> Iterator[Row]:
        """Measure the sliding sum."""
        count = 2_000_000 if self.quick else 8_000_000
        ours = self.run("sliding", count=count, batch=200_000)
        _check("txstorm", ours, count)
        if "storm" in self.sides:
            count = 600_000 if self.quick else 2_000_000
            peer = self.peer("storm", ("storm_windows", str(HOME)), count)
            if peer is not None:
                mine, other = ours["tuples/s"], peer["tuples/s"]
                yield Row("sliding sum: tuples a second against Storm, acked", mine, other, mine / other, 3, 8)
        if "bytewax" in self.sides:
            count = 200_000 if self.quick else 600_000
            peer = self.peer("bytewax", ("bytewax_windows",), count)
            if peer is not None:
                mine, other = ours["tuples/CPU s"], peer["tuples/CPU s"]
                yield Row("sliding sum: tuples a CPU second against bytewax", mine, other, mine / other, 3, 8)

    def peer(self, name: str, module: Sequence[str], count: int) -> Mapping[str, Any] | None:
        """Run the sliding sum on a peer; None, with the reason, if it does not run here or its sums are wrong."""
        say(f"{name}: {count:,} events")
        known = PEERS[name]
        command = [known.command[0], "-m", f"benchmarks.peers.{module[0]}", *module[1:]]
        try:
            known.install(say)
            with Side(name, command, self.place) as side:
                answer, _ = side.ask(json.dumps({"count": count}))
            _check(name, answer, count)
        except (NotInstalled, SideFailed, Wrong) as error:
            print(f"{name}: {error}")
            return None
        return answer

    def buffer(self) -> Iterator[Row]:
        """Measure windows over few and many buffered tuples."""
        few, many = FEW, MANY // 10 if self.quick else MANY
        found = {}
        for rows in (few, many):
            options = {"rows": rows, "batch": 100_000, "slide": 20_000, "slides": 60}
            say(f"buffered {options}")
            with tempfile.TemporaryDirectory(dir=self.place, ignore_cleanup_errors=True) as directory:
                data = Path(directory) / "data"
                with self.side("buffered") as side:
                    found[rows] = self.ask(side, data, **options)
                    side.kill()
                began = time.perf_counter()
                with self.side("resumed") as side:
                    self.ask(side, data, **options)
                    seconds = time.perf_counter() - began
                    side.kill()
        first, last = (statistics.median(found[rows]["ms"]) for rows in (few, many))
        mebibytes = found[many]["MiB"]
        text = f"{many:.0e} tuples buffered".replace("e+0", "e")
        yield Row(f"ms to fire a slide, {text}, against 1e5", last, first, last / first, 1.3, 1.1, at_most=True)
        written = found[many]["written"]
        yield Row(f"bytes written per Arrow byte, {text}", written, None, written, 2.5, 1.5, at_most=True)
        yield Row(f"GiB of the driver, {text}", mebibytes / 1024, None, mebibytes / 1024, 1.5, 1, at_most=True)
        yield Row(f"s from SIGKILL to the next commit, {text}", seconds, None, seconds, 15, 10, at_most=True)

    def state(self) -> Iterator[Row]:
        """Measure the stateful word count."""
        count = 2_000_000 if self.quick else 6_000_000
        mine, other = (self.run("word_count", count=count, batch=20_000, form=form) for form in ("stateful", "keyed"))
        if (mine["words"], mine["total"]) != (other["words"], count):
            print(f"the word counts differ: {mine}, {other}")
            return
        rates = mine["tuples/s"], other["tuples/s"]
        yield Row("stateful word count: words a second against a committer", *rates, rates[0] / rates[1], 0.5, 0.8)

    def heartbeat(self) -> Iterator[Row]:
        """Measure heartbeat transactions."""
        middle = statistics.median(self.run("heartbeats", count=100)["ms"])
        yield Row("ms of a heartbeat transaction that fires a window, p50", middle, None, middle, 20, 8, at_most=True)


class Wrong(Exception):
    """The sums of a side are wrong: its speed is no figure."""


def _check(name: str, answer: Mapping[str, Any], count: int) -> None:
    found, expected = dict(map(tuple, answer["sums"])), sums(count)
    last = max(end for end in expected if end in found)
    wrong = [end for end, total in expected.items() if end <= last and found.get(end) != total]
    if wrong or last < max(expected) - 1_000:
        msg = f"{len(wrong)} of {len(expected)} sums are wrong: not measured"
        raise Wrong(f"{name}: {msg}")


def say(text: str) -> None:
    """Print what is being done."""
    print(f"  {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events, and 1e6 buffered tuples instead of 1e7")
    parser.add_argument("--engine", choices=["spark", "local"], default="spark", help="engine of txstorm")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=SIDES, help="peers of the sliding sum")
    parser.add_argument("--place", type=Path, help="a directory for data; default: a new temporary one")
    given = parser.parse_args()
    print(f"{'figure':<58}{'ours':>12}{'peer':>12}{'ratio':>9}  least   goal")
    with tempfile.TemporaryDirectory(dir=given.place, ignore_cleanup_errors=True) as place:
        bench = Bench(Path(place), given.engine, given.sides, quick=given.quick)
        for part in given.only:
            for row in getattr(bench, part)():
                print(row, flush=True)


if __name__ == "__main__":
    main()
