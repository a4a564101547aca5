"""The life-cycle commands (kill, deactivate, rebalance and others): text output for people, JSON for scripts."""

import importlib
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from txstorm.cli.commands.lifecycle import numbers_of
from txstorm.errors import InputError
from txstorm.operations.lifecycle import kill
from txstorm.operations.status import read_status
from txstorm.runtime.run import run

RUN = ("run", "words", "--engine", "local", "--available-now")
DATA = "txstorm-data/words"


@pytest.fixture
def live(words: Path, txstorm):
    """Run the topology of ``words.py`` in this process; yield its handle once idle, and stop it after the test."""
    sys.path.insert(0, str(words))
    handle = run(importlib.import_module("words").topology, engine="local", data_dir=words / DATA)
    handle.processAllAvailable()
    while handle.in_flight:  # empty transactions that are still in flight
        time.sleep(0.01)
    yield handle
    handle.stop()


def test_deactivate_activate_rebalance_and_kill(live, txstorm):
    last = live.committed
    assert txstorm.printed("deactivate", DATA) == f"words: inactive after txid {last}; nothing is in flight\n"
    told = {"topology": "words", "running": True, "active": True, "committed_txid": last, "in_flight": 0}
    assert txstorm.json("activate", DATA) == told
    out = txstorm.printed("rebalance", DATA, "-e", "keep=3", "-e", "source=2")
    assert out == f"words: from txid {last + 1} on keep=3, source=2\n"
    assert txstorm("kill", DATA, "--wait", "5")[:2] == (0, f"words: killed; committed txid {last}\n")
    live.awaitTermination()
    assert live.killed.startswith("pid ")
    found = txstorm.json("status", DATA)
    assert (found["mode"], found["running"], found["holder"]) == ("killed", False, None)
    assert found["parallelism"] == {"source": 2, "keep": 3}
    assert txstorm("deactivate", DATA)[1].endswith("; it is not running; its next start will be inactive\n")
    assert txstorm("activate", DATA)[1].endswith("; it is not running; its next start will be active\n")


def test_status_inspect_and_list_for_people(live, txstorm):
    last = live.committed
    facts = [line.split("  ", 1) for line in txstorm.printed("status", DATA).splitlines()]
    assert {("topology", "words"), ("committed txid", str(last)), ("in flight", "nothing")} <= {
        (name, value.strip()) for name, value in facts
    }
    out = txstorm.printed("inspect", DATA)
    for text in ("table changes/counts", f"metadata {last}", "epoch", "currtx", "held by", "'words' (pid"):
        assert text in out
    live.stop()
    title, row = txstorm.printed("list").splitlines()
    assert title.split() == ["topology", "mode", "committed", "process", "data", "directory"]
    assert row.split() == ["words", "stopped", str(last), DATA]


def test_a_killed_run_exits_with_0_and_reports_it(txstorm, words):
    done: list[tuple[int, str, str]] = []
    runner = threading.Thread(target=lambda: done.append(txstorm("run", "words", "--engine", "local")))
    runner.start()
    while not (words / DATA / "ledger.db").exists() or read_status(DATA)["mode"] != "active":
        assert runner.is_alive()
        time.sleep(0.01)
    kill(DATA)
    runner.join()
    code, out, _ = done[0]
    assert code == 0
    assert f"killed by pid {os.getpid()} on " in out
    assert "run it again to continue" in out


BAD = {
    "unknown": (("kill", "txstorm-data/word"), "DataDirectoryError", "does not exist (did you mean 'words'?)"),
    "dead": (("kill", DATA), "NotRunningError", "topology 'words' in txstorm-data/words is not running; its last run"),
    "dead too": (("rebalance", DATA, "-e", "keep=3"), "NotRunningError", "is not running"),
    "no number": (("rebalance", DATA, "-e", "keep=many"), "InputError", "expected COMPONENT=N with a whole number"),
    "no component": (("rebalance", DATA), "UsageError", "-e"),
    "wait": (("kill", DATA, "--wait", "-1"), "UsageError", "--wait"),
    "nothing decided": (("repair", DATA, "--abandon", "3"), "InputError", "txid 3 is committed; decided and not"),
    "no txid": (("repair", DATA), "UsageError", "--abandon"),
    "no root": (("list", "nowhere"), "InputError", "nowhere: expected a directory that contains data directories"),
    "something else": (("status", "."), "DataDirectoryError", "holds something else"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, txstorm_json):
    txstorm_json(*RUN)
    arguments, kind, text = BAD[case]
    code, result = txstorm_json(*arguments)
    assert (code, result["error"]["type"], result["error"]["exit_code"]) == (2, kind, 2)
    assert text in result["error"]["message"]


def test_numbers():
    assert numbers_of(["split=4", " counts = 2"]) == {"split": 4, "counts": 2}
    assert numbers_of(["a=-1"]) == {"a": -1}
    for pairs, text in ((["a"], "COMPONENT=N"), (["=2"], "COMPONENT=N"), (["a=1", "a=2"], "given twice")):
        with pytest.raises(InputError, match=text):
            numbers_of(pairs)


@pytest.mark.parametrize(
    "command", ["list", "status", "inspect", "deactivate", "activate", "rebalance", "kill", "repair"]
)
def test_the_help_has_examples(command, txstorm):
    assert f"Example: txstorm {command}" in txstorm.printed(command, "--help")
