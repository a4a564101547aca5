"""``python -m txstorm`` as a separate process: signals, exit codes, readers during a live run, and imports."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import Ended, run_program
from programs import Program, loaded

from txstorm.operations.status import read_status
from txstorm.results.views import StateView, committed_txid

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
MODULE = '''
from txstorm import BatchBolt, TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.spouts import MemoryTransactionalSpout
from helper import WORDS


class Echo(BatchBolt):
    """A bolt that runs in the workers."""

    fields = ("word",)

    def prepare(self, context, collector, attempt):
        self.collector = collector

    def execute(self, tuple):
        self.collector.emit(WORDS[tuple["index"]])


def topology(rows=40):
    indexes = [index % len(WORDS) for index in range(rows)]
    builder = TransactionalTopologyBuilder("echo", "source", MemoryTransactionalSpout([indexes], "index", take=2))
    builder.set_bolt("echo", Echo(), 2).shuffle_grouping("source")
    builder.set_committer_bolt("keep", CountByKey("word", table="counts"), 2).fields_grouping("echo", ["word"])
    return builder.build_topology()
'''
HELPER = 'WORDS = ["storm", "spark", "delta"]\n'
LOCAL = ("run", "echo", "--engine", "local")
DATA = Path("txstorm-data/echo")


@pytest.fixture
def project(in_tmp: Path) -> Path:
    """Return the current directory, with user modules that cannot be imported from elsewhere."""
    (in_tmp / "echo.py").write_text(MODULE, encoding="utf-8")
    (in_tmp / "helper.py").write_text(HELPER, encoding="utf-8")
    return in_tmp


pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("project")]


def txstorm(*arguments: str) -> Ended:
    """Run ``txstorm`` in the project directory, which ``-P`` keeps off the import path."""
    done = run_program("-P", "-m", "txstorm", *arguments, timeout=PATIENCE)
    return Ended(done.returncode, done.stdout, done.stderr)


def python(*arguments: str, **environment: str) -> Ended:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def slow_run(txid: int, **environment: str) -> Iterator[Program]:
    """Start a run that takes a while; yield it when it has committed `txid`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    process = loaded().start("-P", "-m", "txstorm", *LOCAL, "--min-interval", "0.2", "--json", env=environment)
    try:
        until = time.monotonic() + PATIENCE
        while committed_txid(DATA) < txid:
            assert time.monotonic() < until
            time.sleep(0.05)
        yield process
    finally:
        process.kill()


def counts() -> dict[str, int]:
    shown = txstorm("state", str(DATA), "counts", "--json")
    assert shown.code == 0, shown
    return {row["word"]: row["n"] for row in shown.json["rows"]}


def check_it_can_continue() -> Ended:
    """Check that a run to the end of the input succeeds, after which every word is counted once; return how it ended."""
    ended = txstorm(*LOCAL, "--available-now", "--json")
    assert ended.code == 0, ended.err
    assert counts() == {"storm": 14, "spark": 13, "delta": 13}
    return ended


def test_a_module_of_the_current_directory_runs_and_continues():
    first = python("-P", "-m", "txstorm", *LOCAL, "--until-txid", "3", "--json")
    assert (first.code, first.json["committed_txid"]) == (0, 3), first
    assert counts() == {"storm": 2, "spark": 2, "delta": 2}
    rest = check_it_can_continue().json
    assert (rest["committed_txid"], rest["txids"]) == (20, 17)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_ended_by_a_signal_stops_cleanly_and_can_continue(number: int):
    with slow_run(2) as process:
        process.send_signal(number)
        ended = Ended(0, *process.communicate(timeout=PATIENCE))
    error = ended.json["error"]
    assert (process.returncode, error["type"], error["exit_code"]) == (130, "Interrupted", 130)
    assert error["run"]["committed_txid"] == committed_txid(DATA) < 20
    assert "stopping" in ended.err
    assert "Traceback" not in ended.err
    check_it_can_continue()


def test_a_third_signal_ends_a_hanging_run():
    with slow_run(2, TXSTORM_FAULT="p7.1.before:hang:3") as process:
        time.sleep(1)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        assert process.wait(PATIENCE) == 130
    check_it_can_continue()


