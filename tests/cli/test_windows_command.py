"""``txstorm windows`` and ``txstorm replay --window``: what holds watermarks back, and the tuples of a window."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txstorm.cli.main import execute
from txstorm.runtime.run import run

Command = Callable[..., tuple[int, str, str]]
MODULE = """
from datetime import timedelta

from txstorm import Count, Duration, TransactionalTopologyBuilder, WindowAggregate, WindowedBolt
from txstorm.spouts import MemoryTransactionalSpout


class Sum(WindowedBolt):
    fields = ("end", "n")

    def prepare(self, context, collector):
        self.collector = collector

    def execute(self, window):
        found = [one["id"] for one in window.get()]
        self.collector.emit(window.end, len(found))


def topology(form="time", parallelism=1):
    rows = [("a", 1), ("b", 3), ("c", 11), ("late", 2), ("d", 14), ("e", 27)]
    spout = MemoryTransactionalSpout([rows], ("id", "ts"), take=3)
    builder = TransactionalTopologyBuilder("readings", "numbers", spout)
    bolt = Sum().with_timestamp_field("ts", unit="s")
    if form == "time":
        bolt.with_window(Duration.seconds(20), Duration.seconds(10))
    elif form == "count":
        bolt.with_window(Count(3), Count(4))
    elif form == "session":
        bolt.with_session_window(Duration.seconds(5))
    elif form in ("panes", "sessions"):
        bolt = WindowAggregate("id", table="counts", ttl=timedelta(days=1), n="count").with_timestamp_field("ts", unit="s")
        if form == "panes":
            bolt.with_window(Duration.seconds(20), Duration.seconds(10))
        else:
            bolt.with_session_window(Duration.seconds(5))
    elif form == "arrival":
        bolt = Sum().with_window(Count(4), Count(4))
    elif form == "key":
        bolt.with_tumbling_window(Duration.seconds(10)).with_key("id")
    builder.set_bolt("sum", bolt, parallelism).fields_grouping("numbers", ["id"])
    return builder.build_topology()


