"""``txstorm windows`` and ``txstorm replay --window``: what holds watermarks back, and the tuples of a window."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import readings
from commands import Commands

from txstorm.runtime.run import run

MakeDirectory = Callable[..., Path]
Shown = Callable[..., dict[str, Any]]
FIRED = "sum:1970-01-01T00:00:20+00:00"


@pytest.fixture
def made(in_tmp: Path) -> MakeDirectory:
    """Return a function that runs the topology with a form of windows, and returns its data directory."""

    def make(form: str = "time", parallelism: int = 1) -> Path:
        data_dir = in_tmp / f"data-{form}"
        built = readings.topology(form, parallelism)
        run(built, engine="local", data_dir=data_dir, until_txid=2).awaitTermination(120)
        return data_dir

    return make


@pytest.fixture
def shown(command: Commands) -> Shown:
    """Return a function that returns what the command shows of the only component."""

    def windows(data_dir: Path, *arguments: Any) -> dict[str, Any]:
        (found,) = command.json("windows", data_dir, *arguments)["components"]
        return dict(found)

    return windows


def test_watermark_inputs_and_open_windows(made: MakeDirectory, shown: Shown):
    data_dir = made()
    found = shown(data_dir)
    assert (found["watermark"], found["frontier"]) == ("1970-01-01T00:00:27+00:00", "1970-01-01T00:00:20+00:00")
    (one,) = found["inputs"]
    assert (one["component"], one["late"], one["holds_back"]) == ("numbers", 1, True)
    assert (found["late"], found["txid"]) == (1, 2)
    earlier = shown(data_dir, "--txid", 1)
    assert (earlier["watermark"], earlier["buffered"], earlier["late"]) == ("1970-01-01T00:00:11+00:00", 3, 0)


def test_as_text(made: MakeDirectory, command: Commands):
    data_dir = made()
    shown = command.printed("windows", data_dir, "sum")
    texts = ("holds the watermark back", "length 20 s, slide 10 s, per task, event time", "1970-01-01T00:00:30+00:00")
    assert [text for text in texts if text not in shown] == []
    assert "not recorded before the first transaction" in command.printed("windows", data_dir, "--txid", 0)


@pytest.mark.parametrize(
    ("form", "tasks", "columns", "rows"),
    [
        ("time", 1, ("end", "tuples"), [("00:30", 3), ("00:40", 1)]),
        ("left", 1, ("start", "end", "tuples"), [("00:27", "00:36", 1)]),
        ("session", 1, ("start", "end", "tuples"), [("00:27", "00:32", 1)]),
        ("sessions", 1, ("key", "end", "tuples"), [(["e"], "00:32", 1)]),
        ("key", 2, ("key", "tuples"), [(["e"], 1)]),
        ("arrival", 1, ("end", "tuples"), [(None, 2)]),
        (
            # Six tuples, of which the window of `a`, `b` and `late` that ends at 10 has fired before `late` came.
            *("panes", 1, ("key", "start", "end", "tuples")),
            [
                (["c"], "00:10", "00:30", 1),
                (["d"], "00:10", "00:30", 1),
                (["e"], "00:10", "00:30", 1),
                (["e"], "00:20", "00:40", 1),
            ],
        ),
    ],
    ids=["time", "left", "sessions of a task", "sessions of an aggregate", "key", "arrival", "panes"],
)
def test_open_windows(made: MakeDirectory, shown: Shown, form: str, tasks: int, columns: list[str], rows: list[Any]):
    found = shown(made(form, tasks))
    times = [{**row, **{at: row[at] and row[at][14:19] for at in ("start", "end")}} for row in found["open"]]
    assert [tuple(row[name] for name in columns) for row in times] == rows
    assert form != "sessions" or found["late"] == 1
    assert found["windows"].get("closed") == ("left" if form == "left" else None)


def test_windows_of_counts(made: MakeDirectory, shown: Shown):
    counts = shown(made("count"))
    assert counts["windows"] == {"length": {"tuples": 3}, "slide": {"tuples": 4}}
    assert counts["frontier"] is None


def test_an_aggregate_and_what_it_cannot_show(made: MakeDirectory, shown: Shown, command: Commands):
    data_dir = made("panes")
    found = shown(data_dir)
    assert (found["watermark"], found["key"], found["late"]) == ("1970-01-01T00:00:27+00:00", ["id"], 0)
    assert (found["inputs"][0]["component"], found["inputs"][0]["holds_back"]) == ("numbers", True)
    assert found["buffered"] == 3
    assert shown(data_dir, "--txid", 1)["open"][0]["key"] == ["a"]
    assert "sum: an aggregate keeps no tuples" in command.refused("windows", data_dir, "sum", "--window", "30000")
    replay = ["replay", data_dir, "--window", "sum:20000", "--topology", "readings:topology('panes')"]
    command.printed(*replay)
    assert "stop at a bolt that reads its results, with --break" in command.refused(*replay, "--pdb")


def test_counts_of_arrivals_wait_for_further_tuples(made: MakeDirectory, command: Commands):
    data_dir = made("arrival")
    assert "no data yet" not in command.printed("windows", data_dir)
    rest = ["--engine", "local", "--data-dir", data_dir, "--until-txid", 2]
    ended = command("run", "readings:topology('arrival')", *rest)
    assert ended.code == 0, ended.err
    assert "--end-of-input" not in ended.out + ended.err


def test_the_tuples_of_a_window(made: MakeDirectory, command: Commands):
    left = made("left")
    assert "slide 9 s, closed left, per task" in command.printed("windows", left, "sum")
    (found,) = command.json("windows", left, "sum", "--window", "36000")["tuples"]
    assert (found["values"], found["time"]) == ("{'id': 'e', 'ts': 27}", "1970-01-01T00:00:27.000000Z")
    data_dir = made()
    values = [row["values"] for row in command.json("windows", data_dir, "sum", "--window", "30000")["tuples"]]
    assert values == ["{'id': 'c', 'ts': 11}", "{'id': 'd', 'ts': 14}", "{'id': 'e', 'ts': 27}"]
    window = ["--window", "1970-01-01T00:00:20+00:00", "--txid", 1]
    assert "'id': 'a'" in command.printed("windows", data_dir, "sum", *window)


REPLAY = ["--topology", "readings:default", "--window"]
NO_END = "no window ends at 1970-01-01T00:00:15+00:00"
REFUSED = [
    ("windows", ["other"], "no windows of a component 'other'; there are sum"),
    ("windows", ["sum", "--window", "noon"], "expected a time with a zone"),
    ("windows", ["sum", "--window", "1970-01-01T00:00:20"], "expected a time with a zone"),
    ("windows", ["sum", "--window", "15000"], f"{NO_END}; the ends before and after are"),
    ("windows", ["sum", "--txid", "7"], "txid 7 is not committed; the last one is 2"),
    ("windows", ["sum", "--window", "9000000"], "no tuple of a window that ends at"),
    ("windows", ["--window", "20000"], "--window needs the COMPONENT"),
    ("windows", ["sum", "--key", "a"], "--key needs --window"),
    ("replay", [*REPLAY, "sum:1970-01-01T00:00:40+00:00"], "has not fired; its watermark is 1970-01-01T00:00:27+00:00"),
    ("replay", [*REPLAY, "sum:15000"], NO_END),
    ("replay", [*REPLAY, "other:20000"], "no windows of a component 'other'"),
    ("replay", [*REPLAY, "sum"], "expected COMPONENT:END"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_bad_arguments(made: MakeDirectory, command: Commands, name: str, arguments: list[str], message: str):
    ended = command(name, made(), *arguments)
    assert (ended.code, message in ended.message) == (2, True), ended
    assert name == "replay" or ended.out == ""


def test_a_window_is_replayed_in_the_transaction_that_fired_it(made: MakeDirectory, command: Commands):
    """The replay compares its results; the debugger stops before the window."""
    replay = ["replay", made(), "--window", FIRED, "--topology", "readings:default"]
    found = command.json(*replay)
    assert (found["txid"], found["equal"]) == (2, True)
    out = command.printed(*replay, "--pdb", text="p window.end.isoformat()\np len(window.get())\nc\n")
    assert "'1970-01-01T00:00:20+00:00'" in out
    assert "(Pdb) 4" in out


def test_a_run_says_which_windows_it_leaves_open_and_how_to_close_them(made: MakeDirectory, command: Commands):
    rest = ["readings:default", "--engine", "local", "--data-dir", made()]
    out = command.printed("run", *rest, "--until-txid", 2)
    assert "sum has 2 windows open, with which the next run goes on; --end-of-input closes them" in out
    assert "open_windows" not in command.json("run", *rest, "--end-of-input")
