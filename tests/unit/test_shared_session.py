"""The distribution of tests and the shared Spark session: what a program leaves behind is found and undone."""

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
