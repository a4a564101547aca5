"""Simulated worlds as killers of mutants; everything here uses the public names of `txstorm.simulation` only.

As a program, for a changed copy of the package: ``worlds RECORDED SCHEDULES SEED`` prints the violation, if any.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from txstorm.simulation import Schedule, shrunk, simulate, trace

VIOLATION = "-- VIOLATION of "


def played(recorded: Mapping[str, Any]) -> str:
    """Play a recorded schedule; return the violation, or nothing, also if today's worlds have other choices."""
    try:
        schedule = Schedule.from_json(recorded)
    except (KeyError, TypeError, ValueError):
        return ""
    last = trace(schedule)[-1]
    return last.removeprefix(VIOLATION) if last.startswith(VIOLATION) else ""


def searched(schedules: int, seed: int) -> tuple[dict[str, Any], str] | None:
    """Return the first of `schedules` schedules of `seed` that violates an invariant, and the violation."""
    found = simulate(schedules, seed, stop_at=1).found
    return (found[0].schedule.to_json(), found[0].what) if found else None


def shrunken(schedules: int, seed: int) -> tuple[dict[str, Any], str] | None:
    """Return, as `searched`, the smallest schedule that still shows the violation."""
    found = simulate(schedules, seed, stop_at=1).found
    small = [shrunk(one) for one in found]
    return (small[0].schedule.to_json(), small[0].what) if small else None


if __name__ == "__main__":
    recorded, schedules, seed = json.loads(sys.argv[1]), *map(int, sys.argv[2:])
    violation = played(recorded) if recorded else ""
    found = None if violation else searched(schedules, seed)
    print(violation or (found[1] if found else ""))
