"""Scenarios: programs that tests run, kill, freeze or fence: ``python -m scenarios NAME ARGUMENT…``.

Each scenario is a function of its arguments, which are text as on a command line; what it returns is printed as a line of
JSON. A process loads only the module of its own scenario, unless it is forked from one that has those of most crash
tests loaded (`programs.loaded`). `recovery_cases.start` starts one; `killed`, `ends`, `fails` and `stands` beside it
say how it has to go.

Topologies for ``txstorm run`` are in the modules of their scenarios, such as ``scenarios.grid:from_source(…)``.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

SCENARIOS = {
    # topologies that run to the end of their input
    "words": "scenarios.words:main",
    "grid": "scenarios.grid:main",
    "own_kind": "scenarios.own_kind:main",
    "stateful": "scenarios.stateful:main",
    "shelf": "scenarios.shelf:watch",
    "restored": "snapshot_runs:main",
    "donated": "snapshot_runs:donated",
    "spark-writer": "scenarios.spark_writer:main",
    "cluster": "scenarios.cluster:main",
    "streamed": "scenarios.streamed:main",
    "redefined": "scenarios.redefined:main",
    "dropped": "scenarios.dropped:main",
    # topologies that run until they are stopped
    "endless": "scenarios.endless:endless",
    "lag": "scenarios.endless:count_kinds",
    "life": "scenarios.endless:live",
    # many runs, on disks that fail
    "failing-disk": "scenarios.disk:failing",
    "broken-disk": "scenarios.disk:broken",
    # parts of a coordinator
    "kafka-outlet": "scenarios.fencing:send_groups",
    "ledger-sweep": "scenarios.fencing:sweep_frozen",
    "late-put": "scenarios.fencing:put_late",
    "upkeep": "upkeep_cases:main",
    "index": "index_cases:main",
}
"""Name → module and function."""


def scenario(name: str) -> Callable[..., Any]:
    module, _, function = SCENARIOS[name].partition(":")
    return getattr(importlib.import_module(module), function)


def run(name: str, *arguments: str) -> None:
    """Run a scenario and print its result, in one write, as several processes may print to one file."""
    result = scenario(name)(*arguments)
    if result is not None:
        sys.stdout.flush()
        os.write(1, json.dumps(result).encode() + b"\n")
