"""The distribution of tests over pytest's workers, in runs whose tests kill their worker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
CONFTEST = (
    "from spread import Spread\n\ndef pytest_configure(config):\n    config.pluginmanager.register(Spread(config))\n"
)
PASSES = "def test_passes():\n    pass\n"
CRASHES = "import os, signal\n\ndef test_crashes():\n    {}\n"
KILLED, EXITS = (CRASHES.format(how) for how in ("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"))
SERVED = "import pytest\n\n@pytest.mark.parametrize('server', ['redis', 'kafka', 'topic'])\ndef test_served(server):\n    {}\n"
LIMITED = "import pytest\n\n@pytest.mark.long\ndef test_long(request):\n    {}\n".format(
    "assert request.node.get_closest_marker('timeout').args[0] >= 3600"
)
RUNS = {
    "the last test of all, beside a long one": ([LIMITED, PASSES, PASSES + KILLED], 1, 3),
    "one test of each worker": ([EXITS, KILLED, *[PASSES] * 3], 2, 3),
    "a test of the servers": (
        [SERVED.format("if server == 'kafka':\n        __import__('os')._exit(0)"), PASSES],
        1,
        3,
    ),
}
"""By what crashes: the files of a run, the tests that crash, and those that pass."""


@pytest.mark.integration
@pytest.mark.parametrize("what", RUNS)
def test_a_run_ends_with_all_other_tests_after_a_worker_has_crashed(tmp_path: Path, what: str):
    files, crashed, passed = RUNS[what]
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {HELPERS}\nmarkers = long\n")
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    options = "-n 2 --dist loadfile --no-loadscope-reorder -p no:hypothesispytest".split()
    command = [sys.executable, "-m", "pytest", *options]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert re.search(f"= {crashed} failed, {passed} passed in ", made.stdout), made.stdout
    assert len(re.findall("^worker 'gw[0-9]+' crashed while running 'test_", made.stdout, re.MULTILINE)) == crashed
    assert made.returncode == 1
