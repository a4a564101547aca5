"""``python -m benchmarks``: measure, print tables with targets and verdicts. Ends with 0 whatever the figures are."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks import cases
from benchmarks.cases import Bench, Figure
from benchmarks.kafka import kafka
from benchmarks.report import machine_line, tables

# The last ones start processes of their own, Spark included.
CASES = {**cases.CASES, "kafka": kafka}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks the command line asks for."""
    asked = _parser().parse_args(arguments)
    names = asked.only or [name for name in CASES if asked.engine == "spark" or name in cases.CASES]
    session = _session() if asked.engine == "spark" and set(names) & set(cases.CASES) else None
    try:
        figures, bench, about = _measure(asked, names, session)
    finally:
        if session is not None:
            session.stop()
    print(f"\n{about}\n\n{tables(figures, bench.drifts)}")
    if asked.json is not None:
        document = {"about": about, "drifts": bench.drifts, "figures": [one.plain() for one in figures]}
        asked.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description="Speed and memory of txstorm, each with its peer."
    )
    parser.add_argument("--quick", action="store_true", help="one small round of everything: shows the shape only")
    parser.add_argument("--only", action="append", choices=sorted(CASES), help="a case; may be given again")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--rounds", type=int, help="rounds that count, of each case (3, with --quick 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    return parser


def _session() -> Any:
    from txstorm.clients.spark import make_session

    return make_session("txstorm benchmarks")


def _measure(asked: argparse.Namespace, names: Collection[str], session: Any) -> tuple[list[Figure], Bench, str]:
    rounds = asked.rounds or (1 if asked.quick else 3)
    bench = Bench(asked.engine, session, asked.quick, rounds, lambda text: print(text, file=sys.stderr, flush=True))
    about = machine_line(_described(bench) if session is not None else {"engine": asked.engine})
    figures: list[Figure] = []
    for name, case in CASES.items():
        if name in names:
            figures += case(bench)
    return figures, bench, about


def _described(bench: Bench) -> Any:
    engine = bench.engines()()
    try:
        return engine.describe()
    finally:
        engine.close()


if __name__ == "__main__":
    sys.exit(main())
