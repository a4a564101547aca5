"""The option ``--ledger`` and the commands ``txstorm ledger copy`` and ``txstorm recover``, as text and as JSON."""

import json
from pathlib import Path

RUN = ("run", "words", "--engine", "local", "--available-now")
DATA = "txstorm-data/words"


def test_every_command_finds_a_user_defined_ledger(words: Path, txstorm):
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
        assert f"uses the ledger {spec}, not {other}" in txstorm.refused(*command, "--ledger", other, "--json")
    for command in (("kill", DATA), ("rebalance", DATA, "-e", "keep=1"), ("repair", DATA, "--abandon", "1")):
        said = txstorm.refused(*command, "--ledger", other, "--json")
        assert spec in said and other in said
    assert txstorm.json("status", DATA)["ledger"] == spec
    assert [one["topology"] for one in txstorm.json("list", "--ledger", "delta:control")["topologies"]] == ["words"]
    assert txstorm.json("list", "--ledger", other)["topologies"] == []


def test_malformed_ledger_options_are_rejected(words: Path, txstorm):
    assert "did you mean 'zookeeper'" in txstorm.refused(*RUN, "--ledger", "zookeper:a/b", "--json")
    assert not (words / DATA).exists()
    assert txstorm(*RUN, "--set", "ledger=delta:")[0] == 2


def test_a_ledger_is_copied_lost_and_recovered(words: Path, txstorm, txstorm_json):
    assert txstorm(*RUN)[0] == 0
    before = txstorm("state", DATA, "counts", "--json")[1]
    out = txstorm.printed("ledger", "copy", DATA, "delta:control")
    assert out.startswith("words: ") and out.endswith(f"entries are now in delta:{words}/control\n")
    code, found = txstorm_json("ledger", "copy", DATA, "delta:control")
    assert (code, found["error"]["type"]) == (2, "InputError")  # the ledger already is there
    (words / "control").rename(words / "gone")
    assert txstorm(*RUN)[0] == 2
    assert not txstorm.json("recover", DATA, "--dry-run")["written"]
    assert not (words / "control").exists()
    assert f"delta:{words}/control is written" in txstorm.printed("recover", DATA)
    assert txstorm.refused("recover", DATA).startswith("error: data directory txstorm-data/words: its ledger")
    assert txstorm.json(*RUN)["txids"] == 0
    assert txstorm("state", DATA, "counts", "--json")[1] == before
