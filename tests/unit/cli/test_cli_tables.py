"""Printed tables, values, live screens and traces: for people in a terminal, and for programs in a pipe."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from programs import loaded
from rich.console import Console
from spout_samples import Pass

from txstorm import BasicBolt, TransactionalTopologyBuilder
from txstorm.books.savepoint import SavedTable, Savepoint
from txstorm.cli import target
from txstorm.cli.execute import LINE_SECONDS, LineScreen, LiveScreen, execute, screen_for, summarise
from txstorm.cli.output import WIDE, Interrupted, error_document, grid, report
from txstorm.cli.tracebacks import is_internal, place, without_internals
from txstorm.display import Facts, facts
from txstorm.errors import FencedError, HeldError, InputError, MissingDependency, TopologyError, TopologyFailed
from txstorm.monitor.live import Moment
from txstorm.monitor.progress import Snapshot, TransactionProgress
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout

ROOT = Path(__file__).resolve().parents[3]


def printed(table: object, *, terminal: bool, width: int = 60) -> list[str]:
    file = io.StringIO()
    Console(file=file, force_terminal=terminal, width=width if terminal else WIDE, color_system=None).print(table)
    return file.getvalue().splitlines()


def test_values_are_printed_as_short_tables_and_in_a_pipe_every_row_as_one_line_without_padding():
    rows = [["a", "1", "x" * 500], ["b[red]", "23", ""], ["日本" * 100, "4", "end"]]
    table = grid(("name", "n", "text"), rows, right=("n",))
    found = printed(table, terminal=False)
    assert found == ["name     n  text", f"a        1  {'x' * 500}", "b[red]  23", f"{'日本' * 100}   4  end"]
    assert printed(grid(None, [("a", "two\nlines")]), terminal=False) == ["a  two\\nlines"]
    assert max(map(len, printed(table, terminal=True))) <= 60
    found = Facts("status of words", {"phase": "running", "inFlight": 12345, "lastFailure": None, "tasks": {"a": 2}})
    shown = repr(found).splitlines()
    assert shown == ["status of words", "  phase     running", "  inFlight  12,345", "  tasks     a 2"]
    assert found == {"phase": "running", "inFlight": 12345, "lastFailure": None, "tasks": {"a": 2}}
    assert facts("nothing", {}) == "nothing"
    one = TransactionProgress(
        7, 9, 1_700_000_000_000_000, "lines", {"lines": 1500, "split": 2}, 3, 1, 12.34, {"finish": 1.2}
    )
    assert str(one).splitlines() == [
        "txid 7 (attempt 9)",
        "  time         2023-11-14 22:13:20.000000 UTC",
        "  input        1,500 rows",
        "  tuples       lines 1,500, split 2",
        "  took         process 12.3, finish 1.2 ms",
        "  pack, group  3 txids, 1 txid",
    ]
    assert repr(Snapshot(committed=7, txids=2, rows=1, tuples=30, replays=1, last_failure="x\ntrace")).splitlines() == [
        "progress",
        "  committed txid  7",
        "  in flight       0 txids",
        "  this run        2 txids, 1 input row, 30 tuples, 1 replay",
        "  last failure    x",
    ]
    saved = Savepoint("noon", "words", "id", 0, 5, {}, 0, 1_000_000, {"state/a": SavedTable(3, 5)}, ("maps/m",))
    assert repr(saved).splitlines() == [
        "savepoint noon",
        "  topology      words",
        "  after         txid 5",
        "  time of txid  1970-01-01 00:00:00.000000 UTC",
        "  made          1970-01-01 00:00:01.000000 UTC",
        "  tables        state/a at version 3",
        "  not in it     maps/m",
    ]


def test_the_first_steps_of_the_help_work_in_an_empty_directory(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "txstorm").symlink_to(ROOT / "txstorm")
    here = tmp_path / "here"
    here.mkdir()
    environment = {
        "PYTHONPATH": str(tmp_path / "site"),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "COLUMNS": "99",
    }

    def shell(command: str) -> str:
        fork = f"{sys.executable} -I -S {ROOT}/tests/helpers/called.py {loaded().socket} -P -m txstorm "
        command = command.replace("txstorm ", fork, 1)
        return subprocess.check_output(["/bin/sh", "-c", command], cwd=here, env=environment, text=True, timeout=300)

    lines = [line.strip() for line in shell("txstorm --help").splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("First steps"))
    steps = [line for line in lines[first:] if line.startswith("txstorm ")][:3]
    assert [step.split()[1] for step in steps] == ["example", "run", "state"]
    shown = [shell(step) for step in steps]
    assert "16 input rows" not in shown[1]
    assert "3 txids with 3 input rows" in shown[1]
    assert "the     4" in shown[2] or "the    4" in shown[2]


class Forgets(BasicBolt):
    fields = ("n",)

    def execute(self, tuple, collector):
        return tuple["n"]


def test_a_bolt_that_forgets_to_emit_is_named(tmp_path):
    builder = TransactionalTopologyBuilder("quiet", "numbers", MemoryTransactionalSpout([[1, 2]], "n"))
    builder.set_bolt("passes", Pass()).shuffle_grouping("numbers")
    builder.set_bolt("forgets", Forgets()).shuffle_grouping("passes")
    builder.set_bolt("behind", Pass()).shuffle_grouping("forgets")  # has no input: not the cause
    builder.set_bolt("alone", Forgets()).shuffle_grouping("numbers")  # has no subscribers
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("behind").global_grouping("passes")
    file, options = io.StringIO(), {"engine": "local", "data_dir": tmp_path / "data", "available_now": True}
    ending = execute(builder.build_topology(), Console(file=io.StringIO()), **options)
    assert ending.error is None
    assert ending.document["silent"] == ["forgets"]
    assert ending.document["input_rows"] == 2
    summarise(ending, Console(file=file, width=WIDE))
    assert "1 txid with 2 input rows in " in file.getvalue()
    assert "note: forgets emitted nothing, although other components subscribe to it" in file.getvalue()


CODES = {
    2: [TopologyError("t", ["a"]), MissingDependency("pyspark", "spark")],
    3: [HeldError("held"), FencedError("fenced")],
    1: [TopologyFailed("failed"), ValueError("ours"), OSError(28, "disk full")],
    130: [Interrupted(), KeyboardInterrupt()],
}


@pytest.mark.parametrize(("code", "error"), [(code, error) for code, errors in CODES.items() for error in errors])
def test_exit_codes(code, error, capsys):
    assert report(error, as_json=True, debug=False) == code
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    found = json.loads(line)["error"]
    assert found["exit_code"] == code
    assert str(error) in captured.err
    assert (found["type"] == "Interrupted") == (code == 130)


def test_faults_and_run_facts_are_in_the_error_object_and_messages_printed_verbatim(capsys):
    document = error_document(TopologyError("t", ["a", "b"]), {"txids": 3})
    assert document["error"]["faults"] == ["a", "b"]
    assert document["error"]["run"] == {"txids": 3}
    assert list(document) == ["error"]
    report(TopologyFailed("[red]not markup[/red] é\nsecond line " + "x" * 300), as_json=True, debug=False)
    captured = capsys.readouterr()
    assert captured.err == "error: [red]not markup[/red] é\nsecond line " + "x" * 300 + "\n"
    assert "é" in captured.out


def moment(seconds: float, committed: int) -> Moment:
    return Moment("words", "local", "running", Snapshot(committed=committed, txids=committed, seconds=seconds))


def test_lines_are_rate_limited_and_a_terminal_shows_messages_above_a_table():
    file = io.StringIO()
    screen = screen_for(Console(file=file, width=200))
    assert isinstance(screen, LineScreen)
    screen.begin(moment(0, 0))
    for tenth in range(1, 200):
        screen.show(moment(tenth / 10, 7 if tenth < 120 else 9))
    screen.end()
    lines = file.getvalue().splitlines()
    assert lines[0] == "words: running on local"
    assert [line.split(",")[0] for line in lines[1:]] == ["words: committed txid 7", "words: committed txid 9"]
    assert LINE_SECONDS >= 1
    file = io.StringIO()
    screen = screen_for(Console(file=file, force_terminal=True, width=120, _environ={"TERM": "xterm"}))
    assert isinstance(screen, LiveScreen)
    screen.begin(moment(0, 0))
    screen.show(moment(1, 5))
    screen.say("stopping")
    screen.end()
    assert "committed txid 5" in file.getvalue()
    assert "stopping" in file.getvalue()
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(screen_for(dumb), LineScreen)


HEAD = "Traceback (most recent call last):"
INTERNAL = [
    f'  File "{target.__file__}", line 3, in run_component',
    "    run.bolt.execute(tuple)",
    "    ^^^^^^^^^^^^^^^^^^^^^^^",
]
MINE = ['  File "/home/me/job.py", line 7, in execute', '    raise ValueError("x")', "    ^^^^^"]
MESSAGE = ["ValueError: two lines", "  File of mine"]


def test_only_frames_of_the_users_files_are_kept_and_their_innermost_is_the_place():
    text = "\n".join([HEAD, *INTERNAL, *MINE, *INTERNAL, *MESSAGE])
    assert without_internals(text).splitlines() == [HEAD, *MINE, *MESSAGE]
    assert is_internal(target.__file__)
    assert is_internal("<frozen importlib._bootstrap>")
    assert not is_internal(__file__)
    with pytest.raises(InputError) as caught:
        target.load("no module:")
    assert place(caught.value).endswith(
        "in test_only_frames_of_the_users_files_are_kept_and_their_innermost_is_the_place"
    )
