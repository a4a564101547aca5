"""Commands that run, describe and query topologies, executed in this process on the local engine."""

import json
from pathlib import Path

import pytest

from txstorm import __version__
from txstorm.cli.commands.run import settings_of
from txstorm.errors import SettingError

RUN = ("run", "words", "--engine", "local", "--available-now")
COUNTS = [{"word": "<b>", "n": 1}, {"word": "cat", "n": 3}, {"word": "dog", "n": 2}]


def test_run_prints_one_object_or_a_summary_that_names_the_query_commands(txstorm, words: Path):
    result = txstorm.json(*RUN)
    assert result.pop("seconds") > 0
    assert result == {
        "topology": "words",
        "engine": "local",
        "committed_txid": 3,
        "txids": 3,
        "input_rows": 6,
        "tuples": 6,
        "replays": 0,
        "silent": [],
        "dead_letters": 0,
        "state": {"counts": str(words / "txstorm-data/words/state/counts")},
        "sinks": {"log": str(words / "txstorm-data/words/sinks/log")},
    }
    result = txstorm.json(*RUN)  # no input is left
    assert (result["committed_txid"], result["txids"], result["tuples"]) == (3, 0, 0)
    code, out, err = txstorm(*RUN)
    assert code == 0
    assert "words on local: committed txid 3" in out
    assert "txstorm state txstorm-data/words counts" in out
    assert "txstorm history txstorm-data/words" in out
    assert "words: running on local" in err


def test_until_txid_and_then_continue(txstorm):
    base = ("run", "words", "--engine", "local")
    assert txstorm.json(*base, "--until-txid", "1")["committed_txid"] == 1
    result = txstorm.json(*base, "--until-txid", "3")
    assert (result["committed_txid"], result["txids"], result["tuples"]) == (3, 2, 4)


def test_data_dir_settings_and_journal(txstorm, words: Path):
    options = ("--data-dir", "here", "--set", "topology.max.spout.pending=1", "--journal", "journal.jsonl")
    result = txstorm.json(*RUN, *options, "--min-interval", "0.01")
    assert result["state"]["counts"] == str(words / "here/state/counts")
    header = json.loads(Path("journal.jsonl").read_text().splitlines()[0])
    assert "'max_pending': 1" in str(header)


def test_user_code_that_raises(txstorm):
    command = ("run", "words:made(['a', 'boom'])", "--engine", "local", "--available-now")
    code, out, err = txstorm(*command, "--json")
    assert code == 1
    error = json.loads(out.splitlines()[-1])["error"]
    assert (error["type"], error["exit_code"]) == ("TopologyFailed", 1)
    assert "keep[" in error["message"]
    assert "a word [red] that explodes" in error["message"]
    assert error["run"]["committed_txid"] == 0
    assert 'raise ValueError("a word [red] that explodes")' in err
    assert "txstorm/engine" not in err
    assert "txstorm/engine" in txstorm(*command, "--log-level", "debug")[2]


