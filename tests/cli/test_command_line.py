"""``python -m txstorm`` as a separate process: signals, exit codes, readers during a live run, and imports."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
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
pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory of user modules, which can be imported only if it is the current directory."""
    (tmp_path / "echo.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "helper.py").write_text(HELPER, encoding="utf-8")
    return tmp_path


Start = Callable[..., Program]


@pytest.fixture
def start(project: Path) -> Iterator[Start]:
    """Yield a function that starts ``txstorm`` in the project directory, which ``-P`` keeps off the import path."""
    started: list[Program] = []

    def begin(*arguments: str, **environment: str) -> Program:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        started.append(loaded().start("-P", "-m", "txstorm", *arguments, cwd=project, env=environment))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


@pytest.fixture
def txstorm(start: Start) -> Callable[..., tuple[int, str, str]]:
    def command(*arguments: str, **environment: str) -> tuple[int, str, str]:
        process = start(*arguments, **environment)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    return command


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter, which has loaded nothing yet."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def last(out: str) -> dict[str, Any]:
    return json.loads(out.splitlines()[-1])


def wait_for_commit(project: Path, txid: int) -> None:
    until = time.monotonic() + PATIENCE
    while committed_txid(project / "txstorm-data" / "echo") < txid:
        assert time.monotonic() < until
        time.sleep(0.05)


LOCAL = ("run", "echo", "--engine", "local")
SLOWLY = (*LOCAL, "--min-interval", "0.2", "--json")


# --- runs -------------------------------------------------------------------------------------------------------------


def counts(txstorm: Any) -> dict[str, int]:
    code, out, _ = txstorm("state", "txstorm-data/echo", "counts", "--json")
    assert code == 0
    return {row["word"]: row["n"] for row in last(out)["rows"]}


def check_it_can_continue(txstorm: Any) -> None:
    """Check that a run to the end of the input succeeds, after which every word is counted once."""
    code, _, err = txstorm(*LOCAL, "--available-now")
    assert code == 0, err
    assert counts(txstorm) == {"storm": 14, "spark": 13, "delta": 13}


def test_a_module_of_the_current_directory_runs_and_continues(txstorm, project):
    done = python("-P", "-m", "txstorm", *LOCAL, "--until-txid", "3", "--json", cwd=project)
    assert (done.returncode, last(done.stdout)["committed_txid"]) == (0, 3), done.stderr
    assert counts(txstorm) == {"storm": 2, "spark": 2, "delta": 2}
    code, out, err = txstorm(*LOCAL, "--available-now", "--json")
    assert (code, last(out)["committed_txid"], last(out)["txids"]) == (0, 20, 17), err
    assert counts(txstorm) == {"storm": 14, "spark": 13, "delta": 13}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_ended_by_a_signal_stops_cleanly_and_can_continue(number, start, txstorm, project):
    process = start(*SLOWLY)
    wait_for_commit(project, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    error = last(out)["error"]
    assert (process.returncode, error["type"], error["exit_code"]) == (130, "Interrupted", 130)
    assert error["run"]["committed_txid"] == committed_txid(project / "txstorm-data" / "echo") < 20
    assert "stopping" in err
    assert "Traceback" not in err
    check_it_can_continue(txstorm)


def test_a_third_signal_ends_a_hanging_run(start, txstorm, project):
    process = start(*SLOWLY, TXSTORM_FAULT="p7.1.before:hang:3")
    wait_for_commit(project, 2)
    time.sleep(1)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(1)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    check_it_can_continue(txstorm)


def test_a_killed_run_can_continue_at_once(start, txstorm, project):
    process = start(*SLOWLY)
    wait_for_commit(project, 2)
    process.kill()
    process.communicate()
    check_it_can_continue(txstorm)


def test_commands_during_a_live_run(start, txstorm, project):
    process = start(*SLOWLY)
    wait_for_commit(project, 1)
    code, out, err = txstorm(*SLOWLY)
    assert code == 3
    assert last(out)["error"]["type"] == "HeldError"
    assert f"pid {process.pid}" in last(out)["error"]["message"]
    assert f"pid {process.pid}" in err
    code, out, _ = txstorm("history", "txstorm-data/echo", "--json")
    assert code == 0
    txids = [row["txid"] for row in last(out)["txids"]]
    assert txids == list(range(1, len(txids) + 1))
    assert sum(counts(txstorm).values()) % 2 == 0
    assert process.poll() is None


def test_output_of_user_code_precedes_the_json_line(txstorm, project):
    (project / "loud.py").write_text("import echo\nprint('hello')\ntopology = echo.topology(2)\n", encoding="utf-8")
    code, out, _ = txstorm("run", "loud", "--engine", "local", "--available-now", "--json")
    assert code == 0
    assert out.splitlines()[0] == "hello"
    assert last(out)["committed_txid"] == 1


def test_printed_output_precedes_the_error_message(project):
    (project / "bad.py").write_text("print('hello')\nraise ValueError('oh')\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)
    command = [sys.executable, "-m", "txstorm", "describe", "bad"]
    done = subprocess.run(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (2, "hello")
    assert "oh" in done.stdout


# --- dependencies -----------------------------------------------------------------------------------------------------

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pandas"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from txstorm.cli.main import main
main(sys.argv[1:])
"""
# `importlib.util.find_spec` returns None for a package that is not installed.
NO_SPARK = """
import importlib.util as util, sys
find = util.find_spec
util.find_spec = lambda name, *more: None if name == "pyspark" else find(name, *more)
from txstorm.cli.main import main
main(sys.argv[1:])
"""


def test_reading_and_local_runs_need_neither_java_nor_spark_nor_pandas(txstorm, project):
    assert txstorm(*LOCAL, "--available-now")[0] == 0
    commands = [["state", "txstorm-data/echo", "counts"], ["history", "txstorm-data/echo"], [*LOCAL, "--available-now"]]
    for arguments in (*commands, *([name, "echo"] for name in ("describe", "explain", "validate"))):
        done = python("-c", WITHOUT, *arguments, cwd=project, PATH="", JAVA_HOME="")
        assert done.returncode == 0, (arguments, done.stderr)


def test_missing_spark_is_reported(project):
    done = python("-c", NO_SPARK, "run", "echo", "--json", cwd=project)
    assert done.returncode == 2
    error = last(done.stdout)["error"]
    assert error["type"] == "MissingDependency"
    assert "pip install 'txstorm[spark]'" in error["message"]
    assert not (project / "txstorm-data").exists()


def test_help_and_inspection_commands_import_no_heavy_modules(txstorm, project):
    assert txstorm(*LOCAL, "--until-txid", "1")[0] == 0
    data_dir = "txstorm-data/echo"
    commands = [["--help"], ["run", "--help"], ["--version"], ["list"]]
    commands += [[name, data_dir] for name in ("status", "inspect", "deactivate", "activate")]
    program = (
        f"import sys\nfrom txstorm.cli.main import execute\nassert not any(map(execute, {commands}))\n"
        "print({'pyarrow', 'numpy', 'pandas', 'pyspark', 'deltalake'} & set(sys.modules))"
    )
    done = python("-c", program, cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_closed_output_pipe_is_not_an_error(project):
    command = f"{sys.executable} -m txstorm settings --json | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "1")


# --- Spark ------------------------------------------------------------------------------------------------------------


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
    done = python("-P", "-c", run, cwd=project, PYTHONHASHSEED="random")
    assert done.returncode == 0, done.stderr
    assert (last(done.stdout)["engine"], last(done.stdout)["committed_txid"]) == ("spark", 20)
    assert read_status(project / "txstorm-data/echo")["hash_seed"]["seed"] == "random"
    fixed = int(python("-c", "print(hash('txstorm'))", cwd=project, PYTHONHASHSEED="0").stdout)
    counted = {row["word"]: row["n"] for row in StateView(project / "txstorm-data/echo", "counts").to_pylist()}
    assert counted == {f"storm {fixed}": 14, f"spark {fixed}": 13, f"delta {fixed}": 13}
