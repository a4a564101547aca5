"""The option ``--ledger`` and the commands ``txstorm ledger copy`` and ``txstorm recover``, as text and as JSON."""

import json
from pathlib import Path

RUN = ("run", "words", "--engine", "local", "--available-now")
DATA = "txstorm-data/words"


def test_every_command_finds_a_user_defined_ledger(words: Path, txstorm, txstorm_json):
    assert txstorm(*RUN, "--ledger", "delta:control")[0] == 0
    spec, other = f"delta:{words}/control", f"sqlite:{words}/x.db"
    assert json.loads((words / DATA / "ledger.json").read_text())["ledger"] == spec
    assert not (words / DATA / "ledger.db").exists()
    for command in (
        *(("status", DATA), ("inspect", DATA), ("history", DATA), ("state", DATA, "counts"), ("dead-letters", DATA)),
        *(("deactivate", DATA), ("activate", DATA), ("replay", DATA, "--txid", "1", "--topology", "words")),
    ):
        assert txstorm(*command)[0] == 0, command
        assert txstorm(*command, "--ledger", spec)[0] == 0, command
        code, found = txstorm_json(*command, "--ledger", other)
        assert code == 2, command
        assert f"uses the ledger {spec}, not {other}" in found["error"]["message"]
    for command in (("kill", DATA), ("rebalance", DATA, "-e", "keep=1"), ("repair", DATA, "--abandon", "1")):
        code, found = txstorm_json(*command, "--ledger", other)
        assert (code, spec in found["error"]["message"], other in found["error"]["message"]) == (2, True, True)
    assert txstorm_json("status", DATA)[1]["ledger"] == spec
    assert [one["topology"] for one in txstorm_json("list", "--ledger", "delta:control")[1]["topologies"]] == ["words"]
    assert txstorm_json("list", "--ledger", other)[1]["topologies"] == []


def test_malformed_ledger_options_are_rejected(words: Path, txstorm, txstorm_json):
    code, found = txstorm_json(*RUN, "--ledger", "zookeper:a/b")
    assert code == 2
    assert "did you mean 'zookeeper'" in found["error"]["message"]
    assert not (words / DATA).exists()
    assert txstorm(*RUN, "--set", "ledger=delta:")[0] == 2


def test_a_ledger_is_copied_lost_and_recovered(words: Path, txstorm, txstorm_json):
    assert txstorm(*RUN)[0] == 0
    before = txstorm("state", DATA, "counts", "--json")[1]
    code, out, _ = txstorm("ledger", "copy", DATA, "delta:control")
    assert (code, out.startswith("words: "), out.endswith(f"entries are now in delta:{words}/control\n")) == (
        0,
        True,
        True,
    )
    code, found = txstorm_json("ledger", "copy", DATA, "delta:control")
    assert (code, found["error"]["type"]) == (2, "InputError")  # the ledger already is there
    (words / "control").rename(words / "gone")
    assert txstorm(*RUN)[0] == 2
    code, shown = txstorm_json("recover", DATA, "--dry-run")
    assert (code, shown["written"], (words / "control").exists()) == (0, False, False)
    code, out, _ = txstorm("recover", DATA)
    assert code == 0
    assert f"delta:{words}/control is written" in out
    assert txstorm_json("recover", DATA)[1]["error"]["message"].startswith(
        "data directory txstorm-data/words: its ledger"
    )
    code, found = txstorm_json(*RUN)
    assert (code, found["txids"]) == (0, 0)
    assert txstorm("state", DATA, "counts", "--json")[1] == before
