"""Budget of one transaction: how much of txstorm the driver's process enters for it."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = {"functions": 477, "files": 87, "calls": 1023}
"""Lower them when a step falls away; the count is the same in every run."""


def test_a_transaction_stays_within_its_budget():
    command = [sys.executable, "-m", "benchmarks.transaction_trace", "--figures"]  # threads of its own, all traced
    figures = json.loads(subprocess.check_output(command, cwd=ROOT).splitlines()[-1])
    assert {name: figures[name] for name, most in MOST.items() if figures[name] > most} == {}
