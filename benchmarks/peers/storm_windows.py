"""Storm 1.2.4: sums of sliding windows by two windowed bolts with acking, in a LocalCluster; one JVM for each run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.peers.storm_cluster import NAMES, java
from benchmarks.sensor_events import LAG_MS, LENGTH_MS, SLIDE_MS, events
from benchmarks.suite.serve import serve_lines

PENDING = 400_000
"""Tuples that wait for acks at most: tuples are acked when they leave their last window, so all of them must fit."""
PATIENCE = 900


def run(line: str, home: Path) -> str:
    """Run the sliding sum over the events of a request; return its speed and the sums as JSON."""
    count = int(json.loads(line)["count"])
    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as directory:
        place = Path(directory)
        np.column_stack(events(0, count)).astype("<i8").tofile(place / "events.bin")
        (place / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in NAMES))
        numbers = map(str, (LENGTH_MS, SLIDE_MS, LAG_MS, PENDING, count // 5))
        command = [*java(home, place, "6g"), "SlidingSum", str(place / "events.bin"), *numbers]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=PATIENCE, check=False)
    sys.stderr.write(done.stderr[-4000:])
    found = [one.split()[1:] for one in done.stdout.splitlines() if one.startswith("RESULT ")]
    if not found:
        msg = f"ended with code {done.returncode} and no result: {done.stderr.strip()[-500:]}"
        raise RuntimeError(msg)
    (tuples, seconds, cpu), sums = map(float, found[0][:3]), [one.split(":") for one in found[0][3:]]
    pairs = [(int(end), int(total)) for end, total in sums]
    return json.dumps({"tuples/s": tuples / seconds, "tuples/CPU s": tuples / cpu, "sums": pairs})


if __name__ == "__main__":
    serve_lines(lambda line: run(line, Path(sys.argv[1]).resolve()))
