"""Crash tests on Spark: a sample of the fault points, and kills of the JVM and its Python workers."""

from __future__ import annotations

import os
import signal

import pytest
from recovery_cases import (
    check,
    check_tiling,
    command,
    descendants,
    ends,
    eventually,
    fails,
    finish,
    killed,
    open_books,
    start,
    sums,
)
from scenarios.words import TXIDS
from watched import Diary, Endless, watched_topology

from txstorm import run

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.mark.parametrize(
    ("fault", "spout", "again"),
    [
        # Each starts Spark once or twice; the local engine passes all points in test_crash_grid.
        pytest.param("p1.after:kill:2", "memory", "local", marks=pytest.mark.long),
        pytest.param("p2.after:kill:3", "opaque", "local", marks=pytest.mark.long),
        pytest.param("p4.before:kill:2", "file", "local", marks=pytest.mark.long),
        pytest.param("p5.staged.after:kill:5", "memory", "spark", marks=pytest.mark.long),
        pytest.param("p6.before:kill:2", "opaque", "local", marks=pytest.mark.long),
        ("p6.after:kill:3", "file", "local"),
        pytest.param("p6.after:kill:3", "file", "spark", marks=pytest.mark.long),
        pytest.param("p7.2.written:kill:2", "memory", "local", marks=pytest.mark.long),
        pytest.param("p8.before:kill:3", "file", "local", marks=pytest.mark.long),
    ],
)
def test_killed_on_spark_and_started_again(ends_as_undisturbed, place, fault, spout, again):
    argv = [place / "data", "--spout", spout]
    killed(fault, *argv, "--engine", "spark")

    ends_as_undisturbed(*argv, extra=["--engine", again])


@pytest.mark.long
def test_repeated_worker_deaths_end_the_run_and_the_next_start_continues(ends_as_undisturbed, place):
    """If every Python worker dies at the same fault point, the run ends; the next start recovers and continues."""
    argv = [place / "data", "--spout", "file"]
    output = fails(*argv, "--engine", "spark", fault="p3.after:kill:1")
    assert "txid 1" in output
    assert "worker" in output
    ends_as_undisturbed(*argv)


def go_on(data_dir, diary):
    with open_books(data_dir) as books:
        assert books.ledger.holder() is None
        until = max([books.currtx(), *(intent.last for intent in books.live_intents())]) + 3
    run(watched_topology(Endless(), diary), engine="local", data_dir=data_dir, until_txid=until).awaitTermination()
    check_tiling(data_dir, until)
    assert sums(data_dir) == dict.fromkeys(range(1, 2 * until + 1), 1)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_jvm_and_its_workers_end_with_their_driver(place, how):
    diary = Diary(place / "diary")
    child = start("endless", place / "data", diary.path, "spark")
    eventually(lambda: len(diary.of("commit")) > 5 or child.poll() is not None)
    assert child.poll() is None, child.printed
    below = descendants(child.pid)
    assert any("java" in line for line in below.values())
    assert any("spark_daemon" in line or "pyspark.daemon" in line for line in below.values())

    child.send_signal(how)
    status, output = finish(child)
    assert status == -how, output
    eventually(lambda: {pid: line for pid, line in below.items() if command(pid) == line} == {})

    go_on(place / "data", diary)


def test_a_jvm_that_dies_ends_the_run_and_the_next_start_goes_on(place):
    diary = Diary(place / "diary")
    child = start("endless", place / "data", diary.path, "spark")
    eventually(lambda: len(diary.of("commit")) > 5 or child.poll() is not None)
    (java,) = [pid for pid, line in descendants(child.pid).items() if "/java " in line]
    os.kill(java, signal.SIGKILL)
    status, output = finish(child)
    assert status == 1, output
    assert "txstorm.errors.SessionLost: the Spark session has ended" in output
    go_on(place / "data", diary)


@pytest.mark.long
def test_files_written_by_workers_of_a_killed_driver_are_swept(place):
    """Committer input files written by workers after their driver was killed are removed as unreferenced."""
    argv = [place / "data", "--set", "spill_bytes=0"]
    killed("p5.before:kill:2", *argv, "--engine", "spark")
    assert list((place / "data" / "spill").iterdir())
    (place / "data" / "spill" / "late.arrow").write_bytes(b"half a file")

    ends(*argv)
    check(place / "data", TXIDS)  # which says that nothing is left there
