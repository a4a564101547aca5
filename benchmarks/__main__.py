"""``python -m benchmarks``: the suite with its peers and figures, or, by ``--only``, single cases without them."""

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
from benchmarks.suite import run as suite
from benchmarks.suite.exact import Inexact

# The last ones start processes of their own, Spark included.
CASES = {**cases.CASES, "kafka": kafka}


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 1 when the suite misses a figure."""
    asked = _parser().parse_args(arguments)
    unknown = set(asked.names) - {*suite.names(), *CASES}
    if unknown:
        print(f"nothing is called {', '.join(sorted(unknown))}; there are: {' '.join(known())}", file=sys.stderr)
        return 2
    only = [*(asked.only or []), *(name for name in asked.names if name not in suite.names())]
    if only or asked.engine == "local":
        return _cases(asked, only)
    return _suite(asked)


def known() -> list[str]:
    """Everything that can be named."""
    return list(dict.fromkeys([*suite.names(), *CASES]))


def _suite(asked: argparse.Namespace) -> int:
    try:
        report = suite.run_suite(asked.names, asked.rounds, _say, quick=asked.quick)
    except Inexact as error:
        _say(f"INEXACT: {error}")
        return 1
    if asked.json is not None:
        report.write_json(asked.json)
    if asked.out is not None:
        _say(f"written: {report.write_page(asked.out)}")
    print(report.text())
    return int(suite.failed(report.lines))


def _cases(asked: argparse.Namespace, only: list[str]) -> int:
    names = only or [name for name in CASES if asked.engine == "spark" or name in cases.CASES]
    session = _session() if asked.engine == "spark" and set(names) & set(cases.CASES) else None
    try:
        figures, bench, about = _measure(asked, names, session)
    finally:
        if session is not None:
            session.stop()
    print(f"\n{about}\n\n{tables(figures, bench.drifts)}")
    if asked.json is not None:
        records = [
            {"record": "about", "about": about, "drifts": bench.drifts},
            *({"record": "case", **one.plain()} for one in figures),
        ]
        asked.json.write_text("".join(json.dumps(one) + "\n" for one in records))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench", description="Speed and memory of txstorm, beside its peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to measure: {' '.join(known())}")
    parser.add_argument("--quick", action="store_true", help="small sizes and three rounds: under five minutes")
    parser.add_argument("--rounds", type=int, help="rounds that count (5; with --quick 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, one JSON record a line")
    parser.add_argument("--out", type=Path, metavar="DIRECTORY", help="write a page with plots there")
    parser.add_argument("--only", action="append", choices=sorted(CASES), help="a case, without the suite; repeatable")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark", help="of the cases")
    return parser


def _session() -> Any:
    from txstorm.clients.spark import make_session

    return make_session("txstorm benchmarks")


def _measure(asked: argparse.Namespace, names: Collection[str], session: Any) -> tuple[list[Figure], Bench, str]:
    rounds = asked.rounds or (1 if asked.quick else 3)
    bench = Bench(asked.engine, session, asked.quick, rounds, _say)
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
