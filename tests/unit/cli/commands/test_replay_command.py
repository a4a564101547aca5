"""``txstorm replay``: committed transactions are replayed, compared and debugged; journals are replayed."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import at_a_terminal, printed_by, run_program
from user_modules import change, tree

from txstorm import open_ledger, run
from txstorm.books.origin import NOTEBOOK, CodeOrigin, origin_of
from txstorm.results.views import origin_recorded

ROOT = Path(__file__).resolve().parents[4]
RUN = ("run", "words", "--engine", "local", "--available-now")
DATA = "txstorm-data/words"
REPLAY = ("replay", DATA, "--topology", "words")


def shell(words: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the txstorm command in a separate process, with `stdin` as its input; return the completed process."""
    return run_program("-m", "txstorm", *arguments, cwd=words, env={"NO_COLOR": "1"}, stdin=stdin)


def test_committed_txids_replay_to_the_same_rows_without_writes_unless_the_code_has_changed(
    txstorm, words: Path, txstorm_json
):
    txstorm(*RUN)
    before = tree(words / DATA)
    for txid in ("1", "2", "3"):
        out = txstorm.printed(*REPLAY, "--txid", txid)
        assert f"txid {txid} (attempt" in out and "the result is the one committed" in out, out
    assert tree(words / DATA) == before
    change(words / "words.py", "(old or 0) + n)", "(old or 0) + 10 * n)")
    code, out, _ = txstorm(*REPLAY, "--txid", "2")
    assert code == 1
    assert "the result is not the one committed" in out
    assert "changes/counts: 2 rows differ (2 committed, 2 replayed)" in out
    assert 'word="cat"' in out and "n=2" in out and "n=11" in out
    code, found = txstorm_json(*REPLAY, "--txid", "2")
    assert (code, found["equal"], found["digest"]["committed"] == found["digest"]["replayed"]) == (1, False, True)
    assert found["tables"]["sinks/log"]["different"] == 0
    cat = next(one for one in found["tables"]["changes/counts"]["differences"] if one["key"] == {"word": "cat"})
    assert (cat["committed"]["n"], cat["replayed"]["n"]) == (2, 11)
    assert tree(words / DATA) == before


def test_sink_rows_that_are_missing_added_or_reordered(txstorm, txstorm_json, words: Path):
    # Three words for two tasks: one of them appends two rows.
    target = "words:made(['cat', 'dog', '<b>'], take=3)"
    txstorm("run", target, "--engine", "local", "--available-now")
    change(words / "words.py", "for word in self.batch:", "for word in reversed(self.batch):")
    code, out, _ = txstorm("replay", DATA, "--topology", target, "--txid", "1")
    assert (code, "sinks/log: the same 3 rows in another order" in out) == (1, True), out
    change(words / "words.py", "self.rows.append(word)", "self.rows.append(word + '!')")
    code, found = txstorm_json("replay", DATA, "--topology", target, "--txid", "1")
    log = found["tables"]["sinks/log"]
    assert (code, log["committed"], log["different"], log["reordered"]) == (1, 3, 6, False)
    assert {"key": None, "committed": None, "replayed": {"word": "dog!"}} in log["differences"]
    assert {"key": None, "committed": {"word": "dog"}, "replayed": None} in log["differences"]


def test_replay_during_a_live_run(txstorm, words: Path):
    sys.path.insert(0, str(words))
    import words as module

    handle = run(module.topology, engine="local")  # this run does not end by itself
    try:
        handle.processAllAvailable()
        assert txstorm.json(*REPLAY, "--txid", "2")["equal"]
        assert handle.isActive
    finally:
        handle.stop()


def test_code_that_now_raises_is_reported_with_the_users_frame(txstorm, txstorm_json, words: Path):
    txstorm(*RUN)
    change(words / "words.py", '== "boom"', '== "cat"')
    code, out, _ = txstorm(*REPLAY, "--txid", "1")
    assert code == 1
    assert "keep[0] raised ValueError" in out or "keep[1] raised ValueError" in out
    assert "words.py" in out and "txstorm/engine" not in out
    assert txstorm_json(*REPLAY, "--txid", "1")[1]["failure"]["type"] == "ValueError"


