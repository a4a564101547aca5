"""Records and messages with terminal control characters are printed escaped by every command."""

import io
import json
import logging
import re

import pytest
from rich.console import Console

from txstorm.cli.output import error_document, log_to, print_json, report, stderr, stdout
from txstorm.errors import StateError

DATA = "txstorm-data/words"
NASTY = "\x1b]0;owned\x07 \x1b[2J \x9b31m \x7f \u202egnp.exe \u2066 a\tb\nc\r"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COMMANDS = [("state", DATA, "counts"), ("changes", DATA, "counts", "1", "1")]
COMMANDS += [(name, DATA) for name in ("snapshot", "history", "inspect", "status")]


@pytest.fixture
def done(words):
    """Add a topology to ``words.py`` with control characters in a record and in the cause of a dead letter."""
    with (words / "words.py").open("a") as file:
        file.write(f"\nnasty = made([{NASTY!r}, 'boom'], take=2).with_settings({{'on_error': 'dead_letter'}})\n")
        file.write(f"\nKeep.raising = {NASTY!r}\n")
    source = (words / "words.py").read_text()
    (words / "words.py").write_text(source.replace('"a word [red] that explodes"', "self.raising"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_control_characters_in_records_are_escaped(done, txstorm, command):
    txstorm.printed("run", "words:nasty", "--engine", "local", "--available-now")
    code, out, err = txstorm(*command)
    assert code == 0, err
    assert not OBEYED.search(out + err)
    if command[0] in ("state", "changes", "snapshot"):
        assert "\\x1b]0;owned\\x07" in out
    out = txstorm.printed(*command, "--json")
    assert not OBEYED.search(out)
    if command[0] in ("state", "changes", "snapshot"):
        assert json.dumps(NASTY) in json.dumps(json.loads(out))  # JSON escapes it differently, with the same value


def test_dead_letters(done, txstorm):
    txstorm.printed("run", "words:nasty", "--engine", "local", "--available-now")
    code, out, err = txstorm("dead-letters", DATA)
    assert (code, OBEYED.search(out + err)) == (0, None)
    assert "ValueError: \\x1b]0;owned\\x07" in out


def test_errors_and_their_tracebacks_are_escaped(done, txstorm):
    with open("words.py", "a") as file:
        file.write("\nfailing = made(['boom'], 'failing')\n")
    code, out, err = txstorm("run", "words:failing", "--engine", "local", "--available-now", "--json")
    assert code == 1
    assert "\\x1b]0;owned\\x07" in err
    assert not OBEYED.search(out + err)


@pytest.mark.parametrize("debug", [True, False])
def test_an_error_is_escaped_and_keeps_its_lines(capsys, debug):
    error = StateError(f"state {NASTY}: \udcff\nexpected another one")
    report(error, as_json=True, debug=debug)
    told = capsys.readouterr()
    assert "\n" in told.err
    assert not OBEYED.search(told.err + told.out)
    assert json.loads(told.out) == json.loads(json.dumps(error_document(error)))


@pytest.mark.parametrize("terminal", [True, False])
def test_logs(terminal):
    logger, file = logging.getLogger("txstorm"), io.StringIO()
    handlers, level = list(logger.handlers), logger.level
    console = type(stderr())(file=file, force_terminal=terminal, color_system=None, width=300)
    try:
        log_to(console, "info")
        logger.warning("a record %s", NASTY)
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    assert "\\x1b]0;owned\\x07" in file.getvalue()
    assert not OBEYED.search(file.getvalue().replace("\t", ""))


def test_whatever_is_printed_to_a_console_is_escaped(capsys):
    from rich.table import Table

    table = Table()
    table.add_column("n")
    table.add_row(NASTY)
    for console in (stdout(), stderr()):
        assert isinstance(console, Console)
        console.print(NASTY.replace("\t", ""), soft_wrap=True)
        console.print(table)
    print_json({"record": NASTY})
    told = capsys.readouterr()
    assert not OBEYED.search(told.out + told.err)
    assert json.loads(told.out.splitlines()[-1]) == {"record": NASTY}
