"""Demo: correct counts, even after a kill; printed output; and protection of directories that are not its own."""

import json
import os
import re
import shlex
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from commands import printed_by, run_program
from programs import loaded
from shared_session import run_here
from verifier import Verifier

from jobs.demo import FINISHED, main
from txstorm.books.data_directory import ledger_exists
from txstorm.results.views import StateView, committed_txid

ROOT = Path(__file__).resolve().parents[2]
BIBLE = ROOT / "jobs" / "data" / "bible.txt"
WORDS = 789_684
TXIDS = 41
SPARK = [pytest.mark.spark, pytest.mark.slow]
SLOWED = """
import sys, jobs.demo, jobs.word_count
jobs.demo.topology = lambda: jobs.word_count.topology().with_settings({"min_interval": 0.5})
sys.exit(jobs.demo.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def expected() -> Counter[str]:
    """Return the expected word counts of the Bible, computed in plain Python."""
    return Counter(re.findall(r"[a-z']+", BIBLE.read_text(encoding="utf-8").lower()))


def top(counts: Counter[str]) -> list[list[Any]]:
    return [[word, n] for word, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10]]


def stored(data_dir: Path, txid: int | None = None) -> dict[str, int]:
    return {row["word"]: row["n"] for row in StateView(data_dir, "counts", txid).to_pylist()}


def verified(data_dir: Path) -> dict[str, int]:
    """Verify the logs and files of a data directory independently of txstorm; return its word counts."""
    verifier = Verifier(data_dir)
    verifier.check_logs(["changes/counts"], ["state/counts"])
    verifier.assert_clean()
    assert verifier.txids == TXIDS
    return {row["word"]: row["n"] for row in verifier.table("state/counts").to_pylist()}


def demo(*argv: Any, fault: str = "", cwd: Path = ROOT) -> CompletedProcess[str]:
    """Run the demo as `scripts/demo` does; `fault` is a fault point at which it fails, if any.

    On Spark it uses the shared session, unless it is to be killed.
    """
    if "spark" in argv and not fault:
        return run_here("-m", "jobs.demo", *argv, cwd=cwd)
    return run_program("-m", "jobs.demo", *argv, cwd=cwd, env={"TXSTORM_FAULT": fault})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompletedProcess[str]]:
    """Return the directory and the output of a demo that was run to completion on the local engine."""
    home = tmp_path_factory.mktemp("finished")
    return home, demo("--engine", "local", cwd=home)


@pytest.fixture
def again(finished: tuple[Path, Any], tmp_path: Path) -> Path:
    """Return a copy of the finished demo's data directory."""
    return shutil.copytree(finished[0] / "txstorm-data" / "demo", tmp_path / "txstorm-data" / "demo")


def last_line(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[*SPARK, pytest.mark.long])])
def test_a_finished_demo_starts_over_unless_keep_is_given(engine: str, expected: Counter[str], again: Path):
    """The counts of a complete run equal those of plain Python."""
    ends = [demo("--json", "--data-dir", again, "--engine", engine, *keep) for keep in (["--keep"], [], ["--keep"])]
    assert [done.returncode for done in ends] == [0, 0, 0], [done.stderr for done in ends]
    kept, document, kept_again = map(last_line, ends)
    assert (kept["txids"], kept_again["txids"]) == (0, 0)
    assert expected.total() == WORDS
    assert stored(again) == dict(expected)
    assert isinstance(document.pop("seconds"), float)
    lines = len(BIBLE.read_text().splitlines())
    assert document.pop("tuples") > WORDS + lines
    numbers = {"committed_txid": TXIDS, "txids": TXIDS, "input_rows": lines, "replays": 0, "dead_letters": 0}
    places = {"state": {"counts": str(again / "state" / "counts")}, "sinks": {}}
    shown = {"topology": "word-count", "engine": engine, "silent": [], "top": top(expected)}
    assert document == {**shown, **numbers, **places}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("first_engine", "engine", "point"),
    [
        pytest.param("local", "local", "p7.1.before", marks=pytest.mark.long),
        ("local", "local", "p7.1.written"),
        pytest.param("local", "spark", "p7.1.written", marks=SPARK),
        pytest.param("spark", "spark", "p7.1.written", marks=[*SPARK, pytest.mark.long]),
    ],
)
def test_a_killed_demo_continues_after_its_last_commit(first_engine, engine, point, expected, tmp_path):
    first = demo("--json", "--data-dir", tmp_path / "data", "--engine", first_engine, fault=f"{point}:kill:2")
    assert first.returncode == -signal.SIGKILL
    committed = committed_txid(tmp_path / "data")
    assert 0 < committed < TXIDS
    second = demo("--json", "--data-dir", tmp_path / "data", "--engine", engine)
    assert second.returncode == 0, second.stderr
    document = last_line(second)
    assert document["committed_txid"] == TXIDS
    # Transactions that were decided before the kill are published at the start and not processed again.
    assert 0 < document["txids"] < TXIDS - committed
    assert document["top"] == top(expected)
    assert stored(tmp_path / "data") == verified(tmp_path / "data") == dict(expected)