def test_a_txid_older_than_the_retained_history_is_rejected(txstorm, words: Path):
    txstorm("run", "words", "--engine", "local", "--until-txid", "2")
    shutil.rmtree(words / DATA / "history")
    txstorm(*RUN)
    said = "txid 1 is older than the kept history, which begins with txid 3"
    assert said in txstorm.refused(*REPLAY, "--txid", "1")
    assert txstorm(*REPLAY, "--txid", "3")[0] == 0


REFUSED = [
    (("replay",), "expected DATA_DIR and --txid N"),
    (("replay", DATA), "expected DATA_DIR and --txid N"),
    ((*REPLAY, "--txid", "1", "--journal", "j"), "give --journal FILE, or DATA_DIR"),
    ((*REPLAY, "--txid", "4"), "txid 4 is not committed; the last one is 3: ask for 1 to 3"),
    ((*REPLAY, "--txid", "0"), "txid 0 is not committed"),
    ((*REPLAY, "--txid", "-1"), "txid -1 is not committed"),
    (("replay", "nowhere", "--txid", "1"), "does not exist"),
    (("replay", DATA, "--txid", "1", "--topology", "nothing_here"), "no module 'nothing_here'"),
    (("replay", DATA, "--txid", "1", "--topology", "words:made('ab', 'other')"), "the code is that of 'other'"),
    ((*REPLAY, "--txid", "1", "--break", "source"), "is the spout; name a bolt"),
    ((*REPLAY, "--txid", "1", "--break", "keeep"), "no component 'keeep' (did you mean"),
    ((*REPLAY, "--txid", "1", "--break", "keep.finish"), "Keep does not define 'finish'"),
]


def test_invalid_replay_arguments_are_rejected(txstorm):
    txstorm(*RUN)
    for arguments, said in REFUSED:
        message = txstorm.refused(*arguments).replace("│", " ")
        assert said in " ".join(message.split()), (arguments, message)


def test_committers_with_external_stores_or_changed_declarations_are_rejected(txstorm, words: Path):
    txstorm(*RUN)
    for old, new, said in (
        ("Committer):\n", "Committer):\n    external = True\n", "cannot be replayed: keep is external"),
        (
            "    external = True\n",
            "    from txstorm import MapState, MemoryBackend\n    mine = MapState('mine', MemoryBackend())\n",
            "map 'mine' of keep is in an external store",
        ),
        ('value={"n": int}', 'value={"n": str}', "column 'n' is declared as string, the table has int64"),
    ):
        change(words / "words.py", old, new)
        assert said in txstorm.refused(*REPLAY, "--txid", "2")
        if "mine" in new:
            change(words / "words.py", new, "")


def test_the_command_line_records_the_target_with_its_arguments(txstorm, words: Path):
    target = "words:made(['a', 'b'], name='words', take=1)"
    assert txstorm("run", target, "--engine", "local", "--available-now")[0] == 0
    recorded = origin_recorded(words / DATA)
    assert recorded is not None
    assert (recorded.target, recorded.directory) == (target, str(words))
    assert txstorm("replay", DATA, "--txid", "2", "--topology", target)[0] == 0
    assert txstorm("replay", DATA, "--txid", "2", "--topology", "words:made(['a', 'x'], take=1)")[0] == 1


PLANTED = "import pathlib\npathlib.Path(__file__).with_name('was-run').touch()\n"


def planted(words: Path, target: str) -> None:
    """Record `target` in the ledger as the topology's code, as an attacker might; importing it would leave a file."""
    text = PLANTED + (words / "words.py").read_text(encoding="utf-8") + "def call(text):\n    raise SystemExit(text)\n"
    (words / "planted.py").write_text(text, encoding="utf-8")
    with_ledger(words / DATA, {"version": 1, "target": target, "place": "script job.py", "directory": "/tmp/\x1b[2J"})


@pytest.mark.parametrize("target", ["planted", "planted:call('id')", "planted:made(['a'])", "os:system('id')"])
def test_a_recorded_target_is_not_imported(txstorm, txstorm_json, words: Path, target: str):
    txstorm(*RUN)
    planted(words, target)
    said = txstorm.refused("replay", DATA, "--txid", "1", "--break", "keep")
    named = target if ":" in target else f"{target}:topology"
    exact = shlex.join(["txstorm", "replay", DATA, "--txid", "1", "--break", "keep", "--topology", named])
    assert f"last run recorded that its code is {named}" in said and said.endswith(exact)
    assert "\x1b" not in said
    code, found = txstorm_json("replay", DATA, "--txid", "1")
    assert (code, found["error"]["exit_code"], "planted" in sys.modules) == (2, 2, False)
    assert not (words / "was-run").exists()


