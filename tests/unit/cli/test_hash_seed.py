"""Python's hash seed: 0 for commands and Spark workers, recorded per run, and reported if a replay differs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from txstorm import run
from txstorm.books import origin
from txstorm.books.origin import HashSeed
from txstorm.cli import hash_seed
from txstorm.operations.status import read_status
from txstorm.replay.audit import replay_txid
from txstorm.results.views import origin_recorded

ROOT = Path(__file__).resolve().parents[3]
SETS = """
import os, sys, time
from txstorm import BatchBolt, Committer, SinkTable, TransactionalTopologyBuilder
from txstorm.spouts import MemoryTransactionalSpout

WORDS = [f"word-{number}" for number in range(40)]


class InTheOrderOfASet(BatchBolt, Committer):
    rows = SinkTable("rows", {"word": str})

    def prepare(self, context, collector, attempt):
        self.sink, self.words = context.sink("rows"), set()

    def execute(self, tuple):
        self.words.add(tuple["word"])

    def finish_batch(self):
        for word in self.words:
            self.sink.append(word)


def made():
    builder = TransactionalTopologyBuilder("sets", "source", MemoryTransactionalSpout([WORDS], "word", take=40))
    builder.set_committer_bolt("keep", InTheOrderOfASet()).fields_grouping("source", ["word"])
    return builder.build_topology()


topology = made()
"""
JOB = """
import sets
from txstorm import run
run(sets.topology, engine="local", data_dir="data", available_now=True).awaitTermination()
"""


@pytest.fixture
def sets(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write ``sets.py``, with a bolt that iterates over a set of strings, and ``job.py`` into the current directory."""
    (in_tmp / "sets.py").write_text(SETS, encoding="utf-8")
    (in_tmp / "job.py").write_text(JOB, encoding="utf-8")
    monkeypatch.syspath_prepend(str(in_tmp))
    return in_tmp


def environment(seed: str | None) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    return {**known, "PYTHONPATH": str(ROOT), **({} if seed is None else {"PYTHONHASHSEED": seed})}


def python(*arguments: str, seed: str | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in a separate process; `seed` is its PYTHONHASHSEED (None: the variable is not set)."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment(seed), capture_output=True, text=True, check=False, **more)


RUN = ("-m", "txstorm", "run", "sets", "--engine", "local", "--available-now", "--data-dir", "data")
REPLAY = ("-m", "txstorm", "replay", "data", "--txid", "1", "--topology", "sets", "--json")


@pytest.mark.slow
def test_runs_and_replays_of_the_command_use_hash_seed_0(sets: Path) -> None:
    done = python(*RUN)
    assert done.returncode == 0, done.stderr
    assert "PYTHONHASHSEED" not in done.stderr
    recorded = origin_recorded(sets / "data")
    assert recorded is not None and recorded.hash_seed is not None
    assert recorded.hash_seed.seed == "0"
    done = python(*REPLAY, seed="random")
    assert (done.returncode, json.loads(done.stdout)["equal"]) == (0, True), (done.stdout, done.stderr)
    done = python(*REPLAY, seed="7")  # a seed set by the user is not changed
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["tables"]["sinks/rows"]["reordered"]) == (1, True)
    assert verdict["notes"][0].startswith("first suspect: Python's hash seed: the last run had 0 (Python 3.")
    assert "here it is 7 (Python 3." in verdict["notes"][0]
    assert verdict["notes"][0].endswith("replay with PYTHONHASHSEED=0")


