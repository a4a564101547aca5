"""The distribution of tests, also if a worker is killed, and the shared Spark session: what a program leaves is undone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from java_processes import kind_of
from shared_session import Surroundings, run_here
from spread import group

LEAVES = {
    "configuration": (
        "spark.conf.set('spark.sql.shuffle.partitions', '7')",
        "spark.sql.shuffle.partitions was '2' and",
    ),
    "view": ("spark.range(3).createOrReplaceTempView('left')", "temporary views: was [], is ['left']"),
    "stream": (
        "spark.readStream.format('rate').load().writeStream.format('memory').queryName('left').start()",
        "streaming queries: was [], is ['",
    ),
    "path": ("sys.path.append('/left')", "sys.path"),
    "environment": ("os.environ['LEFT'] = '1'", "LEFT was None and is '1'"),
    "directory": ("os.chdir('/')", "current directory"),
    "module": ("import left_module", "modules"),
}
PROGRAM = "import os, sys\nfrom pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"


@pytest.mark.spark
@pytest.mark.parametrize("what", LEAVES)
def test_a_program_that_leaves_something_behind_fails_and_it_is_undone(spark, tmp_path: Path, what: str):
    code, message = LEAVES[what]
    (tmp_path / "left_module.py").write_text("")
    before = Surroundings.now()
    with pytest.raises(AssertionError) as failed:
        run_here("-c", PROGRAM + code, cwd=tmp_path)
    assert message in str(failed.value)
    assert before.changes() == []


@pytest.mark.spark
def test_a_program_meets_the_session_and_its_directory(spark, tmp_path: Path):
    (tmp_path / "lines.txt").write_text("a\nb\n")
    code = "print(spark.sparkContext.applicationId, spark.read.text('lines.txt').count(), sys.argv[1:])"
    done = run_here("-c", f"{PROGRAM}{code}\nsys.exit('over')", "x", cwd=tmp_path)
    assert done.stdout == f"{spark.sparkContext.applicationId} 2 ['x']\n"
    assert (done.returncode, done.stderr) == (1, "over\n")


def test_processes_of_java_are_told_apart_by_their_command():
    assert kind_of(["/usr/bin/java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit", "a.py"]) == "spark"
    assert kind_of(["java", "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"]) == "other"
    assert kind_of(["java", "org.apache.spark.executor.CoarseGrainedExecutorBackend"]) == "spark"
    assert kind_of(["java", "kafka.Kafka", "server.properties"]) == "server"
    assert kind_of([sys.executable, "kafka.Kafka"]) is None


def test_tests_of_one_server_or_session_are_one_group(request: pytest.FixtureRequest):
    groups = {item.name: group(item) for item in request.session.items if item.path == Path(__file__)}
    assert groups[request.node.name] is None
    assert all(mine == "spark" for name, mine in groups.items() if "program" in name)


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