default = topology()
"""


@pytest.fixture
def readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the topology with a form of windows, and returns its data directory."""
    (tmp_path / "readings.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("readings", None)
    import readings as module

    def made(form: str = "time", parallelism: int = 1) -> Path:
        data_dir = tmp_path / f"data-{form}"
        run(module.topology(form, parallelism), engine="local", data_dir=data_dir, until_txid=2).awaitTermination(120)
        return data_dir

    return made


@pytest.fixture
def txstorm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs a command in this process; returns exit code, standard output and error."""

    def command(*arguments: Any, text: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        code = execute([str(one) for one in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


@pytest.fixture
def shown(txstorm: Command) -> Callable[..., dict[str, Any]]:
    def windows(data_dir: Path, *arguments: Any) -> dict[str, Any]:
        code, out, err = txstorm("windows", data_dir, *arguments, "--json")
        assert code == 0, err
        (found,) = json.loads(out)["components"]
        return dict(found)

    return windows


def test_watermark_inputs_and_open_windows(readings, shown):
    found = shown(readings())
    assert (found["watermark"], found["frontier"]) == ("1970-01-01T00:00:27+00:00", "1970-01-01T00:00:20+00:00")
    (one,) = found["inputs"]
    assert (one["component"], one["late"], one["holds_back"]) == ("numbers", 1, True)
    assert (found["late"], found["txid"]) == (1, 2)
    assert [(row["end"][14:19], row["tuples"]) for row in found["open"]] == [("00:30", 3), ("00:40", 1)]


def test_as_of_an_earlier_transaction(readings, shown):
    found = shown(readings(), "--txid", 1)
    assert (found["watermark"], found["buffered"], found["late"]) == ("1970-01-01T00:00:11+00:00", 3, 0)


def test_sessions_keys_and_counts(readings, shown):
    sessions = shown(readings("session"))
    assert [(row["start"][14:19], row["end"][14:19], row["tuples"]) for row in sessions["open"]] == [
        ("00:27", "00:32", 1)
    ]
    keys = shown(readings("key", 2))
    assert [(row["key"], row["tuples"]) for row in keys["open"]] == [(["e"], 1)]
    counts = shown(readings("count"))
    assert counts["windows"] == {"length": {"tuples": 3}, "slide": {"tuples": 4}}
    assert counts["frontier"] is None


def test_windows_of_an_aggregate(readings, shown):
    """Six tuples, of which the window of `a`, `b` and `late` that ends at 10 has fired before `late` came."""
    found = shown(readings("panes"))
    assert (found["watermark"], found["key"], found["late"]) == ("1970-01-01T00:00:27+00:00", ["id"], 0)
    assert (found["inputs"][0]["component"], found["inputs"][0]["holds_back"]) == ("numbers", True)
    assert [(row["key"], row["start"][14:19], row["end"][14:19], row["tuples"]) for row in found["open"]] == [
        (["c"], "00:10", "00:30", 1),
        (["d"], "00:10", "00:30", 1),
        (["e"], "00:10", "00:30", 1),
        (["e"], "00:20", "00:40", 1),
    ]
    assert found["buffered"] == 3
    assert shown(readings("panes"), "--txid", 1)["open"][0]["key"] == ["a"]


def test_sessions_of_an_aggregate(readings, shown):
    found = shown(readings("sessions"))
    assert [(row["key"], row["end"][14:19], row["tuples"]) for row in found["open"]] == [(["e"], "00:32", 1)]
    assert found["late"] == 1


def test_what_an_aggregate_cannot_show(readings, txstorm):
    data_dir = readings("panes")
    code, _, err = txstorm("windows", data_dir, "sum", "--window", "30000")
    assert (code, "sum: an aggregate keeps no tuples" in err) == (2, True)
    code, _, err = txstorm("replay", data_dir, "--window", "sum:20000", "--topology", "readings:topology('panes')")
    assert code == 0, err
    where = ["--window", "sum:20000", "--topology", "readings:topology('panes')", "--pdb"]
    code, _, err = txstorm("replay", data_dir, *where)
    assert (code, "stop at a bolt that reads its results, with --break" in " ".join(err.split())) == (2, True)


def test_counts_of_arrivals_wait_for_further_tuples(readings, txstorm, shown):
    data_dir = readings("arrival")
    assert [(row["end"], row["tuples"]) for row in shown(data_dir)["open"]] == [(None, 2)]
    code, out, _ = txstorm("windows", data_dir)
    assert (code, "no data yet" in out) == (0, False)
    rest = ["--engine", "local", "--data-dir", data_dir, "--until-txid", 2]
    code, out, err = txstorm("run", "readings:topology('arrival')", *rest)
    assert code == 0, err
    assert "--end-of-input" not in out + err


def test_before_the_first_transaction(readings, txstorm):
    code, out, _ = txstorm("windows", readings(), "--txid", 0)
    assert code == 0
    assert "not recorded before the first transaction" in out


def test_as_text(readings, txstorm):
    code, out, _ = txstorm("windows", readings(), "sum")
    assert code == 0
    assert "holds the watermark back" in out
    assert "length 20 s, slide 10 s, per task, event time" in out
    assert "1970-01-01T00:00:30+00:00" in out


def test_the_tuples_of_a_window(readings, txstorm):
    data_dir = readings()
    code, out, err = txstorm("windows", data_dir, "sum", "--window", "30000", "--json")
    assert code == 0, err
    assert [row["values"] for row in json.loads(out)["tuples"]] == [
        "{'id': 'c', 'ts': 11}",
        "{'id': 'd', 'ts': 14}",
        "{'id': 'e', 'ts': 27}",
    ]
    code, out, _ = txstorm("windows", data_dir, "sum", "--window", "1970-01-01T00:00:20+00:00", "--txid", 1)
    assert code == 0
    assert "'id': 'a'" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other"], "no windows of a component 'other'; there are sum"),
        (["sum", "--window", "noon"], "expected a time with a zone"),
        (["sum", "--window", "1970-01-01T00:00:20"], "expected a time with a zone"),
        (["sum", "--window", "15000"], "no window ends at 1970-01-01T00:00:15+00:00; the ends before and after are"),
        (["sum", "--txid", "7"], "txid 7 is not committed; the last one is 2"),
        (["sum", "--window", "9000000"], "no tuple of a window that ends at"),
        (["--window", "20000"], "--window needs the COMPONENT"),
        (["sum", "--key", "a"], "--key needs --window"),
        (["sum", "--txid", "99"], "99"),
    ],
)
def test_bad_arguments(readings, txstorm, arguments, message):
    data_dir = readings()
    code, out, err = txstorm("windows", data_dir, *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_window_is_replayed_in_the_transaction_that_fired_it(readings, txstorm):
    data_dir = readings()
    code, out, err = txstorm(
        "replay", data_dir, "--window", "sum:1970-01-01T00:00:20+00:00", "--topology", "readings:default", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert (found["txid"], found["equal"]) == (2, True)


def test_the_debugger_stops_before_the_window(readings, txstorm):
    data_dir = readings()
    code, out, err = txstorm(
        *("replay", data_dir, "--window", "sum:1970-01-01T00:00:20+00:00"),
        *("--topology", "readings:default", "--pdb"),
        text="p window.end.isoformat()\np len(window.get())\nc\n",
    )
    assert code == 0, err
    assert "'1970-01-01T00:00:20+00:00'" in out
    assert "(Pdb) 4" in out


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("sum:1970-01-01T00:00:40+00:00", "has not fired; its watermark is 1970-01-01T00:00:27+00:00"),
        ("sum:15000", "no window ends at 1970-01-01T00:00:15+00:00"),
        ("other:20000", "no windows of a component 'other'"),
        ("sum", "expected COMPONENT:END"),
    ],
)
def test_windows_that_cannot_be_replayed(readings, txstorm, window, message):
    code, _, err = txstorm("replay", readings(), "--window", window, "--topology", "readings:default")
    assert code == 2
    assert message in " ".join(err.split())


def test_a_run_says_which_windows_it_leaves_open_and_how_to_close_them(readings, txstorm):
    data_dir = readings()
    rest = ["--engine", "local", "--data-dir", data_dir]
    code, out, err = txstorm("run", "readings:default", *rest, "--until-txid", 2)
    assert code == 0, err
    assert "sum has 2 windows open, with which the next run goes on; --end-of-input closes them" in out
    code, out, err = txstorm("run", "readings:default", *rest, "--end-of-input", "--json")
    assert code == 0, err
    assert "open_windows" not in json.loads(out.splitlines()[-1])
