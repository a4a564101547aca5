"""Invalid input on the command line: exit code, a single clear error, and the last line with ``--json``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_input_cases import environment, listing, run_words, write_words
from bad_topologies import CASES
from recovery_cases import long_if

import txstorm
from txstorm.ledger.open import open_ledger
from txstorm.results.read import read_state
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.table import DeltaTableState

PACKAGE = Path(txstorm.__file__).parent
WORDS = "bad_jobs:words('words.txt')"


@pytest.fixture
def refused(in_tmp, command):
    """Return a function that runs a command that must fail and change nothing: (exit code, error type, message)."""

    def ends(*arguments, changes=False):
        before = listing(in_tmp)
        ended = command(*arguments, "--json")
        about = ended.json["error"]
        assert about["exit_code"] == ended.code
        assert f'File "{PACKAGE}' not in ended.out + ended.err  # a trace is of the user's code, or there is none
        first = about["message"].splitlines()[0].encode("utf-8", "backslashreplace").decode()
        assert " ".join(first.split()) in " ".join(ended.err.split()), ended.err
        assert changes or listing(in_tmp) == before
        return ended.code, about["type"], about["message"]

    write_words(in_tmp / "words.txt")
    return ends


def run(*arguments, target=WORDS):
    return "run", target, "--engine", "local", "--available-now", *arguments


TOPOLOGIES = ["unknown component", "no grouping", "undeclared field", "holds a lock", "setting value"]


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("action", ["run", "validate"])
def test_bad_topologies(action, name, refused):
    target = f"bad_jobs:bad({name!r})"
    arguments = run(target=target) if action == "run" else (action, target)
    code, kind, message = refused(*arguments)
    assert (code, kind) == (2, "TopologyError")
    assert all(part in message for part in CASES[name][1][1:])


ARGUMENTS = {
    "pending": (["--max-pending", "0"], "SettingError", "max_spout_pending"),
    "interval": (["--min-interval", "-1"], "SettingError", "min_interval"),
    "letters": (["--max-dead-letters", "1/2", "--set", "on_error=dead_letter"], "SettingError", "expected N or P%"),
    "letters without the policy": (["--max-dead-letters", "0.5%"], "SettingError", "set on_error to dead_letter, too"),
    "log level": (["--log-level", "loud"], "", "loud"),
    "foreign": (["--data-dir", "."], "DataDirectoryError", "holds something else (words.txt)"),
    "undecodable": (["--data-dir", os.fsdecode(b"words.txt/\xff")], "DataDirectoryError", "words.txt"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_run(name, refused):
    arguments, kind, message = ARGUMENTS[name]
    found = refused(*run(*arguments))
    assert found[0] == 2
    assert kind in found[1]
    assert message in found[2]


TARGETS = {
    "missing source": ("bad_jobs:words('absent.txt')", 2, "SpoutError", "absent.txt cannot be read"),
    "undecodable source": ("bad_jobs:words('absent\\udcff.txt')", 2, "SpoutError", "cannot be read"),
    "emit of a type": ("bad_jobs:emits('object')", 2, "EmitError", "field 'line': a value of type object cannot be"),
    "emit of nothing": ("bad_jobs:emits('')", 2, "EmitError", "expected 1 value"),
    "value of a type": ("bad_jobs:puts('words.txt')", 2, "StateError", "expected int, got str 'one'"),
    "exception": ("bad_jobs:emits('raise')", 1, "TopologyFailed", "emits[0] raised ValueError at "),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_of_run(name, refused):
    target, *wanted = TARGETS[name]
    changes = wanted[1] in ("EmitError", "StateError", "TopologyFailed")
    code, kind, message = refused(*run(target=target), changes=changes)
    assert code == wanted[0]
    assert wanted[1] in kind
    assert wanted[2] in message


def raise_epoch(data_dir):
    ledger = open_ledger(data_dir, create=False)
    incarnation = json.loads(ledger.get("identity").value)["value"]["incarnation"]
    ledger.close()
    owner = TopologyIdentity("words", incarnation)
    DeltaTableState.open(data_dir, owner, TableRef("sink", "lines")).raise_epoch(99)


DIRECTORIES = {
    "missing ledger": (lambda d: (d / "ledger.db").unlink(), 2, "DataDirectoryError", "has no ledger (ledger.db)"),
    "fenced": (raise_epoch, 3, "FencedError", "sinks/lines: a coordinator with epoch 99 has taken over"),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_directories_of_run(name, refused, in_tmp):
    damage, *wanted = DIRECTORIES[name]
    damage(run_words(in_tmp))
    code, kind, message = refused(*run("--data-dir", "data"), changes=name == "fenced")
    assert [code, kind] == wanted[:2]
    assert wanted[2] in message


READERS = {
    "txid of no number": (["state", "data", "counts", "--txid", "x"], "--txid"),
    "file": (["state", "words.txt", "counts"], "words.txt is a file"),
    "foreign": (["state", ".", "counts"], "holds something else"),
    "remote": (["state", "s3://bucket/data", "counts"], "'s3'"),
    "history of no directory": (["history", "absent"], "absent does not exist"),
    "limit": (["history", "data", "--limit", "-1"], "--limit"),
    "undecodable": (["state", os.fsdecode(b"absent\xff"), "counts"], "does not exist"),
    "bad name": (["state", "data", "../counts"], "no state '../counts'"),
}


@pytest.mark.parametrize("name", READERS)
def test_readers(name, refused, in_tmp):
    arguments, message = READERS[name]
    run_words(in_tmp)
    code, _, found = refused(*arguments)
    assert code == 2
    assert message in found


@pytest.mark.integration
def test_fault_points_of_the_environment(in_tmp):
    write_words(in_tmp / "words.txt")
    command = [sys.executable, "-m", "txstorm", *run("--json")]
    done = subprocess.run(command, env=environment(TXSTORM_FAULT="p6:die:1"), capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    about = json.loads(done.stdout.splitlines()[-1])["error"]
    assert "TXSTORM_FAULT: expected point:kill|freeze|raise|hang:nth with nth >= 1, got 'p6:die:1'" in about["message"]
    assert "Traceback" not in done.stderr
    assert not (in_tmp / "txstorm-data").exists()


@pytest.mark.integration
@pytest.mark.parametrize("closed", long_if(["<&-", "2>&-"].__contains__, ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]))
def test_streams_that_are_closed(closed, in_tmp, command):
    """With closed standard streams, output is discarded, not written to the next file that is opened."""
    write_words(in_tmp / "words.txt")
    program = [sys.executable, "-m", "txstorm", *run("--data-dir", "data")]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *program]
    done = subprocess.run(shell, env=environment(PYTHONHASHSEED="0"), capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    command.printed("state", "data", "counts")
    assert read_state(in_tmp / "data", "counts").to_pydict() == {"word": ["a", "b", "c"], "n": [2, 1, 1]}
