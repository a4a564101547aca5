"""Command ``txstorm simulate``: check the protocol in simulated worlds with injected faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from txstorm.cli.options import Json


def simulate(
    schedules: Annotated[int, typer.Option("--schedules", help="Number of simulated worlds to run.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random schedules.")] = 0,
    processes: Annotated[int, typer.Option("--processes", help="Number of processes; does not change the result.")] = 1,
    first: Annotated[int, typer.Option("--first", help="Number of the first world, to continue an earlier call.")] = 0,
    exhaustive: Annotated[
        int,
        typer.Option("--exhaustive", help="Instead: all small worlds with up to N faults, 1 to 3."),
    ] = 0,
    kind: Annotated[
        str,
        typer.Option(
            "--kind", help="Instead: worlds of a whole topology: counts, or MODULE:CLASS with a WorldKind of yours."
        ),
    ] = "",
    json: Json = False,
) -> int:
    """Run the real protocol in simulated worlds with faults of every kind, and check that exactly once holds.

    Exit code 0 if no invariant was broken, else 1; then the smallest schedules that break one are shown.
    """
    from txstorm.cli.output import print_json, stderr
    from txstorm.simulation import searched, story
    from txstorm.simulation import simulate as run
    from txstorm.simulation.search import STORIES

    report = searched(exhaustive) if exhaustive else run(schedules, seed, processes, first, kind=kind)
    for found in report.found[:STORIES]:
        stderr().print(story(found), markup=False, highlight=False, soft_wrap=True)
    if json:
        print_json(report.to_json())
    else:
        print("\n".join(_lines(report.to_json())))
    return 1 if report.found else 0


def _lines(found: Mapping[str, object]) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield f"{name}:"
            width = max(map(len, value))
            yield from (f"  {one:{width}}  {_text(counts)}" for one, counts in value.items())
        else:
            yield f"{name}: {value}"


def _text(counts: object) -> str:
    return ", ".join(f"{kind} {times}" for kind, times in counts.items()) if isinstance(counts, dict) else f"{counts}"
