"""``txstorm simulate``."""

from __future__ import annotations

from typing import Annotated

import typer

from txstorm.cli.options import Json


def simulate(
    schedules: Annotated[int, typer.Option("--schedules", help="How many simulated worlds to run.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Where all of them come from.")] = 0,
    processes: Annotated[int, typer.Option("--processes", help="How many run at once; changes no result.")] = 1,
    first: Annotated[int, typer.Option("--first", help="The first one's number, to go on from an earlier call.")] = 0,
    json: Json = False,
) -> int:
    """Run the shipped protocol in simulated worlds that fail in every way, and check that exactly once holds.

    Exit code 0 when no invariant was broken, else 1; then the smallest schedules that still break one are told.
    """
    from txstorm.cli.output import print_json, stderr
    from txstorm.testing.simulation import simulate as run
    from txstorm.testing.simulation import story
    from txstorm.testing.simulation.search import STORIES

    report = run(schedules, seed, processes, first)
    for found in report.found[:STORIES]:
        stderr().print(story(found), markup=False, highlight=False, soft_wrap=True)
    if json:
        print_json(report.to_json())
    else:
        print(_text(report.to_json()))
    return 1 if report.found else 0


def _text(found: dict[str, object]) -> str:
    faults = found.pop("faults")
    assert isinstance(faults, dict)
    width = max(map(len, faults))
    lines = [f"{name}: {value}" for name, value in found.items()]
    return "\n".join([*lines, "faults:", *(f"  {kind:{width}}  {count}" for kind, count in faults.items())])
