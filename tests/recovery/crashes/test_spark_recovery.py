"""Crash tests on Spark: a sample of the fault points, and kills of the JVM and its Python workers, and its writer of tables."""

import json
import signal
from collections import Counter

import pytest
from programs import loaded
from recovery_cases import (
    check,
    check_tiling,
    ends,
    environment,
    eventually,
    fails,
    finish,
    killed,
    last_decided,
    long_if,
    open_books,
    reaches,
    sums,
)
from scenarios.spark_writer import count
from scenarios.words import TXIDS
from servers.family import members
from watched import Endless

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.operations.rewind import rewind
from txstorm.results.read import read_sink, read_state

pytestmark = [pytest.mark.spark, pytest.mark.integration]


CELLS = (
    ("p1.after:kill:2", "memory", "local"),
    ("p2.after:kill:3", "opaque", "local"),
    ("p4.before:kill:2", "file", "local"),
    ("p5.staged.after:kill:5", "memory", "spark"),
    ("p6.before:kill:2", "opaque", "local"),
    ("p6.after:kill:3", "file", "local"),
    ("p6.after:kill:3", "file", "spark"),
    ("p7.2.written:kill:2", "memory", "local"),
    ("p8.before:kill:3", "file", "local"),
)
"""(fault, spout, engine of the restart): each starts Spark once or twice; test_crash_grid.py passes all points."""


@pytest.mark.parametrize(("fault", "spout", "again"), long_if(lambda *cell: cell != CELLS[5], CELLS))
def test_killed_on_spark_and_started_again(ends_as_undisturbed, data_dir, fault, spout, again):
    argv = [data_dir, "--spout", spout]
    killed(fault, *argv, "--engine", "spark")

    ends_as_undisturbed(*argv, extra=["--engine", again])


@pytest.mark.long
def test_repeated_worker_deaths_end_the_run_and_the_next_start_continues(ends_as_undisturbed, data_dir):
    """If every Python worker dies at the same fault point, the run ends; the next start recovers and continues."""
    argv = [data_dir, "--spout", "file"]
    output = fails(*argv, "--engine", "spark", fault="p3.after:kill:1")
    assert "txid 1" in output
    assert "worker" in output
    ends_as_undisturbed(*argv)


@pytest.fixture
def child(watch):
    """Return a driver script on Spark in a session of its own, which has committed a few transactions."""
    arguments = ["endless", watch.data_dir, watch.diary.path, "spark"]
    made = loaded().start("-m", "scenarios", *arguments, env=environment(), merged=True, session=True)
    return reaches(made, lambda: len(watch.diary.of("commit")) > 5)


def go_on(watch):
    with open_books(watch.data_dir) as books:
        assert books.ledger.holder() is None
    until = last_decided(watch.data_dir) + 4
    watch.ends(Endless(), until_txid=until)
    check_tiling(watch.data_dir, until)
    assert sums(watch.data_dir) == dict.fromkeys(range(1, 2 * until + 1), 1)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_jvm_and_its_workers_end_with_their_driver(watch, child, how):
    commands = [one.command for one in members(child.pid)]
    assert any("java" in line for line in commands)
    assert any("spark_daemon" in line or "pyspark.daemon" in line for line in commands)

    child.send_signal(how)
    status, output = finish(child)
    assert status == -how, output
    eventually(lambda: members(child.pid) == [])
    go_on(watch)


def test_a_jvm_that_dies_ends_the_run_and_the_next_start_goes_on(watch, child):
    (java,) = [one for one in members(child.pid) if "/java " in one.command]
    assert java.kill()
    status, output = finish(child)
    assert status == 1, output
    assert "txstorm.errors.SessionLost: the Spark session has ended" in output
    go_on(watch)


@pytest.mark.long
def test_files_written_by_workers_of_a_killed_driver_are_swept(data_dir):
    argv = [data_dir, "--set", "spill_bytes=0"]
    killed("p5.before:kill:2", *argv, "--engine", "spark")
    spilled = next((data_dir / "spill").iterdir())
    spilled.with_name(f"{spilled.stem}0.arrow").write_bytes(b"half a file")

    ends(*argv)
    check(data_dir, TXIDS)  # which says that nothing is left there


def by_spark(data_dir, uri):
    """Return the txids of the groups that Spark has published to the table, in the order of its log."""
    entries = sorted((data_dir / uri / "_delta_log").glob("*.json"))
    infos = [json.loads(line)["commitInfo"] for entry in entries for line in entry.read_text().splitlines()[:1]]
    metadata = [json.loads(info["userMetadata"]) for info in infos if "Apache-Spark" in info.get("engineInfo", "")]
    return [one["txstorm"]["last"] for one in metadata]


def check_content(data_dir, parts):
    counts = read_state(data_dir, "counts").to_pylist()
    assert {row["word"]: row["n"] for row in counts} == Counter(word for part in parts for word in part.split("-"))
    rows = sorted((row["_txid"], row["words"]) for row in read_sink(data_dir, "all").to_pylist())
    assert rows == list(enumerate(parts, 1))


@pytest.mark.long
def test_killed_before_spark_answers_and_gone_on_with_by_the_other_writer(spark, data_dir):
    parts, jars = ["a-b", "a-c", "d-a"], spark.conf.get("spark.jars")
    killed("p7.1.written:kill:2", data_dir, "spark", jars, *parts, scenario="spark-writer")
    assert by_spark(data_dir, "changes/counts") == [1, 2]
    count(data_dir, "deltalake", parts)
    check_tiling(data_dir, len(parts))
    check_content(data_dir, parts)
    assert by_spark(data_dir, "changes/counts") == [1, 2]


def test_an_opaque_replay_with_other_content_after_a_crash(spark, data_dir):
    """A staged but undecided txid is replayed after a crash with other rows: only the new rows are published."""
    killed("p6.before:kill:2", data_dir, "deltalake", "", "a-b", "a-c", "d-a", scenario="spark-writer")
    assert list((data_dir / "changes/counts/_txstorm/staged").glob("*-2-*.parquet"))
    parts = ["a-b", "x-y-a", "d-a"]
    count(data_dir, "spark", parts)
    check_tiling(data_dir, len(parts))
    check_content(data_dir, parts)
    assert by_spark(data_dir, "changes/counts") == by_spark(data_dir, "sinks/all") == [2, 3]
    assert DeltaHandle.open(data_dir / "changes/counts").read()["_txid"].to_pylist().count(2) == 3


@pytest.mark.long
def test_a_rewind_of_what_spark_has_written(spark, data_dir):
    count(data_dir, "spark", ["a-b", "a-c"])
    rewind(data_dir, 1)
    parts = ["a-b", "d"]
    count(data_dir, "spark", parts)
    check_content(data_dir, parts)
    assert by_spark(data_dir, "changes/counts") == [1, 2, 2]