@pytest.mark.integration
def test_a_demo_killed_after_its_last_commit_still_shows_the_result(expected: Counter[str], tmp_path: Path):
    first = demo("--data-dir", tmp_path / "data", "--engine", "local", fault="sweep.before:kill:1")
    assert first.returncode == -signal.SIGKILL
    assert committed_txid(tmp_path / "data") == TXIDS
    document = last_line(demo("--json", "--data-dir", tmp_path / "data", "--engine", "local"))
    assert (document["committed_txid"], document["txids"], document["tuples"]) == (TXIDS, 0, 0)
    assert document["top"] == top(expected)


@pytest.mark.integration
def test_an_interrupted_demo_exits_with_130_and_can_continue(expected: Counter[str], tmp_path: Path):
    data_dir = tmp_path / "data"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = loaded().start("-c", SLOWED, "--json", "--engine", "local", "--data-dir", data_dir, env=environment)
    while child.poll() is None and not (ledger_exists(data_dir) and committed_txid(data_dir)):
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 130
    assert json.loads(output.splitlines()[-1])["error"]["exit_code"] == 130
    assert 0 < committed_txid(data_dir) < TXIDS
    assert last_line(demo("--json", "--data-dir", data_dir, "--engine", "local"))["top"] == top(expected)


@pytest.mark.integration
def test_a_demo_killed_while_emptying_its_directory_starts_over(again: Path, tmp_path: Path):
    for name in ("ledger.db", "format.json"):
        (again / name).unlink()
    assert (again / FINISHED).exists()
    assert last_line(demo("--json", "--engine", "local", cwd=tmp_path))["txids"] == TXIDS


def test_a_foreign_directory_is_rejected_and_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_text("x")
    assert main(["--json", "--engine", "local", "--data-dir", str(tmp_path)]) == 2
    error = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert error["type"] == "DataDirectoryError"
    assert str(tmp_path) in error["message"]
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "one.jpg"]


@pytest.mark.parametrize("argument", ["--engine=storm", "--jsno", "extra"])
def test_invalid_arguments_exit_with_code_2(argument: str, in_tmp: Path, capsys: Any):
    assert main(["--json", argument]) == 2
    assert argument.removeprefix("--engine=") in json.loads(capsys.readouterr().out)["error"]["message"]
    assert list(in_tmp.iterdir()) == []


@pytest.mark.integration
def test_the_demo_prints_its_result_and_valid_commands(expected: Counter[str], finished: Any):
    home, done = finished
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    printed = [line.split() for line in lines[2:12]]
    assert [[word, int(n.replace(",", ""))] for word, n in printed] == top(expected)
    assert f"{WORDS:,} words" in lines[0]
    assert f"Committed txid {TXIDS}. This run: {TXIDS} transactions with {WORDS:,} words" in done.stdout
    commands = [shlex.split(line, comments=True) for line in lines if "txstorm " in line]
    assert [command[1] for command in commands] == ["state", "state", "history"]
    for _, *arguments in commands:
        assert printed_by("-m", "txstorm", *arguments, cwd=home)