def test_control_characters_of_a_recorded_target_are_shown_escaped(txstorm, words: Path):
    txstorm(*RUN)
    for target, said in {
        "words:made('\x1b]0;x\x07\n')": r"words:made('\x1b]0;x\x07\n')",
        "words:\x1b[2J": "cannot be used",
        "words\n": "cannot be used",
    }.items():
        planted(words, target)
        code, _, err = txstorm("replay", DATA, "--txid", "1")
        assert (code, "\x1b" in err, "\x07" in err) == (2, False, False), (target, err)
        assert said in err, err


@pytest.mark.slow
def test_a_recorded_target_is_imported_after_a_yes_at_a_terminal(txstorm, words: Path):
    txstorm(*RUN)
    planted(words, "planted:topology")
    code, shown = at_a_terminal(words, "no", "replay", DATA, "--txid", "1")
    assert (code, (words / "was-run").exists()) == (2, False), shown
    assert "Import and run planted:topology? [y/N]" in shown and "--topology planted:topology" in shown
    code, shown = at_a_terminal(words, "y", "replay", DATA, "--txid", "1")
    assert (code, (words / "was-run").exists()) == (0, True), shown
    assert "the result is the one committed" in shown
    planted(words, "planted:call('id')")  # no prompt: a call recorded in a data directory is never executed
    code, shown = at_a_terminal(words, "y", "replay", DATA, "--txid", "1")
    assert (code, "[y/N]" in shown, "--topology" in shown) == (2, False, True), shown
    planted(words, "planted:made")  # a function, which is recognized only after the import
    code, shown = at_a_terminal(words, "y", "replay", DATA, "--txid", "1")
    assert (code, "--topology planted:made" in shown) == (2, True), shown


def test_run_records_the_attribute_of_the_module_that_holds_the_topology(words: Path):
    sys.path.insert(0, str(words))
    import words as module

    run(module.topology, engine="local", until_txid=1, settings={"max_group_txids": 1}).awaitTermination()
    recorded = origin_recorded(words / DATA)
    assert recorded is not None and recorded.target == "words:topology"
    assert origin_of(module.made(["a"])).target is None
    assert origin_of(module.made(["a"]), "words:made(['a'])").target == "words:made(['a'])"


def test_code_from_a_notebook_must_be_named(txstorm, words: Path):
    # A program from standard input is like a notebook: a main module without a file.
    text = "import words; from txstorm import run; mine = words.made('ab')\n"
    text += "run(mine, engine='local', until_txid=2, data_dir='data').awaitTermination()\n"
    subprocess.run([sys.executable, "-"], input=text, cwd=words, env=environment(words), check=True, text=True)
    err = txstorm.refused("replay", "data", "--txid", "1")
    assert NOTEBOOK in err and "--topology MODULE:ATTRIBUTE" in err
    assert txstorm("replay", "data", "--txid", "1", "--topology", "words:made('ab')")[0] == 0


def test_a_script_is_recorded_as_an_importable_module(txstorm, words: Path):
    script = "import words\nfrom txstorm import run\nmine = words.made('ab')\n"
    script += (
        "if __name__ == '__main__':\n    run(mine, engine='local', until_txid=2, data_dir='data').awaitTermination()\n"
    )
    (words / "deep").mkdir()
    (words / "deep" / "script.py").write_text(script, encoding="utf-8")
    printed_by("deep/script.py", cwd=words, env=environment(words))
    recorded = origin_recorded(words / "data")
    assert recorded == CodeOrigin("script:mine", f"script {words / 'deep' / 'script.py'}", str(words / "deep"))


def test_directories_without_a_record_of_their_code_or_with_one_of_a_newer_format(txstorm, words: Path):
    txstorm(*RUN)
    for origin, said in (
        (None, "does not say where the code of its topology is; name it with --topology"),
        ({"version": 2, "where": "words"}, "ledger entry origin: expected version 1"),
    ):
        with_ledger(words / DATA, origin)
        assert said in txstorm.refused("replay", DATA, "--txid", "1")