def test_commands_during_a_live_run_which_can_continue_at_once_after_a_kill():
    with slow_run(1) as process:
        refused = txstorm(*LOCAL, "--json")
        error = refused.json["error"]
        assert (refused.code, error["type"]) == (3, "HeldError")
        assert f"pid {process.pid}" in error["message"]
        assert f"pid {process.pid}" in refused.err
        shown = txstorm("history", str(DATA), "--json")
        assert shown.code == 0
        txids = [row["txid"] for row in shown.json["txids"]]
        assert txids == list(range(1, len(txids) + 1))
        assert sum(counts().values()) % 2 == 0
        assert process.poll() is None
    process.wait()
    check_it_can_continue()


def test_output_of_user_code_precedes_that_of_the_command(project: Path):
    (project / "loud.py").write_text("import echo\nprint('hello')\ntopology = echo.topology(2)\n", encoding="utf-8")
    shown = txstorm("run", "loud", "--engine", "local", "--available-now", "--json")
    assert (shown.code, shown.out.splitlines()[0], shown.json["committed_txid"]) == (0, "hello", 1)
    (project / "bad.py").write_text("print('hello')\nraise ValueError('oh')\n", encoding="utf-8")
    failed = run_program("-m", "txstorm", "describe", "bad", merged=True)
    assert (failed.returncode, failed.stdout.splitlines()[0]) == (2, "hello")
    assert "oh" in failed.stdout


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pandas"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from txstorm.cli.main import execute
"""
# `importlib.util.find_spec` returns None for a package that is not installed.
NO_SPARK = """
import importlib.util as util, sys
find = util.find_spec
util.find_spec = lambda name, *more: None if name == "pyspark" else find(name, *more)
from txstorm.cli.main import main
main(sys.argv[1:])
"""


def test_reading_and_local_runs_need_neither_java_nor_spark_nor_pandas():
    assert txstorm(*LOCAL, "--available-now").code == 0
    commands = [["state", str(DATA), "counts"], ["history", str(DATA)], [*LOCAL, "--available-now"]]
    commands += [[name, "echo"] for name in ("describe", "explain", "validate")]
    done = python("-c", f"{WITHOUT}assert not any(map(execute, {commands}))", PATH="", JAVA_HOME="")
    assert done.code == 0, done.err


def test_missing_spark_is_reported(project):
    done = python("-c", NO_SPARK, "run", "echo", "--json")
    error = done.json["error"]
    assert (done.code, error["type"]) == (2, "MissingDependency")
    assert "pip install 'txstorm[spark]'" in error["message"]
    assert not (project / "txstorm-data").exists()


def test_help_and_inspection_commands_import_no_heavy_modules():
    assert txstorm(*LOCAL, "--until-txid", "1").code == 0
    commands = [["--help"], ["run", "--help"], ["--version"], ["list"]]
    commands += [[name, str(DATA)] for name in ("status", "inspect", "deactivate", "activate")]
    program = (
        f"import sys\nfrom txstorm.cli.main import execute\nassert not any(map(execute, {commands}))\n"
        "print({'pyarrow', 'numpy', 'pandas', 'pyspark', 'deltalake'} & set(sys.modules))"
    )
    done = python("-c", program)
    assert (done.code, done.out.splitlines()[-1]) == (0, "set()"), done.err


def test_a_closed_output_pipe_is_not_an_error():
    command = f"{sys.executable} -m txstorm settings --json | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "1")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_workers_import_from_the_current_directory_and_have_hash_seed_0(project: Path) -> None:
    """Workers find the modules beside the driver's, and their hashes are those of seed 0, whatever the driver's seed."""
    emitted = 'WORDS[tuple["index"]]'
    assert emitted in MODULE
    (project / "echo.py").write_text(MODULE.replace(emitted, emitted + " + f' {hash(\"txstorm\")}'"), encoding="utf-8")
    # The command itself, `main`, would choose seed 0 for the driver, too.
    run = "from txstorm.cli.main import execute; exit(execute(['run', 'echo', '--available-now', '--json']))"
    done = python("-P", "-c", run, PYTHONHASHSEED="random")
    assert done.code == 0, done.err
    assert (done.json["engine"], done.json["committed_txid"]) == ("spark", 20)
    assert read_status(DATA)["hash_seed"]["seed"] == "random"
    fixed = int(python("-c", "print(hash('txstorm'))", PYTHONHASHSEED="0").out)
    counted = {row["word"]: row["n"] for row in StateView(DATA, "counts").to_pylist()}
    assert counted == {f"storm {fixed}": 14, f"spark {fixed}": 13, f"delta {fixed}": 13}