@pytest.mark.slow
def test_a_program_keeps_its_seed_and_replays_report_it(sets: Path) -> None:
    done = python("job.py", cwd=sets)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no warning at the start"
    recorded = origin_recorded(sets / "data")
    assert recorded is not None and recorded.hash_seed is not None
    assert recorded.hash_seed.seed == "random"
    assert read_status(sets / "data")["hash_seed"]["probe"] == recorded.hash_seed.probe
    shown = python("-m", "txstorm", "status", "data").stdout
    assert f"hash seed       random (Python {recorded.hash_seed.python})" in shown, shown
    done = python(*REPLAY)
    notes = json.loads(done.stdout)["notes"]
    assert "the last run had random" in notes[0] and "cannot be reproduced" in notes[0]
    done = python("-c", "from jobs.replay import main; raise SystemExit(main(['--data-dir', 'data', '--engine', 'local',"
                  " '--topology', 'sets:topology']))", seed="3")  # fmt: skip
    assert (done.returncode, "note: first suspect: Python's hash seed" in done.stderr) == (1, True), done.stderr


@pytest.mark.slow
def test_a_restart_preserves_the_interpreters_options(sets: Path) -> None:
    """Restarting with hash seed 0 preserves exit codes, standard input, interpreter options and closed streams."""
    assert python("-m", "txstorm", "run", "nothing-here").returncode == 2
    done = python("-X", "dev", "-W", "error::DeprecationWarning:sets", *RUN)
    assert done.returncode == 0, done.stderr
    text = SETS.replace("    def finish_batch(self):", "    def finish_batch(self):\n        print(sys.flags.dev_mode)")
    (sets / "sets.py").write_text(text, encoding="utf-8")
    script = "p sys.flags.hash_randomization, sys.flags.dev_mode\nc\n"
    done = python("-X", "dev", *REPLAY[:-1], "--break", "keep.finish_batch", input=script)
    assert (done.returncode, "(0, True)" in done.stdout) == (0, True), done.stdout + done.stderr
    shell = f"exec {sys.executable} {' '.join(RUN)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", shell], env=environment(None), check=False).returncode == 0
    isolated = python("-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['txstorm', 'run', '--help'];"
                      "from txstorm.cli.main import main; main()")  # fmt: skip
    assert isolated.returncode == 0, isolated.stderr


@pytest.mark.slow
def test_a_signal_reaches_the_restarted_process(sets: Path) -> None:
    endless = SETS.replace("    def finish_batch(self):", "    def finish_batch(self):\n        time.sleep(0.1)")
    endless = endless.replace("[WORDS]", "[WORDS * 1000]")
    (sets / "sets.py").write_text(endless, encoding="utf-8")
    process = subprocess.Popen([sys.executable, *RUN], env=environment(None), stderr=subprocess.PIPE, text=True)
    try:
        limit = time.monotonic() + 120
        while not (sets / "data/ledger.db").exists() or not read_status(sets / "data")["committed_txid"]:
            assert time.monotonic() < limit and process.poll() is None
            time.sleep(0.05)
        assert read_status(sets / "data")["pid"] == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.communicate()


def test_commands_that_are_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda path, arguments, env: started.append(arguments))
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "txstorm", "run", "x"])
    hash_seed.fix(["run", "x"])  # pytest's process is not the txstorm command
    assert started == []
    monkeypatch.setattr(hash_seed, "_is_ours", lambda arguments: True)
    hash_seed.fix(["status", "x"])
    hash_seed.fix(["--version"])
    hash_seed.fix([])
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    hash_seed.fix(["run", "x"])
    assert started == []
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    hash_seed.fix(["run", "x"])
    assert started == ([[sys.executable, "-m", "txstorm", "run", "x"]] if sys.flags.hash_randomization else [])


def test_the_hash_seed_is_reported_only_if_rows_differ(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sets as module  # type: ignore[import-not-found]

    run(module.topology, engine="local", data_dir=sets / "data", available_now=True).awaitTermination()
    assert replay_txid(module.made(), sets / "data", 1).notes == ()
    monkeypatch.setattr(HashSeed, "here", classmethod(lambda cls: cls("5", 1, "3.11")))
    assert replay_txid(module.made(), sets / "data", 1).notes == ()
    monkeypatch.setattr(module.InTheOrderOfASet, "finish_batch", lambda self: self.sink.append("other"))
    (note,) = replay_txid(module.made(), sets / "data", 1).notes
    assert note.startswith("first suspect: Python's hash seed")
    assert origin.first_suspect(None) is not None