def with_ledger(data_dir: Path, origin: object) -> None:
    """Replace the ledger's record of the code's origin by `origin`; None removes it."""
    from txstorm.ledger.paths import ORIGIN
    from txstorm.ledger.port import Delete, Put
    from txstorm.ledger.values import encode_value

    ledger = open_ledger(data_dir, create=False)
    try:
        value = encode_value(None, origin, ORIGIN)
        ledger.commit([Delete(ORIGIN) if origin is None else Put(ORIGIN, value)])
    finally:
        ledger.close()


def environment(words: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{words}"}


def test_the_debugger_starts_at_the_users_frame(txstorm, words: Path):
    txstorm(*RUN)
    before = tree(words / DATA)
    change(words / "words.py", '== "boom"', '== "cat"')
    done = shell(words, *REPLAY, "--txid", "2", "--pdb", "--json", stdin="p tuple\np self.batch\nq\n")
    assert done.returncode == 1, done.stderr
    assert "words.py" in done.stdout and "-> raise ValueError" in done.stdout
    assert "word='cat'" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1].removeprefix("(Pdb) "))["failure"]["type"] == "ValueError"
    assert tree(words / DATA) == before


def test_the_debugger_skips_frames_of_txstorm(txstorm, words: Path):
    txstorm(*RUN)
    change(words / "words.py", "self.rows.append(word)", "self.rows.append(word, 'too', 'many')")
    done = shell(words, *REPLAY, "--txid", "1", "--pdb", stdin="p word\nq\n")
    assert done.returncode == 1, done.stderr
    assert "-> self.rows.append(word, 'too', 'many')" in done.stdout


def test_a_breakpoint_stops_at_the_start_of_a_method(txstorm, words: Path):
    txstorm(*RUN)
    script = "p sorted(self.batch.items())\nb\ncl 1\nc\n"
    done = shell(words, *REPLAY, "--txid", "1", "--break", "keep.finish_batch", stdin=script)
    assert "-> self.counts.update_many" in done.stdout
    assert "1)]" in done.stdout
    assert (done.returncode, "the result is the one committed" in done.stdout) == (0, True), done.stderr
    loop = "for _ in range(3): sorted(word for word in self.batch)\n        self.counts.update_many"  # one visit each
    change(words / "words.py", "self.counts.update_many", loop)
    done = shell(words, *REPLAY, "--txid", "1", "--break", "keep.finish_batch", stdin="c\n" * 20)
    assert done.stdout.count("-> for _ in range(3)") == 2, "once in each of two tasks"
    done = shell(words, *REPLAY, "--txid", "1", "--break", "keep", stdin="q\n")  # leaves without a verdict
    assert done.returncode == 1
    assert "-> if tuple" in done.stdout
    assert "left the debugger before the replay had ended" in done.stderr
    assert "internal" not in done.stderr and "txstorm itself failed" not in done.stderr


def test_a_journal_is_replayed_and_the_first_difference_shown(txstorm, txstorm_json, words: Path):
    txstorm(*RUN, "--journal", "journal.jsonl")
    assert "every command is the one recorded" in txstorm.printed("replay", "--journal", "journal.jsonl")
    found = txstorm.json("replay", "--journal", "journal.jsonl")
    assert (found["equal"], found["steps"] > 5, found["difference"]) == (True, True, None)
    lines = (words / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if '"Process"' in line)
    (words / "other.jsonl").write_text("\n".join([*lines[:at], lines[at].replace('"txid": 1', '"txid": 7')]))
    code, found = txstorm_json("replay", "--journal", "other.jsonl")
    assert (code, found["equal"]) == (1, False)
    assert found["difference"]["line"] == at + 1
    code, out, _ = txstorm("replay", "--journal", "other.jsonl")
    assert code == 1
    assert f"journal line {at + 1}" in out and "expected" in out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "got nothing"),
        (b"hello\n{}\n", "damaged"),
        (b"{}\n{}\n", "not a journal of txstorm"),
        (b"\xff\xfe\n", "UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_not_a_journal(txstorm, words: Path, content: bytes | None, said: str):
    if content is not None:
        (words / "file").write_bytes(content)
    err = txstorm.refused("replay", "--journal", "file")
    assert said in err and "file" in err
