"""``python -m benchmarks``: run the suite with its peers and figures, or the parts named."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.suite.exact import Inexact
from benchmarks.suite.peers import PEERS
from benchmarks.suite.run import failed, names, run_suite

OURS = [name for name in PEERS if "txstorm" in name]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks chosen; return the exit code: 1 if a figure is missed or a count is wrong."""
    asked = _parser().parse_args(arguments)
    wanted = [*asked.names, *(asked.only or [])]
    unknown = set(wanted) - set(names())
    if unknown:
        _say(f"nothing is called {', '.join(sorted(unknown))}; there are: {' '.join(names())}")
        return 2
    sides = {name for one in asked.sides or [] for name in one.split(",")}
    sides = {name for side in sides for name in (OURS if side == "ours" else [side])}
    if sides - {*PEERS}:
        _say(f"no side is called {', '.join(sorted(sides - {*PEERS}))}; there are: ours {' '.join(PEERS)}")
        return 2
    try:
        report = run_suite(wanted, asked.rounds, _say, quick=asked.quick, engine=asked.engine, sides=sides)
    except Inexact as error:
        _say(f"INEXACT: {error}")
        return 1
    if asked.json is not None:
        report.write_json(asked.json)
    if asked.out is not None:
        _say(f"written: {report.write_page(asked.out)}")
    print(report.text())
    return int(failed(report.lines))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench", description="Speed and memory of txstorm, beside its peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to measure: {' '.join(names())}")
    parser.add_argument("--quick", action="store_true", help="small sizes and three rounds: under five minutes")
    parser.add_argument("--rounds", type=int, help="number of measured rounds (5; with --quick 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, one JSON record a line")
    parser.add_argument("--out", type=Path, metavar="DIRECTORY", help="write a page with plots, and the records, there")
    parser.add_argument("--only", action="append", metavar="NAME", help="same as NAME; repeatable")
    parser.add_argument(
        "--sides", action="append", metavar="SIDE,…", help="only these sides; ours: txstorm on every engine; repeatable"
    )
    parser.add_argument(
        "--engine", choices=("spark", "local"), default="spark", help="engine of txstorm; local is for trials"
    )
    return parser


def _terminated(*_: Any) -> NoReturn:
    """Handle SIGTERM: leave every ``with`` block, as Ctrl-C does, so that all sides are ended."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