BAD_RUNS = {
    "no module": (("run", "wrods"), "InputError", "no module 'wrods'"),
    "unknown setting": (("run", "words", "--set", "max_spout_pendin=1"), "SettingError", "did you mean 'max_spout_"),
    "setting without value": (("run", "words", "--set", "max_jobs"), "SettingError", "expected KEY=VALUE"),
    "impossible pending": (("run", "words", "--max-pending", "many"), "SettingError", "max_spout_pending: got 'many'"),
    "two ends": (("run", "words", "--available-now", "--until-txid", "1"), "UsageError", "not both"),
    "engine": (("run", "words", "--engine", "mars"), "UsageError", "'spark', 'local'"),
    "txid": (("run", "words", "--until-txid", "0"), "UsageError", "--until-txid"),
    "option": (("run", "words", "--enigne", "local"), "UsageError", "--engine"),
    "no target": (("run",), "UsageError", "MODULE"),
    "no command": (("rnu",), "UsageError", "rnu"),
    "remote directory": (("run", "words", "--engine", "local", "--data-dir", "s3://x/y"), "InputError", "scheme 's3'"),
    "a file": (("run", "words", "--engine", "local", "--data-dir", "words.py"), "DataDirectoryError", "file"),
    "no state": (("state", "txstorm-data/words", "counts"), "DataDirectoryError", "does not exist"),
    "no history": (("history", "."), "DataDirectoryError", "words.py"),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_bad_input_is_reported_in_json_and_changes_nothing(case, txstorm_json, words: Path):
    arguments, kind, text = BAD_RUNS[case]
    before = {path.name for path in words.rglob("*") if path.suffix != ".pyc"} | {"__pycache__"}
    code, result = txstorm_json(*arguments)
    assert code == 2
    assert set(result) == {"error"}
    assert (result["error"]["type"], result["error"]["exit_code"]) == (kind, 2)
    assert text in result["error"]["message"]
    assert {path.name for path in words.rglob("*") if path.suffix != ".pyc"} | {"__pycache__"} == before


def test_errors_without_json_internal_ones_and_ctrl_c_before_the_run_has_started(txstorm, monkeypatch):
    code, out, err = txstorm("run", "wrods")
    assert (code, out) == (2, "")
    assert err.startswith("error: no module 'wrods'")

    def broken(text):
        raise RuntimeError("impossible")

    monkeypatch.setattr("txstorm.cli.target.load", broken)
    code, _, err = txstorm("run", "words")
    assert code == 1
    assert "txstorm itself failed with RuntimeError: impossible" in err
    assert "--log-level debug" in err
    assert "Traceback" not in err
    _, _, err = txstorm("run", "words", "--log-level=debug")
    assert "Traceback" in err

    def interrupted(text):
        raise KeyboardInterrupt

    monkeypatch.setattr("txstorm.cli.target.load", interrupted)
    code, out, err = txstorm("run", "words", "--json")
    assert code == 130
    assert json.loads(out)["error"] == {"type": "Interrupted", "message": "interrupted", "exit_code": 130}
    assert err == "interrupted\n"


def test_settings_may_not_be_given_twice():
    found = settings_of(["a = b=c", "x="], "4", 0.5)
    assert found == {"a": "b=c", "x": "", "max_spout_pending": "4", "min_interval": 0.5}
    with pytest.raises(SettingError, match="a is given twice"):
        settings_of(["a=1", "a=2"])
    with pytest.raises(SettingError, match="--max-pending: setting max_spout_pending is given twice"):
        settings_of(["max_spout_pending=1"], max_pending="2")


@pytest.mark.parametrize(
    ("command", "start"),
    [
        (("describe", "words", "--format", "text"), "words: 2 components"),
        (("describe", "words", "--format", "mermaid"), "flowchart"),
        (("describe", "words", "--format", "dot"), "digraph"),
        (("describe", "words", "--format", "json"), "{"),
        (("describe", "words", "--format", "svg"), "<svg"),
        (("explain", "words"), "plan of topology words"),
        (("explain", "words", "--why"), "plan of topology words"),
    ],
)
def test_describe_and_explain(txstorm, command, start):
    assert txstorm.printed(*command).startswith(start)


def test_validate(txstorm, txstorm_json, words: Path):
    assert txstorm("validate", "words") == (0, "words: no faults\n", "")
    assert txstorm_json("validate", "words:builder(['a'])") == (0, {"topology": "words", "faults": [], "warnings": []})
    Path("faulty.py").write_text(
        "import words\ntopology = words.builder(['a'])\n"
        "topology.set_bolt('x', words.Keep()).shuffle_grouping('y')\n"
        "topology.set_bolt('keep', words.Keep()).shuffle_grouping('source')\n"
    )
    code, result = txstorm_json("validate", "faulty")
    assert (code, result["error"]["type"]) == (2, "TopologyError")
    assert len(result["error"]["faults"]) >= 2
    Path("files.py").write_text(
        "from txstorm import TransactionalTopologyBuilder\nfrom txstorm.spouts import FileSpout\n"
        "import words\nmade = TransactionalTopologyBuilder('files', 'source', FileSpout('missing.txt'))\n"
        "made.set_committer_bolt('keep', words.Keep()).shuffle_grouping('source')\n"
        "topology = made.build_topology()\n"
    )
    code, result = txstorm_json("validate", "files")  # the source is checked, too
    assert (code, result["error"]["type"]) == (2, "SpoutError")


def test_settings_version_and_help(txstorm):
    assert "max_spout_pending" in txstorm.printed("settings")
    listed = txstorm.json("settings")["settings"]
    assert {"name": "max_spout_pending", "default": "auto"}.items() <= listed[0].items()
    assert txstorm("--version") == (0, f"txstorm {__version__}\n", "")
    assert "txstorm run words --engine local --available-now" in txstorm.printed("--help")
    for command in ("run", "describe", "explain", "validate", "settings", "state", "history", "doctor"):
        assert "Usage" in txstorm.printed(command, "--help")
    assert txstorm()[0] == 2


def test_state_and_history(txstorm, txstorm_json):
    txstorm(*RUN)
    state = ("state", "txstorm-data/words", "counts")
    code, out, err = txstorm(*state, "--json")
    assert (code, err) == (0, "")
    assert out == json.dumps({"state": "counts", "txid": 3, "rows": COUNTS}, ensure_ascii=False) + "\n"
    txstorm(*RUN, "--data-dir", "other", "--max-pending", "1")
    assert txstorm("state", "other", "counts", "--json")[1] == out  # the same bytes
    first = [{"word": "cat", "n": 1}, {"word": "dog", "n": 1}]
    assert txstorm.json(*state, "--txid", "1") == {"state": "counts", "txid": 1, "rows": first}
    code, out, err = txstorm(*state, "--limit", "2")  # for people
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [["word", "n"], ["<b>", "1"], ["cat", "3"]]
    assert "state counts as of txid 3: 3 rows; 2 shown" in err
    code, result = txstorm_json("state", "txstorm-data/words", "count")
    assert (code, result["error"]["type"]) == (2, "StateError")
    assert "did you mean 'counts'" in result["error"]["message"]
    assert "txid 9 is not committed" in txstorm.refused(*state, "--txid", "9", "--json")
    result = txstorm.json("history", "txstorm-data/words")
    assert (result["topology"], result["committed_txid"]) == ("words", 3)
    assert [row["txid"] for row in result["txids"]] == [1, 2, 3]
    assert [row["tuples"] for row in result["txids"]] == [2, 2, 2]
    assert set(result["txids"][0]["versions"]) == {"changes/counts", "sinks/log"}
    assert txstorm.json("history", "txstorm-data/words", "--limit", "1")["txids"] == result["txids"][2:]
    assert txstorm.json("history", "txstorm-data/words", "--limit", "0")["txids"] == []
    _, out, err = txstorm("history", "txstorm-data/words", "--limit", "2")
    assert [line.split()[0] for line in out.splitlines()] == ["txid", "2", "3"]
    assert "committed txid 3, 3 in the history; the last 2 shown" in err
