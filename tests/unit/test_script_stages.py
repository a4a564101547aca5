"""Stages of scripts: all are run and reported with their own processor seconds, whichever fails."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SCRIPT = """#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "$0")/_env.sh"
adopt "$@"
burn() {
    echo "$1 burns"
    python3 -c "import time
while time.process_time() < $1: pass"
    return "$2"
}
stage first burn 0.1 0
beside other burn 2.1 3
stage second burn 1.1 1
stage third burn 0.1 0
finish
"""
OUTCOMES = [("first", "ok", 0), ("other", "FAILED", 2), ("second", "FAILED", 1), ("third", "ok", 0)]


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor seconds are read from /proc")
def test_all_stages_are_reported_with_their_processor_seconds_though_some_fail(tmp_path: Path):
    (tmp_path / "scripts").mkdir()
    for name in ("_env.sh", "_adopter.py"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    (tmp_path / "scripts" / "stages").write_text(SCRIPT)
    (tmp_path / "scripts" / "stages").chmod(0o755)
    made = subprocess.run([tmp_path / "scripts" / "stages"], capture_output=True, text=True, timeout=200, check=False)
    assert made.returncode == 1, made.stderr
    *_, reports = made.stdout.partition("== all stages: ")
    total, *lines, failed = reports.splitlines()
    assert failed == "== failed: other second"
    stages = [re.fullmatch(r"   (\w+): (\w+) \(\d+ s, (\d+) processor s\)", line).groups() for line in lines]
    assert [stage[:2] for stage in stages] == [stage[:2] for stage in OUTCOMES]
    for (*_, seconds), (*_, expected) in zip(stages, OUTCOMES, strict=True):
        assert expected <= int(seconds) <= expected + 1  # of the interpreter's start, and rounded
    assert int(re.search(r"(\d+) processor s", total)[1]) >= 3
    assert made.stdout.index("== second\n1.1 burns\n") < made.stdout.index("== other\n2.1 burns\n")
